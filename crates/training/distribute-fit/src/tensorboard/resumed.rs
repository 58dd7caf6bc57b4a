//! Removes the points that a resumed run will write again.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

use distribute_records::{Compression, RecordError, RecordReader, encode};
use prost::Message;

use super::event::{Event, What};
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
    file: &mut dyn Read,
    to: &mut dyn Write,
    is_obsolete: &mut dyn FnMut(&str, u64) -> bool,
) -> io::Result<Found> {
    let mut found = Found::default();
    let plain = Some(Compression::Plain);
    let records = RecordReader::new(file, "", plain).map_err(unreadable)?;
    let mut records = records.max_record_bytes(MAX_RECORD_BYTES);
    let mut data = Vec::new();
    loop {
        match records.read(&mut data) {
            Ok(true) => {}
            Ok(false) => return Ok(found),
            Err(RecordError::File { source, .. }) => return Err(source),
            // Nothing behind it can be told apart.
            Err(_) => {
                found.changes = true;
                return Ok(found);
            }
        }
        let event = Event::decode(data.as_slice()).ok();
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
        to.write_all(&encode(&data))?;
    }
}

fn unreadable(error: RecordError) -> io::Error {
    match error {
        RecordError::File { source, .. } => source,
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    }
}
