//! Variables as the client sees them: what they are, where their shards lie, and snapshots.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::{DType, TensorData};
use distribute_core::optim::Optimizer;
use serde::{Deserialize, Serialize};

use crate::placement::Placement;
use crate::update::Versions;

/// An optimizer by name and configuration, which the servers build it from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OptimizerSpec {
    /// `sgd`, `adam`, `adamw`, or a name that the servers were given
    /// ([`ServerOptions::optimizer`](crate::ServerOptions::optimizer)).
    pub name: String,
    /// The hyper-parameters of the optimizer, as [`Optimizer::config`] gives them.
    pub config: serde_json::Value,
}

impl OptimizerSpec {
    /// The description of an optimizer.
    pub fn of(optimizer: &dyn Optimizer) -> Self {
        Self {
            name: optimizer.name().to_string(),
            config: optimizer.config(),
        }
    }
}

/// What a variable is to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VariableSpec {
    /// The name, as in checkpoints: `model/conv1.weight`.
    pub name: String,
    /// The whole shape.
    pub shape: Vec<usize>,
    /// The type of the elements.
    pub dtype: DType,
    /// The rule by which gradients are applied; `None` for a plain variable, which only has
    /// assignments.
    pub optimizer: Option<OptimizerSpec>,
}

/// A variable on the servers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct VariableRef(pub(crate) Arc<Variable>);

#[derive(Debug)]
pub(crate) struct Variable {
    pub(crate) spec: VariableSpec,
    pub(crate) placement: Placement,
    /// The number of each shard on its server.
    pub(crate) ids: Vec<u32>,
}

impl VariableRef {
    /// The name.
    pub fn name(&self) -> &str {
        &self.0.spec.name
    }

    /// The whole shape.
    pub fn shape(&self) -> &[usize] {
        &self.0.spec.shape
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.0.spec.dtype
    }

    /// What it was created from.
    pub fn spec(&self) -> &VariableSpec {
        &self.0.spec
    }

    /// The shards of the variable and their servers.
    pub fn placement(&self) -> &Placement {
        &self.0.placement
    }
}

/// All variables of all servers with the optimizers' slots, each shard at one version.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    /// Values by the name of the variable; those that were never initialized are left out.
    pub variables: BTreeMap<String, TensorData>,
    /// Slots by variable and slot (`momentum`), in the variable's shape.
    pub slots: BTreeMap<(String, String), TensorData>,
    /// How often each shard was changed.
    pub versions: BTreeMap<String, Versions>,
    /// How often the optimizer was applied to each shard.
    pub updates: BTreeMap<String, Versions>,
    /// The learning rate that the coordinator has set, if any.
    pub learning_rate: Option<f64>,
}

impl Snapshot {
    /// The number of updates of the variable that was updated most.
    pub fn step(&self) -> u64 {
        let counts = self.updates.values().flat_map(|versions| &versions.0);
        counts.copied().max().unwrap_or(0)
    }
}
