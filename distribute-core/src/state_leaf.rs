//! The inventory of a state: its tensors and numbers, each with its owner. Checkpoints, the
//! chief's values, parameter servers, captured steps and comparisons all walk these leaves.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use burn::module::Module;
use burn::tensor::{BoolStore, DType, Device, TensorData};

use crate::checkpoint::{Section, TensorSpec};
use crate::local_batch_norm::{is_own_statistic, is_synchronized_statistic};
use crate::parameters::{self, Parameter};
use crate::running_statistics::RunningStatistics;
use crate::{Error, Leaf, Result, trace};

/// Which leaves of a part are walked.
#[derive(Debug, Clone, Copy)]
pub enum StateWalk<'a> {
    /// The tensors of its models, of a step that runs as it is.
    Model,
    /// All tensors that a step which is compiled changes, with all slots, in an order that depends
    /// on the structure alone.
    All,
    /// The same, to put tensors of a capture in: this is where a model's constants go.
    Captured(&'a Device),
    /// What a checkpoint has: with the slots that there are, records, a dynamic loss scale, and the
    /// gradients of micro-batches that wait. To be read only. Waits for the parameter servers, if
    /// they have the part, and then the part has the number of updates that it is the result of.
    Saved,
}

/// What is called for each leaf of a state.
pub type StateVisitor<'a> = &'a mut dyn FnMut(StateLeaf<'_>) -> Result<()>;

/// What a leaf of a state is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateKind {
    /// A tensor of the model: trained, frozen, or of integers or bools.
    Parameter,
    /// A running statistic of the model, which its forward pass changes: of each replica, or equal
    /// on all of them (`SyncBatchNorm`).
    Statistic,
    /// A slot that the optimizer keeps for a parameter.
    Slot,
    /// A part of what an optimizer of burn keeps for a parameter.
    Record,
    /// A number of a dynamic loss scale.
    LossScale,
    /// The sum of a parameter's gradients of micro-batches that wait for the rest of their update.
    Accumulated,
    /// What a table on parameter servers has, beside the state, under its whole name.
    Table,
}

/// Who has a leaf of a state.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateOwner {
    /// Every replica, with the same bits.
    Replicated,
    /// Every replica, each with values of its own.
    PerReplica,
    /// Each replica this part of the elements of the flattened tensor, and no other.
    Sharded(Range<usize>),
}

/// A tensor or number of a state. Its value is read and written on demand.
pub struct StateLeaf<'a> {
    /// What it is.
    pub kind: StateKind,
    /// Who has it.
    pub owner: StateOwner,
    /// The name of the slot, or of the part of a record; empty for other kinds.
    pub part: &'a str,
    /// The path of the parameter, `conv1.weight` for example, or the name of the number.
    pub path: &'a str,
    pub(crate) value: &'a mut dyn Leaf,
}

impl fmt::Debug for StateLeaf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} ({:?})", self.kind, self.label(), self.owner)
    }
}

impl<'a> StateLeaf<'a> {
    /// What all replicas have alike, of a parameter or without one.
    pub(crate) fn shared(
        kind: StateKind,
        part: &'a str,
        path: &'a str,
        value: &'a mut dyn Leaf,
    ) -> Self {
        Self {
            kind,
            owner: StateOwner::Replicated,
            part,
            path,
            value,
        }
    }

    /// A tensor of a state in a store, by its name in a checkpoint.
    pub(crate) fn stored(name: &'a str, value: &'a mut dyn Leaf) -> Self {
        if let Some(path) = Section::Model.path_of(name) {
            return Self::shared(StateKind::Parameter, "", path, value);
        }
        match Section::Optimizer.parts_of(name) {
            Some((slot, path)) => Self::shared(StateKind::Slot, slot, path, value),
            None => Self::shared(StateKind::Table, "", name, value),
        }
    }

    /// The name in a checkpoint; of a running statistic that of the mean over the replicas. `None`
    /// for what has a name for [each replica](Self::own_name) only.
    pub fn name(&self) -> Option<String> {
        match self.kind {
            StateKind::Parameter | StateKind::Statistic => Some(Section::Model.name(self.path)),
            StateKind::Slot => Some(Section::Optimizer.name_in(self.part, self.path)),
            StateKind::Record => Some(Section::OptimizerRecord.name_in(self.part, self.path)),
            StateKind::LossScale => Some(Section::LossScale.name(self.path)),
            StateKind::Accumulated => None,
            StateKind::Table => Some(self.path.to_string()),
        }
    }

    /// The name in a checkpoint of what this replica has as its own; `None` for what all have
    /// alike.
    pub fn own_name(&self, replica: usize) -> Option<String> {
        let section = match (self.kind, &self.owner) {
            (StateKind::Accumulated, _) => Section::Accumulated,
            (StateKind::Statistic, StateOwner::PerReplica) => Section::Statistics,
            _ => return None,
        };
        Some(section.name_in(replica, self.path))
    }

    /// Whether each replica has a running statistic of its own.
    pub(crate) fn is_own_statistic(&self) -> bool {
        (self.kind, &self.owner) == (StateKind::Statistic, &StateOwner::PerReplica)
    }

    /// What messages about compiled steps call it.
    pub(crate) fn label(&self) -> Cow<'a, str> {
        match self.kind {
            StateKind::Accumulated => "a gradient of micro-batches".into(),
            _ if self.part.is_empty() => self.path.into(),
            _ => format!("{} ({})", self.path, self.part).into(),
        }
    }

    /// Whether it is a parameter that is trained.
    pub fn is_trained(&mut self) -> bool {
        self.kind == StateKind::Parameter
            && self
                .value
                .tensor()
                .is_some_and(|tensor| tensor.tracking().keeps_gradient)
    }

    /// Shape and element type; does not read the value. Bools have the type of the host, whatever
    /// the device keeps them as.
    pub fn spec(&self) -> trace::TensorSpec {
        let mut spec = self.value.spec();
        if spec.dtype.is_bool() {
            spec.dtype = DType::Bool(BoolStore::Native);
        }
        spec
    }

    /// Copies the value to the host. Waits for the device.
    ///
    /// # Errors
    /// If the device cannot be read.
    pub fn read(&self) -> Result<TensorData> {
        let value = self.value.data()?;
        match value.dtype() {
            DType::Bool(store) if store != BoolStore::Native => value
                .try_cast(DType::Bool(BoolStore::Native))
                .map_err(Error::internal),
            _ => Ok(value),
        }
    }

    /// Replaces the value; the device and what autodiff knows of the tensor stay.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::DType`] for a value of another shape or kind of elements.
    pub fn write(&mut self, data: TensorData) -> Result<()> {
        let spec = self.value.spec();
        if data.shape().as_slice() != spec.shape {
            let op = "a parameter of a model";
            return Err(Error::shape(op, &spec.shape, data.shape()));
        }
        if !is_same_kind(spec.dtype, data.dtype()) {
            let op = "a parameter of another kind in the model";
            return Err(Error::dtype(op, data.dtype()));
        }
        let data = data.try_cast(spec.dtype).map_err(Error::internal)?;
        self.value.set_data(data)
    }
}

/// Whether values of the type `found` can stand in a tensor of the type `expected`. Bools are
/// stored as bytes where a device keeps them so.
pub(crate) fn is_same_kind(expected: DType, found: DType) -> bool {
    if expected.is_bool() {
        return matches!(found, DType::Bool(_) | DType::U8 | DType::U32);
    }
    expected.is_float() == found.is_float() && !found.is_bool()
}

/// Visits a model's leaves in visit order, to be changed. In a step that runs as it is running
/// statistics are found by their paths, in one that is compiled by the types of their layers.
pub(crate) fn walk_model<M: Module>(
    model: &mut M,
    statistics: Option<&RunningStatistics>,
    walk: StateWalk<'_>,
    visit: StateVisitor<'_>,
) -> Result<()> {
    let capture = match walk {
        StateWalk::Captured(device) => Some(device),
        _ => None,
    };
    if let (Some(statistics), StateWalk::Model) = (statistics, walk) {
        statistics.settle(model);
    }
    trace::walk_module(model, capture, each(statistics, visit))
}

/// Visits a model's leaves in visit order, to be read: handles of its tensors.
pub(crate) fn read_model<M: Module>(
    model: &M,
    statistics: &RunningStatistics,
    visit: StateVisitor<'_>,
) -> Result<()> {
    statistics.settle(model);
    parameters::visit(model, each(Some(statistics), visit))
}

/// Names, shapes and types of a model's tensors; reads no values.
pub(crate) fn model_specs<M: Module>(
    model: &M,
    statistics: &RunningStatistics,
) -> Result<Vec<TensorSpec>> {
    let mut specs = Vec::new();
    read_model(model, statistics, &mut |leaf| {
        let trace::TensorSpec { shape, dtype } = leaf.spec();
        specs.extend(leaf.name().map(|name| TensorSpec { name, shape, dtype }));
        Ok(())
    })?;
    Ok(specs)
}

/// What visits a model's parameters makes leaves of them.
fn each<'v>(
    statistics: Option<&'v RunningStatistics>,
    visit: StateVisitor<'v>,
) -> impl FnMut(Parameter<'_>) -> Result<()> + 'v {
    // They are in visit order.
    let paths = statistics.into_iter().flat_map(RunningStatistics::paths);
    let mut paths = paths.peekable();
    move |parameter| {
        let is_equal = is_synchronized_statistic(&parameter);
        let is_found = paths.next_if(|path| *path == parameter.path).is_some();
        let is_own = !is_equal && (is_found || is_own_statistic(&parameter));
        let mut leaf =
            StateLeaf::shared(StateKind::Parameter, "", parameter.path, parameter.tensor);
        if is_own || is_equal {
            leaf.kind = StateKind::Statistic;
        }
        if is_own {
            leaf.owner = StateOwner::PerReplica;
        }
        visit(leaf)
    }
}
