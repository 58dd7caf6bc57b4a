//! How gradients become an update of a training state.

use std::mem;

use burn::module::Module;
use burn::tensor::Tensor;
use distribute_collectives::ReduceOp;

use super::TrainState;
use super::placement::{Placement, Slots, has_slots};
use super::update::{Numbers, Update};
use crate::optim::Coefficient;
use crate::replica::Turn;
use crate::{Applied, Error, Gradients, ReplicaContext, Result};

impl<M: Module + 'static> TrainState<M> {
    /// Reduces the gradients over all replicas (SUM) and updates the model
    /// (Keras: `Optimizer.apply_gradients`).
    ///
    /// Every replica must call it equally often. Blocks until all replicas have called it.
    /// Parameters without a gradient on any replica are left alone; one with a gradient on some
    /// replicas only counts as zero on the others.
    ///
    /// Under several workers with `bytes_per_pack` the gradients travel in packs, the ones of the
    /// last layers first, and the parameters of one pack are updated while the next one travels.
    /// Not when gradients are clipped, or there is a loss scale: a norm, and whether all gradients
    /// are finite, is known when all have arrived.
    ///
    /// With a [loss scale](Self::with_loss_scale) the gradients are of
    /// [`scale_loss`](Self::scale_loss), and are divided here. A dynamic scale skips an update
    /// whose gradients are not finite, on all replicas: parameters, slots and the number of updates
    /// stay as they are, and running statistics go back to where they were before the run. In a
    /// compiled step the program decides, when it runs: the result here is
    /// [`Applied::Updated`], and [`LossScale::skipped_steps`](crate::LossScale::skipped_steps) of
    /// the state after the run tells.
    ///
    /// With parameter servers the gradients are sent to them, and the model here changes with the
    /// next run, or with [`refresh`](Self::refresh).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with several replicas if no loss of the step was scaled for the
    /// sum over them, by `average_loss`, [`ReplicaContext::mean_loss`] and their relatives, nor
    /// said to be ([`ReplicaContext::loss_is_scaled`]). Another replica's failure, gradients of
    /// another model or of a loss without its [loss scale](Self::with_loss_scale),
    /// [`Error::StatisticsNotFinite`], what the optimizer reports, and [`Error::NotCompilable`] for
    /// a second update in one compiled step with a dynamic loss scale.
    pub fn apply_gradients(
        &mut self,
        ctx: &ReplicaContext,
        gradients: Gradients,
    ) -> Result<Applied> {
        ctx.check_noted()?;
        gradients.check_model("apply_gradients", &self.model)?;
        ctx.check_loss_is_scaled("apply_gradients")?;
        self.follow_model()?;
        let scaled_by = self.take_loss_scale()?;
        self.statistics.check(ctx, &self.model, self.step)?;
        if !self.is_remote() {
            gradients.refuse_rows("`apply_gradients` of a state that is not on servers")?;
        }
        let Some(gradients) = self.collect(gradients)? else {
            return Ok(Applied::Accumulated);
        };
        self.loss_scaled_by = scaled_by;
        let applied =
            self.with_placement(|placement, state| placement.apply(state, ctx, gradients));
        self.loss_scaled_by = None;
        let applied = applied?;
        self.settle_statistics(applied)?;
        Ok(applied)
    }

    /// The gradients of a loss, summed over all replicas, and the update of the model: the end of
    /// most steps (Keras: `Optimizer.minimize`).
    ///
    /// It is [`scale_loss`](Self::scale_loss), [`ReplicaContext::gradient`] and
    /// [`apply_gradients`](Self::apply_gradients) in one call, bit by bit. Write these where
    /// something comes between them, such as gradients of several models.
    ///
    /// ```
    /// use burn::nn::LinearConfig;
    /// use distribute_core::prelude::*;
    ///
    /// let strategy = MirroredStrategy::builder().replicas(2).build()?;
    /// let mut state = strategy.scope(|device| {
    ///     TrainState::new(LinearConfig::new(2, 1).init(device), Sgd::new(0.1))
    /// })?;
    /// let device = strategy.replicas()[0].device.clone();
    /// let batch = PerReplica::new(vec![Tensor::<2>::ones([3, 2], &device); 2]);
    /// strategy.run((&mut state, batch), |ctx, (state, inputs)| {
    ///     let outputs = state.model.forward(inputs);
    ///     let loss = ctx.mean_loss((outputs.clone() * outputs).mean())?;
    ///     state.minimize(ctx, &loss)
    /// })?;
    /// assert_eq!(state.primary()?.step(), 1);
    /// # Ok::<(), distribute_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`ReplicaContext::gradient`] and of
    /// [`apply_gradients`](Self::apply_gradients).
    pub fn minimize(&mut self, ctx: &ReplicaContext, loss: &Tensor<1>) -> Result<Applied> {
        let scaled = self.scale_loss(loss);
        let gradients = ctx.gradient(&scaled, &self.model)?;
        self.apply_gradients(ctx, gradients)
    }

    /// Adds micro-batches up; gives the sum out when there are enough.
    fn collect(&mut self, gradients: Gradients) -> Result<Option<Gradients>> {
        if self.accumulation_steps == 1 {
            return Ok(Some(gradients));
        }
        let (count, mut sum) = match self.accumulated.take() {
            None => (1, gradients),
            Some((count, mut sum)) => {
                sum.accumulate(gradients)?;
                (count + 1, sum)
            }
        };
        if count != self.accumulation_steps {
            self.accumulated = Some((count, sum));
            return Ok(None);
        }
        sum.scale(self.accumulation_share)?;
        Ok(Some(sum))
    }

    /// Applies one update with gradients that are already reduced, or skips it. With a turn the
    /// replicas of its device do it together.
    pub(super) fn update(
        &mut self,
        mut gradients: Gradients,
        numbers: Numbers,
        slots: &mut Slots,
        turn: Option<&Turn>,
    ) -> Result<Applied> {
        if !self.prepare(&mut gradients)? {
            self.loss_scale.count_skipped();
            return Ok(Applied::Skipped);
        }
        self.update_with(numbers, slots, |update| {
            update.apply_with(turn, 0..update.len(), &mut gradients)
        })
    }

    /// Makes one update, whose parameters `apply` changes.
    pub(super) fn update_with(
        &mut self,
        numbers: Numbers,
        slots: &mut Slots,
        apply: impl FnOnce(&mut Update<'_, M>) -> Result<()>,
    ) -> Result<Applied> {
        let mut update = Update::new(self, numbers, slots)?;
        if let Err(error) = apply(&mut update) {
            update.state.half_updated |= update.has_begun;
            return Err(error);
        }
        update.finish()?;
        self.step += 1;
        self.loss_scale.count_update();
        Ok(Applied::Updated)
    }

    /// The numbers of the next update, on the host.
    pub(super) fn numbers(&self) -> Numbers {
        let next = self.step + 1;
        let numbers = self.optimizer.coefficients(self.learning_rate, next);
        Numbers {
            coefficients: numbers.into_iter().map(Coefficient::Host).collect(),
            is_captured: false,
            only_if: None,
        }
    }
}

/// A state whose placement is at work on it, and that gets it back, also when that panics.
struct Lent<'a, M> {
    state: &'a mut TrainState<M>,
    placement: Box<dyn Placement<M>>,
}

impl<M> Drop for Lent<'_, M> {
    fn drop(&mut self) {
        mem::swap(&mut self.state.placement, &mut self.placement);
    }
}

impl<M: Module + 'static> Default for Box<dyn Placement<M>> {
    fn default() -> Self {
        Box::new(Mirrored::default())
    }
}

impl<M: Module + 'static> TrainState<M> {
    /// Lets the placement work on the state, which is without slots meanwhile.
    pub(super) fn with_placement<R>(
        &mut self,
        work: impl FnOnce(&mut dyn Placement<M>, &mut Self) -> R,
    ) -> R {
        let placement = mem::take(&mut self.placement);
        let state = self;
        let mut lent = Lent { state, placement };
        let Lent { state, placement } = &mut lent;
        work(&mut **placement, state)
    }
}

/// Every replica applies the same update to its copy; those that share a device compute it once.
#[derive(Clone, Default)]
pub(super) struct Mirrored {
    pub(super) slots: Slots,
}

impl<M: Module + 'static> Placement<M> for Mirrored {
    fn apply(
        &mut self,
        state: &mut TrainState<M>,
        ctx: &ReplicaContext,
        mut gradients: Gradients,
    ) -> Result<Applied> {
        if ctx.trace().is_some() {
            return Err(Error::not_compilable(
                "a training state from outside of the step",
                "pass the training state to `run` as `&mut Mirrored<TrainState<_>>`",
            ));
        }
        let peers = ctx.peers();
        let numbers = state.numbers();
        if state.needs_all_gradients() {
            peers.all_reduce_gradients(ReduceOp::Sum, &mut gradients)?;
            return state.update(gradients, numbers, &mut self.slots, peers.turn());
        }
        state.update_with(numbers, &mut self.slots, |update| {
            peers.sum_gradients(&mut gradients, &mut |range, gradients| {
                update.apply_with(peers.turn(), range, gradients)
            })
        })
    }

    has_slots!();
}

/// One update for all replicas: replica 0 applies it to the only copy, the others take the new
/// tensors' handles.
#[derive(Clone)]
pub(super) struct Central {
    pub(super) slots: Slots,
}

impl<M: Module + 'static> Placement<M> for Central {
    fn apply(
        &mut self,
        state: &mut TrainState<M>,
        ctx: &ReplicaContext,
        mut gradients: Gradients,
    ) -> Result<Applied> {
        ctx.peers().reduce_gradients(&mut gradients)?;
        let is_first = ctx.local_id() == 0;
        let mut mine = None;
        if is_first {
            let applied = state.update(gradients, state.numbers(), &mut self.slots, None)?;
            // Handles, not copies.
            mine = Some((applied, state.clone(), self.slots.clone()));
        }
        let count = ctx.num_local();
        let handles = ctx.exchange("apply_gradients", 0, mine, |mut all| {
            Ok(vec![all.swap_remove(0); count])
        })?;
        let missing = || Error::invalid("apply_gradients: replica 0 made no update");
        let (applied, first, slots) = handles.ok_or_else(missing)?;
        if !is_first {
            let model = state.statistics.keep_own(&state.model, &first.model)?;
            state.model = model.fork(ctx.device());
            self.slots = slots;
            state.step = first.step;
            state.loss_scale = first.loss_scale;
        }
        Ok(applied)
    }

    has_slots!();
}
