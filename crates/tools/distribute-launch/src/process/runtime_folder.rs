//! The launcher's own folder: what its processes read and only the user may see. It is removed at
//! the end of the job, and by the guard if the launcher is killed.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{LaunchError, Result};
use crate::file_tasks::FileTasks;

/// The file with the cluster of the current attempt.
const CLUSTER_FILE: &str = "cluster.json";

/// A folder below the system's temporary one, which is made when something is written.
pub struct RuntimeFolder {
    path: PathBuf,
    files: FileTasks,
    is_made: AtomicBool,
}

impl RuntimeFolder {
    /// Chooses its name.
    pub fn new() -> Result<RuntimeFolder> {
        let number = getrandom::u64()
            .map_err(io::Error::other)
            .map_err(LaunchError::system("no random numbers"))?;
        let name = format!("distribute-launch-run-{number:016x}");
        let path = std::env::temp_dir().join(name);
        Ok(RuntimeFolder {
            path: std::path::absolute(&path).unwrap_or(path),
            files: FileTasks::default(),
            is_made: AtomicBool::new(false),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the cluster of an attempt, in place of the one before. Returns the path of the file.
    pub fn write_cluster(&self, text: String) -> Result<PathBuf> {
        let path = self.path.join(CLUSTER_FILE);
        let (folder, own) = (self.path.clone(), path.clone());
        let is_first = !self.is_made.swap(true, Ordering::Relaxed);
        let written = self.files.run(move || {
            if is_first {
                DirBuilder::new().mode(0o700).create(&folder)?;
            }
            let mut options = File::options();
            options.write(true).create(true).truncate(true).mode(0o600);
            options.open(&own)?.write_all(text.as_bytes())
        });
        match written.flatten() {
            Ok(()) => Ok(path),
            Err(source) => Err(LaunchError::ClusterFile { path, source }),
        }
    }
}

impl Drop for RuntimeFolder {
    fn drop(&mut self) {
        if *self.is_made.get_mut() {
            let path = std::mem::take(&mut self.path);
            // A folder that cannot be removed stays; the job is over.
            let _left = self.files.run(|| fs::remove_dir_all(path));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_file_is_for_this_user_only_and_gone_with_the_launcher() {
        let folder = RuntimeFolder::new().unwrap();
        assert!(!folder.path().exists(), "nothing is made in advance");
        let path = folder.write_cluster("a longer text".to_owned()).unwrap();
        let again = folder.write_cluster("a text".to_owned()).unwrap();
        assert_eq!(path, again);
        assert_eq!(fs::read_to_string(&path).unwrap(), "a text");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(folder.path()), mode(&path)), (0o700, 0o600));
        let made = folder.path().to_owned();
        drop(folder);
        assert!(!made.exists());
    }
}
