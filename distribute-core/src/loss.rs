//! What functions that average losses note in the step that calls them: [`StepNotes`].

use std::sync::Arc;

use burn::tensor::Tensor;

use crate::{Error, ReduceOp, ReplicaContext, Result, scope};

pub use crate::notes::{LossDivisor, StepNotes};

/// The notes of the step that runs on this thread, for functions that are handed no context;
/// `None` outside of a step.
pub fn notes_of_running_step() -> Option<Arc<StepNotes>> {
    scope::step_notes()
}

impl ReplicaContext {
    /// The examples of a full global batch, if the step was handed a part of one that knows: what
    /// losses are divided by. Batches of `distribute-data` and of `Fit` know it; others are
    /// told by [`PerReplica::of_global_batch`](crate::PerReplica::of_global_batch).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for parts of batches of different
    /// sizes.
    pub fn global_batch_size(&self) -> Result<Option<usize>> {
        self.notes().global_batch_size()
    }

    /// A mean loss over this replica's examples, as burn's loss modules give it
    /// (`CrossEntropyLoss`, `MseLoss` and the others), scaled so that the SUM over the replicas is
    /// the mean over the global batch: the loss times this replica's share of the examples.
    ///
    /// How many examples there are is the number of rows (the first axis) of the tensors of the
    /// batch that [`run`](crate::StrategyExt::run) has handed to the replicas, of this one and of
    /// all. Tensors of one row count only where all have one. The share is exact for parts of
    /// different sizes and for a short last batch: it is of the examples that are there, and not of
    /// a full batch, so any number of replicas makes the update that one device makes. An empty
    /// part, whose mean is NaN, has the loss 0 and gradients of 0. With one replica the loss stays
    /// as it is. In a step that is compiled all parts are of one size; where batches are filled up
    /// with examples of no weight, a mean counts these too: use `average_loss` with the weights.
    ///
    /// With several workers it blocks until all replicas have called it, as they exchange how many
    /// examples they have. Where rows are not what the mean is over (tokens, weights, the second
    /// axis), [`mean_loss_of`](Self::mean_loss_of) is told the number.
    ///
    /// ```
    /// use distribute_core::prelude::*;
    ///
    /// let strategy = MirroredStrategy::builder().replicas(2).build()?;
    /// let device = Device::flex();
    /// let parts = [vec![1.0_f32, 2.0, 3.0], vec![6.0]];
    /// let parts = parts.map(|part| Tensor::<1>::from_floats(&part[..], &device));
    /// let losses = strategy.run(PerReplica::new(parts.to_vec()), |ctx, values: Tensor<1>| {
    ///     ctx.mean_loss(values.mean())
    /// })?;
    /// assert_eq!(strategy.reduce(ReduceOp::Sum, losses)?.into_scalar::<f32>(), 3.0);
    /// # Ok::<(), distribute_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] in a step whose batch does not say how many examples there are;
    /// another replica's failure.
    pub fn mean_loss(&self, loss: Tensor<1>) -> Result<Tensor<1>> {
        if self.num_replicas_in_sync() == 1 && self.notes().examples().is_none() {
            self.notes().loss_is_scaled();
            return Ok(loss);
        }
        let Some((own, here)) = self.notes().examples() else {
            return Err(Error::invalid(
                "mean_loss: the batch of the step does not say how many examples it has (no \
                 per-replica tensors, or tensors with different numbers of rows): say what the \
                 mean is over with `ctx.mean_loss_of(loss, examples)`",
            ));
        };
        let is_all_here = self.num_local() == self.num_replicas_in_sync();
        match here.filter(|_| is_all_here) {
            Some(all) => Ok(self.share(loss, own as f64, all as f64)),
            None => self.mean_loss_of(loss, own as f64),
        }
    }

    /// [`mean_loss`](Self::mean_loss) of a mean over `examples` of this replica, in whatever unit
    /// the mean is over on all replicas: examples, tokens that are not padding, the sum of weights.
    /// 0 for a part without any.
    ///
    /// With several replicas it blocks until all have called it. In a step that is compiled the
    /// number is part of the program, the same for all replicas.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a number that is negative or not finite; another replica's
    /// failure.
    pub fn mean_loss_of(&self, loss: Tensor<1>, examples: f64) -> Result<Tensor<1>> {
        if !(examples.is_finite() && examples >= 0.0) {
            return Err(Error::invalid(format!(
                "mean_loss_of: a mean over {examples} examples; pass the number that this \
                 replica's mean is over, 0 for none"
            )));
        }
        let all = match (self.num_replicas_in_sync(), self.trace()) {
            (1, _) => examples,
            (replicas, Some(_)) => examples * replicas as f64,
            (_, None) => self.all_reduce(ReduceOp::Sum, examples)?,
        };
        Ok(self.share(loss, examples, all))
    }

    /// Says that the losses of this step are scaled already: that their sum over the replicas is
    /// the loss of the global batch. For losses that were scaled by hand, by other means than
    /// [`mean_loss`](Self::mean_loss) and the functions of `distribute-data`.
    pub fn loss_is_scaled(&self) {
        self.notes().loss_is_scaled();
    }

    /// The examples of this replica's part of the batch, where its tensors say so: their rows, as
    /// [`mean_loss`](Self::mean_loss) counts them. `None` in a step that is compiled, whose
    /// batches may be filled up with examples of no weight.
    pub fn examples(&self) -> Option<usize> {
        match self.trace() {
            Some(_) => None,
            None => self.notes().examples().map(|(own, _)| own),
        }
    }

    /// Refuses a loss that was not scaled for the sum over several replicas.
    pub(crate) fn check_loss_is_scaled(&self, op: &str) -> Result<()> {
        let replicas = self.num_replicas_in_sync();
        if replicas == 1 || self.notes().is_loss_scaled() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{op}: the loss counts once per replica: no loss of this step went through anything \
             that scales it for the sum over {replicas} replicas. Pass losses per example to \
             `average_loss(ctx, losses)`, or a mean, as burn's losses are, to \
             `ctx.mean_loss(loss)`; if it is scaled already, call `ctx.loss_is_scaled()`"
        )))
    }

    /// The mean over `own` of `all` examples as a part of the mean over all of them.
    fn share(&self, loss: Tensor<1>, own: f64, all: f64) -> Tensor<1> {
        self.notes().divided_by(LossDivisor::OwnBatch(all));
        if own == 0.0 {
            // Not a multiplication: the mean of nothing is NaN. The graph stays, with gradients
            // of 0.
            let everywhere = loss
                .clone()
                .equal(loss.clone())
                .bool_or(loss.clone().is_nan());
            return loss.mask_fill(everywhere, 0.0);
        }
        if own == all {
            loss
        } else {
            loss.mul_scalar(own / all)
        }
    }
}
