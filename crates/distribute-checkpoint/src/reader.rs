//! Finding, verifying and loading checkpoints. Nothing here writes to the disk.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::error::{CheckpointError, READ};
use super::filesystem::{FileSystem, OsFileSystem, ReadableFile};
use super::marker::{FileRecord, Hashing, MAX_MARKER_BYTES, Marker};
use super::tensor_file::read_tensors;
use super::{Checkpoint, FORMAT_VERSION, MARKER_FILE, METADATA_FILE, Metadata, TENSORS_FILE};

/// Upper bound of `metadata.json`, when saving and when loading.
pub(super) const MAX_METADATA_BYTES: u64 = 16 * 1024 * 1024;

/// How often a directory that changes under the reader is listed again.
const MAX_LISTINGS: usize = 10;

/// A directory with the name of a checkpoint. It may be damaged, see [`verify`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The checkpoint's directory.
    pub path: PathBuf,
    /// The step that it was saved at.
    pub step: u64,
    /// How often this step was saved before.
    pub(super) revision: u64,
}

impl Entry {
    pub(super) fn new(directory: &Path, step: u64, revision: u64) -> Self {
        Self {
            path: directory.join(file_name(step, revision)),
            step,
            revision,
        }
    }

    fn parse(directory: &Path, name: &str) -> Option<Self> {
        let digits = name.strip_prefix("step-")?;
        let (step, revision) = digits.split_once("-r").unwrap_or((digits, "0"));
        let entry = Self::new(directory, step.parse().ok()?, revision.parse().ok()?);
        // Only what we would write ourselves: no `step-1`, no `step-+0000001`.
        (entry.path.file_name()?.to_str()? == name).then_some(entry)
    }
}

fn file_name(step: u64, revision: u64) -> String {
    match revision {
        0 => format!("step-{step:08}"),
        _ => format!("step-{step:08}-r{revision}"),
    }
}

/// A checkpoint that was passed over, and why.
#[derive(Debug)]
pub struct Skipped {
    /// The checkpoint's directory.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: CheckpointError,
}

impl fmt::Display for Skipped {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "skipped: {}", self.reason)
    }
}

/// The newest usable checkpoint, and the newer ones that were not usable.
#[derive(Debug)]
pub struct Newest<T> {
    /// The newest usable checkpoint; nothing if there is none.
    pub found: Option<T>,
    /// Newer but damaged checkpoints, the newest first. Tell the user about them.
    pub skipped: Vec<Skipped>,
}

/// All checkpoints in `directory`, the oldest step first. Their content is not looked at.
///
/// # Errors
///
/// [`CheckpointError::Missing`] if there is no such directory.
pub fn list(directory: impl AsRef<Path>) -> Result<Vec<Entry>, CheckpointError> {
    list_in(&OsFileSystem, directory.as_ref())
}

/// The checkpoint with the highest step in `directory` that is complete and whose checksums match.
/// Reads every byte of it.
///
/// # Errors
///
/// [`CheckpointError::Missing`] if there is no such directory, [`CheckpointError::Version`] or
/// [`CheckpointError::Io`] for a checkpoint which is not damaged but cannot be read. Going back to
/// an older one is then for the user to decide. [`CheckpointError::Changing`] if whoever saves
/// there removes every checkpoint before it is read, again and again.
pub fn latest(directory: impl AsRef<Path>) -> Result<Newest<Entry>, CheckpointError> {
    let newest = newest_in(&OsFileSystem, directory.as_ref(), verify_in)?;
    Ok(Newest {
        found: newest.found.map(|(entry, ())| entry),
        skipped: newest.skipped,
    })
}

/// Loads the checkpoint with the highest step in `directory` that is complete and undamaged, in
/// one pass over its bytes.
///
/// # Errors
///
/// As [`latest`].
pub fn load_latest(
    directory: impl AsRef<Path>,
) -> Result<Newest<(Entry, Checkpoint)>, CheckpointError> {
    newest_in(&OsFileSystem, directory.as_ref(), load_in)
}

/// Loads the checkpoint in the directory `path` (`.../step-00000123`) and verifies every byte.
///
/// # Errors
///
/// [`CheckpointError::Missing`], [`CheckpointError::Incomplete`], [`CheckpointError::Corrupt`],
/// [`CheckpointError::Version`], or [`CheckpointError::Io`] if the disk fails.
pub fn load(path: impl AsRef<Path>) -> Result<Checkpoint, CheckpointError> {
    load_in(&OsFileSystem, path.as_ref())
}

/// Checks that the checkpoint in the directory `path` is complete and that its checksums match,
/// without loading its tensors.
///
/// # Errors
///
/// As [`load`].
pub fn verify(path: impl AsRef<Path>) -> Result<(), CheckpointError> {
    verify_in(&OsFileSystem, path.as_ref())
}

pub(super) fn list_in(
    fs: &dyn FileSystem,
    directory: &Path,
) -> Result<Vec<Entry>, CheckpointError> {
    let names = fs
        .file_names(directory)
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => CheckpointError::Missing {
                path: directory.to_path_buf(),
            },
            _ => CheckpointError::from_io(directory, READ, error),
        })?;
    let mut entries: Vec<Entry> = names
        .iter()
        .filter_map(|name| Entry::parse(directory, name.to_str()?))
        .collect();
    entries.sort_by_key(|entry| (entry.step, entry.revision));
    Ok(entries)
}

pub(super) fn newest_in<T>(
    fs: &dyn FileSystem,
    directory: &Path,
    read: impl Fn(&dyn FileSystem, &Path) -> Result<T, CheckpointError>,
) -> Result<Newest<(Entry, T)>, CheckpointError> {
    let mut entries = list_in(fs, directory)?;
    for _ in 0..MAX_LISTINGS {
        let mut skipped = Vec::new();
        let mut rotated = false;
        for entry in entries.iter().rev() {
            match read(fs, &entry.path) {
                Ok(value) => {
                    let found = Some((entry.clone(), value));
                    return Ok(Newest { found, skipped });
                }
                // Whatever the error was (of a file on another host it can be any): somebody who
                // saves has removed it meanwhile, and has written a newer one before.
                Err(_) if !list_in(fs, directory)?.contains(entry) => {
                    rotated = true;
                    break;
                }
                Err(reason) if reason.is_damage() => {
                    let path = entry.path.clone();
                    skipped.push(Skipped { path, reason });
                }
                Err(error) => return Err(error),
            }
        }
        // Even without any that is gone: one may have come.
        let listed_again = list_in(fs, directory)?;
        if !rotated && listed_again == entries {
            return Ok(Newest {
                found: None,
                skipped,
            });
        }
        entries = listed_again;
    }
    Err(CheckpointError::Changing {
        path: directory.to_path_buf(),
    })
}

pub(super) fn load_in(fs: &dyn FileSystem, path: &Path) -> Result<Checkpoint, CheckpointError> {
    let (marker, metadata) = read_metadata(fs, path)?;
    let (file, record, file_path) = open_recorded(fs, path, &marker, TENSORS_FILE)?;
    let tensors = read_tensors(&file_path, file, record)?;
    Ok(Checkpoint { tensors, metadata })
}

pub(super) fn verify_in(fs: &dyn FileSystem, path: &Path) -> Result<(), CheckpointError> {
    let (marker, _) = read_metadata(fs, path)?;
    let (file, record, file_path) = open_recorded(fs, path, &marker, TENSORS_FILE)?;
    let mut reader = Hashing::new(file.reader);
    io::copy(&mut reader, &mut io::sink())
        .map_err(|error| CheckpointError::from_io(&file_path, READ, error))?;
    check_hash(&file_path, reader, record)
}

/// Whether the marker is valid and the files have the recorded sizes: what can be known without
/// reading the tensors.
pub(super) fn looks_complete(fs: &dyn FileSystem, path: &Path) -> bool {
    read_marker(fs, path).is_ok_and(|marker| {
        [TENSORS_FILE, METADATA_FILE]
            .iter()
            .all(|name| open_recorded(fs, path, &marker, name).is_ok())
    })
}

fn read_metadata(fs: &dyn FileSystem, path: &Path) -> Result<(Marker, Metadata), CheckpointError> {
    let marker = read_marker(fs, path)?;
    let (file, record, file_path) = open_recorded(fs, path, &marker, METADATA_FILE)?;
    let mut reader = Hashing::new(file.reader);
    let bytes = read_at_most(&file_path, &mut reader, MAX_METADATA_BYTES)?;
    check_hash(&file_path, reader, record)?;
    let metadata: Metadata = serde_json::from_slice(&bytes)
        .map_err(|error| CheckpointError::corrupt(&file_path, error.to_string()))?;
    if metadata.format_version > FORMAT_VERSION {
        return Err(CheckpointError::Version {
            path: path.to_path_buf(),
            found: metadata.format_version,
            supported: FORMAT_VERSION,
        });
    }
    Ok((marker, metadata))
}

fn read_marker(fs: &dyn FileSystem, path: &Path) -> Result<Marker, CheckpointError> {
    if !fs.is_dir(path) {
        return Err(CheckpointError::Missing {
            path: path.to_path_buf(),
        });
    }
    let file_path = path.join(MARKER_FILE);
    let mut file = open(fs, &file_path)?.ok_or_else(|| CheckpointError::Incomplete {
        path: path.to_path_buf(),
        what: format!("no {MARKER_FILE} file: its save did not finish"),
    })?;
    let bytes = read_at_most(&file_path, &mut file.reader, MAX_MARKER_BYTES)?;
    Marker::decode(path, &file_path, &bytes)
}

/// Opens a file that must be there with the recorded size.
fn open_recorded<'a>(
    fs: &dyn FileSystem,
    checkpoint: &Path,
    marker: &'a Marker,
    name: &str,
) -> Result<(ReadableFile, &'a FileRecord, PathBuf), CheckpointError> {
    let path = checkpoint.join(name);
    let files: &BTreeMap<String, FileRecord> = &marker.files;
    let record = files
        .get(name)
        .ok_or_else(|| CheckpointError::corrupt(&path, format!("{MARKER_FILE} omits it")))?;
    let file = open(fs, &path)?
        .ok_or_else(|| CheckpointError::corrupt(&path, "the file does not exist"))?;
    if file.bytes != record.bytes {
        let what = format!(
            "{} bytes were saved, {} are there",
            record.bytes, file.bytes
        );
        return Err(CheckpointError::corrupt(&path, what));
    }
    Ok((file, record, path))
}

/// Opens a regular file; nothing if it does not exist.
fn open(fs: &dyn FileSystem, path: &Path) -> Result<Option<ReadableFile>, CheckpointError> {
    match fs.open_file(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => Ok(None),
            io::ErrorKind::InvalidInput => Err(CheckpointError::corrupt(path, error.to_string())),
            _ => Err(CheckpointError::from_io(path, READ, error)),
        },
    }
}

fn read_at_most(
    path: &Path,
    reader: &mut dyn Read,
    max_bytes: u64,
) -> Result<Vec<u8>, CheckpointError> {
    let mut bytes = Vec::new();
    reader
        .take(max_bytes + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| CheckpointError::from_io(path, READ, error))?;
    if bytes.len() as u64 > max_bytes {
        let what = format!("it is larger than {max_bytes} bytes");
        return Err(CheckpointError::corrupt(path, what));
    }
    Ok(bytes)
}

fn check_hash(
    path: &Path,
    reader: Hashing<Box<dyn Read>>,
    record: &FileRecord,
) -> Result<(), CheckpointError> {
    if reader.record().sha256 == record.sha256 {
        Ok(())
    } else {
        Err(CheckpointError::corrupt(path, "its SHA-256 does not match"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("step-00000123", Some((123, 0)))]
    #[case("step-00000123-r4", Some((123, 4)))]
    #[case("step-123456789012", Some((123_456_789_012, 0)))]
    #[case("step-123", None)]
    #[case("step-00000123-r0", None)]
    #[case("step-+0000123", None)]
    #[case("step-00000123.zip", None)]
    #[case("step-99999999999999999999999", None)]
    #[case("xstep-00000123", None)]
    fn names(#[case] name: &str, #[case] expected: Option<(u64, u64)>) {
        let entry = Entry::parse(Path::new("d"), name);
        assert_eq!(entry.map(|entry| (entry.step, entry.revision)), expected);
    }
}
