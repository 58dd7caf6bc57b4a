//! Picking what is checked by name, for command lines.

use std::path::PathBuf;
use std::sync::Arc;

use crate::backend::Backend;
use crate::families::multi_worker::WorkerProgram;
use crate::golden::{FamilyName, Golden, GoldenError};
use crate::group::CommunicatorFactory;
use crate::report::Report;
use crate::suite::{MULTI_WORKER, Suite};

/// What `distribute-cli conformance` was asked for. Without a strategy or communicator everything
/// is checked; with one, only what is named.
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
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SelectionError {
    /// The golden files cannot be used.
    #[error(transparent)]
    Golden(#[from] GoldenError),
    /// A name that nothing has.
    #[error("unknown {what} `{name}`: choose among {known}")]
    Unknown {
        /// What was asked for: a strategy, a communicator.
        what: &'static str,
        /// The name.
        name: String,
        /// The names there are.
        known: String,
    },
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
            Suite::everything(golden).workers(self.workers.clone())
        } else {
            let mut suite = Suite::new(golden);
            let backends = Backend::built_in();
            for name in &self.strategies {
                if name == MULTI_WORKER && self.workers.is_some() {
                    suite = suite.workers(self.workers.clone());
                    continue;
                }
                suite = suite.backend(find("strategy", name, &backends, |one| {
                    one.name().to_string()
                })?);
            }
            let factories = Suite::built_in_communicators();
            let name_of = |factory: &Arc<dyn CommunicatorFactory>| factory.name().to_string();
            for name in &self.communicators {
                suite = suite.communicator(find("communicator", name, &factories, name_of)?);
            }
            suite
        };
        for family in &self.families {
            suite = suite.family(*family);
        }
        Ok(suite)
    }
}

fn find<T: Clone>(
    what: &'static str,
    name: &str,
    all: &[T],
    name_of: impl Fn(&T) -> String,
) -> Result<T, SelectionError> {
    let found = all.iter().find(|candidate| name_of(candidate) == name);
    found.cloned().ok_or_else(|| {
        let known: Vec<String> = all.iter().map(name_of).collect();
        SelectionError::Unknown {
            what,
            name: name.to_string(),
            known: known.join(", "),
        }
    })
}
