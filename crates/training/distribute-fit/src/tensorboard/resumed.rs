//! Removes the points that a resumed run will write again.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

use prost::Message;

use super::event::{Event, What};
use super::record::masked_crc32c;
use super::{FILE_PREFIX, failed};
use crate::{FitError, WholeFile};

/// A record that is longer is not one that was written here.
const MAX_RECORD_BYTES: u64 = 1 << 28;

/// Removes the points for which `is_obsolete` says so, by tag and step, from all event files in
/// `directory`, and the end of a file that a crash or a full disk has cut off. A file of which no
/// point is left goes; others are replaced as a whole or stay as they are. No writer may be adding
/// to them.
///
/// # Errors
///
/// [`FitError::File`]. A directory that does not exist has no points.
pub fn remove_points(
    directory: impl AsRef<Path>,
    mut is_obsolete: impl FnMut(&str, u64) -> bool,
) -> Result<(), FitError> {
    let directory = directory.as_ref();
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed(directory, "read"))?,
    };
    for entry in entries {
        let entry = entry.map_err(failed(directory, "read"))?;
        let is_event_file = entry.file_name().to_string_lossy().starts_with(FILE_PREFIX);
        let path = entry.path();
        if is_event_file && path.is_file() {
            rewrite(&path, &mut is_obsolete).map_err(failed(&path, "rewrite"))?;
        }
    }
    Ok(())
}

/// The result of reading a file once.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Records that stay, and have points.
    pub(crate) points: u64,
    /// Whether records have to be removed.
    pub(crate) changes: bool,
}

fn rewrite(path: &Path, is_obsolete: &mut dyn FnMut(&str, u64) -> bool) -> io::Result<()> {
    let read = || Ok::<_, io::Error>(BufReader::new(File::open(path)?));
    let found = copy(&mut read()?, &mut io::sink(), is_obsolete)?;
    if !found.changes {
        return Ok(());
    }
    if found.points == 0 {
        return fs::remove_file(path);
    }
    let mut file = WholeFile::create(path)?;
    copy(&mut read()?, &mut file, is_obsolete)?;
    file.finish()
}

/// Writes the records of a file that stay.
pub(crate) fn copy(
    mut file: &mut dyn Read,
    to: &mut dyn Write,
    is_obsolete: &mut dyn FnMut(&str, u64) -> bool,
) -> io::Result<Found> {
    let mut found = Found::default();
    loop {
        match record(&mut file)? {
            Record::End => return Ok(found),
            // Nothing behind it can be told apart.
            Record::Damaged => {
                found.changes = true;
                return Ok(found);
            }
            Record::Whole(bytes) => {
                let event = Event::decode(&bytes[12..bytes.len() - 4]).ok();
                let points = event.and_then(|event| match event.what {
                    Some(What::Summary(summary)) => Some((event.step, summary.value)),
                    _ => None,
                });
                if let Some((step, values)) = points {
                    let step = u64::try_from(step).unwrap_or(0);
                    let mut tags = values.iter().map(|value| value.tag.as_str());
                    if !values.is_empty() && tags.all(|tag| is_obsolete(tag, step)) {
                        found.changes = true;
                        continue;
                    }
                    found.points += 1;
                }
                to.write_all(&bytes)?;
            }
        }
    }
}

enum Record {
    /// With its frame.
    Whole(Vec<u8>),
    Damaged,
    End,
}

fn record(from: &mut impl Read) -> io::Result<Record> {
    let mut bytes = Vec::new();
    from.by_ref().take(12).read_to_end(&mut bytes)?;
    if bytes.is_empty() {
        return Ok(Record::End);
    }
    let Some((length, crc)) = bytes.split_first_chunk::<8>() else {
        return Ok(Record::Damaged);
    };
    let rest = u64::from_le_bytes(*length);
    if crc != masked_crc32c(length).to_le_bytes() || rest > MAX_RECORD_BYTES {
        return Ok(Record::Damaged);
    }
    let whole = 12 + rest + 4;
    from.take(rest + 4).read_to_end(&mut bytes)?;
    let is_whole = bytes.len() as u64 == whole;
    let data_crc = |bytes: &[u8]| {
        let (data, crc) = bytes[12..].split_at(bytes.len() - 16);
        crc == masked_crc32c(data).to_le_bytes()
    };
    Ok(if is_whole && data_crc(&bytes) {
        Record::Whole(bytes)
    } else {
        Record::Damaged
    })
}
