//! One adapter per golden family: how its cases are called in this library.

mod checkpoint;
mod cluster;
pub(crate) mod communicator;
mod cross_device;
mod datasets;
mod documents;
mod loss;
pub(crate) mod multi_worker;
mod normalization;
mod parameter_server;
mod pipelines;
mod properties;
mod records;
mod reduce;
mod schedules;
pub(crate) mod support;
mod training;
mod training_loop;
mod variables;

use crate::case::{Case, StrategyKind};
use crate::env::Env;
use crate::golden::FamilyName;
use crate::outcome::Checked;

/// Checks one case.
pub(crate) type Adapter = fn(&Case, &Env<'_>) -> Checked;

/// The adapter of a family, if its cases are checked.
pub(crate) fn adapter(family: FamilyName) -> Option<Adapter> {
    Some(match family {
        FamilyName::Loss => loss::check,
        FamilyName::Reduce => reduce::check,
        FamilyName::Variables => variables::check,
        FamilyName::Datasets => datasets::check,
        FamilyName::Properties => properties::check,
        FamilyName::CrossDevice => cross_device::check,
        FamilyName::Training => training::check,
        FamilyName::Cluster => cluster::check,
        FamilyName::Checkpoint => checkpoint::check,
        FamilyName::MultiWorker => multi_worker::check,
        FamilyName::ParameterServer => parameter_server::check,
        FamilyName::Documents => documents::check,
        FamilyName::TrainingLoop => training_loop::check,
        FamilyName::Normalization => normalization::check,
        FamilyName::Schedules => schedules::check,
        FamilyName::Records => records::check,
        FamilyName::Pipelines => pipelines::check,
        FamilyName::Unknown => return None,
    })
}

/// Whether a case runs under a strategy, or is a function of the library. Auto-sharding is
/// recorded under a strategy of several processes and is a function here. The cases of several
/// workers run under the strategies of other processes.
pub(crate) fn needs_strategy(family: FamilyName, case: &Case) -> bool {
    let is_function = case.strategy.kind == StrategyKind::None;
    let is_sharding =
        family == FamilyName::Datasets && case.strategy.kind == StrategyKind::MultiWorkerMirrored;
    let has_own = matches!(
        family,
        FamilyName::MultiWorker | FamilyName::ParameterServer
    );
    let has_cluster = family == FamilyName::Documents
        && matches!(
            case.strategy.kind,
            StrategyKind::MultiWorkerMirrored | StrategyKind::ParameterServer
        );
    !is_function && !is_sharding && !has_own && !has_cluster
}
