//! The hold on a directory into which one process at a time writes: a lock, and a lease that
//! names the holder.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use super::error::{CheckpointError, Result};
use super::filesystem::{FileSystem, Lock, OsFileSystem};
use super::lease::{Lease, Locking, RENEWAL, VALID_FOR, is_held, random_id};
use super::owner::{Holder, Owner};

/// Holds a directory against other processes, on this host and on others, until it is dropped or
/// the process ends, however it ends.
///
/// The operating system's lock on a file in the directory excludes other processes of the same
/// host, and processes of other hosts if the file system shares locks. Besides, there is a *lease*:
/// a file with the holder's host and process, which the holder rewrites every five seconds. Where
/// locks may not reach other hosts (network file systems) or do not work at all, a lease that was
/// renewed in the last thirty seconds is respected. An older lease is taken over: its holder has
/// died, or is cut off from the file system and learns it by [`check`](Self::check).
///
/// After the death of a holder the directory is free at once for a process of the same host, or if
/// the file system is a local one; for a process of another host after thirty seconds.
pub struct DirectoryHold {
    inner: Arc<Inner>,
    /// Dropped after the lease is gone.
    lock: Option<Lock>,
    renewer: Option<(Sender<()>, JoinHandle<()>)>,
}

struct Inner {
    fs: Arc<dyn FileSystem>,
    directory: PathBuf,
    lease_path: PathBuf,
    /// `None` if it cannot be written: then only the lock protects the directory.
    lease: Option<(Lease, Vec<u8>)>,
    state: Mutex<State>,
}

impl DirectoryHold {
    /// Takes the directory, which must exist. `name` is the name of the lock file in it, which
    /// stays there; the lease is called `name.lease`. Does not wait for another holder.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Busy`] if another process, or another hold of this one, has it;
    /// [`CheckpointError::NotWritable`] or another error of the file system.
    pub fn take(directory: impl Into<PathBuf>, name: &str) -> Result<Self> {
        Self::take_in(Arc::new(OsFileSystem), directory.into(), name)
    }

    pub(super) fn take_in(fs: Arc<dyn FileSystem>, directory: PathBuf, name: &str) -> Result<Self> {
        let path = directory.join(name);
        let lease_path = directory.join(format!("{name}.lease"));
        let lock = fs.lock(&path);
        let lock = match lock.map_err(CheckpointError::io(&path, "lock"))? {
            Lock::Busy { holder } => {
                let read = fs.read_lease(&lease_path).ok();
                let named = read
                    .and_then(|(bytes, _)| Lease::decode(&bytes))
                    .map(|lease| lease.owner.holder());
                return Err(busy(&directory, holder.or(named)));
            }
            lock => lock,
        };
        let locking = match lock {
            Lock::Held(_) if fs.has_locks_of_its_host(&directory) => Locking::PerHost,
            Lock::Held(_) => Locking::Conclusive,
            _ => Locking::None,
        };
        let taking = Taking {
            fs: &*fs,
            directory: &directory,
            lease_path: &lease_path,
            own: fs.owner(),
            locking,
        };
        let lease = taking.lease()?;
        if locking == Locking::None {
            warn_without_locks(&directory, lease.is_some());
        }
        let inner = Arc::new(Inner {
            fs,
            directory,
            lease_path,
            lease,
            state: Mutex::new(State {
                renewed: Instant::now(),
                lost: None,
            }),
        });
        let renewer = Inner::renewer(&inner)?;
        Ok(Self {
            inner,
            lock: Some(lock),
            renewer,
        })
    }

    /// Whether other processes are excluded, so that unfinished saves in the directory are left
    /// by dead processes.
    pub(super) fn is_exclusive(&self) -> bool {
        matches!(self.lock, Some(Lock::Held(_))) || self.inner.lease.is_some()
    }

    /// Renews the hold, and checks that it is still valid. Call it before writing anything that
    /// must not collide with another holder.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::TakenOver`] if another process has taken the directory in the meantime,
    /// since this one did not renew its lease for too long; errors of the file system.
    pub fn check(&self) -> Result<()> {
        self.inner.renew()
    }
}

impl Drop for DirectoryHold {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.renewer.take() {
            drop(stop);
            // The thread's panic has been reported already.
            let _ = thread.join();
        }
        self.inner.end();
        self.lock = None;
    }
}

impl fmt::Debug for DirectoryHold {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("DirectoryHold")
            .field("directory", &self.inner.directory)
            .field("lease", &self.inner.lease)
            .finish_non_exhaustive()
    }
}

impl Inner {
    /// The thread that renews the lease, if there is one.
    fn renewer(inner: &Arc<Self>) -> Result<Option<(Sender<()>, JoinHandle<()>)>> {
        if inner.lease.is_none() {
            return Ok(None);
        }
        let (stop, stopped) = mpsc::channel();
        let own = Arc::clone(inner);
        let thread = std::thread::Builder::new()
            .name("directory-lease".to_string())
            .spawn(move || {
                while stopped.recv_timeout(RENEWAL) == Err(RecvTimeoutError::Timeout) {
                    if let Err(error @ CheckpointError::TakenOver { .. }) = own.renew() {
                        tracing::error!(%error, "this process no longer saves there");
                        return;
                    }
                }
            });
        match thread {
            Ok(thread) => Ok(Some((stop, thread))),
            Err(error) => {
                inner.end();
                Err(CheckpointError::io(&inner.lease_path, "renew")(error))
            }
        }
    }

    fn renew(&self) -> Result<()> {
        let Some((lease, bytes)) = &self.lease else {
            return Ok(());
        };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.lost.is_none() {
            match self.rewrite(lease, bytes, state.renewed)? {
                None => state.renewed = Instant::now(),
                other => state.lost = other,
            }
        }
        match &state.lost {
            None => Ok(()),
            Some(holder) => Err(CheckpointError::TakenOver {
                path: self.directory.clone(),
                holder: holder.clone(),
            }),
        }
    }

    /// Renews a lease that was written at `renewed`, or returns the process that has taken the
    /// directory over.
    fn rewrite(
        &self,
        lease: &Lease,
        bytes: &[u8],
        renewed: Instant,
    ) -> Result<Option<Option<Holder>>> {
        match self.fs.read_lease(&self.lease_path) {
            Ok((found, _)) if found == *bytes => {
                // The content exists already, so only its time can be wrong: then others take the
                // directory over, and the next call notices that.
                let _ = self.fs.rewrite_lease(&self.lease_path, bytes);
                Ok(None)
            }
            Ok((found, _)) => {
                let by = Lease::decode(&found).filter(|found| found.id != lease.id);
                Ok(Some(by.map(|lease| lease.owner.holder())))
            }
            // Another process may have held the directory meanwhile, and have ended.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && self.fs.elapsed(renewed) >= VALID_FOR
                    && self.fs.is_dir(&self.directory) =>
            {
                Ok(Some(None))
            }
            // It was removed by hand.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match self.fs.create_lease(&self.lease_path, bytes) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(Some(None)),
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        Err(CheckpointError::io(&self.lease_path, "renew")(error))
                    }
                    // The directory is gone too; a save makes it again, with a new hold.
                    _ => Ok(None),
                }
            }
            Err(error) => Err(CheckpointError::io(&self.lease_path, "read")(error)),
        }
    }

    /// Removes the lease, if it still belongs to this hold.
    fn end(&self) {
        let Some((_, bytes)) = &self.lease else {
            return;
        };
        let read = self.fs.read_lease(&self.lease_path);
        if read.is_ok_and(|(found, _)| found == *bytes) {
            // A lease that stays expires.
            let _ = self.fs.remove_lease(&self.lease_path);
        }
    }
}

/// The state of a lease.
struct State {
    /// When it was last written.
    renewed: Instant,
    /// The process that has taken the directory over, if known.
    lost: Option<Option<Holder>>,
}

/// One attempt to take a directory.
struct Taking<'a> {
    fs: &'a dyn FileSystem,
    directory: &'a Path,
    lease_path: &'a Path,
    own: Owner,
    locking: Locking,
}

impl Taking<'_> {
    /// The lease of this process. `None` if it cannot be written and the lock suffices.
    fn lease(&self) -> Result<Option<(Lease, Vec<u8>)>> {
        let id = random_id().map_err(CheckpointError::io(self.lease_path, "name"))?;
        if let Some(found) = self.found()? {
            self.remove(&found, &id)?;
        }
        let owner = self.own.clone();
        let directory = self.fs.directory_id(self.directory);
        let lease = Lease {
            id,
            owner,
            directory,
        };
        let bytes = lease
            .encode()
            .map_err(CheckpointError::io(self.lease_path, "encode"))?;
        match self.fs.create_lease(self.lease_path, &bytes) {
            Ok(()) => Ok(Some((lease, bytes))),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(self.busy_with(self.read()?.and_then(|(found, _)| Lease::decode(&found))))
            }
            // The disk may be full now and have room when there is something to save.
            Err(error) => {
                let path = self.lease_path.display();
                if self.locking != Locking::Conclusive {
                    tracing::warn!(%path, %error, "without this file other hosts may write there");
                }
                Ok(None)
            }
        }
    }

    fn read(&self) -> Result<Option<(Vec<u8>, SystemTime)>> {
        match self.fs.read_lease(self.lease_path) {
            Ok(read) => Ok(Some(read)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(CheckpointError::io(self.lease_path, "read")(error)),
        }
    }

    /// The existing lease, if it may be taken over.
    fn found(&self) -> Result<Option<Vec<u8>>> {
        let Some((found, renewed)) = self.read()? else {
            return Ok(None);
        };
        let age = match self.fs.now(self.directory).duration_since(renewed) {
            Ok(age) => Some(age),
            Err(ahead) => (ahead.duration() < VALID_FOR).then_some(Duration::ZERO),
        };
        let lease = Lease::decode(&found);
        let owner = lease.as_ref().map(|lease| &lease.owner);
        // Directory numbers are stable only on local file systems, while the host runs.
        let is_copy = self.locking == Locking::Conclusive
            && lease
                .as_ref()
                .is_some_and(|lease| lease.is_of_another(self.fs.directory_id(self.directory)));
        let is_alive = |owner: &Owner| !is_copy && self.fs.is_alive(owner);
        if is_held(owner, age, &self.own, self.locking, is_alive) {
            Err(self.busy_with(lease))
        } else {
            Ok(Some(found))
        }
    }

    /// Removes the old lease, unless it was replaced meanwhile. If several processes try, the one
    /// whose rename succeeds wins.
    fn remove(&self, old: &[u8], id: &str) -> Result<()> {
        let name = self.lease_path.file_name().unwrap_or_default();
        let mut aside = name.to_os_string();
        aside.push(format!(".{id}"));
        let aside = self.lease_path.with_file_name(aside);
        match self.fs.rename(self.lease_path, &aside) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            moved => moved.map_err(CheckpointError::io(self.lease_path, "replace"))?,
        }
        let moved = self.fs.read_lease(&aside);
        let (moved, _) = moved.map_err(CheckpointError::io(&aside, "read"))?;
        if moved != old {
            // Its holder renewed it in time, and keeps it.
            let back = self.fs.rename(&aside, self.lease_path);
            back.map_err(CheckpointError::io(self.lease_path, "replace"))?;
            return Err(self.busy_with(Lease::decode(&moved)));
        }
        let removed = self.fs.remove_lease(&aside);
        removed.map_err(CheckpointError::io(&aside, "remove"))
    }

    fn busy_with(&self, lease: Option<Lease>) -> CheckpointError {
        busy(self.directory, lease.map(|lease| lease.owner.holder()))
    }
}

fn busy(directory: &Path, holder: Option<Holder>) -> CheckpointError {
    let path = directory.to_path_buf();
    CheckpointError::Busy { path, holder }
}

/// Warns that without locks a killed process holds the directory for a while.
fn warn_without_locks(directory: &Path, has_lease: bool) {
    let path = directory.display();
    if has_lease {
        tracing::warn!(
            %path,
            "the file system has no locks: a file that is renewed every {} s keeps other runs out; \
             after the death of a run on another host it is taken over after {} s",
            RENEWAL.as_secs(),
            VALID_FOR.as_secs()
        )
    } else {
        tracing::warn!(
            %path,
            "the file system has no locks, and no file can be written that keeps other runs out: \
             take care that no other run writes there"
        )
    }
}
