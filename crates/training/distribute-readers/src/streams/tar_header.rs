//! The members of a tar archive, one after the other.

use std::io::{self, Read};

use tar::{Header, PaxExtensions};

/// Headers and the ends of members are on multiples of this.
const BLOCK: u64 = 512;

/// The longest name, and the longest block of attributes.
const MAX_NAME_BYTES: u64 = 1 << 16;

/// A file in an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) data: Vec<u8>,
    /// Why it was passed over, if it is too large.
    pub(crate) fault: Option<String>,
    /// Where its headers begin.
    pub(crate) start: u64,
    /// Where the next member begins.
    pub(crate) end: u64,
}

/// Why there is no next member.
#[derive(Debug)]
pub(crate) enum TarFault {
    Read(io::Error),
    /// What is wrong, and where.
    Bad(String),
}

impl From<io::Error> for TarFault {
    fn from(error: io::Error) -> Self {
        Self::Read(error)
    }
}

/// Reads the next member that is a file; none at the end of the archive. `offset` is where the
/// input is; `limit` the most bytes of a member.
pub(crate) fn next_member(
    input: &mut impl Read,
    offset: u64,
    limit: u64,
) -> Result<Option<Member>, TarFault> {
    let (mut start, mut at) = (offset, offset);
    let (mut long_name, mut long_size) = (None, None);
    loop {
        let block = take(input, BLOCK)?;
        if block.is_empty() || block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let header = header(&block, at)?;
        let size = match long_size.take() {
            Some(size) => size,
            None => bad_field(header.entry_size(), "size", at)?,
        };
        at += BLOCK;
        let kind = header.entry_type();
        let is_name = kind.is_gnu_longname() || kind.is_pax_local_extensions();
        let is_file = kind.is_file() || kind.is_contiguous();
        let too_large = |most| {
            let said = format!("the member at byte {start} has {size} bytes; the limit is {most}");
            (size > most).then_some(said)
        };
        if let Some(said) = too_large(MAX_NAME_BYTES).filter(|_| is_name) {
            return Err(TarFault::Bad(said));
        }
        let fault = too_large(limit).filter(|_| is_file);
        let padded = size.saturating_add(BLOCK - 1) / BLOCK * BLOCK;
        let end = at.saturating_add(padded);
        if !is_name && !is_file || fault.is_some() {
            let passed = io::copy(&mut input.by_ref().take(padded), &mut io::sink())?;
            whole(passed, padded, start)?;
        }
        if !is_name && !is_file {
            // A folder, a link: passed, with the names that were for it.
            (start, at, long_name) = (end, end, None);
            continue;
        }
        let mut data = Vec::new();
        if fault.is_none() {
            data = take(input, padded)?;
            whole(data.len() as u64, padded, start)?;
        }
        data.truncate(usize::try_from(size).unwrap_or(usize::MAX));
        if kind.is_pax_local_extensions() {
            (long_name, long_size) = attributes(&data, long_name);
        } else if is_name {
            data.pop_if(|byte| *byte == 0);
            long_name = Some(text(&data));
        } else {
            let name = long_name.unwrap_or_else(|| text(&header.path_bytes()));
            return Ok(Some(Member {
                name,
                data,
                fault,
                start,
                end,
            }));
        }
        at = end;
    }
}

/// At most this number of bytes: memory grows with what is there.
fn take(input: &mut impl Read, bytes: u64) -> Result<Vec<u8>, TarFault> {
    let mut data = Vec::new();
    input.by_ref().take(bytes).read_to_end(&mut data)?;
    Ok(data)
}

fn whole(found: u64, expected: u64, start: u64) -> Result<(), TarFault> {
    if found == expected {
        return Ok(());
    }
    Err(TarFault::Bad(format!(
        "the file ends in the member at byte {start}: {found} of {expected} bytes are there; it \
         was not written or copied to its end"
    )))
}

/// A block as a header whose checksum is right.
fn header(block: &[u8], at: u64) -> Result<&Header, TarFault> {
    whole(block.len() as u64, BLOCK, at)?;
    let header = Header::from_byte_slice(block);
    let sum = |part: &[u8]| part.iter().map(|byte| u32::from(*byte)).sum::<u32>();
    // The checksum itself counts as eight spaces.
    let found = sum(&block[..148]) + 8 * u32::from(b' ') + sum(&block[156..]);
    match header.cksum() {
        Ok(wanted) if wanted == found => Ok(header),
        _ => Err(TarFault::Bad(format!(
            "the checksum of the header at byte {at} is wrong: the file is damaged, or no tar \
             archive"
        ))),
    }
}

fn bad_field<T>(field: io::Result<T>, name: &str, at: u64) -> Result<T, TarFault> {
    field.map_err(|error| TarFault::Bad(format!("the {name} in the header at byte {at}: {error}")))
}

/// The name and the size of the next member, where its attributes have them.
fn attributes(data: &[u8], name: Option<String>) -> (Option<String>, Option<u64>) {
    let (mut name, mut size) = (name, None);
    for attribute in PaxExtensions::new(data).flatten() {
        match attribute.key() {
            Ok("path") => name = Some(text(attribute.value_bytes())),
            Ok("size") => size = attribute.value().ok().and_then(|value| value.parse().ok()),
            _ => {}
        }
    }
    (name, size)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
