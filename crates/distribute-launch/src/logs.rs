//! Where the log files of a job are.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::{LaunchError, Result, Task};

/// The directory of a job's log files.
pub enum LogDirectory {
    /// The user chose it: it stays.
    Given(PathBuf),
    /// Removed when dropped.
    Temporary(TempDir),
}

impl LogDirectory {
    /// Makes the directory, a temporary one if the user chose none.
    pub fn new(given: Option<&Path>) -> Result<LogDirectory> {
        if let Some(path) = given {
            make(path)?;
            return Ok(LogDirectory::Given(path.to_owned()));
        }
        let directory = tempfile::Builder::new()
            .prefix("distribute-launch-")
            .tempdir();
        let directory = directory.map_err(|source| LaunchError::LogDirectory {
            path: std::env::temp_dir(),
            source,
        })?;
        Ok(LogDirectory::Temporary(directory))
    }

    pub fn path(&self) -> &Path {
        match self {
            LogDirectory::Given(path) => path,
            LogDirectory::Temporary(directory) => directory.path(),
        }
    }

    /// Keeps the directory.
    pub fn keep(self) {
        if let LogDirectory::Temporary(directory) = self {
            let _path = directory.keep();
        }
    }

    /// Makes the empty log file of a task and says where it is. `again` counts how often the task
    /// alone was started again.
    pub fn file(&self, task: Task, restart: u32, again: u32) -> Result<(PathBuf, File)> {
        let mut path = self.path().to_owned();
        if restart > 0 {
            path.push(format!("restart-{restart}"));
            make(&path)?;
        }
        let again = match again {
            0 => String::new(),
            _ => format!("-again-{again}"),
        };
        path.push(format!("{}-{}{again}.log", task.role.name(), task.index));
        match File::create(&path) {
            Ok(file) => Ok((path, file)),
            Err(source) => Err(LaunchError::LogDirectory { path, source }),
        }
    }
}

fn make(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(|source| LaunchError::LogDirectory {
        path: path.to_owned(),
        source,
    })
}
