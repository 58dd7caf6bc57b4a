//! How the program ends when something is wrong: one or two lines and an exit code.

use std::error::Error as StdError;
use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use crate::events::note;
use crate::lasting::is_lasting;

/// What is printed, and what the program ends with.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
    /// What is printed of it only if asked for.
    details: Vec<String>,
    code: u8,
}

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const PREEMPTED: u8 = 42;

impl Failure {
    /// Something went wrong.
    pub(crate) fn failed(message: impl fmt::Display) -> Self {
        Self::new(FAILED, message)
    }

    /// The command line or the configuration file is at fault.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::new(USAGE, message)
    }

    /// Data, a model or a checkpoint is missing or does not fit: the same command would fail again.
    pub(crate) fn refused(message: impl fmt::Display) -> Self {
        Self::usage(message)
    }

    /// Interrupted, and everything is saved.
    pub(crate) fn preempted(message: impl fmt::Display) -> Self {
        Self::new(PREEMPTED, message)
    }

    /// Something went wrong that has been printed already.
    pub(crate) fn said(code: u8) -> Self {
        Self::new(code, "")
    }

    fn new(code: u8, message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
            source: None,
            details: Vec::new(),
            code,
        }
    }

    /// The same with lines that `--verbose` adds.
    pub(crate) fn with_details(mut self, details: Vec<String>) -> Self {
        self.details = details;
        self
    }

    /// The same, said of a file.
    pub(crate) fn in_file(mut self, path: &Path) -> Self {
        self.message = format!("{}: {}", path.display(), self.message);
        self
    }

    /// The end of a wait by a signal: what a shell reports for that.
    pub(crate) fn by_signal(mut self, signal: i32) -> Self {
        self.code = u8::try_from(128 + signal).unwrap_or(FAILED);
        if !self.message.contains("interrupted") {
            self.message = format!("interrupted: {}", self.message);
        }
        self
    }

    fn caused_by(source: impl StdError + Send + Sync + 'static) -> Self {
        Self {
            message: source.to_string(),
            code: match is_lasting(&source) {
                true => USAGE,
                false => FAILED,
            },
            source: Some(Box::new(source)),
            details: Vec::new(),
        }
    }

    /// Prints the message, and with `verbose` the causes behind it.
    pub(crate) fn report(&self, verbose: bool) -> ExitCode {
        let kind = if self.code == PREEMPTED {
            ""
        } else {
            "error: "
        };
        if !self.message.is_empty() {
            let message = self.message.replace('\n', "; ");
            let more = match verbose || self.details.is_empty() {
                true => "",
                false => " (--verbose lists them)",
            };
            note(&format!("{kind}{message}{more}"));
        }
        let mut cause = self
            .source
            .as_ref()
            .map(|source| &**source as &dyn StdError);
        if verbose {
            for detail in &self.details {
                note(&format!("  {detail}"));
            }
            while let Some(error) = cause.and_then(StdError::source) {
                note(&format!("  caused by: {error}"));
                cause = Some(error);
            }
        }
        ExitCode::from(self.code)
    }
}

macro_rules! failure_from {
    ($($error:ty),*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::caused_by(error)
            }
        }
    )*};
}

failure_from!(
    distribute_core::Error,
    distribute_core::checkpoint::CheckpointError,
    distribute_core::collectives::flight_record::FlightRecordError,
    distribute_data::readers::ReadError,
    distribute_cli::model::ModelError,
    distribute_ps::PsError,
    distribute_tpu_xla::TpuError
);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
