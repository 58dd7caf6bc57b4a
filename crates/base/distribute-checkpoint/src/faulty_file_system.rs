//! A file system that fails, or dies, after a given number of events, and that can lose unsynced
//! data, as a machine does when the power fails.
//!
//! An event is one byte written, or one create, sync, rename, removal, lock or listing. It works
//! on real directories, but never really syncs, so that thousands of saves take seconds.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::filesystem::{FileSystem, Lock, OsFileSystem, ReadableFile, WritableFile};

/// The fault at the chosen event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// This event fails as on a full disk, later ones succeed.
    Error,
    /// The process dies: this event and all later ones have no effect.
    Death,
    /// The code of this event panics.
    Panic,
}

/// What the disk loses when the power fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PowerLoss {
    /// Only the process died.
    Nothing,
    /// The content of files that were not synced; all names survive.
    Content,
    /// The content, and names created or changed in directories that were not synced.
    ContentAndNames,
}

#[derive(Clone)]
pub(super) struct FaultyFileSystem {
    state: Arc<Mutex<State>>,
}

struct State {
    fault: Fault,
    /// The number of events that still succeed; `None` once the fault has happened.
    events_left: Option<u64>,
    events: u64,
    dead: bool,
    /// Files with bytes that are not synced, and how many are.
    synced_bytes: BTreeMap<PathBuf, u64>,
    /// New names that are not synced, in order: where the name came from if it was renamed.
    new_names: Vec<(PathBuf, Option<PathBuf>)>,
}

impl FaultyFileSystem {
    pub(super) fn new(fault: Fault, events: u64) -> Self {
        Self {
            state: Arc::new(Mutex::new(State {
                fault,
                events_left: Some(events),
                events: 0,
                dead: false,
                synced_bytes: BTreeMap::new(),
                new_names: Vec::new(),
            })),
        }
    }

    /// No fault in any test that ends.
    pub(super) fn faultless() -> Self {
        Self::new(Fault::Error, u64::MAX)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the fault has happened.
    pub(super) fn fired(&self) -> bool {
        self.state().events_left.is_none()
    }

    pub(super) fn events(&self) -> u64 {
        self.state().events
    }

    /// Applies a power loss to the real directory.
    pub(super) fn lose(&self, loss: PowerLoss) {
        let state = self.state();
        if loss == PowerLoss::Nothing {
            return;
        }
        for (path, bytes) in &state.synced_bytes {
            if let Ok(file) = OpenOptions::new().write(true).open(path) {
                file.set_len(*bytes).unwrap();
            }
        }
        if loss == PowerLoss::Content {
            return;
        }
        for (path, from) in state.new_names.iter().rev() {
            match from {
                Some(from) if path.exists() => fs::rename(path, from).unwrap(),
                None if path.is_dir() => fs::remove_dir_all(path).unwrap(),
                None if path.is_file() => fs::remove_file(path).unwrap(),
                _ => {}
            }
        }
    }
}

impl State {
    fn alive(&self) -> io::Result<()> {
        if self.dead {
            Err(io::Error::other("the process is dead"))
        } else {
            Ok(())
        }
    }

    fn event(&mut self) -> io::Result<()> {
        self.bytes(1).map(|_| ())
    }

    /// How many of `count` events happen before the fault; an error if none does.
    fn bytes(&mut self, count: u64) -> io::Result<u64> {
        self.alive()?;
        let allowed = match self.events_left {
            None => count,
            Some(0) if count > 0 => {
                self.events_left = None;
                self.dead = self.fault == Fault::Death;
                assert!(self.fault != Fault::Panic, "injected panic");
                return Err(io::ErrorKind::StorageFull.into());
            }
            Some(left) => {
                let allowed = left.min(count);
                self.events_left = Some(left - allowed);
                allowed
            }
        };
        self.events += allowed;
        Ok(allowed)
    }

    fn renamed(&mut self, from: &Path, to: &Path) {
        let moved = |path: &Path| match path.strip_prefix(from) {
            Ok(rest) if rest == Path::new("") => to.to_path_buf(),
            Ok(rest) => to.join(rest),
            Err(_) => path.to_path_buf(),
        };
        self.synced_bytes = std::mem::take(&mut self.synced_bytes)
            .into_iter()
            .map(|(path, bytes)| (moved(&path), bytes))
            .collect();
        for (path, _) in &mut self.new_names {
            *path = moved(path);
        }
        self.new_names
            .push((to.to_path_buf(), Some(from.to_path_buf())));
    }
}

struct FaultyFile {
    file: Box<dyn WritableFile>,
    path: PathBuf,
    fs: FaultyFileSystem,
}

impl Write for FaultyFile {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let allowed = self.fs.state().bytes(buffer.len() as u64)?;
        self.file.write(&buffer[..allowed as usize])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl WritableFile for FaultyFile {
    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.fs.state();
        state.event()?;
        state.synced_bytes.remove(&self.path);
        Ok(())
    }
}

impl FileSystem for FaultyFileSystem {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.state().event()?;
        OsFileSystem.create_dir_all(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.event()?;
        state.new_names.push((path.to_path_buf(), None));
        OsFileSystem.create_dir(path)
    }

    fn create_file(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        let mut state = self.state();
        state.event()?;
        state.new_names.push((path.to_path_buf(), None));
        state.synced_bytes.insert(path.to_path_buf(), 0);
        Ok(Box::new(FaultyFile {
            file: OsFileSystem.create_file(path)?,
            path: path.to_path_buf(),
            fs: self.clone(),
        }))
    }

    fn open_file(&self, path: &Path) -> io::Result<ReadableFile> {
        OsFileSystem.open_file(path)
    }

    fn is_dir(&self, path: &Path) -> bool {
        OsFileSystem.is_dir(path)
    }

    fn file_names(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.state().event()?;
        OsFileSystem.file_names(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.event()?;
        state
            .new_names
            .retain(|(name, _)| name.parent() != Some(path));
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.event()?;
        OsFileSystem.rename(from, to)?;
        state.renamed(from, to);
        Ok(())
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        for name in fs::read_dir(path)? {
            self.state().event()?;
            fs::remove_file(name?.path())?;
        }
        self.state().event()?;
        fs::remove_dir(path)
    }

    // Writing a lease is not an event: saves must not depend on it. A dead process does not write
    // one either.
    fn create_lease(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        self.state().alive()?;
        OsFileSystem.create_lease(path, content)
    }

    fn rewrite_lease(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        self.state().alive()?;
        OsFileSystem.rewrite_lease(path, content)
    }

    fn remove_lease(&self, path: &Path) -> io::Result<()> {
        self.state().alive()?;
        OsFileSystem.remove_lease(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Lock> {
        self.state().event()?;
        OsFileSystem.lock(path)
    }
}
