//! `TpuStrategy` as a subject: which plugin runs its programs, and which cases it gets.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use distribute_core::{LogicalDevice, ReduceOp, Result, Strategy};
use distribute_tpu_xla::pjrt::Plugin;
use distribute_tpu_xla::{TpuClusterResolver, TpuError, TpuStrategy, TpuSystem};
use serde_json::Value;

use crate::backend::{Backend, StrategyFactory};
use crate::case::{Case, StrategyKind};
use crate::families::support::reduce_op;
use crate::golden::FamilyName;
use crate::outcome::Rule;
use crate::tensors::is_int;

/// The name of the strategy.
pub(crate) const TPU: &str = "tpu";

/// The families that it gets cases of.
pub(crate) const FAMILIES: [FamilyName; 11] = [
    FamilyName::Loss,
    FamilyName::Reduce,
    FamilyName::Variables,
    FamilyName::Datasets,
    FamilyName::Properties,
    FamilyName::CrossDevice,
    FamilyName::Training,
    FamilyName::Checkpoint,
    FamilyName::Documents,
    FamilyName::TrainingLoop,
    FamilyName::Normalization,
];

/// A case of one replica runs under every strategy, so any of these asks for `TpuStrategy` too.
const KINDS: [StrategyKind; 4] = [
    StrategyKind::Default,
    StrategyKind::OneDevice,
    StrategyKind::Mirrored,
    StrategyKind::CentralStorage,
];

/// A step of these cases does something on the CPU: it computes a value there, makes a tensor or
/// a variable of one, lets the replicas change one variable in turn, or asks for its number.
const ON_THE_HOST: [&str; 9] = [
    "plain variable created outside",
    "v ",
    "v=",
    "create a variable inside",
    "write then restore",
    "contexts",
    "run(",
    "run returning a dict",
    "d(",
];

/// A step of these cases does something with the replicas' whole values, outside of replicas.
const WHOLE_VALUES: [&str; 3] = ["merge_call", "gather inside", "get_replica_context"];

/// The plugin for `TpuStrategy` on this machine, by the same search as everywhere; or why there is
/// none.
pub(crate) fn plugin() -> std::result::Result<PathBuf, String> {
    Plugin::locate(None).map_err(|error| error.to_string())
}

/// `TpuStrategy` on the devices of this plugin.
pub(crate) fn backend(plugin: &Path) -> std::result::Result<Backend, TpuError> {
    let connection = TpuClusterResolver::new("local")?.connect_with(Some(plugin))?;
    Ok(Backend::new(Tpu {
        system: connection.initialize()?,
        strategies: Mutex::default(),
    }))
}

/// A strategy for each number of replicas, so that cases of equal shapes share their programs.
struct Tpu {
    system: TpuSystem,
    strategies: Mutex<BTreeMap<usize, TpuStrategy>>,
}

impl StrategyFactory for Tpu {
    fn name(&self) -> &str {
        TPU
    }

    fn kind(&self) -> StrategyKind {
        StrategyKind::Mirrored
    }

    fn takes(&self, family: FamilyName, case: &Case) -> bool {
        let kind = case.strategy.kind;
        let is_any = KINDS.contains(&kind);
        match family {
            // The runs are the same under each strategy.
            FamilyName::Training
            | FamilyName::Checkpoint
            | FamilyName::TrainingLoop
            | FamilyName::Normalization => is_any,
            // Only the default strategy has losses that divide by a replica's own examples.
            FamilyName::Loss => {
                is_any && (kind, case.op()) != (StrategyKind::Default, "loss_class")
            }
            // Its validation loss is a number that the case gives for each epoch: a literal.
            FamilyName::Documents => kind == StrategyKind::Mirrored && case.op() != "EarlyStopping",
            // Central storage leaves a partial last step out.
            FamilyName::Datasets => is_any && kind != StrategyKind::CentralStorage,
            family => FAMILIES.contains(&family) && kind == StrategyKind::Mirrored,
        }
    }

    fn not_applicable(&self, _: FamilyName, case: &Case) -> Option<Rule> {
        let begins = |names: &[&str]| names.iter().any(|name| case.op().starts_with(name));
        let context = case.inputs["context"].as_str().unwrap_or_default();
        if case.strategy.replicas > self.system.num_accelerators() {
            Some(Rule::FewDevices)
        } else if begins(&WHOLE_VALUES) || context.starts_with("merge_call") {
            Some(Rule::WholeInStep)
        } else if begins(&ON_THE_HOST) {
            Some(Rule::HostInStep)
        } else if is_uneven_burn_norm(case) {
            Some(Rule::UnevenShapes)
        } else if is_mean_of_integers(case) {
            Some(Rule::IntegerMean)
        } else {
            None
        }
    }

    fn strategy(&self, devices: &[LogicalDevice]) -> Result<Arc<dyn Strategy>> {
        let strategies = self.strategies.lock();
        let mut strategies = strategies.unwrap_or_else(PoisonError::into_inner);
        if let Some(strategy) = strategies.get(&devices.len()) {
            return Ok(strategy.handle());
        }
        let builder = TpuStrategy::builder(&self.system).replicas(devices.len());
        let strategy = builder.build()?;
        let handle = strategy.handle();
        strategies.insert(devices.len(), strategy);
        Ok(handle)
    }
}

/// Parts of different sizes, which burn's batch normalization takes no weights for.
fn is_uneven_burn_norm(case: &Case) -> bool {
    let is_uneven = |step: &Value| {
        let parts = step["x"].as_array().into_iter().flatten();
        let mut shapes = parts.map(|part| &part["shape"]);
        let first = shapes.next();
        shapes.any(|shape| Some(shape) != first)
    };
    let mut steps = case.inputs["steps"].as_array().into_iter().flatten();
    case.inputs["synchronized"] == false && steps.any(is_uneven)
}

/// In a step, a tensor of integers cannot become its mean; only data in host memory can.
fn is_mean_of_integers(case: &Case) -> bool {
    let first = &case.inputs["values"][0];
    let is_mean = reduce_op(&case.inputs["reduce_op"]) == Some(ReduceOp::Mean);
    case.op() == "all_reduce" && is_mean && is_int(first)
}
