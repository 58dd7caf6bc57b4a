//! The filters through which chunks go: gzip, the shuffling of bytes, and checksums.

use std::io::Read;

use flate2::read::ZlibDecoder;

use super::Result;
use super::cursor::Cursor;

const DEFLATE: u16 = 1;
const SHUFFLE: u16 = 2;
const CHECKSUM: u16 = 3;

/// The filters of a data set, in the order in which they were applied.
#[derive(Debug, Default)]
pub(super) struct Filters(Vec<u16>);

impl Filters {
    pub(super) fn read(body: &[u8]) -> Result<Self> {
        let mut body = Cursor::new(body);
        let (version, count) = (body.u8()?, body.u8()?);
        body.skip(if version == 1 { 6 } else { 0 })?;
        let mut filters = Vec::new();
        for _ in 0..count {
            let filter = body.u16()?;
            let named = version == 1 || filter >= 256;
            let length = if named { body.size(2)? } else { 0 };
            body.skip(2)?;
            let values = body.size(2)?;
            let padded = version == 1;
            body.skip(if padded {
                length.next_multiple_of(8)
            } else {
                length
            })?;
            body.skip(4 * values + if padded && values % 2 == 1 { 4 } else { 0 })?;
            if !matches!(filter, DEFLATE | SHUFFLE | CHECKSUM) {
                return Err(format!(
                    "it is compressed by the filter {filter} of HDF5; gzip is read here"
                ));
            }
            filters.push(filter);
        }
        Ok(Self(filters))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A chunk as it was before the filters, `length` bytes of values of `size` bytes each. A bit
    /// of `left_out` says that a filter was not applied.
    pub(super) fn undone(
        &self,
        stored: &[u8],
        left_out: u32,
        length: usize,
        size: usize,
    ) -> Result<Vec<u8>> {
        let mut bytes = stored.to_vec();
        for (number, filter) in self.0.iter().enumerate().rev() {
            if number < 32 && left_out >> number & 1 != 0 {
                continue;
            }
            bytes = match *filter {
                DEFLATE => inflated(&bytes, length)?,
                SHUFFLE => unshuffled(&bytes, size),
                _ => {
                    let values = bytes.len().checked_sub(4);
                    bytes.truncate(values.ok_or("a chunk has no checksum")?);
                    bytes
                }
            };
        }
        if bytes.len() != length {
            let found = bytes.len();
            return Err(format!("a chunk has {found} bytes in place of {length}"));
        }
        Ok(bytes)
    }
}

/// Not more than a chunk and its checksum.
fn inflated(bytes: &[u8], length: usize) -> Result<Vec<u8>> {
    let mut inflated = Vec::new();
    let mut decoder = ZlibDecoder::new(bytes).take(length as u64 + 4);
    let read = decoder.read_to_end(&mut inflated);
    read.map_err(|error| format!("a chunk is damaged ({error})"))?;
    Ok(inflated)
}

/// All first bytes of the values stand together, then all second ones, and so on.
fn unshuffled(bytes: &[u8], size: usize) -> Vec<u8> {
    let values = bytes.len() / size.max(1);
    let mut out = bytes.to_vec();
    for (place, planes) in bytes.chunks_exact(values.max(1)).take(size).enumerate() {
        for (value, byte) in planes.iter().enumerate() {
            if let Some(slot) = out.get_mut(value * size + place) {
                *slot = *byte;
            }
        }
    }
    out
}
