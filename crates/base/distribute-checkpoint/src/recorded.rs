//! Reads files of a checkpoint. Every error names the file.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::MARKER_FILE;
use super::error::{CheckpointError, READ, Result};
use super::filesystem::{FileSystem, ReadableFile};
use super::marker::{FileRecord, Hashing, Marker};

/// A file that is being read: of a checkpoint, with its record in the marker, or another one.
pub(super) struct Recorded<'a> {
    pub(super) path: PathBuf,
    pub(super) content: Hashing<Box<dyn Read>>,
    bytes: u64,
    sha256: Option<&'a str>,
}

impl<'a> Recorded<'a> {
    /// A file of the recorded size.
    pub(super) fn new(path: PathBuf, reader: Box<dyn Read>, record: &'a FileRecord) -> Self {
        Self {
            path,
            content: Hashing::new(reader),
            bytes: record.bytes,
            sha256: Some(&record.sha256),
        }
    }

    /// A file of which only the size is known.
    pub(super) fn unrecorded(path: PathBuf, file: ReadableFile) -> Self {
        Self {
            path,
            content: Hashing::new(file.reader),
            bytes: file.bytes,
            sha256: None,
        }
    }

    /// The size of the file, which is the recorded one.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn corrupt(&self, what: impl Into<String>) -> CheckpointError {
        CheckpointError::corrupt(&self.path, what)
    }

    pub(super) fn failed(&self, source: io::Error) -> CheckpointError {
        CheckpointError::io(&self.path, READ)(source)
    }

    pub(super) fn read_exact(&mut self, buffer: &mut [u8]) -> Result<()> {
        let read = self.content.read_exact(buffer);
        read.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.corrupt("it is truncated"),
            _ => self.failed(error),
        })
    }

    /// Checks that the bytes read are the saved ones.
    pub(super) fn finish(self) -> Result<()> {
        let Some(saved) = self.sha256 else {
            return Ok(());
        };
        if self.content.record().sha256 != saved {
            let what = "its SHA-256 does not match";
            return Err(CheckpointError::corrupt(&self.path, what));
        }
        Ok(())
    }
}

/// Opens a file that must be there with the recorded size.
pub(super) fn open_recorded<'a>(
    fs: &dyn FileSystem,
    checkpoint: &Path,
    marker: &'a Marker,
    name: &str,
) -> Result<Recorded<'a>> {
    let path = checkpoint.join(name);
    let corrupt = |what: String| CheckpointError::corrupt(&path, what);
    let record = marker
        .files
        .get(name)
        .ok_or_else(|| corrupt(format!("{MARKER_FILE} omits it")))?;
    let file = open(fs, &path)?.ok_or_else(|| corrupt("the file does not exist".to_string()))?;
    let (saved, found) = (record.bytes, file.bytes);
    if found != saved {
        let what = format!("{saved} bytes were saved, {found} are there");
        return Err(corrupt(what));
    }
    Ok(Recorded::new(path, file.reader, record))
}

/// Opens a regular file; `None` if it does not exist.
pub(super) fn open(fs: &dyn FileSystem, path: &Path) -> Result<Option<ReadableFile>> {
    let opened = fs.open_file(path).map(Some);
    opened.or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(None),
        io::ErrorKind::InvalidInput => Err(CheckpointError::corrupt(path, error.to_string())),
        _ => Err(CheckpointError::io(path, READ)(error)),
    })
}

pub(super) fn read_at_most(path: &Path, reader: &mut dyn Read, max_bytes: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = reader.take(max_bytes + 1).read_to_end(&mut bytes);
    read.map_err(CheckpointError::io(path, READ))?;
    if bytes.len() as u64 > max_bytes {
        let what = format!("it is larger than {max_bytes} bytes");
        return Err(CheckpointError::corrupt(path, what));
    }
    Ok(bytes)
}
