//! Finding, verifying and loading checkpoints. Nothing here writes to the disk.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use burn::tensor::TensorData;

use super::error::{CheckpointError, READ, Result};
use super::filesystem::{FileSystem, OsFileSystem};
use super::marker::{MAX_MARKER_BYTES, Marker};
use super::recorded::{Recorded, open, open_recorded, read_at_most};
use super::tensor_file::read_tensors;
use super::{Checkpoint, MARKER_FILE, METADATA_FILE, Metadata, TENSORS_FILE};

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

    pub(super) fn parse(directory: &Path, name: &str) -> Option<Self> {
        let digits = name.strip_prefix("step-")?;
        let (step, revision) = digits.split_once("-r").unwrap_or((digits, "0"));
        let entry = Self::new(directory, step.parse().ok()?, revision.parse().ok()?);
        // Only names that this library writes: no `step-1`, no `step-+0000001`.
        (entry.path.file_name()?.to_str()? == name).then_some(entry)
    }
}

fn file_name(step: u64, revision: u64) -> String {
    match revision {
        0 => format!("step-{step:08}"),
        _ => format!("step-{step:08}-r{revision}"),
    }
}

/// The checkpoint that a path is or is in, after following links: files written there would belong
/// to a checkpoint, and be removed with it.
pub fn enclosing(path: impl AsRef<Path>) -> Option<PathBuf> {
    let path = path.as_ref();
    // A path that does not exist yet is inside an existing one.
    let existing = existing(path)?;
    let real = real(existing)?;
    let files = |path: &Path| {
        let names = [TENSORS_FILE, METADATA_FILE, MARKER_FILE];
        names
            .iter()
            .filter(|name| path.join(name).is_file())
            .count()
    };
    let is_saved = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str());
        let named = name.and_then(|name| Entry::parse(Path::new(""), name));
        named.is_some() && files(path) > 0
    };
    // A copied checkpoint may have any name, and is not removed for newer ones.
    let is_copy = existing == path && files(&real) > 1;
    let saved = real.ancestors().find(|path| is_saved(path));
    saved
        .map(Path::to_path_buf)
        .or(is_copy.then(|| path.to_path_buf()))
}

/// The part of a path that exists; for a relative path it may be empty, which is the current
/// folder.
pub(super) fn existing(path: &Path) -> Option<&Path> {
    let is_there = |path: &&Path| *path == Path::new("") || path.exists();
    path.ancestors().find(is_there)
}

/// The real path of such a part, without links.
pub(super) fn real(existing: &Path) -> Option<PathBuf> {
    let here = Path::new(".");
    let path = if existing == Path::new("") {
        here
    } else {
        existing
    };
    std::fs::canonicalize(path).ok()
}

/// Refuses a directory for checkpoints that is a checkpoint itself, or in one (see [`enclosing`]).
///
/// # Errors
/// [`CheckpointError::Inside`], which says what to give instead.
pub fn check_not_inside(directory: impl AsRef<Path>) -> Result<(), CheckpointError> {
    let directory = directory.as_ref();
    enclosing(directory).map_or(Ok(()), |checkpoint| {
        Err(refuse_inside(directory, checkpoint))
    })
}

/// The error that checkpoints were to be saved in `path`, which is in `checkpoint`, with a remedy.
fn refuse_inside(path: &Path, checkpoint: PathBuf) -> CheckpointError {
    let name = checkpoint.file_name().and_then(|name| name.to_str());
    let name = name.filter(|name| Entry::parse(Path::new(""), name).is_some());
    let parent = checkpoint.parent().unwrap_or(&checkpoint);
    let is_alone = || list(parent).is_ok_and(|entries| entries.len() <= 1);
    let metadata = || read_metadata(&OsFileSystem, &checkpoint);
    let parent = parent.display();
    let remedy = match name {
        Some(_) if is_alone() => format!("to go on with it give the directory it is in, {parent}"),
        Some(name) => format!(
            "give the directory that holds the checkpoints, {parent}, to go on with the newest \
             one; to go on with this one, put a copy of it as `{name}` into an empty directory, \
             and give that directory"
        ),
        // Its name was chosen by a user, so no save would find it.
        None => match metadata() {
            Ok((_, metadata)) => format!(
                "to go on with it, put it as `{}` into an empty directory, and give that directory",
                file_name(metadata.step, 0)
            ),
            Err(error) => format!("give another directory; this one cannot be read: {error}"),
        },
    };
    CheckpointError::Inside {
        path: path.to_path_buf(),
        checkpoint,
        remedy,
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
    /// The newest usable checkpoint; `None` if there is none.
    pub found: Option<T>,
    /// Newer but damaged checkpoints, the newest first. Tell the user about them.
    pub skipped: Vec<Skipped>,
}

/// All checkpoints in `directory`, the oldest step first. Their content is not read.
///
/// # Errors
///
/// [`CheckpointError::Missing`] if there is no such directory.
pub fn list(directory: impl AsRef<Path>) -> Result<Vec<Entry>> {
    list_in(&OsFileSystem, directory.as_ref())
}

/// The checkpoint with the highest step in `directory` that is complete and whose checksums match,
/// without its tensors. Reads every byte of it.
///
/// # Errors
///
/// [`CheckpointError::Missing`] if there is no such directory, [`CheckpointError::Version`] or
/// [`CheckpointError::Io`] for a checkpoint which is not damaged but cannot be read. Going back to
/// an older one is then for the user to decide. [`CheckpointError::Changing`] if another
/// process keeps removing every checkpoint before it is read.
pub fn latest(directory: impl AsRef<Path>) -> Result<Newest<(Entry, Metadata)>> {
    newest_in(&OsFileSystem, directory.as_ref(), verify_in)
}

/// Loads the checkpoint with the highest step in `directory` that is complete and undamaged, in
/// one pass over its bytes.
///
/// # Errors
///
/// As [`latest`].
pub fn load_latest(directory: impl AsRef<Path>) -> Result<Newest<(Entry, Checkpoint)>> {
    newest_in(&OsFileSystem, directory.as_ref(), load_in)
}

/// Loads the checkpoint in the directory `path` (`.../step-00000123`) and verifies every byte.
///
/// # Errors
///
/// [`CheckpointError::Missing`], [`CheckpointError::Incomplete`], [`CheckpointError::Corrupt`],
/// [`CheckpointError::Version`], or [`CheckpointError::Io`] if the disk fails.
pub fn load(path: impl AsRef<Path>) -> Result<Checkpoint> {
    load_in(&OsFileSystem, path.as_ref())
}

/// Reads the tensors of one file in the format safetensors, of any program, by their names. The
/// memory that it takes is bounded by the size of the file.
///
/// ```
/// use std::collections::BTreeMap;
///
/// use burn::tensor::TensorData;
/// use distribute_checkpoint::{Checkpoint, CheckpointManager, Metadata, read_safetensors};
///
/// // Checkpoints hold such a file.
/// let folder = tempfile::tempdir()?;
/// let mut checkpoint = Checkpoint::new(Metadata::new(1));
/// checkpoint.tensors.insert("bias".to_string(), TensorData::from([0.5_f32]));
/// CheckpointManager::open(folder.path())?.save(&checkpoint)?;
/// let tensors = read_safetensors(folder.path().join("step-00000001/tensors.safetensors"))?;
/// assert_eq!(tensors, checkpoint.tensors);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`CheckpointError::Missing`], [`CheckpointError::Corrupt`] for other bytes and for tensors of
/// types that burn does not have, or [`CheckpointError::Io`] if the disk fails.
pub fn read_safetensors(path: impl AsRef<Path>) -> Result<BTreeMap<String, TensorData>> {
    let path = path.as_ref();
    let file = open(&OsFileSystem, path)?.ok_or_else(|| CheckpointError::missing(path))?;
    read_tensors(Recorded::unrecorded(path.to_path_buf(), file))
}

/// Checks that the checkpoint in the directory `path` is complete and that its checksums match,
/// without loading its tensors.
///
/// # Errors
///
/// As [`load`].
pub fn verify(path: impl AsRef<Path>) -> Result<()> {
    verify_in(&OsFileSystem, path.as_ref()).map(drop)
}

pub(super) fn list_in(fs: &dyn FileSystem, directory: &Path) -> Result<Vec<Entry>> {
    let names = fs
        .file_names(directory)
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => CheckpointError::missing(directory),
            _ => CheckpointError::io(directory, READ)(error),
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
    read: impl Fn(&dyn FileSystem, &Path) -> Result<T>,
) -> Result<Newest<(Entry, T)>> {
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
                // Whatever the error was (for a file on another host it can be any): the
                // checkpoint was removed meanwhile, after a newer one had been written.
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
        // Even if none is gone, a new one may have come.
        let listed_again = list_in(fs, directory)?;
        if !rotated && listed_again == entries {
            let found = None;
            return Ok(Newest { found, skipped });
        }
        entries = listed_again;
    }
    Err(CheckpointError::Changing {
        path: directory.to_path_buf(),
    })
}

pub(super) fn load_in(fs: &dyn FileSystem, path: &Path) -> Result<Checkpoint> {
    let (marker, metadata) = read_metadata(fs, path)?;
    let tensors = read_tensors(open_recorded(fs, path, &marker, TENSORS_FILE)?)?;
    Ok(Checkpoint { tensors, metadata })
}

pub(super) fn verify_in(fs: &dyn FileSystem, path: &Path) -> Result<Metadata> {
    let (marker, metadata) = read_metadata(fs, path)?;
    let mut file = open_recorded(fs, path, &marker, TENSORS_FILE)?;
    let copied = io::copy(&mut file.content, &mut io::sink());
    copied.map_err(CheckpointError::io(&file.path, READ))?;
    file.finish()?;
    Ok(metadata)
}

/// Whether the marker is valid and the files have the recorded sizes. Does not read the
/// tensors.
pub(super) fn looks_complete(fs: &dyn FileSystem, path: &Path) -> bool {
    let Ok(marker) = read_marker(fs, path) else {
        return false;
    };
    let mut names = [TENSORS_FILE, METADATA_FILE].iter();
    names.all(|name| open_recorded(fs, path, &marker, name).is_ok())
}

fn read_metadata(fs: &dyn FileSystem, path: &Path) -> Result<(Marker, Metadata)> {
    let marker = read_marker(fs, path)?;
    let mut file = open_recorded(fs, path, &marker, METADATA_FILE)?;
    let bytes = read_at_most(&file.path, &mut file.content, MAX_METADATA_BYTES)?;
    let file_path = file.path.clone();
    file.finish()?;
    let metadata = decode_metadata(path, &file_path, &bytes)?;
    Ok((marker, metadata))
}

/// Reads the metadata of the checkpoint at `checkpoint`, stored in the file `path`.
pub(super) fn decode_metadata(checkpoint: &Path, path: &Path, bytes: &[u8]) -> Result<Metadata> {
    let metadata: Metadata = serde_json::from_slice(bytes)
        .map_err(|error| CheckpointError::corrupt(path, error.to_string()))?;
    CheckpointError::check_version(checkpoint, metadata.format_version)?;
    Ok(metadata)
}

fn read_marker(fs: &dyn FileSystem, path: &Path) -> Result<Marker> {
    if !fs.is_dir(path) {
        return Err(CheckpointError::missing(path));
    }
    let file_path = path.join(MARKER_FILE);
    let mut file = open(fs, &file_path)?.ok_or_else(|| CheckpointError::Incomplete {
        path: path.to_path_buf(),
        what: format!("no {MARKER_FILE} file: its save did not finish"),
    })?;
    let bytes = read_at_most(&file_path, &mut file.reader, MAX_MARKER_BYTES)?;
    Marker::decode(path, &file_path, &bytes)
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

    #[test]
    fn what_is_said_of_a_path_in_a_checkpoint_can_be_done() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        let saved = root.join("saved");
        let manager = crate::CheckpointManager::open(&saved).unwrap();
        let save = |step| {
            let checkpoint = Checkpoint::new(Metadata::new(step));
            manager.save(&checkpoint).unwrap().entry.path
        };
        let first = save(16);
        let said = |path: &Path| {
            let opened = crate::CheckpointManager::open(path);
            opened.map(drop).unwrap_err().to_string()
        };
        let alone = said(&first);
        let parent = format!("give the directory it is in, {}", saved.display());
        assert!(alone.contains(&parent), "{alone}");
        save(17);
        let among = said(&first.join("sub"));
        for part in [
            "holds the checkpoints",
            "with the newest one",
            "as `step-00000016`",
        ] {
            assert!(among.contains(part), "{among}");
        }
        let copy = |to: &Path| {
            std::fs::create_dir_all(to).unwrap();
            for entry in std::fs::read_dir(&first).unwrap() {
                let from = entry.unwrap().path();
                std::fs::copy(&from, to.join(from.file_name().unwrap())).unwrap();
            }
        };
        let cpe = root.join("cpe");
        copy(&cpe);
        let copied = said(&cpe);
        let remedy = "put it as `step-00000016` into an empty directory, and give that directory";
        assert!(copied.contains(remedy), "{copied}");
        assert!(
            !copied.contains(", ,") && !copied.contains("in the checkpoint"),
            "{copied}"
        );
        // As it is said.
        let empty = root.join("empty");
        std::fs::create_dir(&empty).unwrap();
        std::fs::rename(&cpe, empty.join("step-00000016")).unwrap();
        crate::CheckpointManager::open(&empty).unwrap();
        assert_eq!(latest(&empty).unwrap().found.unwrap().1.step, 16);
        copy(&cpe);
        std::fs::write(cpe.join(METADATA_FILE), b"{").unwrap();
        let damaged = said(&cpe);
        assert!(damaged.contains("cannot be read"), "{damaged}");
    }

    #[test]
    fn a_relative_path_that_does_not_exist_is_in_this_folder() {
        assert_eq!(existing(Path::new("not/there")), Some(Path::new("")));
        assert_eq!(existing(Path::new("")), Some(Path::new("")));
        assert_eq!(
            real(Path::new("")),
            std::env::current_dir().unwrap().canonicalize().ok()
        );
    }
}
