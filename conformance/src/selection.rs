//! Selects strategies and communicators by name, for command lines.

use std::path::PathBuf;
use std::sync::Arc;

use distribute_tpu_xla::TpuError;

use crate::backend::Backend;
use crate::golden::{FamilyName, Golden, GoldenError};
use crate::group::CommunicatorFactory;
use crate::program::WorkerProgram;
use crate::report::Report;
use crate::suite::{MULTI_WORKER, PARAMETER_SERVER, Suite};
use crate::tpu::{FAMILIES, TPU};

/// What `distribute-cli conformance` was asked for. Without a strategy or communicator everything
/// is checked, `TpuStrategy` where there is a plugin for it; with one, only what is named.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// A directory with golden files in place of the embedded ones.
    pub golden: Option<PathBuf>,
    /// Names of strategies.
    pub strategies: Vec<String>,
    /// Names of communicators.
    pub communicators: Vec<String>,
    /// Families; all if empty.
    pub families: Vec<FamilyName>,
    /// What worker processes run; without it, nothing between workers is checked.
    pub workers: Option<WorkerProgram>,
}

/// Why a selection cannot be run.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum SelectionError {
    /// The golden files cannot be used.
    #[error(transparent)]
    Golden(#[from] GoldenError),
    /// The plugin for `TpuStrategy` cannot be used.
    #[error(transparent)]
    Tpu(#[from] TpuError),
    /// A name that nothing has.
    #[error("unknown {what} `{name}`: choose among {known}")]
    Unknown {
        /// The kind of name: a strategy, a communicator.
        what: &'static str,
        /// The name.
        name: String,
        /// The names there are.
        known: String,
    },
}

distribute_error::debug_as_message!(SelectionError);

distribute_core::wrap_errors!(Input: SelectionError);

impl SelectionError {
    /// Whether the same selection would be refused again.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Golden(error) => error.is_permanent(),
            Self::Tpu(error) => error.is_permanent(),
            Self::Unknown { .. } => true,
        }
    }
}

impl Selection {
    /// Runs the selected cases. Takes some seconds for all of them.
    ///
    /// # Errors
    /// [`SelectionError`]; failed cases are in the report.
    pub fn run(&self) -> Result<Report, SelectionError> {
        Ok(self.suite()?.run())
    }

    fn suite(&self) -> Result<Suite, SelectionError> {
        let golden = match &self.golden {
            Some(directory) => Golden::load(directory)?,
            None => Golden::embedded()?,
        };
        let mut suite = if self.strategies.is_empty() && self.communicators.is_empty() {
            let suite = Suite::everything(golden).workers(self.workers.clone());
            // Its devices take a moment to open.
            let with_tpu = self.families.iter().any(|family| FAMILIES.contains(family));
            if self.families.is_empty() || with_tpu {
                suite.tpu_if_it_works()
            } else {
                suite
            }
        } else {
            let mut suite = Suite::new(golden);
            let backends = Backend::built_in();
            for name in &self.strategies {
                if name == MULTI_WORKER && self.workers.is_some() {
                    suite = suite.workers(self.workers.clone());
                    continue;
                }
                if name == PARAMETER_SERVER {
                    suite = suite.parameter_servers();
                    continue;
                }
                if name == TPU {
                    suite = suite.tpu()?;
                    continue;
                }
                let found = backends.iter().find(|backend| backend.name() == name);
                suite = suite.backend(found.cloned().ok_or_else(|| self.unknown(name))?);
            }
            let factories = Suite::built_in_communicators();
            for name in &self.communicators {
                suite = suite.communicator(find_communicator(name, &factories)?);
            }
            suite
        };
        for family in &self.families {
            suite = suite.family(*family);
        }
        Ok(suite)
    }

    /// The error for the name of a strategy that nothing has.
    fn unknown(&self, name: &str) -> SelectionError {
        let backends = Backend::built_in();
        let mut known: Vec<&str> = backends.iter().map(Backend::name).collect();
        known.extend(self.workers.iter().map(|_| MULTI_WORKER));
        known.extend([PARAMETER_SERVER, TPU]);
        SelectionError::Unknown {
            what: "strategy",
            name: name.to_string(),
            known: known.join(", "),
        }
    }
}

fn find_communicator(
    name: &str,
    all: &[Arc<dyn CommunicatorFactory>],
) -> Result<Arc<dyn CommunicatorFactory>, SelectionError> {
    let found = all.iter().find(|factory| factory.name() == name);
    found.cloned().ok_or_else(|| {
        let known: Vec<&str> = all.iter().map(|factory| factory.name()).collect();
        SelectionError::Unknown {
            what: "communicator",
            name: name.to_string(),
            known: known.join(", "),
        }
    })
}
