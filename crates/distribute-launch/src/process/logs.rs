//! Where the log files of a job are.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{LaunchError, Result};
use crate::job::task::Task;
use crate::process::aside::Aside;
use crate::report::console::Screen;

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

    /// Makes the directory; into a temporary one only this user may look. One that cannot be made
    /// in time is missed by the first log file.
    pub fn make(self) -> Result<LogDirectory> {
        let is_temporary = self.temporary().is_some();
        let path = match self {
            LogPlace::Given(path) => path.to_owned(),
            LogPlace::Temporary(path) => path,
        };
        let (files, own) = (Aside::default(), path.clone());
        let made = files.run(move || match is_temporary {
            true => DirBuilder::new().mode(0o700).create(&own),
            false => fs::create_dir_all(&own),
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
    files: Aside,
    /// Whether people know that a log is not whole.
    is_told: AtomicBool,
    /// Removed when dropped.
    pub is_temporary: bool,
}

impl LogDirectory {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Works on its files.
    pub fn files(&self) -> &Aside {
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

    /// Makes the empty log file of a task and says where it is. What is wrong with the directory at
    /// the first start is an error, as nothing is lost then; whatever comes later costs the log and
    /// not the job.
    pub fn file(
        &self,
        task: Task,
        (restart, again): (u32, u32),
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
                let nowhere = File::options().write(true).open("/dev/null");
                let nowhere = nowhere.map_err(LaunchError::system("cannot open /dev/null"))?;
                Ok((path, nowhere))
            }
        }
    }

    /// Says once in a job that a log is not whole.
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

/// Whether there is no room or no answer, which may be mended, other than a path that makes no
/// sense.
fn may_be_mended(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull, TimedOut};

    let kind = error.kind();
    matches!(kind, StorageFull | QuotaExceeded | FileTooLarge | TimedOut)
}

impl Drop for LogDirectory {
    fn drop(&mut self) {
        if self.is_temporary {
            let path = std::mem::take(&mut self.path);
            // What cannot be removed stays; the job is over.
            let _left = self.files.run(|| fs::remove_dir_all(path));
        }
    }
}
