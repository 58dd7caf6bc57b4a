//! What the adapters of all families get.

use std::sync::Arc;

use distribute_core::{CrossDeviceOps, Strategy};

use crate::backend::Backend;
use crate::case::{Case, StrategyKind, StrategySpec};
use crate::compare::Tolerance;
use crate::golden::GoldenFile;
use crate::job::Jobs;
use crate::outcome::Failure;
use crate::program::WorkerProgram;

/// What an adapter may use.
pub(crate) struct Env<'a> {
    pub(crate) file: &'a GoldenFile,
    /// Where the case runs, unless it is about a function.
    pub(crate) backend: Option<&'a Backend>,
    /// All that are checked.
    pub(crate) backends: &'a [Backend],
    /// The program of worker processes.
    pub(crate) workers: Option<&'a WorkerProgram>,
    /// Worker processes that serve many cases.
    pub(crate) jobs: &'a Jobs,
}

impl Env<'_> {
    pub(crate) fn tolerance(&self) -> Tolerance {
        self.file.tolerance
    }

    /// The strategy of the case.
    pub(crate) fn strategy(&self, case: &Case) -> Result<Arc<dyn Strategy>, Failure> {
        match self.backend {
            Some(backend) => Ok(backend.strategy(case.strategy.replicas)?),
            None => self.strategy_of(case.strategy),
        }
    }

    /// The strategy of the case with other cross-device ops, where the backend can exchange them.
    pub(crate) fn strategy_with(
        &self,
        case: &Case,
        ops: Arc<dyn CrossDeviceOps>,
    ) -> Result<Arc<dyn Strategy>, Failure> {
        match self.backend {
            Some(backend) => Ok(backend.strategy_with(case.strategy.replicas, ops)?),
            None => self.strategy_of(case.strategy),
        }
    }

    /// Another strategy than the case's own: one that is checked, else the built-in one.
    pub(crate) fn strategy_of(&self, spec: StrategySpec) -> Result<Arc<dyn Strategy>, Failure> {
        let own = self.backend.into_iter();
        let checked = own.chain(self.backends);
        let is_meant = |backend: &&Backend| backend.kind() == spec.kind;
        if let Some(backend) = checked.into_iter().find(is_meant) {
            return Ok(backend.strategy(spec.replicas)?);
        }
        let built_in = Backend::built_in();
        let found = built_in.iter().find(|backend| backend.kind() == spec.kind);
        let unknown = || Failure::schema(format!("no strategy `{}` on one machine", spec.kind));
        Ok(found.ok_or_else(unknown)?.strategy(spec.replicas)?)
    }

    /// A strategy with several replicas that is not the case's own: those with cases of this kind
    /// have two.
    pub(crate) fn other_mirrored(&self) -> Result<Arc<dyn Strategy>, Failure> {
        self.strategy_of(StrategySpec {
            kind: StrategyKind::Mirrored,
            replicas: 3,
        })
    }
}
