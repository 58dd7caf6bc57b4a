//! Two processes and one directory, on file systems whose locks do not reach both, or that have
//! none.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rstest::rstest;

use super::error::CheckpointError;
use super::filesystem::{FileSystem, Lock, OsFileSystem};
use super::hold::DirectoryHold;
use super::lease::VALID_FOR;
use super::manager::CheckpointManager;
use super::owner::Owner;
use super::{Checkpoint, Metadata, load_latest};

/// How reliable the locks of a file system are.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Locks {
    /// Every process gets the lock.
    Blind,
    Unsupported,
}

/// One host's view of the directory.
#[derive(Clone)]
struct Host {
    name: &'static str,
    boot: &'static str,
    locks: Locks,
    is_network: bool,
    /// Whether processes of this host run.
    alive: bool,
    room: bool,
    /// How long it was suspended.
    slept: Duration,
}

impl Host {
    fn new(name: &'static str, locks: Locks) -> Self {
        Self {
            name,
            boot: name,
            locks,
            is_network: true,
            alive: true,
            room: true,
            slept: Duration::ZERO,
        }
    }

    fn open(&self, directory: &Path) -> Result<CheckpointManager, CheckpointError> {
        CheckpointManager::open_in(Arc::new(self.clone()), directory.to_path_buf())
    }

    fn take(&self, directory: &Path) -> Result<DirectoryHold, CheckpointError> {
        DirectoryHold::take_in(Arc::new(self.clone()), directory.to_path_buf(), ".lock")
    }
}

impl FileSystem for Host {
    fn owner(&self) -> Owner {
        Owner {
            host: self.name.to_string(),
            process: 7,
            boot: self.boot.to_string(),
            namespace: "pid:[1]".to_string(),
            started: self.name.to_string(),
        }
    }

    fn is_alive(&self, _: &Owner) -> bool {
        self.alive
    }

    fn has_locks_of_its_host(&self, _: &Path) -> bool {
        self.is_network
    }

    fn elapsed(&self, since: Instant) -> Duration {
        since.elapsed() + self.slept
    }

    fn create_lease(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        if self.room {
            OsFileSystem.create_lease(path, content)
        } else {
            Err(io::ErrorKind::StorageFull.into())
        }
    }

    fn lock(&self, _: &Path) -> io::Result<Lock> {
        Ok(match self.locks {
            Locks::Blind => Lock::Held(Box::new(())),
            Locks::Unsupported => Lock::Unsupported,
        })
    }
}

fn at_step(step: u64) -> Checkpoint {
    Checkpoint::new(Metadata::new(step))
}

/// The error that names the holder.
fn refused<T: std::fmt::Debug>(attempt: Result<T, CheckpointError>) -> String {
    match attempt {
        Err(error @ CheckpointError::Busy { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

fn leases(directory: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(directory).unwrap();
    let paths = files.map(|entry| entry.unwrap().path());
    let is_lease = |path: &PathBuf| path.to_string_lossy().contains(".lease");
    paths.filter(is_lease).collect()
}

/// Makes the lease look as if it was renewed `ago` seconds ago; negative: in the future.
fn renewed(directory: &Path, ago: i64) {
    let [lease] = &leases(directory)[..] else {
        panic!("{:?}", leases(directory));
    };
    let by = Duration::from_secs(ago.unsigned_abs());
    let now = SystemTime::now();
    let time = if ago >= 0 { now - by } else { now + by };
    let file = File::options().write(true).open(lease).unwrap();
    file.set_modified(time).unwrap();
}

/// The clock of files may be a little behind.
const OLD: i64 = VALID_FOR.as_secs() as i64 + 1;

#[rstest]
fn both_halves_of_a_job_never_write_into_one_directory(
    #[values(Locks::Blind, Locks::Unsupported)] locks: Locks,
) {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (north, south) = (Host::new("north", locks), Host::new("south", locks));
    let first = north.open(directory).unwrap();
    first.save(&at_step(1)).unwrap();
    let unfinished = directory.join(format!(".tmp-distribute-{:032x}", 5));
    fs::create_dir(&unfinished).unwrap();

    let said = refused(south.open(directory));
    assert!(said.contains("in use by process 7 on host north"), "{said}");
    assert!(
        unfinished.exists(),
        "it belongs to a save of the other half"
    );
    renewed(directory, OLD - 5);
    refused(south.open(directory));
    renewed(directory, 5 - OLD);
    refused(south.open(directory));

    // The first is cut off for too long.
    renewed(directory, OLD);
    let second = south.open(directory).unwrap();
    assert!(!unfinished.exists());
    second.save(&at_step(2)).unwrap();
    let error = first.save(&at_step(3)).unwrap_err();
    assert!(
        matches!(error, CheckpointError::TakenOver { .. }),
        "{error}"
    );
    let said = error.to_string();
    assert!(
        said.contains("taken over by process 7 on host south"),
        "{said}"
    );
    drop(first);
    refused(north.open(directory));
    second.save(&at_step(4)).unwrap();
    drop(second);
    assert_eq!(leases(directory), [] as [PathBuf; 0]);
    let (entry, _) = load_latest(directory).unwrap().found.unwrap();
    assert_eq!(entry.step, 4);
    north.open(directory).unwrap();
}

#[test]
fn a_time_far_in_the_future_is_not_that_of_a_holder() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let held = Host::new("north", Locks::Blind).take(directory).unwrap();
    renewed(directory, -10 * OLD);
    let _second = Host::new("south", Locks::Blind).take(directory).unwrap();
    held.check().unwrap_err();
}

#[test]
fn a_process_of_the_same_host_is_looked_for() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    for locks in [Locks::Blind, Locks::Unsupported] {
        for is_network in [true, false] {
            let first = Host::new("north", locks);
            let mut second = Host {
                name: "also north",
                is_network,
                ..first.clone()
            };
            let held = first.take(directory).unwrap();
            let said = refused(second.take(directory));
            assert!(said.contains("process 7 on host north"), "{said}");
            // A dead holder's lease is not waited for, however new it is.
            second.alive = false;
            let _second = second.take(directory).unwrap();
            held.check().unwrap_err();
        }
    }
}

#[test]
fn on_a_local_file_system_the_lock_decides_about_other_hosts() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let crashed = Host::new("before a reboot", Locks::Blind);
    std::mem::forget(crashed.take(directory).unwrap());
    let after = Host {
        is_network: false,
        ..Host::new("after it", Locks::Blind)
    };
    after.take(directory).unwrap();
}

#[test]
fn a_lease_that_another_process_removes_is_made_again() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let host = Host::new("north", Locks::Unsupported);
    let held = host.take(directory).unwrap();
    fs::remove_file(&leases(directory)[0]).unwrap();
    held.check().unwrap();
    refused(Host::new("south", Locks::Unsupported).take(directory));
}

#[test]
fn who_slept_while_another_one_came_and_went_has_lost_the_directory() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let host = Host {
        slept: VALID_FOR,
        ..Host::new("north", Locks::Blind)
    };
    let held = host.take(directory).unwrap();
    held.check().unwrap();
    renewed(directory, OLD);
    drop(Host::new("south", Locks::Blind).take(directory).unwrap());
    let said = held.check().unwrap_err().to_string();
    assert!(said.contains("taken over by another process"), "{said}");
}

#[test]
fn a_check_renews() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let held = Host::new("north", Locks::Blind).take(directory).unwrap();
    renewed(directory, 10 * OLD);
    held.check().unwrap();
    refused(Host::new("south", Locks::Blind).take(directory));
}

#[test]
fn without_room_for_a_lease_the_lock_has_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    for locks in [Locks::Blind, Locks::Unsupported] {
        let host = Host {
            room: false,
            ..Host::new("north", locks)
        };
        let unfinished = directory.join(format!(".tmp-distribute-{:032x}", 5));
        fs::create_dir_all(&unfinished).unwrap();
        let manager = host.open(directory).unwrap();
        manager.save(&at_step(1)).unwrap();
        assert_eq!(leases(directory), [] as [PathBuf; 0]);
        // Without any protection nothing is cleaned up.
        assert_eq!(unfinished.exists(), locks == Locks::Unsupported);
    }
}

#[test]
fn what_is_no_lease_is_respected_as_long_as_one() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    fs::write(directory.join(".lock.lease"), "half of a le").unwrap();
    let host = Host::new("north", Locks::Blind);
    let said = refused(host.take(directory));
    assert!(said.contains("in use by another process"), "{said}");
    renewed(directory, OLD);
    host.take(directory).unwrap();
    // A lease that is not a regular file is not followed.
    let elsewhere = directory.join("elsewhere");
    fs::write(&elsewhere, "kept").unwrap();
    std::os::unix::fs::symlink(&elsewhere, directory.join(".lock.lease")).unwrap();
    host.take(directory).unwrap_err();
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "kept");
}

/// A file system with these answers to lock attempts.
#[derive(Clone, Copy)]
struct Answers(fn(asked: usize, file: &File) -> Result<(), TryLockError>);

/// [`Answers`], with the number of attempts.
struct Answering(Answers, AtomicUsize);

impl FileSystem for Answering {
    fn try_lock(&self, file: &File) -> Result<(), TryLockError> {
        (self.0.0)(self.1.fetch_add(1, Ordering::Relaxed), file)
    }
}

fn answering(answers: Answers) -> Arc<Answering> {
    Arc::new(Answering(answers, AtomicUsize::new(0)))
}

fn no_locks() -> TryLockError {
    TryLockError::Error(io::ErrorKind::Unsupported.into())
}

/// Every process gets the lock: locking succeeds and does nothing.
const PRETENDS: Answers = Answers(|_, _| Ok(()));
/// Locking succeeds the first time, and is unsupported afterwards.
const GIVES_UP: Answers = Answers(|asked, _| match asked % 2 {
    0 => Ok(()),
    _ => Err(no_locks()),
});
const HAS_NONE: Answers = Answers(|_, _| Err(no_locks()));

#[rstest]
#[case(PRETENDS)]
#[case(GIVES_UP)]
#[case(HAS_NONE)]
fn a_lock_that_does_nothing_is_found_out_and_the_lease_stands_for_it(#[case] answers: Answers) {
    let directory = tempfile::tempdir().unwrap();
    let lock = answering(answers).lock(&directory.path().join(".lock"));
    assert!(matches!(lock.unwrap(), Lock::Unsupported));
    let open = || CheckpointManager::open_in(answering(answers), directory.path().to_path_buf());
    let first = open().unwrap();
    let second = open().map(drop).unwrap_err();
    let CheckpointError::Busy { holder, .. } = second else {
        panic!("{second}");
    };
    assert!(holder.is_some(), "the lease names the holder");
    first.save(&Checkpoint::new(Metadata::new(1))).unwrap();
    drop(first);
    let saved = Checkpoint::new(Metadata::new(2));
    open().unwrap().save(&saved).unwrap();
}

#[test]
fn a_lock_that_keeps_a_second_one_out_is_held() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(".lock");
    let real = Answers(|_, file| file.try_lock());
    // Any other answer to the second attempt means that it did not get the lock.
    let odd = Answers(|asked, _| match asked {
        0 => Ok(()),
        _ => Err(TryLockError::Error(io::ErrorKind::PermissionDenied.into())),
    });
    for answers in [real, odd] {
        let asked = answering(answers);
        assert!(matches!(asked.lock(&path).unwrap(), Lock::Held(_)));
        assert_eq!(asked.1.load(Ordering::Relaxed), 2, "the lock is tried");
    }
    let held = answering(real);
    let lock = held.lock(&path).unwrap();
    assert!(matches!(held.lock(&path).unwrap(), Lock::Busy { .. }));
    drop(lock);
    assert!(matches!(held.lock(&path).unwrap(), Lock::Held(_)));
}

/// The lease is copied along when a directory is copied during a run.
#[cfg(unix)]
#[test]
fn a_copy_of_a_directory_in_use_is_free_at_once() {
    let root = tempfile::tempdir().unwrap();
    let (used, copy) = (root.path().join("used"), root.path().join("copy"));
    fs::create_dir(&used).unwrap();
    fs::create_dir(&copy).unwrap();
    let local = |name| Host {
        boot: "one",
        is_network: false,
        ..Host::new(name, Locks::Blind)
    };
    let (north, south) = (local("north"), local("south"));
    let first = north.take(&used).unwrap();
    let bring = || {
        for entry in fs::read_dir(&used).unwrap() {
            let from = entry.unwrap().path();
            fs::copy(&from, copy.join(from.file_name().unwrap())).unwrap();
        }
    };
    bring();
    let second = south.take(&copy).unwrap();
    second.check().unwrap();
    first.check().unwrap();
    refused(south.take(&used));
    drop(second);
    // A directory keeps its identity under a new name, or without its lock file.
    let moved = root.path().join("moved");
    fs::rename(&used, &moved).unwrap();
    refused(south.take(&moved));
    fs::rename(&moved, &used).unwrap();
    let _ = fs::remove_file(used.join(".lock"));
    refused(south.take(&used));
    // If directories have no stable numbers, or the lease is of an older format, a new lease is
    // respected.
    bring();
    let network = Host {
        is_network: true,
        ..south.clone()
    };
    refused(network.take(&copy));
    let [lease] = &leases(&copy)[..] else {
        panic!("{:?}", leases(&copy));
    };
    let mut older: serde_json::Value = serde_json::from_slice(&fs::read(lease).unwrap()).unwrap();
    older.as_object_mut().unwrap().remove("directory").unwrap();
    fs::write(lease, older.to_string()).unwrap();
    refused(south.take(&copy));
    drop(first);
}
