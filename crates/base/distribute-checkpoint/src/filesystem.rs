//! The few operations a save needs from the file system, behind a trait so that the tests can
//! make each of them fail.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
#[cfg(unix)]
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use super::lease::{DirectoryId, MAX_BYTES, random_id};
use super::owner::{Holder, Owner};

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
        /// The process, if it could be found out.
        holder: Option<Holder>,
    },
    /// This file system has no locks.
    Unsupported,
}

/// The file system as checkpoints need it. The defaults are the operating system's; an
/// implementation may replace some.
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

    // On other systems a directory cannot be opened as a file, and the rename itself is journalled.
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

    /// This process, as others see it.
    fn owner(&self) -> Owner {
        Owner::this()
    }

    /// Whether a process of this host still runs.
    fn is_alive(&self, owner: &Owner) -> bool {
        owner.is_alive()
    }

    /// The identity of the directory on this host; `None` if it is not known.
    #[cfg(unix)]
    fn directory_id(&self, path: &Path) -> Option<DirectoryId> {
        let metadata = fs::metadata(path).ok()?;
        Some((metadata.dev(), metadata.ino()))
    }

    #[cfg(not(unix))]
    fn directory_id(&self, _path: &Path) -> Option<DirectoryId> {
        None
    }

    /// Whether a lock in `path` may be unknown to other hosts that reach it.
    fn has_locks_of_its_host(&self, path: &Path) -> bool {
        !is_local(path)
    }

    /// The time on the clock that stamps files in `directory`; on this host's clock if no
    /// file can be written there.
    fn now(&self, directory: &Path) -> SystemTime {
        let stamped = || {
            let id = random_id()?;
            let probe = directory.join(format!(".time-{id}"));
            let file = File::create_new(&probe)?;
            let time = file.metadata().and_then(|metadata| metadata.modified());
            fs::remove_file(&probe)?;
            time
        };
        stamped().unwrap_or_else(|_| SystemTime::now())
    }

    /// How long ago a time was on this host's clock.
    fn elapsed(&self, since: Instant) -> Duration {
        since.elapsed()
    }

    /// Fails if anything exists at `path`. A file that cannot be written completely is removed.
    fn create_lease(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let mut file = File::create_new(path)?;
        file.write_all(content)
            .inspect_err(|_| drop(fs::remove_file(path)))
    }

    /// The content of a lease, and when it was last written.
    fn read_lease(&self, path: &Path) -> io::Result<(Vec<u8>, SystemTime)> {
        if !fs::symlink_metadata(path)?.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a regular file",
            ));
        }
        // The file is opened because network file systems ask their server then.
        let file = File::open(path)?;
        let renewed = file.metadata()?.modified()?;
        let mut content = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut content)?;
        Ok((content, renewed))
    }

    /// Rewrites an existing file with content of the same length.
    fn rewrite_lease(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).open(path)?;
        file.write_all(content)
    }

    fn remove_lease(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    /// The operating system's lock of an open file.
    fn try_lock(&self, file: &File) -> Result<(), TryLockError> {
        file.try_lock()
    }

    /// Also tests the lock: a lock that every process gets is useless.
    fn lock(&self, path: &Path) -> io::Result<Lock> {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true);
        let mut file = options.open(path)?;
        match self.try_lock(&file) {
            // Opened for writing, as some network file systems lock only writable files.
            Ok(()) if !excludes(self.try_lock(&options.open(path)?)) => Ok(Lock::Unsupported),
            Ok(()) => {
                let named = name_holder(&mut file, path).is_ok();
                Ok(Lock::Held(Box::new(HeldFile { file, named })))
            }
            Err(TryLockError::WouldBlock) => Ok(Lock::Busy {
                holder: holder(&mut file),
            }),
            Err(TryLockError::Error(error)) if is_unsupported(&error) => Ok(Lock::Unsupported),
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

/// Whether a held lock excludes a second opening of the file, judged by the result of the second
/// attempt.
fn excludes(second: Result<(), TryLockError>) -> bool {
    match second {
        Ok(()) => false,
        Err(TryLockError::WouldBlock) => true,
        Err(TryLockError::Error(error)) => !is_unsupported(&error),
    }
}

/// Whether an error means that the file system has no locks; this includes errors of a lock
/// server that is missing or does not know the call.
fn is_unsupported(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    let unsupported = [
        rustix::io::Errno::NOLCK,
        rustix::io::Errno::NOSYS,
        rustix::io::Errno::OPNOTSUPP,
        rustix::io::Errno::NOTTY,
    ];
    let code = code.map(rustix::io::Errno::from_raw_os_error);
    error.kind() == io::ErrorKind::Unsupported || code.is_some_and(|it| unsupported.contains(&it))
}

/// The magic numbers of local file systems, which only one host mounts at a time, so that its
/// locks are sufficient: ext2 to ext4, XFS, Btrfs, tmpfs, ramfs, overlayfs, F2FS, ZFS, bcachefs.
#[cfg(target_os = "linux")]
const LOCAL: [u32; 9] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x0102_1994,
    0x8584_58f6,
    0x794c_7630,
    0xf2f5_2010,
    0x2fc1_2fc1,
    0xca45_1a4e,
];

#[cfg(target_os = "linux")]
fn is_local(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|found| LOCAL.contains(&(found.f_type as u32)))
}

// On other systems the locks are trusted.
#[cfg(not(target_os = "linux"))]
fn is_local(_path: &Path) -> bool {
    true
}

/// A lock file of ours holds a process id and the name of a host, and nothing else.
const MAX_LOCK_BYTES: u64 = 300;

/// The open file that is the lock.
struct HeldFile {
    file: File,
    /// Whether the process and its host are written in it.
    named: bool,
}

impl Drop for HeldFile {
    fn drop(&mut self) {
        // Closing the file would release the lock, unless another thread is just starting a
        // process, which holds a copy of the file for a moment. A wrong process id only makes a
        // message wrong.
        if self.named {
            let _ = self.file.set_len(0);
        }
        let _ = self.file.unlock();
    }
}

/// Writes this process' id and host into the lock file, for the message to a process that is
/// refused. The lock holds without it too (if the disk is full).
fn name_holder(file: &mut File, path: &Path) -> io::Result<()> {
    let ours = fs::symlink_metadata(path)?.is_file()
        && (file.metadata()?.len() == 0 || holder(file).is_some());
    if !ours {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    file.set_len(0)?;
    file.rewind()?;
    let own = Owner::this();
    file.write_all(format!("{} {}\n", own.process, own.host).as_bytes())
}

/// The holder of the lock, read from the lock file.
fn holder(file: &mut File) -> Option<Holder> {
    let mut text = String::new();
    file.take(MAX_LOCK_BYTES).read_to_string(&mut text).ok()?;
    let mut words = text.split_whitespace();
    let process = words.next()?.parse().ok()?;
    let host = words.next().map(str::to_string);
    // Older programs wrote only the process id.
    words.next().is_none().then_some(Holder::new(process, host))
}
