//! The directory of a job's log files.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{LaunchError, Result};
use crate::file_tasks::{FileTasks, may_be_mended};
use crate::job::task::Task;
use crate::process::log_writer::LogFile;
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
                missing: AtomicU64::new(0),
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
    /// How many bytes are in no log file.
    missing: AtomicU64,
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
        screen: &Screen,
    ) -> Result<(PathBuf, LogFile)> {
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
            Ok(file) => Ok((path, LogFile::Open(file))),
            Err(source) if is_first && !may_be_mended(&source) => {
                Err(LaunchError::LogDirectory { path, source })
            }
            Err(source) => {
                self.warn_once(task, &source, screen)?;
                let file = if source.kind() == io::ErrorKind::TimedOut {
                    LogFile::None
                } else {
                    LogFile::Absent(path.clone())
                };
                Ok((path, file))
            }
        }
    }

    /// Counts bytes that are in no log file.
    pub fn count_missing(&self, bytes: u64) {
        self.missing.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Says at the end of the job how much is missing, if anything is.
    pub fn report_missing(&self, screen: &Screen) -> Result<()> {
        match self.missing.load(Ordering::Relaxed) {
            0 => Ok(()),
            bytes => screen.log(&format!(
                "warning: {bytes} bytes that the processes wrote are missing in the log files in \
                 {}",
                self.path.display()
            )),
        }
    }

    /// Warns once per job that a log is incomplete.
    pub fn warn_once(&self, task: Task, error: &io::Error, screen: &Screen) -> Result<()> {
        if self.is_told.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        screen.log(&format!(
            "warning: cannot write the log of {task}: {error}; the job goes on, its logs in {} are \
             not whole from now on, and each line is tried again (make room, or choose another log \
             directory next time)",
            self.path.display()
        ))
    }
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
