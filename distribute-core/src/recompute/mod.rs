//! Gradients computed a second time by another replica: [`Recomputation`].
//!
//! A wrong gradient of one replica is summed into the updates of all, so that the replicas stay
//! equal, and no comparison of their states finds it. What a replica computes depends on its
//! parameters, its part of the batch and its random numbers, and not on the host: so another one
//! computes the same bits.
//!
//! In a step that is checked, the replica whose turn it is computes its gradients as always, and
//! two others compute them again after their own: on a copy of their own state, in a context that
//! has the id and the random stream of that replica. Calls to other replicas in the forward and
//! backward pass (`all_reduce`, a synchronized normalization) are not made again: what they gave
//! the first replica is noted (`replica/log.rs`) and handed to the others. Then the replicas
//! exchange a checksum for each parameter, before anything is summed. The first of the two is on
//! another worker, and the second one on a third, where there is one; only if the first result
//! differs, the second one computes and decides.

mod finding;
mod plan;
#[cfg(test)]
mod tests;

use burn::module::Module;
use crc32c::crc32c;

use crate::notes::BatchFacts;
use crate::random::{OwnRandom, begin_instead, pause_random};
use crate::replica::Log;
use crate::workers::encoding;
use crate::wrong_gradient::WrongGradient;
use crate::{
    Error, Gradients, Nest, ReplicaContext, Replicate, Result, Strategy, TrainState, scope,
};

/// What every list begins with, so that replicas which make another call are found.
const CALL: i64 = 0x7265_636f_6d70;

/// The check of one step: which replica's gradients are computed again, and by whom. The same on
/// all replicas.
///
/// `Fit::recompute` of `distribute-fit` makes it part of training. In a loop of your own every
/// replica calls [`begin`](Self::begin) at the start of the step and [`check`](Self::check) between
/// its gradients and the update.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use distribute_core::prelude::*;
/// use distribute_core::{Gradients, Recomputation};
///
/// type Batch = Tensor<2>;
///
/// fn gradients(
///     ctx: &ReplicaContext,
///     state: &mut TrainState<Linear>,
///     x: Batch,
/// ) -> Result<Gradients> {
///     let error = state.model.forward(x.clone()) - x * 3.0;
///     let loss = ctx.mean_loss((error.clone() * error).mean())?;
///     let loss = state.scale_loss(&loss);
///     ctx.gradient(&loss, &state.model)
/// }
///
/// /// The part of a global batch that a replica reads: known everywhere.
/// fn part(step: u64, replica: usize, device: &Device) -> Batch {
///     Tensor::from_floats([[step as f32], [replica as f32]], device)
/// }
///
/// let strategy = MirroredStrategy::builder().replicas(3).build()?;
/// let mut state = strategy.scope(|device| {
///     TrainState::new(LinearConfig::new(1, 1).init(device), Sgd::new(0.01))
/// })?;
/// for step in 0..4 {
///     let parts = |of: &dyn Fn(usize) -> usize| {
///         let replicas = strategy.replicas().iter();
///         let parts = replicas.map(|it| part(step, of(it.id), &it.device));
///         PerReplica::new(parts.collect())
///     };
///     let batch = parts(&|id| id);
///     let check = Recomputation::due(&strategy, 2, step);
///     let again = check.as_ref().map(|check| parts(&|_| check.replica()));
///     let again = again.unwrap_or_else(|| batch.clone());
///     let found = strategy.run((&mut state, batch, again), |ctx, (state, batch, again)| {
///         check.iter().for_each(|check| check.begin(ctx));
///         let own = gradients(ctx, state, batch)?;
///         if let Some(check) = &check
///             && let Some(wrong) = check.check(ctx, state, &own, Some(again), gradients)?
///         {
///             return Err(wrong.into());
///         }
///         state.apply_gradients(ctx, own)
///     });
///     found?;
/// }
/// # Ok::<(), distribute_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recomputation {
    /// The update that the step makes, from 1.
    step: u64,
    replica: usize,
    by: Vec<usize>,
    /// The first replica of each worker, and the number of replicas.
    firsts: Vec<usize>,
}

impl Recomputation {
    /// The check of the step that makes the update after `updates` others, if it is the turn of
    /// one: every `every`-th update (0 counts as 1). The replicas are checked in turn, and each by
    /// the other workers in turn; with one worker, by the other replicas. With one replica there
    /// is none.
    pub fn due<S: Strategy + ?Sized>(strategy: &S, every: u64, updates: u64) -> Option<Self> {
        let (every, step) = (every.max(1), updates + 1);
        let firsts = match strategy.workers() {
            Some(workers) => workers.first_replicas().to_vec(),
            None => vec![0, strategy.num_replicas_in_sync()],
        };
        if !step.is_multiple_of(every) {
            return None;
        }
        let (replica, by) = plan::plan(&firsts, step / every - 1)?;
        Some(Self {
            step,
            replica,
            by,
            firsts,
        })
    }

    /// The replica whose gradients are computed again.
    pub fn replica(&self) -> usize {
        self.replica
    }

    /// The replicas that compute them again: one or two, which need that replica's batch. The
    /// second one computes only if the result of the first one differs.
    pub fn by(&self) -> &[usize] {
        &self.by
    }

    /// The update that the step makes, from 1.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Called by every replica at the start of the step: from here on the results of cross-replica
    /// calls of the replica that is checked are noted. Exchanges nothing.
    pub fn begin(&self, ctx: &ReplicaContext) {
        if ctx.trace().is_none() && ctx.replica_id() == self.replica {
            ctx.begin_log();
        }
    }

    /// Compares the gradients of the replica that is checked with those that others compute again,
    /// bit by bit. Every replica calls it after it has computed its `gradients` and before it
    /// updates `state`, which must be the state that the gradients were computed with; it blocks
    /// until all have. The result is the same on all replicas; when it is a [`WrongGradient`], none
    /// may apply its gradients. With several workers end the program after the run and not in the
    /// step: the error of the first replica would end what the others still wait for.
    ///
    /// `batch` is the batch of [that replica](Self::replica), for the replicas that compute it
    /// [again](Self::by); the others pass `None`, or anything. If it was read anew, it is checked,
    /// too. `again` computes the gradients as the step itself does, on a copy of the state. It must
    /// depend on its arguments alone; it draws the random numbers of the checked replica, also in
    /// burn's own layers. Metrics that it updates are not changed. The running statistics of no
    /// replica are changed.
    ///
    /// It takes the time of one more forward and backward pass, and of three small exchanges at
    /// most.
    ///
    /// # Errors
    /// [`Error::NotRecomputable`] for a step that calls `all_gather`, `broadcast` or `merge_call`,
    /// or changes variables, where it is computed again; the errors of `again`; another replica's
    /// failure; [`Error::NotCompilable`] in a step that is compiled.
    pub fn check<M: Module + 'static, B: Nest>(
        &self,
        ctx: &ReplicaContext,
        state: &TrainState<M>,
        gradients: &Gradients,
        batch: Option<B>,
        again: impl FnOnce(&ReplicaContext, &mut TrainState<M>, B) -> Result<Gradients>,
    ) -> Result<Option<WrongGradient>> {
        ctx.refuse_captured("recompute")?;
        // Given up once on all replicas, so that what they draw later does not depend on who
        // checked whom.
        let _random = pause_random();
        let own = ctx.replica_id();
        let log = ctx.take_log();
        let log = (own == self.replica).then(|| flattened(log));
        let log = self
            .exchange(ctx, log.unwrap_or_default())?
            .swap_remove(self.replica);
        let again = || {
            let missing =
                || Error::invalid("recompute: the batch of the checked replica is missing");
            let (batch, log) = (batch.ok_or_else(missing)?, lists_of(&log)?);
            digests(&self.computed_again(ctx, state, batch, log, again)?)
        };
        let (mut own_digests, mut again) = (Vec::new(), Some(again));
        if own == self.replica {
            own_digests = digests(gradients)?;
        } else if own == self.by[0]
            && let Some(again) = again.take()
        {
            own_digests = again()?;
        }
        let mut found = self.exchange(ctx, own_digests)?;
        let mut results = vec![std::mem::take(&mut found[self.replica])];
        results.push(std::mem::take(&mut found[self.by[0]]));
        if results[0] == results[1] {
            return Ok(None);
        }
        let third = self.by.get(1).copied();
        let mut own_digests = Vec::new();
        if third == Some(own)
            && let Some(again) = again.take()
        {
            own_digests = again()?;
        }
        let mut found = self.exchange(ctx, own_digests)?;
        results.extend(third.map(|third| std::mem::take(&mut found[third])));
        let hosts = self.exchange(ctx, finding::own_host())?;
        Ok(Some(self.finding(
            &results,
            &hosts,
            state.parameter_names(),
        )))
    }

    /// The gradients of the replica that is checked, computed here.
    fn computed_again<M: Module + 'static, B: Nest>(
        &self,
        ctx: &ReplicaContext,
        state: &TrainState<M>,
        batch: B,
        log: Log,
        again: impl FnOnce(&ReplicaContext, &mut TrainState<M>, B) -> Result<Gradients>,
    ) -> Result<Gradients> {
        let replica = self.replica;
        let _phase = tracing::trace_span!(target: "distribute::phase", "recompute", replica);
        let _phase = _phase.entered();
        let outside = || Error::invalid("recompute: called outside of a step");
        let strategy = scope::innermost_strategy().ok_or_else(outside)?;
        let acting = ctx.again(replica, log);
        let known = ctx.notes().batch_facts();
        let mut facts = BatchFacts {
            rows: Vec::new(),
            ..known
        };
        facts.add(&batch, None);
        acting.notes().begin(&facts);
        let mut copy = state.replicate(ctx.device());
        let _entered = scope::enter_step(strategy, &acting);
        let random = facts.random;
        let random = random.map(|stream| OwnRandom::new(ctx.device(), replica, stream));
        let _random = begin_instead(random);
        let gradients = again(&acting, &mut copy, batch)?;
        acting.check_noted()?;
        acting.peers().check_backward()?;
        Ok(gradients)
    }

    /// The lists of all replicas, which must make the same check.
    fn exchange(&self, ctx: &ReplicaContext, mut list: Vec<i64>) -> Result<Vec<Vec<i64>>> {
        let head = [CALL, self.replica as i64, self.step as i64];
        list.splice(0..0, head);
        let all = ctx.peers().gather_numbers(&list)?;
        let bodies = all.into_iter().map(|mut list| {
            let body = list.split_off(head.len().min(list.len()));
            (list == head).then_some(body)
        });
        let bodies: Option<Vec<_>> = bodies.collect();
        bodies.ok_or_else(|| {
            Error::invalid(
                "recompute: the replicas make different checks or other calls; every replica must \
                 call `check` of the same `Recomputation`",
            )
        })
    }

    /// The worker of a replica.
    fn rank(&self, replica: usize) -> usize {
        plan::worker_of(&self.firsts, replica)
    }
}

/// A checksum of each gradient; -1 for none. A single bit that differs always changes it.
fn digests(gradients: &Gradients) -> Result<Vec<i64>> {
    let digest = |index| {
        let gradient = gradients.get(index)?;
        Ok(gradient.map_or(-1, |data| i64::from(crc32c(data.as_bytes()))))
    };
    (0..gradients.len()).map(digest).collect()
}

/// Lists as one, each behind its length.
fn flattened(lists: Log) -> Vec<i64> {
    let each = lists.into_iter();
    let each = each.flat_map(|list| std::iter::once(list.len() as i64).chain(list));
    each.collect()
}

fn lists_of(flat: &[i64]) -> Result<Log> {
    let lists = encoding::lists(flat).ok_or_else(encoding::unreadable)?;
    Ok(lists.into_iter().map(<[i64]>::to_vec).collect())
}
