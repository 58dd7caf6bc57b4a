//! Training states and variables that live elsewhere: on parameter servers.
//!
//! A strategy that has a [`RemoteStore`] hands it what its scope builds. From then on a
//! [`TrainState`](crate::TrainState) is a copy: the newest values are pulled before every run that
//! may change it, and [`apply_gradients`](crate::TrainState::apply_gradients) pushes gradients
//! instead of applying them. Micro-batches are added up and gradients are clipped here, where they
//! are computed; the optimizer's slots are in the store alone.
//!
//! Running statistics of a batch normalization are in the store too. A worker moves its copy by the
//! examples that it has seen, and what it has moved them by is added in the store with every push
//! (TensorFlow: `assign_sub` of variables on the servers), so that all workers' examples count,
//! each with the statistics that its worker had pulled.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use burn::tensor::TensorData;

pub use crate::gradients::{RemoteRows, RemoteVersion, RowGradients};
use crate::optim::Optimizer;
use crate::{Error, Result};

/// Where a strategy keeps what its scope builds, if that is not this process.
pub trait RemoteStore: Send + Sync + Debug {
    /// Takes over the tensors of a training state: makes them, with these initial values, or finds
    /// those that another process has made. Blocks.
    ///
    /// # Errors
    /// The store's own, and tensors of other shapes than those that are there.
    fn state(&self, spec: RemoteSpec<'_>) -> Result<Arc<dyn RemoteState>>;

    /// Takes over a variable, in the same way.
    ///
    /// # Errors
    /// As [`state`](Self::state).
    fn variable(&self, initial: &TensorData) -> Result<Arc<dyn RemoteVariable>>;

    /// Applies gradients of rows of tables alone, without gradients of a state. Blocks.
    ///
    /// # Errors
    /// The store's own; by default that it has no tables.
    fn push_rows(&self, rows: Vec<RowGradients>) -> Result<Pushed> {
        Err(no_tables(&rows))
    }
}

/// The error of a store without tables.
pub fn no_tables(rows: &[RowGradients]) -> Error {
    let tables: Vec<&str> = rows.iter().map(|rows| &*rows.rows.table).collect();
    let tables = tables.join("`, `");
    Error::invalid(format!(
        "push: there are gradients of rows of `{tables}`, and no such table where the state lives"
    ))
}

/// A training state for a [`RemoteStore`].
#[derive(Debug)]
pub struct RemoteSpec<'a> {
    /// Where it is in the value that the scope built, `generator` for example; empty for the value
    /// itself.
    pub path: &'a str,
    /// The model's tensors in visit order.
    pub tensors: Vec<RemoteTensor>,
    /// The rule by which trained tensors are updated; none for a model that is not trained.
    pub optimizer: Option<&'a dyn Optimizer>,
}

/// One tensor of a model.
#[derive(Debug, Clone)]
pub struct RemoteTensor {
    /// The name in checkpoints: `model/conv1.weight`.
    pub name: String,
    /// The value that was built here.
    pub value: TensorData,
    /// Whether the optimizer updates it.
    pub is_trained: bool,
}

/// What [`RemoteState::pull`] found.
#[derive(Debug, Clone, Default)]
pub struct RemoteValues {
    /// The number of updates so far, of the tensor that was updated most.
    pub step: u64,
    /// The learning rate, if one was set since the state was built.
    pub learning_rate: Option<f64>,
    /// What has changed: the index of the tensor in [`RemoteSpec::tensors`], and what it is now.
    pub changed: Vec<(usize, RemoteVersion, TensorData)>,
}

/// What a push did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pushed {
    /// The gradients were applied, or will be together with other workers' gradients.
    Applied {
        /// The number of updates after it.
        step: u64,
    },
    /// They came too late, and nothing was changed.
    Dropped,
}

/// A training state in a store.
pub trait RemoteState: Send + Sync + Debug {
    /// The values that are newer than the `known` ones (one version per tensor). Blocks.
    ///
    /// # Errors
    /// The store's own.
    fn pull(&self, known: &[RemoteVersion]) -> Result<RemoteValues>;

    /// Applies gradients, one per trained tensor, that were computed at the versions `base`, and
    /// in the same update the gradients of rows of tables. Without a gradient a tensor is left
    /// alone. Blocks.
    ///
    /// # Errors
    /// The store's own; one without tables refuses `rows` ([`no_tables`]).
    fn push(
        &self,
        gradients: Vec<Option<TensorData>>,
        base: &[RemoteVersion],
        rows: Vec<RowGradients>,
    ) -> Result<Pushed>;

    /// Adds to tensors that are not trained, by their index in [`RemoteSpec::tensors`]: what a
    /// step has moved running statistics by. Blocks.
    ///
    /// # Errors
    /// The store's own; by default that it keeps no running statistics.
    fn add(&self, changes: Vec<(usize, TensorData)>) -> Result<()> {
        if changes.is_empty() {
            Ok(())
        } else {
            Err(Error::invalid(
                "this store keeps no running statistics (`RemoteState::add`); use a layer or \
                 group normalization",
            ))
        }
    }

    /// Sets the learning rate of the next updates, of all workers.
    ///
    /// # Errors
    /// The store's own.
    fn set_learning_rate(&self, learning_rate: f64) -> Result<()>;

    /// The number of updates, and all tensors with the slots under their names in checkpoints.
    ///
    /// # Errors
    /// The store's own.
    fn save(&self) -> Result<(u64, BTreeMap<String, TensorData>)>;

    /// Puts a checkpoint's tensors and slots back; where it holds no slots they start at zero.
    ///
    /// # Errors
    /// The store's own, and slots of another optimizer
    /// ([`check_slots`](crate::checkpoint::check_slots)).
    fn restore(&self, tensors: &BTreeMap<String, TensorData>, step: u64) -> Result<()>;
}

/// What an update does with a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteChange {
    /// It becomes the value.
    Assign,
    /// The value is added.
    Add,
    /// The value is subtracted.
    Sub,
}

/// A variable in a store. Shapes and types of values have been checked.
pub trait RemoteVariable: Send + Sync + Debug {
    /// The value now. Blocks.
    ///
    /// # Errors
    /// The store's own.
    fn read(&self) -> Result<TensorData>;

    /// Changes it. Blocks.
    ///
    /// # Errors
    /// The store's own.
    fn change(&self, change: RemoteChange, value: TensorData) -> Result<()>;
}
