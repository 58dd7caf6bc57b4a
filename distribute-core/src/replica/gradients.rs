//! What a step does with gradients: computes them, and reduces them by itself.

use burn::module::{Module, Param};
use burn::tensor::{Tensor, TensorData};
use distribute_collectives::ReduceOp;

use crate::gradients::{Collect, Models, RemoteRows, Tape, Watched};
use crate::random::pause_random;
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
    /// If the loss is not one number, was not computed on this replica's autodiff device, or an
    /// earlier call has used its graph up: [`gradients`](Self::gradients) takes the gradients of
    /// several models. The failure of a [`SyncBatchNorm`](crate::SyncBatchNorm) of the step, with
    /// its path in the model.
    pub fn gradient<M: Module>(&self, loss: &Tensor<1>, model: &M) -> Result<Gradients> {
        Ok(self.collect(loss, (model,))?.0)
    }

    /// The gradients of one `loss` with respect to several models: one set for each, in the order
    /// of the models, from one backward pass (TensorFlow: `GradientTape.gradient` with several
    /// lists of variables). A graph has only one, so that a second call of
    /// [`gradient`](Self::gradient) for the same loss is refused.
    ///
    /// Each set is what [`gradient`](Self::gradient) returns for its model, and is handed to
    /// [`apply_gradients`](crate::TrainState::apply_gradients) of the state of that model. A
    /// parameter that is in several of the models has its gradient in each of their sets. Rows of
    /// tables are in the first set. The models are 2 to 8; where the states have a loss scale, the
    /// loss is passed through [`scale_loss`](Self::scale_loss).
    ///
    /// It does the same under every strategy, in steps that are compiled and with parameter
    /// servers.
    ///
    /// ```
    /// use burn::nn::{Linear, LinearConfig};
    /// use distribute_core::prelude::*;
    ///
    /// #[derive(Replicate)]
    /// struct AutoEncoder {
    ///     encoder: TrainState<Linear>,
    ///     decoder: TrainState<Linear>,
    /// }
    ///
    /// let strategy = MirroredStrategy::builder().replicas(2).build()?;
    /// let mut state = strategy.scope(|device| AutoEncoder {
    ///     encoder: TrainState::new(LinearConfig::new(4, 2).init(device), Adam::new(1e-3)),
    ///     decoder: TrainState::new(LinearConfig::new(2, 4).init(device), Sgd::new(1e-2)),
    /// })?;
    /// strategy.run(&mut state, |ctx, AutoEncoder { encoder, decoder }| {
    ///     let inputs = Tensor::<2>::ones([3, 4], ctx.device());
    ///     let outputs = decoder.model.forward(encoder.model.forward(inputs));
    ///     let loss = ctx.mean_loss_of(outputs.mean(), 3.0)?;
    ///     let (first, second) = ctx.gradients(&loss, (&encoder.model, &decoder.model))?;
    ///     encoder.apply_gradients(ctx, first)?;
    ///     decoder.apply_gradients(ctx, second)
    /// })?;
    /// let state = state.primary()?;
    /// assert_eq!((state.encoder.step(), state.decoder.step()), (1, 1));
    /// # Ok::<(), distribute_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`gradient`](Self::gradient).
    pub fn gradients<M: Models>(&self, loss: &Tensor<1>, models: M) -> Result<M::Gradients> {
        self.collect(loss, models)
    }

    fn collect<M: Collect>(&self, loss: &Tensor<1>, models: M) -> Result<M::Gradients> {
        let _phase = tracing::trace_span!(target: "distribute::phase", "backward").entered();
        // Others may draw random numbers: a backward pass draws none.
        let _random = pause_random();
        models.name_failure(&self.notes);
        self.check_noted()?;
        let tape = Tape::of(loss, &lock(&self.watched))?;
        let gradients = models.collect(tape, self.peers.keeps_gradients())?;
        self.peers.check_backward()?;
        Ok(gradients)
    }

    /// Makes rows of a table a leaf of the graph (TensorFlow: `GradientTape.watch`): from now on
    /// the gradients of every loss of this step that depends on the leaf include the rows'
    /// gradients, and `apply_gradients` of a state on parameter servers sends them with its own.
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
    /// The errors of [`gradient`](Self::gradient).
    pub fn row_gradients(&self, loss: &Tensor<1>) -> Result<Gradients> {
        self.gradient(loss, &NoModel::new())
    }
}
