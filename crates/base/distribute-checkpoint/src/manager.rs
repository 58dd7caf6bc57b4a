//! Saving: a temporary directory, then one rename.

use std::fmt;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::error::{CheckpointError, Result};
use super::filesystem::{FileSystem, OsFileSystem};
use super::hold::DirectoryHold;
use super::lease::random_id;
use super::marker::{FileRecord, Hashing, Marker};
use super::reader::{
    Entry, MAX_METADATA_BYTES, Newest, check_not_inside, list_in, load_in, looks_complete,
    newest_in,
};
use super::tensor_file::PreparedTensors;
use super::{Checkpoint, MARKER_FILE, METADATA_FILE, TENSORS_FILE, created_by};

/// Locked by the manager of the directory for its whole life, so that two runs never replace each
/// other's checkpoints and no unfinished save is taken for a dead one. The operating system
/// frees it when the process ends, however it ends. It stays in the directory: removing a lock file
/// is a race.
pub(super) const LOCK_FILE: &str = ".distribute-checkpoints.lock";
/// How often to retry a lock that is waited for.
const LOCK_INTERVAL: Duration = Duration::from_millis(100);

/// Followed by 32 hexadecimal digits: an unfinished save, or a checkpoint being removed.
const TEMPORARY_PREFIX: &str = ".tmp-distribute-";

/// Saves checkpoints into one directory and removes old ones, like TensorFlow's
/// `tf.train.CheckpointManager`. Clones share the directory; their saves wait for each other.
///
/// Only one manager at a time may save into a directory (under a strategy with several workers: the
/// chief's). It holds the directory from [`open`](Self::open) until its last clone is dropped; a
/// second one is refused with [`CheckpointError::Busy`]. Reading needs no manager and is possible
/// at any time. [`DirectoryHold`] describes how it holds the directory, also where a
/// file system has no locks.
#[derive(Clone)]
pub struct CheckpointManager {
    inner: Arc<Inner>,
    max_to_keep: Option<NonZeroUsize>,
}

struct Inner {
    directory: PathBuf,
    fs: Arc<dyn FileSystem>,
    /// The hold on the directory; locked for the time of a save.
    saving: Mutex<Option<DirectoryHold>>,
}

/// The result of a save.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// The new checkpoint.
    pub entry: Entry,
    /// Size of its files.
    pub bytes: u64,
    /// Older checkpoints that were removed.
    pub removed: Vec<PathBuf>,
    /// Paths that should have been removed but could not be: the save itself succeeded.
    pub not_removed: Vec<PathBuf>,
}

impl CheckpointManager {
    /// Opens `directory` for saving; creates it if needed, and removes leftovers of dead saves.
    /// Keeps every checkpoint, see [`with_max_to_keep`](Self::with_max_to_keep).
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Busy`] if another run saves there; [`CheckpointError::Inside`] if it is
    /// a checkpoint; [`CheckpointError::NotWritable`] or another error of the file system, so that
    /// a run does not find out after its first epoch.
    pub fn open(directory: impl Into<PathBuf>) -> Result<Self> {
        Self::open_in(Arc::new(OsFileSystem), directory.into())
    }

    /// [`open`](Self::open) after a restart: the process that saved there before may not have
    /// ended yet, for example on another host that was cut off. Waits for its end, at most for
    /// `patience`.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open); [`CheckpointError::Busy`] only when the time is over.
    pub fn open_within(directory: impl Into<PathBuf>, patience: Duration) -> Result<Self> {
        let directory = directory.into();
        let until = Instant::now() + patience;
        loop {
            let opened = Self::open(&directory);
            let left = until.saturating_duration_since(Instant::now());
            match opened {
                // No file system notifies when a lock is released.
                Err(CheckpointError::Busy { .. }) if !left.is_zero() => {
                    std::thread::sleep(LOCK_INTERVAL.min(left));
                }
                opened => return opened,
            }
        }
    }

    pub(super) fn open_in(fs: Arc<dyn FileSystem>, directory: PathBuf) -> Result<Self> {
        let mut inner = Inner {
            directory,
            fs,
            saving: Mutex::new(None),
        };
        check_not_inside(&inner.directory)?;
        inner.create_directory()?;
        let hold = inner.hold()?;
        if hold.is_exclusive() {
            inner.remove_leftovers()?;
        }
        inner.saving = Mutex::new(Some(hold));
        Ok(Self {
            inner: Arc::new(inner),
            max_to_keep: None,
        })
    }

    /// Keep the `max_to_keep` newest checkpoints: every save removes older ones once it has
    /// succeeded. Damaged checkpoints do not count and are left alone. `None` keeps all.
    #[must_use]
    pub fn with_max_to_keep(mut self, max_to_keep: Option<NonZeroUsize>) -> Self {
        self.max_to_keep = max_to_keep;
        self
    }

    /// The directory with the checkpoints.
    pub fn path(&self) -> &Path {
        &self.inner.directory
    }

    /// As [`list`](super::list).
    ///
    /// # Errors
    ///
    /// As [`list`](super::list).
    pub fn list(&self) -> Result<Vec<Entry>> {
        list_in(self.inner.fs.as_ref(), self.path())
    }

    /// As [`load_latest`](super::load_latest).
    ///
    /// # Errors
    ///
    /// As [`latest`](super::latest).
    pub fn load_latest(&self) -> Result<Newest<(Entry, Checkpoint)>> {
        newest_in(self.inner.fs.as_ref(), self.path(), load_in)
    }

    /// Writes `checkpoint` to disk and returns when it is durable. Blocks for the time of writing
    /// and of two or three fsyncs, and while a clone of this manager is saving.
    ///
    /// The new checkpoint belongs to `checkpoint.metadata.step`; it replaces one of the same step.
    /// [`latest`](super::latest) is the one with the highest step: do not mix runs in a directory.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::DiskFull`], [`CheckpointError::NotWritable`], [`CheckpointError::Busy`],
    /// [`CheckpointError::TakenOver`], [`CheckpointError::Unsupported`] or
    /// [`CheckpointError::Io`]. Checkpoints that were complete
    /// before are then still complete.
    pub fn save(&self, checkpoint: &Checkpoint) -> Result<Saved> {
        let inner = &self.inner;
        let hold = inner.saving.lock();
        let mut hold = hold.unwrap_or_else(PoisonError::into_inner);
        let metadata = encode_metadata(checkpoint)?;
        let tensors = PreparedTensors::new(&checkpoint.tensors, self.path())?;

        if inner.create_directory()? {
            // The directory was removed, and the lock with it.
            *hold = None;
        }
        let hold = match &mut *hold {
            Some(hold) => hold,
            none => none.insert(inner.hold()?),
        };
        hold.check()?;
        let mut not_removed = Vec::new();
        if hold.is_exclusive() {
            not_removed.extend(inner.remove_leftovers()?);
        }

        let temporary = inner.temporary_path()?;
        let written = inner
            .write(&temporary, &metadata, &tensors)
            // Writing may have taken long enough for another process to take over.
            .and_then(|bytes| hold.check().map(|()| bytes))
            .and_then(|bytes| Ok((inner.publish(&temporary, checkpoint.metadata.step)?, bytes)));
        let (entry, bytes) = written.inspect_err(|_| {
            // The error that matters is the first one; the next save tries again to clean up.
            let _ = inner.fs.remove_dir_all(&temporary);
        })?;
        // From here on the checkpoint is durable: a failed clean-up is not a failed save.
        let (removed, kept) = match inner.obsolete(&entry, self.max_to_keep) {
            Ok(obsolete) => inner.remove(obsolete),
            Err(_) => (Vec::new(), vec![inner.directory.clone()]),
        };
        not_removed.extend(kept);
        Ok(Saved {
            entry,
            bytes,
            removed,
            not_removed,
        })
    }
}

impl fmt::Debug for CheckpointManager {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("CheckpointManager")
            .field("directory", &self.inner.directory)
            .field("max_to_keep", &self.max_to_keep)
            .finish_non_exhaustive()
    }
}

impl Inner {
    /// Whether it had to be created.
    fn create_directory(&self) -> Result<bool> {
        let path = self.directory.as_path();
        if self.fs.is_dir(path) {
            return Ok(false);
        }
        let result = self.fs.create_dir_all(path).and_then(|()| {
            let parent = path.parent().filter(|parent| *parent != Path::new(""));
            self.fs.sync_dir(parent.unwrap_or(Path::new(".")))
        });
        result.map_err(CheckpointError::io(path, "create"))?;
        Ok(true)
    }

    /// Takes the directory, or fails with its holder.
    fn hold(&self) -> Result<DirectoryHold> {
        DirectoryHold::take_in(Arc::clone(&self.fs), self.directory.clone(), LOCK_FILE)
    }

    /// Removes leftovers of dead saves; the hold must be exclusive. Returns what could not be
    /// removed.
    fn remove_leftovers(&self) -> Result<Vec<PathBuf>> {
        let names = self
            .fs
            .file_names(&self.directory)
            .map_err(CheckpointError::io(&self.directory, "list"))?;
        let mut kept = Vec::new();
        for name in names.iter().filter_map(|name| name.to_str()) {
            let path = self.directory.join(name);
            if is_temporary(name) && self.fs.remove_dir_all(&path).is_err() {
                kept.push(path);
            }
        }
        Ok(kept)
    }

    /// A random name in the directory, which others cannot guess and take first.
    fn temporary_path(&self) -> Result<PathBuf> {
        let id = random_id().map_err(CheckpointError::io(&self.directory, "find a name in"))?;
        let name = format!("{TEMPORARY_PREFIX}{id}");
        Ok(self.directory.join(name))
    }

    /// Writes all files into the new directory `temporary` and makes them durable. Returns their
    /// size.
    fn write(
        &self,
        temporary: &Path,
        metadata: &[u8],
        tensors: &PreparedTensors<'_>,
    ) -> Result<u64> {
        let created = self.fs.create_dir(temporary);
        created.map_err(CheckpointError::io(temporary, "create"))?;
        let file = |name: &str| temporary.join(name);
        let tensors = self.write_file(&file(TENSORS_FILE), |writer| tensors.write_to(writer))?;
        let metadata =
            self.write_file(&file(METADATA_FILE), |writer| writer.write_all(metadata))?;
        // The marker may become durable only after the files that it lists.
        self.sync(temporary)?;
        let bytes = tensors.bytes + metadata.bytes;
        let records = [(TENSORS_FILE, tensors), (METADATA_FILE, metadata)];
        let records = records.map(|(name, record)| (name.to_string(), record));
        let path = file(MARKER_FILE);
        let marker = Marker::new(records.into())
            .encode()
            .map_err(|error| CheckpointError::io(&path, "encode")(error.into()))?;
        let record = self.write_file(&path, |writer| writer.write_all(&marker))?;
        self.sync(temporary)?;
        Ok(bytes + record.bytes)
    }

    fn write_file(
        &self,
        path: &Path,
        content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<FileRecord> {
        let write = || {
            let mut writer = Hashing::new(self.fs.create_file(path)?);
            content(&mut writer)?;
            writer.finish()
        };
        write().map_err(CheckpointError::io(path, "write"))
    }

    /// Gives a complete temporary directory its name, durably.
    fn publish(&self, temporary: &Path, step: u64) -> Result<Entry> {
        let revision = list_in(self.fs.as_ref(), &self.directory)?
            .iter()
            .filter(|entry| entry.step == step)
            .map(|entry| entry.revision + 1)
            .max();
        let entry = Entry::new(&self.directory, step, revision.unwrap_or(0));
        let renamed = self.fs.rename(temporary, &entry.path);
        renamed.map_err(CheckpointError::io(&entry.path, "rename"))?;
        self.sync(&self.directory)?;
        Ok(entry)
    }

    fn sync(&self, directory: &Path) -> Result<()> {
        let synced = self.fs.sync_dir(directory);
        synced.map_err(CheckpointError::io(directory, "sync"))
    }

    /// Checkpoints that are obsolete now that `saved` is durable: earlier saves of its step, and
    /// complete ones beyond the number to keep.
    fn obsolete(&self, saved: &Entry, max_to_keep: Option<NonZeroUsize>) -> Result<Vec<PathBuf>> {
        let entries = list_in(self.fs.as_ref(), &self.directory)?;
        let (mut obsolete, others): (Vec<_>, Vec<_>) = entries
            .into_iter()
            .filter(|entry| entry != saved)
            .partition(|entry| entry.step == saved.step);
        if let Some(max_to_keep) = max_to_keep {
            let is_complete = |entry: &Entry| looks_complete(self.fs.as_ref(), &entry.path);
            let complete = others.into_iter().rev().filter(is_complete);
            obsolete.extend(complete.skip(max_to_keep.get() - 1));
        }
        Ok(obsolete.into_iter().map(|entry| entry.path).collect())
    }

    /// Removes checkpoints. Returns the removed ones and the ones that could not be removed.
    /// Each gets a temporary name first, so that no reader sees a half-removed checkpoint under its
    /// own name.
    fn remove(&self, paths: Vec<PathBuf>) -> (Vec<PathBuf>, Vec<PathBuf>) {
        if paths.is_empty() {
            return (Vec::new(), Vec::new());
        }
        let rename = |path: &PathBuf| {
            let temporary = self.temporary_path().ok()?;
            self.fs.rename(path, &temporary).ok()?;
            Some(temporary)
        };
        let renamed: Vec<_> = paths.iter().map(rename).collect();
        let durable = self.sync(&self.directory).is_ok();
        let (mut removed, mut not_removed) = (Vec::new(), Vec::new());
        for (path, temporary) in paths.into_iter().zip(renamed) {
            let gone =
                durable && temporary.is_some_and(|path| self.fs.remove_dir_all(&path).is_ok());
            let list = if gone { &mut removed } else { &mut not_removed };
            list.push(path);
        }
        (removed, not_removed)
    }
}

pub(super) fn is_temporary(name: &str) -> bool {
    name.strip_prefix(TEMPORARY_PREFIX).is_some_and(|digits| {
        digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

fn encode_metadata(checkpoint: &Checkpoint) -> Result<Vec<u8>> {
    let unsupported = |what: String| CheckpointError::unsupported(METADATA_FILE, what);
    let mut metadata = checkpoint.metadata.clone();
    metadata.format_version = super::FORMAT_VERSION;
    metadata.created_by = created_by();
    let mut bytes =
        serde_json::to_vec_pretty(&metadata).map_err(|error| unsupported(error.to_string()))?;
    bytes.push(b'\n');
    if bytes.len() as u64 > MAX_METADATA_BYTES {
        return Err(unsupported(format!(
            "{} bytes, the limit is {MAX_METADATA_BYTES}: store large values as tensors",
            bytes.len()
        )));
    }
    // Metadata that is nested too deeply for the parser is refused here, not only when restoring.
    if let Err(error) = serde_json::from_slice::<super::Metadata>(&bytes) {
        return Err(unsupported(format!("it could not be read again: {error}")));
    }
    Ok(bytes)
}
