//! Tables as steps and coordinators use them.

use burn::tensor::TensorData;
use distribute_core::{Nest, ReplicaContext, StrategyExt};

use super::ClusterCoordinator;
use crate::error::Result;
use crate::table::{EmbeddingTable, Rows, TableSpec};
use crate::worker::{SharedValue, StepRegistry, WorkerContext, once, only};

/// A handle of a table on the parameter servers ([`StepRegistry::table`]). Steps capture it.
pub type Table = SharedValue<EmbeddingTable>;

impl StepRegistry {
    /// Registers an embedding table. The coordinator makes it, with its initial values, when it
    /// connects; steps look its rows up by [`WorkerContext::lookup`]. Its name on the servers and
    /// in checkpoints is `table/` and this name.
    ///
    /// # Errors
    /// As [`shared`](Self::shared); [`PsError::InvalidArgument`] for a table without rows or
    /// columns and for initial values that are not possible.
    ///
    /// [`PsError::InvalidArgument`]: crate::PsError::InvalidArgument
    pub fn table(&mut self, name: impl Into<String>, spec: TableSpec) -> Result<Table> {
        let name = name.into();
        spec.check(&name)?;
        let of_table = name.clone();
        let table = self.shared(name, move |strategy| strategy.table(&of_table, &spec))?;
        self.tables += 1;
        Ok(table)
    }
}

impl WorkerContext {
    /// Looks rows of a table up (TensorFlow: `tf.nn.embedding_lookup`); each distinct one travels
    /// once. `ids` are integers of any type, in any shape: a tensor's data, an array or a slice.
    /// Blocks. Call it before [`run`](Self::run) and hand the rows to it.
    ///
    /// # Errors
    /// [`PsError::UnknownId`] for an id that the table does not have; [`PsError::DType`] for ids
    /// that are no integers; [`PsError::Cancelled`] if the closure is to stop; the errors of a
    /// pull.
    ///
    /// [`PsError::UnknownId`]: crate::PsError::UnknownId
    /// [`PsError::DType`]: crate::PsError::DType
    /// [`PsError::Cancelled`]: crate::PsError::Cancelled
    pub fn lookup(&self, table: &Table, ids: impl Into<TensorData>) -> Result<Rows> {
        self.check_cancelled()?;
        // What is pulled belongs to this closure.
        self.strategy()?;
        let table = self.shared(table)?;
        table.lookup(ids)
    }

    /// Runs a training step of a model that is nothing but tables: as [`run`](Self::run), without
    /// a state. The step gets what was looked up and anything else, such as
    /// `(rows, labels)`, and ends with
    /// [`apply_row_gradients`](ReplicaContext::apply_row_gradients) of
    /// [`row_gradients`](ReplicaContext::row_gradients).
    ///
    /// # Errors
    /// As `run`.
    pub fn run_rows<B, R, F>(&self, batch: B, step: F) -> Result<R>
    where
        B: Send,
        R: Nest + Send + 'static,
        F: Fn(&ReplicaContext, B) -> distribute_core::Result<R> + Sync,
    {
        self.check_cancelled()?;
        let strategy = self.strategy()?;
        let batch = once(batch);
        only(strategy.run((), |ctx, ()| step(ctx, batch()?))?)
    }
}

impl ClusterCoordinator {
    /// Looks rows of a table up, for example to evaluate a model: [`EmbeddingTable::lookup`].
    ///
    /// # Errors
    /// As [`WorkerContext::lookup`], and as [`with`](Self::with).
    pub fn lookup(&self, table: &Table, ids: impl Into<TensorData>) -> Result<Rows> {
        let ids = ids.into();
        self.with(table, |table| Ok(table.lookup(ids)?))
    }
}
