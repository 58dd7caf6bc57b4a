//! Where the log files of a job are.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::error::{LaunchError, Result};
use crate::job::task::Task;

/// Where the log files of a job are to be.
pub enum LogPlace<'a> {
    /// The user chose it.
    Given(&'a Path),
    /// A new directory below the system's temporary one.
    Temporary(PathBuf),
}

impl<'a> LogPlace<'a> {
    /// A temporary one if the user chose none.
    pub fn new(given: Option<&'a Path>) -> Result<LogPlace<'a>> {
        if let Some(path) = given {
            return Ok(LogPlace::Given(path));
        }
        let number = getrandom::u64().map_err(io::Error::other);
        let number = number.map_err(LaunchError::system("no random numbers"))?;
        let name = format!("distribute-launch-{number:016x}");
        Ok(LogPlace::Temporary(std::env::temp_dir().join(name)))
    }

    pub fn temporary(&self) -> Option<&Path> {
        match self {
            LogPlace::Given(_) => None,
            LogPlace::Temporary(path) => Some(path),
        }
    }

    /// Makes the directory; into a temporary one only this user may look.
    pub fn make(self) -> Result<LogDirectory> {
        let is_temporary = self.temporary().is_some();
        let path = match self {
            LogPlace::Given(path) => path.to_owned(),
            LogPlace::Temporary(path) => path,
        };
        let made = match is_temporary {
            true => DirBuilder::new().mode(0o700).create(&path),
            false => fs::create_dir_all(&path),
        };
        match made {
            Ok(()) => Ok(LogDirectory { path, is_temporary }),
            Err(source) => Err(LaunchError::LogDirectory { path, source }),
        }
    }
}

/// The directory of a job's log files.
pub struct LogDirectory {
    path: PathBuf,
    /// Removed when dropped.
    pub is_temporary: bool,
}

impl LogDirectory {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps the directory.
    pub fn keep(mut self) {
        self.is_temporary = false;
    }

    /// Makes the empty log file of a task and says where it is. `again` counts how often the task
    /// alone was started again.
    pub fn file(&self, task: Task, restart: u32, again: u32) -> Result<(PathBuf, File)> {
        let mut path = self.path.clone();
        let failed = |path, source| Err(LaunchError::LogDirectory { path, source });
        if restart > 0 {
            path.push(format!("restart-{restart}"));
            if let Err(source) = fs::create_dir_all(&path) {
                return failed(path, source);
            }
        }
        let again = match again {
            0 => String::new(),
            _ => format!("-again-{again}"),
        };
        path.push(format!("{}-{}{again}.log", task.role.name(), task.index));
        match File::create(&path) {
            Ok(file) => Ok((path, file)),
            Err(source) => failed(path, source),
        }
    }
}

impl Drop for LogDirectory {
    fn drop(&mut self) {
        if self.is_temporary {
            // What cannot be removed stays; the job is over.
            let _left = fs::remove_dir_all(&self.path);
        }
    }
}
