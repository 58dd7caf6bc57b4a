//! A fault after every byte and every operation of a save leaves a complete checkpoint.

use std::fs;
use std::io;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use burn::tensor::TensorData;
use rstest::rstest;

use super::faulty_file_system::{Fault, FaultyFileSystem, PowerLoss};
use super::*;

fn checkpoint(step: u64, value: f32) -> Checkpoint {
    let mut checkpoint = Checkpoint::new(Metadata::new(step));
    let bias = TensorData::from([value, -value]);
    checkpoint.tensors.insert("model/b".to_string(), bias);
    checkpoint
}

fn manager(fs: &FaultyFileSystem, directory: &Path) -> Result<CheckpointManager, CheckpointError> {
    CheckpointManager::open_in(Arc::new(fs.clone()), directory.to_path_buf())
}

fn save_faultless(directory: &Path, checkpoint: &Checkpoint) {
    let manager = manager(&FaultyFileSystem::faultless(), directory).unwrap();
    manager.save(checkpoint).unwrap();
}

fn temporaries(directory: &Path) -> usize {
    let names = fs::read_dir(directory).unwrap();
    names
        .filter(|name| {
            let name = name.as_ref().unwrap().file_name();
            name.to_str().unwrap().starts_with(".tmp")
        })
        .count()
}

/// A directory with checkpoints of the steps 1 and 2, made again for every fault.
fn prepare(directory: &Path) {
    if directory.exists() {
        fs::remove_dir_all(directory).unwrap();
    }
    for step in [1, 2] {
        save_faultless(directory, &checkpoint(step, step as f32));
    }
}

/// Saves `new` with a fault at event `events`. Returns whether the fault happened.
fn save_with_fault(
    directory: &Path,
    new: &Checkpoint,
    mode: (Fault, PowerLoss),
    events: u64,
) -> bool {
    prepare(directory);
    let previous = checkpoint(2, 2.0);
    let fs = FaultyFileSystem::new(mode.0, events);
    let result = manager(&fs, directory).and_then(|manager| {
        let manager = manager.with_max_to_keep(NonZeroUsize::new(1));
        manager.save(new)
    });
    fs.lose(mode.1);

    let context = format!("{mode:?} at event {events}: {result:?}");
    let latest = load_latest(directory).expect(&context);
    let (_, found) = latest.found.expect(&context);
    match &result {
        Ok(_) => assert_eq!(found, *new, "{context}"),
        // The fault may have hit after the new checkpoint had got its name.
        Err(_) => assert!(found == previous || found == *new, "{context}"),
    }
    if mode.0 == Fault::Error
        && let Err(error) = &result
    {
        assert!(
            matches!(error, CheckpointError::DiskFull { .. }),
            "{context}"
        );
        assert_eq!(temporaries(directory), 0, "{context}");
    }

    // Leftovers do not disturb the next save, and are gone after it.
    let next = checkpoint(9, 9.0);
    save_faultless(directory, &next);
    let (_, found) = load_latest(directory)
        .expect(&context)
        .found
        .expect(&context);
    assert_eq!(found, next, "{context}");
    assert_eq!(temporaries(directory), 0, "{context}");
    fs.fired()
}

/// A folder in memory if the system has one. [`FaultyFileSystem`] loses what was not
/// synced; ext4 takes its time for thousands of files that come and go.
fn folder_in_memory() -> tempfile::TempDir {
    let in_memory = tempfile::tempdir_in("/dev/shm");
    in_memory.unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

#[rstest]
fn a_fault_at_any_event_of_a_save_leaves_a_complete_checkpoint(
    #[values(
        (Fault::Error, PowerLoss::Nothing),
        (Fault::Death, PowerLoss::Nothing),
        (Fault::Death, PowerLoss::Content),
        (Fault::Death, PowerLoss::ContentAndNames)
    )]
    mode: (Fault, PowerLoss),
    // A new step; and the latest step again, with other values.
    #[values(checkpoint(3, 3.0), checkpoint(2, 7.0))] new: Checkpoint,
) {
    let parent = folder_in_memory();
    let directory = parent.path().join("checkpoints");
    let mut events = 0;
    while save_with_fault(&directory, &new, mode, events) {
        events += 1;
    }
    // Every byte of three files, and the operations around them.
    assert!(events > 500, "{events} events");
}

#[test]
fn a_fault_before_the_rename_keeps_exactly_the_previous_checkpoint() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("checkpoints");
    prepare(&directory);
    let fs = FaultyFileSystem::faultless();
    manager(&fs, &directory)
        .unwrap()
        .save(&checkpoint(3, 3.0))
        .unwrap();
    // The last events are the rename and the sync of the parent (nothing to remove), and the
    // listings around them.
    let bytes: u64 = fs::read_dir(directory.join("step-00000003"))
        .unwrap()
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum();
    assert!(fs.events() > bytes);
    for events in [bytes, bytes - 1, bytes / 2] {
        prepare(&directory);
        let fs = FaultyFileSystem::new(Fault::Death, events);
        let manager = manager(&fs, &directory).unwrap();
        manager.save(&checkpoint(3, 3.0)).unwrap_err();
        let latest = load_latest(&directory).unwrap();
        assert_eq!(latest.found.unwrap().1, checkpoint(2, 2.0));
        assert_eq!(temporaries(&directory), 1, "a dead process cannot clean up");
    }
}

/// A manager whose second event after opening the directory goes wrong.
fn faulty_manager(directory: &Path, fault: Fault) -> CheckpointManager {
    save_faultless(directory, &checkpoint(1, 1.0));
    let probe = FaultyFileSystem::faultless();
    manager(&probe, directory).unwrap();
    manager(&FaultyFileSystem::new(fault, probe.events() + 1), directory).unwrap()
}

#[test]
fn the_error_of_a_background_save_surfaces_at_the_next_call() {
    let directory = tempfile::tempdir().unwrap();
    let manager = faulty_manager(directory.path(), Fault::Error);
    let mut handle = SaveHandle::new(manager);
    assert_eq!(handle.save(checkpoint(2, 2.0)).unwrap(), None);
    let error = handle.save(checkpoint(3, 3.0)).unwrap_err();
    assert!(matches!(error, CheckpointError::DiskFull { .. }), "{error}");
    // The error is reported once; the disk has space again.
    assert_eq!(handle.save(checkpoint(4, 4.0)).unwrap(), None);
    let saved = handle.finish().unwrap().unwrap();
    assert_eq!(saved.entry.step, 4);
    let steps = list(directory.path()).unwrap();
    assert_eq!(
        steps.iter().map(|entry| entry.step).collect::<Vec<_>>(),
        [1, 4]
    );
}

#[test]
fn the_error_of_the_last_background_save_surfaces_when_finishing() {
    let directory = tempfile::tempdir().unwrap();
    let mut handle = SaveHandle::new(faulty_manager(directory.path(), Fault::Error));
    handle.save(checkpoint(2, 2.0)).unwrap();
    let error = handle.finish().unwrap_err();
    assert!(matches!(error, CheckpointError::DiskFull { .. }), "{error}");
}

#[test]
fn a_panic_in_a_background_save_is_an_error_and_the_manager_stays_usable() {
    let directory = tempfile::tempdir().unwrap();
    let manager = faulty_manager(directory.path(), Fault::Panic);
    let mut handle = SaveHandle::new(manager.clone());
    handle.save(checkpoint(2, 2.0)).unwrap();
    let error = handle.finish().unwrap_err();
    let CheckpointError::SaverPanicked { what, .. } = &error else {
        panic!("{error}")
    };
    assert!(what.contains("injected panic"), "{what}");
    manager.save(&checkpoint(3, 3.0)).unwrap();
}

#[test]
fn background_saves_happen_one_after_the_other_and_dropping_waits() {
    let directory = tempfile::tempdir().unwrap();
    let fs = FaultyFileSystem::faultless();
    let mut handle = SaveHandle::new(manager(&fs, directory.path()).unwrap());
    let mut saved = handle.save(checkpoint(1, 1.0)).unwrap();
    assert_eq!(saved, None);
    for step in 2..=5 {
        saved = handle.save(checkpoint(step, step as f32)).unwrap();
        let previous = saved.unwrap().entry;
        assert_eq!(previous.step, step - 1);
        assert_eq!(load(&previous.path).unwrap().metadata.step, step - 1);
    }
    drop(handle);
    let latest = load_latest(directory.path()).unwrap().found.unwrap();
    assert_eq!(latest.1, checkpoint(5, 5.0));
}

/// Whether a second manager is refused, with the directory and this process named.
fn is_refused(directory: &Path) -> bool {
    match CheckpointManager::open(directory) {
        Ok(_) => false,
        Err(ref error @ CheckpointError::Busy { ref holder, .. }) => {
            assert_eq!(holder.as_ref().unwrap().process, std::process::id());
            let text = error.to_string();
            let start = format!("{} is in use by another manager", directory.display());
            assert!(text.starts_with(&start), "{text}");
            true
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_second_manager_is_refused_until_the_first_and_its_clones_are_gone() {
    let directory = tempfile::tempdir().unwrap();
    let fs = FaultyFileSystem::faultless();
    let manager = manager(&fs, directory.path()).unwrap();
    let leftover = directory.path().join(format!(".tmp-distribute-{:032x}", 5));
    fs::create_dir(&leftover).unwrap();
    assert!(is_refused(directory.path()));
    assert!(
        leftover.exists(),
        "it may belong to the save of the lock's holder"
    );

    let clone = manager.clone();
    drop(manager);
    assert!(is_refused(directory.path()), "a clone is left");
    clone.save(&checkpoint(1, 1.0)).unwrap();
    assert!(!leftover.exists());
    assert!(is_refused(directory.path()), "between two saves as well");
    assert_eq!(
        load_latest(directory.path()).unwrap().found.unwrap().0.step,
        1
    );

    let mut handle = SaveHandle::new(clone);
    handle.save(checkpoint(2, 2.0)).unwrap();
    assert!(is_refused(directory.path()), "a save handle holds it too");
    handle.finish().unwrap();
    assert!(!is_refused(directory.path()));
}

#[test]
fn a_directory_that_is_removed_while_it_is_held_is_taken_again() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("checkpoints");
    let first = CheckpointManager::open(&directory).unwrap();
    fs::remove_dir_all(&directory).unwrap();
    first.save(&checkpoint(1, 1.0)).unwrap();
    assert!(is_refused(&directory));

    fs::remove_dir_all(&directory).unwrap();
    let second = CheckpointManager::open(&directory).unwrap();
    drop(first);
    assert!(is_refused(&directory), "the second has it now");
    second.save(&checkpoint(1, 1.0)).unwrap();
}

#[test]
fn a_restarted_run_waits_for_the_one_before_to_let_go() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let before = CheckpointManager::open(path).unwrap();
    for patience in [0, 50].map(Duration::from_millis) {
        let error = CheckpointManager::open_within(path, patience).unwrap_err();
        assert!(matches!(error, CheckpointError::Busy { .. }), "{error}");
    }
    std::thread::scope(|threads| {
        let patience = Duration::from_secs(60);
        let after = threads.spawn(move || CheckpointManager::open_within(path, patience));
        drop(before);
        after.join().unwrap().unwrap();
    });
}

#[test]
fn a_refused_process_learns_the_host_of_the_one_that_saves() {
    let directory = tempfile::tempdir().unwrap();
    let mut lock = fs::File::create(directory.path().join(".distribute-checkpoints.lock")).unwrap();
    lock.lock().unwrap();
    std::io::Write::write_all(&mut lock, b"123 another-host\n").unwrap();
    let error = CheckpointManager::open(directory.path()).unwrap_err();
    let said = "is in use by process 123 on host another-host, which saves its checkpoints there";
    assert!(error.to_string().contains(said), "{error}");
}

#[test]
fn a_lock_file_that_is_not_ours_is_never_written_to() {
    let directory = tempfile::tempdir().unwrap();
    let lock = directory.path().join(".distribute-checkpoints.lock");
    let text = "a user's notes, which must not be lost";
    fs::write(&lock, text).unwrap();
    drop(CheckpointManager::open(directory.path()).unwrap());
    assert_eq!(fs::read_to_string(&lock).unwrap(), text);
}

#[test]
fn only_directories_with_our_temporary_names_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let others = [
        ".tmp-distribute-1",
        ".tmp-other",
        "step-1",
        "notes",
        ".tmp-distribute",
    ];
    for name in others {
        fs::create_dir(directory.path().join(name)).unwrap();
    }
    save_faultless(directory.path(), &checkpoint(1, 1.0));
    for name in others {
        assert!(directory.path().join(name).is_dir(), "{name}");
    }
}

#[rstest]
#[case(io::ErrorKind::PermissionDenied)]
#[case(io::ErrorKind::ReadOnlyFilesystem)]
fn a_read_only_directory_is_named(#[case] kind: io::ErrorKind) {
    let error = CheckpointError::io(Path::new("runs/1"), "lock")(kind.into());
    let text = error.to_string();
    assert!(
        matches!(error, CheckpointError::NotWritable { .. }),
        "{text}"
    );
    assert!(text.starts_with("cannot write to runs/1 ("), "{text}");
    assert!(
        text.contains("choose a writable checkpoint directory"),
        "{text}"
    );
}

#[test]
fn a_file_in_place_of_the_directory_is_an_error_with_its_path() {
    let parent = tempfile::tempdir().unwrap();
    let file = parent.path().join("file");
    fs::write(&file, "").unwrap();
    let error = CheckpointManager::open(&file).unwrap_err();
    assert!(
        error.to_string().contains(file.to_str().unwrap()),
        "{error}"
    );
}
