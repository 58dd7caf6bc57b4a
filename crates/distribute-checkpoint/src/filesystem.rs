//! The few operations a save needs from the file system, behind a trait so that the tests can
//! make each of them fail.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::Path;

/// A file that is being written. Dropping it does not make its content durable.
pub(super) trait WritableFile: Write {
    /// Blocks until the content is on the disk.
    fn sync(&mut self) -> io::Result<()>;
}

/// A file that is being read, with its length when it was opened.
pub(super) struct ReadableFile {
    pub(super) reader: Box<dyn Read>,
    pub(super) bytes: u64,
}

/// Who holds the right to write into a checkpoint directory.
pub(super) enum Lock {
    /// Held until this value is dropped (or the process dies, however it dies).
    Held(#[expect(dead_code, reason = "the open file is the lock")] Box<dyn Send>),
    /// Another process or another manager holds it.
    Busy {
        /// The process and its host, as far as they could be found out.
        holder: (Option<u32>, Option<String>),
    },
    /// This file system has no locks: saving works, but nothing may be cleaned up.
    Unsupported,
}

/// The file system, as far as checkpoints need it: the operating system's, but for what an
/// implementation replaces.
pub(super) trait FileSystem: Send + Sync {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    /// Fails if anything exists at `path`.
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    /// Fails if anything exists at `path`.
    fn create_file(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        Ok(Box::new(File::create_new(path)?))
    }

    /// Fails with `InvalidInput` if `path` is not a regular file.
    fn open_file(&self, path: &Path) -> io::Result<ReadableFile> {
        // Opening a named pipe would block for ever, so look before opening.
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a regular file",
            ));
        }
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        Ok(ReadableFile {
            reader: Box::new(file),
            bytes,
        })
    }

    fn is_dir(&self, path: &Path) -> bool {
        path.is_dir()
    }

    fn file_names(&self, path: &Path) -> io::Result<Vec<OsString>> {
        fs::read_dir(path)?
            .map(|entry| entry.map(|entry| entry.file_name()))
            .collect()
    }

    /// Makes created, renamed and removed names in `path` durable.
    #[cfg(unix)]
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    // Elsewhere a directory cannot be opened as a file, and the rename itself is journalled.
    #[cfg(not(unix))]
    fn sync_dir(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Lock> {
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path)?;
        match file.try_lock() {
            Ok(()) => {
                let named = name_holder(&mut file, path).is_ok();
                Ok(Lock::Held(Box::new(HeldFile { file, named })))
            }
            Err(TryLockError::WouldBlock) => Ok(Lock::Busy {
                holder: holder(&mut file),
            }),
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                Ok(Lock::Unsupported)
            }
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// The operating system's file system.
pub(super) struct OsFileSystem;

impl FileSystem for OsFileSystem {}

impl WritableFile for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

/// A lock file of ours holds a process id, the name of its host and nothing else.
const MAX_LOCK_BYTES: u64 = 96;

/// The open file that is the lock.
struct HeldFile {
    file: File,
    /// Whether the process id and the host stand in it.
    named: bool,
}

impl Drop for HeldFile {
    fn drop(&mut self) {
        // Closing the file would do, unless another thread is just starting a process: that one
        // holds a copy of the file for a moment. A wrong process id only spoils a message.
        if self.named {
            let _ = self.file.set_len(0);
        }
        let _ = self.file.unlock();
    }
}

/// Writes this process' id into the lock file, for the message of whoever is refused. Without it
/// (a full disk) the lock is as good.
fn name_holder(file: &mut File, path: &Path) -> io::Result<()> {
    let ours = fs::symlink_metadata(path)?.is_file() && file.metadata()?.len() <= MAX_LOCK_BYTES;
    let mut text = String::new();
    Read::by_ref(file)
        .take(MAX_LOCK_BYTES)
        .read_to_string(&mut text)?;
    let mut words = text.split_whitespace();
    let is_named = words.next().is_none_or(|word| word.parse::<u32>().is_ok());
    if !ours || !is_named || words.nth(1).is_some() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    file.set_len(0)?;
    file.rewind()?;
    let host: String = gethostname::gethostname()
        .to_string_lossy()
        .chars()
        .filter(|character| character.is_ascii_graphic())
        .take(64)
        .collect();
    writeln!(file, "{} {host}", std::process::id())
}

/// Who holds the lock, and on which host, as the lock file says.
fn holder(file: &mut File) -> (Option<u32>, Option<String>) {
    let mut text = String::new();
    let read = file.take(MAX_LOCK_BYTES).read_to_string(&mut text);
    let mut words = text.split_whitespace().filter(|_| read.is_ok());
    let process = words.next().and_then(|word| word.parse().ok());
    let host = words.next().filter(|_| process.is_some());
    (process, host.map(str::to_owned))
}
