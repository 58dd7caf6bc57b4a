//! What a step does with gradients: computes them, and reduces them by itself.

use burn::module::{Module, Param};
use burn::tensor::{Tensor, TensorData};
use distribute_collectives::ReduceOp;

use crate::gradients::{RemoteRows, Watched};
use crate::sync::lock;
use crate::{Error, Gradients, ReplicaContext, Result};

impl Gradients {
    /// Reduces the gradients over all replicas, in place, as one operation.
    ///
    /// A parameter that has a gradient on some replicas only counts as zero on the others; one
    /// that has none on any replica stays without. For that the replicas also sum one flag per
    /// parameter, and with several workers those that say whether one of them
    /// [wants to stop](crate::WorkerGroup::request_stop) or to save.
    ///
    /// # Errors
    /// If the replicas' models differ, for operations other than SUM and MEAN, and another
    /// replica's failure.
    pub fn all_reduce(&mut self, ctx: &ReplicaContext, op: ReduceOp) -> Result<()> {
        if !matches!(op, ReduceOp::Sum | ReduceOp::Mean) {
            return Err(Error::invalid(format!(
                "gradients are reduced with SUM or MEAN, not {op}"
            )));
        }
        ctx.peers.all_reduce_gradients(op, self)
    }
}

/// A model without parameters.
type NoModel = Vec<Param<Tensor<1>>>;

impl ReplicaContext {
    /// The gradients of `loss` with respect to the model's trainable parameters
    /// (TensorFlow: `GradientTape.gradient`).
    ///
    /// A parameter that the loss does not depend on has no gradient. The graph of the loss is
    /// used up; its value can still be read. Rows of tables that the step has looked up
    /// ([`watch_rows`](Self::watch_rows)) are among what the loss may depend on.
    ///
    /// # Errors
    /// If the loss is not one number, or was not computed on this replica's autodiff device.
    pub fn gradient<M: Module>(&self, loss: &Tensor<1>, model: &M) -> Result<Gradients> {
        let _phase = tracing::trace_span!(target: "distribute::phase", "backward").entered();
        let keeps = self.peers.keeps_gradients();
        let gradients = Gradients::compute(loss, model, &lock(&self.watched), keeps)?;
        self.peers.check_backward()?;
        Ok(gradients)
    }

    /// Makes rows of a table a leaf of the graph (TensorFlow: `GradientTape.watch`): from now on
    /// the gradients of every loss of this step that depends on the leaf hold those of the rows,
    /// and `apply_gradients` of a state on parameter servers sends them with its own.
    ///
    /// `values` are the rows of the ids, `[ids, width]`, of `f32`. What users call is the lookup of
    /// the crate that has the tables.
    ///
    /// # Errors
    /// [`Error::Shape`] and [`Error::DType`] for other values, and in a step that is compiled.
    pub fn watch_rows(&self, rows: RemoteRows, values: TensorData) -> Result<Tensor<2>> {
        self.refuse_captured("watch_rows")?;
        let watched = Watched::new(rows, values, self.device())?;
        let leaf = watched.leaf();
        lock(&self.watched).push(watched);
        Ok(leaf)
    }

    /// The gradients of `loss` with respect to the rows that this step has looked up, and to
    /// nothing else: for a model that is nothing but tables.
    ///
    /// # Errors
    /// Those of [`gradient`](Self::gradient).
    pub fn row_gradients(&self, loss: &Tensor<1>) -> Result<Gradients> {
        self.gradient(loss, &NoModel::new())
    }
}
