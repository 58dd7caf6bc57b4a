//! Which of burn's checkpoints a training can go on from.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::Path;
use std::{fs, io};

use distribute_core::{Error, Result};

/// The files of a checkpoint of burn's `with_default_checkpointers`.
const FILES: [&str; 3] = ["model", "optim", "scheduler"];

/// The last epoch of which `directory`, that of a `SupervisedTraining`, holds a whole checkpoint;
/// `None` without one (TensorFlow: `tf.train.latest_checkpoint`). For
/// `SupervisedTraining::checkpoint`, in a program that is started again by `distribute-cli launch`.
///
/// With several workers the chief's counts: the others may find another one or none, because they
/// do not see its directory.
///
/// A killed process leaves the checkpoint of its last epoch without one of the three files, which
/// burn writes one after the other, each as a whole. Such an epoch does not count.
///
/// # Errors
/// If the directory cannot be read.
///
/// ```
/// use distribute_learner::latest_checkpoint;
///
/// let folder = tempfile::tempdir().unwrap();
/// assert_eq!(latest_checkpoint(folder.path())?, None);
/// let checkpoint = folder.path().join("checkpoint");
/// std::fs::create_dir(&checkpoint).unwrap();
/// for name in ["model-1", "optim-1", "scheduler-1", "model-2", "optim-2"] {
///     std::fs::write(checkpoint.join(name).with_extension("bpk"), "").unwrap();
/// }
/// assert_eq!(latest_checkpoint(folder.path())?, Some(1));
/// # Ok::<(), distribute_core::Error>(())
/// ```
pub fn latest_checkpoint(directory: impl AsRef<Path>) -> Result<Option<usize>> {
    let directory = directory.as_ref().join("checkpoint");
    let unreadable = |error: io::Error| {
        let path = directory.display();
        Error::of_system(
            &error,
            format!("cannot read the checkpoints in {path}: {error}"),
        )
    };
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    let mut found = BTreeMap::<usize, usize>::new();
    for entry in entries {
        let name = entry.map_err(unreadable)?.file_name();
        if let Some(epoch) = epoch_of(&name) {
            *found.entry(epoch).or_default() += 1;
        }
    }
    let whole = found.into_iter().filter(|(_, files)| *files == FILES.len());
    Ok(whole.map(|(epoch, _)| epoch).next_back())
}

/// The epoch of a file of a checkpoint.
fn epoch_of(name: &OsStr) -> Option<usize> {
    let name = name.to_str()?.strip_suffix(".bpk")?;
    let (file, epoch) = name.rsplit_once('-')?;
    FILES.contains(&file).then(|| epoch.parse().ok())?
}
