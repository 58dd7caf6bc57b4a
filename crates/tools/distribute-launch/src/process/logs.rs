//! The directory of a job's log files.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{LaunchError, Result};
use crate::file_tasks::FileTasks;
use crate::job::task::Task;
use crate::report::console::Screen;

/// Where the log files of a job are to be.
pub enum LogPlace<'a> {
    /// The user chose it.
    Chosen(&'a Path),
    /// A new directory below the system's temporary one.
    Temporary(PathBuf),
}

impl<'a> LogPlace<'a> {
    /// A temporary one if the user chose none.
    pub fn new(given: Option<&'a Path>) -> Result<LogPlace<'a>> {
        if let Some(path) = given {
            return Ok(LogPlace::Chosen(path));
        }
        let number = getrandom::u64()
            .map_err(io::Error::other)
            .map_err(LaunchError::system("no random numbers"))?;
        let name = format!("distribute-launch-{number:016x}");
        Ok(LogPlace::Temporary(std::env::temp_dir().join(name)))
    }

    pub fn temporary(&self) -> Option<&Path> {
        match self {
            LogPlace::Chosen(_) => None,
            LogPlace::Temporary(path) => Some(path),
        }
    }

    /// Makes the directory; a temporary one is accessible to this user only. If it cannot be made
    /// in time, the first log file reports that.
    pub fn make(self) -> Result<LogDirectory> {
        let is_temporary = self.temporary().is_some();
        let path = match self {
            LogPlace::Chosen(path) => path.to_owned(),
            LogPlace::Temporary(path) => path,
        };
        let (files, own) = (FileTasks::default(), path.clone());
        let made = files.run(move || {
            if is_temporary {
                DirBuilder::new().mode(0o700).create(&own)
            } else {
                fs::create_dir_all(&own)
            }
        });
        match made {
            Ok(Err(source)) => Err(LaunchError::LogDirectory { path, source }),
            Ok(Ok(())) | Err(_) => Ok(LogDirectory {
                path,
                files,
                is_told: AtomicBool::new(false),
                is_temporary,
            }),
        }
    }
}

/// The directory of a job's log files.
pub struct LogDirectory {
    path: PathBuf,
    files: FileTasks,
    /// Whether an incomplete log has been reported.
    is_told: AtomicBool,
    /// Removed when dropped.
    pub is_temporary: bool,
}

impl LogDirectory {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs operations on its files.
    pub fn files(&self) -> &FileTasks {
        &self.files
    }

    /// Keeps the directory.
    pub fn keep(mut self) {
        self.is_temporary = false;
    }

    /// Where the log file of a task is. `again` counts how often the task alone was started again.
    fn place(&self, task: Task, restart: u32, again: u32) -> PathBuf {
        let mut path = self.path.clone();
        if restart > 0 {
            path.push(format!("restart-{restart}"));
        }
        let again = match again {
            0 => String::new(),
            _ => format!("-again-{again}"),
        };
        path.push(format!("{}-{}{again}.log", task.role.name(), task.index));
        path
    }

    /// Makes the empty log file of a task and returns its path. At the first start a failure is an
    /// error, as nothing is lost yet; later failures cost the log, not the job.
    pub fn file(
        &self,
        task: Task,
        restart: u32,
        again: u32,
        screen: &Screen<'_>,
    ) -> Result<(PathBuf, File)> {
        let path = self.place(task, restart, again);
        let own = path.clone();
        let made = self.files.run(move || {
            if let Some(directory) = own.parent().filter(|_| restart > 0) {
                fs::create_dir_all(directory)?;
            }
            File::create(&own)
        });
        let is_first = restart == 0 && again == 0;
        match made.flatten() {
            Ok(file) => Ok((path, file)),
            Err(source) if is_first && !may_be_mended(&source) => {
                Err(LaunchError::LogDirectory { path, source })
            }
            Err(source) => {
                self.warn_once(task, &source, screen)?;
                let nowhere = File::options()
                    .write(true)
                    .open("/dev/null")
                    .map_err(LaunchError::system("cannot open /dev/null"))?;
                Ok((path, nowhere))
            }
        }
    }

    /// Warns once per job that a log is incomplete.
    pub fn warn_once(&self, task: Task, error: &io::Error, screen: &Screen<'_>) -> Result<()> {
        if self.is_told.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        screen.log(&format!(
            "warning: cannot write the log of {task}: {error}; the job goes on, its logs in {} are \
             not whole from now on (make room, or choose another log directory next time)",
            self.path.display()
        ))
    }
}

/// Whether the error may pass (no space, no answer), unlike a wrong
/// path.
fn may_be_mended(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull, TimedOut};

    let kind = error.kind();
    matches!(kind, StorageFull | QuotaExceeded | FileTooLarge | TimedOut)
}

impl Drop for LogDirectory {
    fn drop(&mut self) {
        if self.is_temporary {
            let path = std::mem::take(&mut self.path);
            // A directory that cannot be removed stays; the job is over.
            let _left = self.files.run(|| fs::remove_dir_all(path));
        }
    }
}
