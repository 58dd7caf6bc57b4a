//! Applying what has been read and checked: an update changes all of its shards or none.

use std::ops::ControlFlow;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{PsError, Result};
use crate::server::shard::{Payload, Plan, Shard, ShardGradient, UpdateTerms};
use crate::server::store::Run;
use crate::update::UpdateKey;
use crate::wire::{Assignment, Outcome};

/// The gradients of a push: their shards, and the versions that they were computed at.
pub(super) type Gradients = Vec<(Arc<Shard>, Option<u64>, ShardGradient)>;

/// The most bytes of a push that is applied on the thread of the connections: less than a
/// millisecond of work. Waking another thread would take longer than a small update itself.
const LIGHT_BYTES: usize = 2 << 20;

/// Of the variables' types.
fn bytes_of(gradients: &Gradients) -> usize {
    let bytes = gradients.iter().map(|(_, _, it)| it.values.len());
    bytes.sum()
}

/// Applies a push that takes no time: built-in arithmetic, few bytes, and no other call that holds
/// what it needs. Any other one comes back. Never waits: it is called where all connections are
/// driven.
pub(super) fn apply_light(
    run: &Run,
    key: UpdateKey,
    gradients: Gradients,
) -> Result<Result<Vec<Outcome>>, Gradients> {
    let is_light = bytes_of(&gradients) <= LIGHT_BYTES
        && run.rules.synchronous.is_none()
        && gradients.iter().all(|(shard, _, _)| shard.has_kernel());
    if !is_light {
        return Err(gradients);
    }
    let Some(_open) = run.update_lock.try_read() else {
        return Err(gradients);
    };
    let shards: Vec<Arc<Shard>> = gradients.iter().map(|(shard, ..)| shard.clone()).collect();
    let states = shards.iter().map(|shard| shard.try_state());
    let Some(mut states) = states.collect::<Option<Vec<_>>>() else {
        return Err(gradients);
    };
    let mut plans = Vec::with_capacity(shards.len());
    for ((shard, base, gradient), state) in gradients.into_iter().zip(&states) {
        let terms = run.terms(Some(key), base);
        match shard.plan_in(state, gradient, &terms) {
            Ok(ControlFlow::Break(plan)) => plans.push((terms, plan)),
            // No shard here has an optimizer of this kind.
            Ok(ControlFlow::Continue(_)) => return Ok(Err(PsError::invalid("no kernel"))),
            Err(error) => return Ok(Err(error)),
        }
    }
    let commits = shards.iter().zip(&mut states).zip(plans);
    let outcomes: Result<Vec<Outcome>> = commits
        .map(|((shard, state), (terms, plan))| shard.commit_in(state, plan, &terms))
        .collect();
    Ok(outcomes)
}

/// Applies a push that has been read and checked: all of it, or nothing.
pub(super) fn apply(run: &Run, key: UpdateKey, gradients: Gradients) -> Result<Vec<Outcome>> {
    // An optimizer of one's own may fail, and the outcome of a round depends on who came before.
    // Then the plan is what takes time, and nothing else may change the shards before it is
    // committed; else it is the commitment.
    let alone = run.rules.synchronous.is_some()
        || !gradients.iter().all(|(shard, _, _)| shard.has_kernel());
    let _closed = alone.then(|| run.closed());
    let _open = (!alone).then(|| run.open());
    let bytes = bytes_of(&gradients);
    let threads = |works: bool| {
        if works {
            (bytes / THREAD_BYTES).min(run.threads)
        } else {
            1
        }
    };
    let plan = |(shard, base, gradient): (Arc<Shard>, Option<u64>, ShardGradient)| {
        let terms = run.terms(Some(key), base);
        let plan = shard.plan(gradient, &terms)?;
        Ok((shard, terms, plan))
    };
    let commit = |(shard, terms, plan): (Arc<Shard>, UpdateTerms, Plan)| shard.commit(plan, &terms);
    let plans = on_threads(gradients, threads(alone), plan);
    on_threads(plans?, threads(!alone), commit)
}

/// Applies an assignment that has been read and checked.
pub(super) fn assign(
    run: &Run,
    assignment: Assignment,
    id: Option<UpdateKey>,
    values: Vec<(Arc<Shard>, Payload)>,
) -> Result<Vec<Outcome>> {
    let _open = run.open();
    let terms = run.terms(id, None);
    let check = |(shard, _): &(Arc<Shard>, Payload)| shard.check_assign(assignment, &terms);
    values.iter().try_for_each(check)?;
    let assign = |(shard, value): (Arc<Shard>, Payload)| shard.assign(assignment, &value, &terms);
    values.into_iter().map(assign).collect()
}

/// Bytes of gradients that are worth a thread.
const THREAD_BYTES: usize = 4 << 20;

/// Works on the shards of a push on several threads; results in the same order.
fn on_threads<T: Send, R: Send>(
    shards: Vec<T>,
    threads: usize,
    one: impl Fn(T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    if threads < 2 {
        return shards.into_iter().map(one).collect();
    }
    let mut results: Vec<Option<Result<R>>> = shards.iter().map(|_| None).collect();
    let work = Mutex::new(shards.into_iter().zip(&mut results));
    let next = || work.lock().next();
    std::thread::scope(|scope| {
        let run = || {
            while let Some((shard, result)) = next() {
                *result = Some(one(shard));
            }
        };
        (1..threads).for_each(|_| drop(scope.spawn(run)));
        run();
    });
    drop(work);
    results.into_iter().flatten().collect()
}
