//! How gradients become an update of a training state.

use burn::module::Module;
use distribute_collectives::ReduceOp;

use super::TrainState;
use super::placement::Placement;
use super::update::Update;
use crate::optim::Coefficient;
use crate::replica::Turn;
use crate::trace::CapturedTensor;
use crate::{Applied, Error, Gradients, ReplicaContext, Result};

impl<M: Module + 'static> TrainState<M> {
    /// Reduces the gradients over all replicas (SUM) and updates the model
    /// (Keras: `Optimizer.apply_gradients`).
    ///
    /// Every replica must call it equally often. Blocks until all replicas have called it.
    /// Parameters without a gradient on any replica are left alone; one with a gradient on some
    /// replicas only counts as zero on the others.
    ///
    /// Under several workers with `bytes_per_pack` the gradients travel in packs, those of the last
    /// layers first, and the parameters of one pack are updated while the next one travels. Not
    /// when gradients are clipped, or there is a loss scale: a norm, and whether all gradients are
    /// finite, is known when all have arrived.
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
    /// Another replica's failure, gradients of another model or of a loss that was not scaled,
    /// [`Error::StatisticsNotFinite`], what the optimizer reports, and [`Error::NotCompilable`] for
    /// a second update in one compiled step with a dynamic loss scale.
    pub fn apply_gradients(
        &mut self,
        ctx: &ReplicaContext,
        gradients: Gradients,
    ) -> Result<Applied> {
        gradients.check_model("apply_gradients", &self.model)?;
        self.check_loss_scaled()?;
        self.statistics.check(ctx, &self.model, self.step)?;
        if !self.is_remote() {
            gradients.refuse_rows("`apply_gradients` of a state that is not on servers")?;
        }
        let Some(gradients) = self.collect(gradients)? else {
            return Ok(Applied::Accumulated);
        };
        let applied =
            self.with_placement(|placement, state| placement.apply(state, ctx, gradients))?;
        self.settle_statistics(applied)?;
        Ok(applied)
    }

    /// Lets a copy of the placement work on the state: a panic leaves the state where it was.
    pub(super) fn with_placement<R>(
        &mut self,
        work: impl FnOnce(&mut dyn Placement<M>, &mut Self) -> R,
    ) -> R {
        let mut placement = self.placement.clone();
        let result = work(&mut *placement, self);
        self.placement = placement;
        result
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
        coefficients: Vec<Coefficient>,
        turn: Option<&Turn>,
    ) -> Result<Applied> {
        if !self.prepare(&mut gradients)? {
            self.loss_scale.count_skipped();
            return Ok(Applied::Skipped);
        }
        self.update_with(coefficients, None, |update| {
            update.apply_with(turn, 0..update.len(), &mut gradients)
        })
    }

    /// Makes one update, whose parameters `apply` changes. In a step that is captured the program
    /// makes it where the bool `only_if` of shape `[1]` is set.
    pub(super) fn update_with(
        &mut self,
        coefficients: Vec<Coefficient>,
        only_if: Option<CapturedTensor>,
        apply: impl FnOnce(&mut Update<'_, M>) -> Result<()>,
    ) -> Result<Applied> {
        let mut update = Update::new(self, coefficients, only_if)?;
        if let Err(error) = apply(&mut update) {
            update.state.half_updated |= update.has_begun;
            return Err(error);
        }
        update.finish()?;
        self.step += 1;
        self.loss_scale.count_update();
        Ok(Applied::Updated)
    }

    /// Those of the next update, on the host.
    pub(super) fn coefficients(&self) -> Vec<Coefficient> {
        let next = self.step + 1;
        let numbers = self.optimizer.coefficients(self.learning_rate, next);
        numbers.into_iter().map(Coefficient::Host).collect()
    }
}

/// Every replica applies the same update to its copy; those that share a device compute it once.
pub(super) struct Mirrored;

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
        let coefficients = state.coefficients();
        if state.needs_all_gradients() {
            peers.all_reduce_gradients(ReduceOp::Sum, &mut gradients)?;
            return state.update(gradients, coefficients, peers.turn());
        }
        state.update_with(coefficients, None, |update| {
            peers.sum_gradients(&mut gradients, &mut |range, gradients| {
                update.apply_with(peers.turn(), range, gradients)
            })
        })
    }

    fn boxed(&self) -> Box<dyn Placement<M>> {
        Box::new(Mirrored)
    }
}

/// One update for all replicas: replica 0 applies it to the only copy, the others take the new
/// tensors' handles.
pub(super) struct Central;

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
            let applied = state.update(gradients, state.coefficients(), None)?;
            // Handles, not copies.
            mine = Some((applied, state.clone()));
        }
        let count = ctx.num_local();
        let handles = ctx.exchange("apply_gradients", 0, mine, |mut all| {
            Ok(vec![all.swap_remove(0); count])
        })?;
        let missing = || Error::invalid("apply_gradients: replica 0 made no update");
        let (applied, first) = handles.ok_or_else(missing)?;
        if !is_first {
            let model = state.statistics.keep_own(&state.model, &first.model)?;
            state.model = model.fork(ctx.device());
            state.slots = first.slots;
            state.records = first.records;
            state.step = first.step;
            state.loss_scale = first.loss_scale;
        }
        Ok(applied)
    }

    fn boxed(&self) -> Box<dyn Placement<M>> {
        Box::new(Central)
    }
}
