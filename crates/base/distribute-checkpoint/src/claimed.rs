//! Which paths belong to present or future checkpoints.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::manager::{LOCK_FILE, is_temporary};
use super::reader::{Entry, enclosing, existing, real};

/// The part of a path that belongs to the checkpoints of a directory: an existing checkpoint
/// (see [`enclosing`]), or a future one, if the path has the name of a checkpoint, of an unfinished
/// save or of the lock in a directory of checkpoints. Other files there would be removed with the
/// checkpoint, or be taken for a part of it.
///
/// `directory` is where checkpoints will be saved, if that is known; a directory that holds
/// checkpoints, or has held some, is recognised anyway. Links are followed.
pub fn claimed(path: impl AsRef<Path>, directory: Option<&Path>) -> Option<PathBuf> {
    let path = path.as_ref();
    enclosing(path).or_else(|| {
        let place = resolved(path)?;
        let directory = directory.and_then(resolved);
        let is_claimed = |path: &Path| {
            let name = path.file_name().and_then(|name| name.to_str());
            let parent = path.parent();
            name.is_some_and(is_name)
                && parent.is_some_and(|parent| {
                    directory.as_deref() == Some(parent) || holds_checkpoints(parent)
                })
        };
        let found = place.ancestors().find(|path| is_claimed(path));
        found.map(Path::to_path_buf)
    })
}

/// Whether a checkpoint manager uses such names.
fn is_name(name: &str) -> bool {
    Entry::parse(Path::new(""), name).is_some() || is_temporary(name) || name.starts_with(LOCK_FILE)
}

fn holds_checkpoints(directory: &Path) -> bool {
    directory.join(LOCK_FILE).exists()
        || fs::read_dir(directory).is_ok_and(|entries| {
            let mut paths = entries.flatten().map(|entry| entry.path());
            paths.any(|path| enclosing(&path).as_ref() == Some(&path))
        })
}

/// The resolved path: the existing part without links, then the part that does not exist yet.
fn resolved(path: &Path) -> Option<PathBuf> {
    let existing = existing(path)?;
    let mut place = real(existing)?;
    for part in path.strip_prefix(existing).ok()?.components() {
        match part {
            Component::ParentDir => drop(place.pop()),
            Component::Normal(name) => place.push(name),
            _ => {}
        }
    }
    Some(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Checkpoint, CheckpointManager, Metadata};

    #[test]
    fn what_a_save_may_remove_belongs_to_checkpoints() {
        let folder = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(folder.path()).unwrap();
        let saved = root.join("saved");
        let claimed_in = |path: &str, directory: Option<&Path>| {
            claimed(root.join(path), directory)
                .map(|found| found.strip_prefix(&root).unwrap().display().to_string())
        };
        let temporary = format!("saved/.tmp-distribute-{}/x", "0a".repeat(16));
        let others = [
            "saved/logs",
            "saved",
            "saved/step-9",
            "step-00000009",
            "saved/new/step-00000009",
            "saved/step-00000009/../logs",
            "saved/.tmp-distribute-x",
        ];
        // Known before it exists.
        let known = |path: &str| claimed_in(path, Some(&saved));
        let later = "saved/step-00000009";
        assert_eq!(known("saved/step-00000009/a/b").as_deref(), Some(later));
        assert_eq!(known("new/../saved/step-00000009").as_deref(), Some(later));
        assert!(known(&temporary).is_some());
        assert!(known("saved/.distribute-checkpoints.lock.lease").is_some());
        for other in others {
            assert_eq!(known(other), None, "{other}");
        }
        assert_eq!(claimed_in(later, None), None, "not recognised yet");
        // Recognised once it exists.
        let manager = CheckpointManager::open(&saved).unwrap();
        assert_eq!(claimed_in(later, None).as_deref(), Some(later));
        let checkpoint = Checkpoint {
            metadata: Metadata::new(3),
            tensors: Default::default(),
        };
        let entry = manager.save(&checkpoint).unwrap().entry;
        drop(manager);
        fs::remove_file(saved.join(LOCK_FILE)).unwrap();
        let own = entry.path.file_name().unwrap().to_str().unwrap();
        let inside = format!("saved/{own}/trace.json");
        assert_eq!(claimed_in(&inside, None), Some(format!("saved/{own}")));
        for claimed in [later, temporary.as_str()] {
            assert!(claimed_in(claimed, None).is_some(), "{claimed}");
        }
        for other in others {
            assert_eq!(claimed_in(other, None), None, "{other}");
        }
    }
}
