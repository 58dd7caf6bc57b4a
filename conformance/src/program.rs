//! The program that the workers run.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

/// A command whose process calls [`run_worker`](crate::run_worker): the runner starts several of it
/// to check what happens between workers.
#[derive(Debug, Clone)]
pub struct WorkerProgram {
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl WorkerProgram {
    /// This program.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            arguments: Vec::new(),
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments);
        command
    }
}
