//! Errors of the program: one or two lines and an exit code.

use std::cell::RefCell;
use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use distribute_classifier::TaskError;
use distribute_core::Error;
use distribute_core::collectives::CollectiveError;
use distribute_launch::{
    DIVERGED_EXIT_CODE, FailureReport, PREEMPTED_EXIT_CODE, REFUSED_EXIT_CODE, REPORT_VARIABLE,
};

use crate::notes::{note, sentences};
use crate::option_names::in_flags;
use crate::permanent_errors::{Lasting, lasting};
use crate::server_errors::{ServerError, server_error};

/// The message and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
    /// Lines that only `--verbose` prints.
    details: Vec<String>,
    code: u8,
    /// Whether a signal ended a wait.
    is_interruption: bool,
    /// The workers that were lost or did not come.
    lost: Vec<usize>,
}

const FAILED: u8 = 1;
const USAGE: u8 = REFUSED_EXIT_CODE;
const DIVERGED: u8 = DIVERGED_EXIT_CODE;
const PREEMPTED: u8 = PREEMPTED_EXIT_CODE;

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

    /// The weights or the loss are NaN or infinite: the same command would compute them again.
    pub(crate) fn diverged(message: impl fmt::Display) -> Self {
        Self::new(DIVERGED, message)
    }

    /// A file cannot be used: because of the command line, or for a temporary reason.
    pub(crate) fn of_file(error: &io::Error, message: impl fmt::Display) -> Self {
        if distribute_error::lasts(error) {
            Self::usage(message)
        } else {
            Self::failed(message)
        }
    }

    /// Interrupted, and everything is saved.
    pub(crate) fn preempted(message: impl fmt::Display) -> Self {
        Self::new(PREEMPTED, message)
    }

    /// The exit code of the program.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// Something went wrong that has been printed already.
    pub(crate) fn already_printed(code: u8) -> Self {
        Self::new(code, "")
    }

    fn new(code: u8, message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
            source: None,
            details: Vec::new(),
            code,
            is_interruption: false,
            lost: Vec::new(),
        }
    }

    /// Whether a signal to this or another process ended a wait.
    pub(crate) fn is_interruption(&self) -> bool {
        self.is_interruption
    }

    /// Whether training was interrupted, on all workers after the same step, and is saved.
    pub(crate) fn is_preemption(&self) -> bool {
        self.code == PREEMPTED
    }

    #[cfg(feature = "full")]
    /// The same, with lines that only `--verbose` prints.
    pub(crate) fn with_details(mut self, details: Vec<String>) -> Self {
        self.details = details;
        self
    }

    /// The same, with the path of the file.
    pub(crate) fn in_file(mut self, path: &Path) -> Self {
        self.message = format!("{}: {}", path.display(), self.message);
        self
    }

    /// The end of a wait by a signal, with the exit code that a shell reports.
    pub(crate) fn by_signal(mut self, signal: i32) -> Self {
        let says_so = self.is_interruption || self.code == PREEMPTED;
        if !says_so {
            self.message = format!("interrupted: {}", self.message);
        }
        self.code = u8::try_from(128 + signal).unwrap_or(FAILED);
        self
    }

    fn caused_by(source: impl StdError + Send + Sync + 'static) -> Self {
        Self {
            message: source.to_string(),
            code: match lasting(&source) {
                Some(Lasting::WrongInput) => USAGE,
                Some(Lasting::Diverged) => DIVERGED,
                None => FAILED,
            },
            is_interruption: is_interruption(&source),
            lost: lost(&source),
            source: Some(Box::new(source)),
            details: Vec::new(),
        }
    }

    /// Reports to the launcher which ranks caused the error, if it has asked for this.
    fn write_failure_report(&self) {
        let Some(path) = std::env::var_os(REPORT_VARIABLE).filter(|_| !self.lost.is_empty()) else {
            return;
        };
        let lost = self.lost.clone();
        let report = FailureReport { lost };
        // Without it the launcher reads the message.
        let _ = serde_json::to_string(&report).map(|text| std::fs::write(path, text));
    }

    /// Prints the message, and with `verbose` the causes behind it.
    pub(crate) fn report(&self, verbose: bool) -> ExitCode {
        self.write_failure_report();
        let kind = if self.code == PREEMPTED {
            ""
        } else {
            "error: "
        };
        if !self.message.is_empty() {
            let message = in_flags(&self.message).replace('\n', "; ");
            let more = if verbose || self.details.is_empty() {
                ""
            } else {
                " (--verbose lists them)"
            };
            sentences(&format!("{kind}{message}{more}"));
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
                note(&in_flags(&format!("  caused by: {error}")));
                cause = Some(error);
            }
        }
        ExitCode::from(self.code)
    }
}

fn is_interruption(error: &(dyn StdError + 'static)) -> bool {
    let is_it = |error: &Error| match error.wrapped().and_then(server_error) {
        Some(error) => matches!(error, ServerError::Interrupted),
        None => error.is_interruption(),
    };
    any_cause(error, is_it, |error| {
        matches!(error, ServerError::Interrupted)
    })
}

/// The ranks that an error names as lost or missing.
fn lost(error: &(dyn StdError + 'static)) -> Vec<usize> {
    let found = RefCell::new(Vec::new());
    let look = |error: &Error| {
        let Error::Collective(error) = error.root_cause() else {
            return false;
        };
        let lost = match error.root_cause() {
            // Includes a rank that reports itself as cut off.
            CollectiveError::PeerLost { rank, .. } | CollectiveError::CutOff { rank, .. } => {
                vec![*rank]
            }
            CollectiveError::LinkStalled { peer, .. } => vec![*peer],
            CollectiveError::Timeout { missing, .. } => missing.clone(),
            CollectiveError::Interrupted { missing, .. }
            | CollectiveError::Rendezvous { missing, .. } => {
                missing.iter().map(|missing| missing.rank).collect()
            }
            _ => return false,
        };
        *found.borrow_mut() = lost;
        true
    };
    any_cause(error, look, |_| false);
    found.into_inner()
}

/// Whether either test holds for an error or one of its causes.
fn any_cause(
    error: &(dyn StdError + 'static),
    is_it: impl Fn(&Error) -> bool,
    of_servers: impl Fn(&ServerError<'_>) -> bool,
) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let found = match server_error(error) {
            Some(ServerError::Core(core)) => is_it(core),
            Some(error) => of_servers(&error),
            None => error.downcast_ref::<Error>().is_some_and(&is_it),
        };
        if found {
            return true;
        }
        next = error.source();
    }
    false
}

macro_rules! failure_from {
    ($($error:ty),* $(,)?) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::caused_by(error)
            }
        }
    )*};
}

failure_from!(
    distribute_core::collectives::flight_record::FlightRecordError,
    distribute_core::Error,
    distribute_core::checkpoint::CheckpointError,
    distribute_readers::ReadError,
    distribute_keras::ModelError,
    distribute_launch::LaunchError,
);
#[cfg(feature = "full")]
failure_from!(
    distribute_ps::PsError,
    distribute_tpu_xla::TpuError,
    ::conformance::SelectionError,
);

/// What is wrong with the data, the model or the checkpoint is told as they tell it themselves.
impl From<TaskError> for Failure {
    fn from(error: TaskError) -> Self {
        match error {
            TaskError::Read(error) => error.into(),
            TaskError::Model(error) => error.into(),
            TaskError::Checkpoint(error) => error.into(),
            other => Self::usage(other),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
