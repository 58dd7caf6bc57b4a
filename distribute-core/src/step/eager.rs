//! `run` under a strategy that runs steps as they are.

use std::sync::Mutex;

use super::{RunGuard, StepArgs, StepFn};
use crate::copies::EndOfRun;
use crate::notes::BatchFacts;
use crate::random::{OwnRandom, RandomEnd, RandomStream, begin_random, seed_after};
use crate::sync::{lock, unlocked};
use crate::{Error, PerReplica, Result, Strategy};

/// Runs a step once per local replica and waits for all of them.
pub(crate) fn run<'a, S, A, R>(
    strategy: &S,
    mut args: A,
    step: &'a StepFn<'a, A, R>,
) -> Result<PerReplica<R>>
where
    S: Strategy + ?Sized,
    A: StepArgs + 'a,
    R: Send,
{
    let replicas = strategy.replicas();
    let mut guard = RunGuard::default();
    let mut batches = vec![BatchFacts::default(); replicas.len()];
    let items = args.split(&strategy.id(), &mut batches, &mut guard)?;
    BatchFacts::count_here(&mut batches);
    // What goes to each replica, and what comes back.
    let slots = items.into_iter();
    let slots: Vec<_> = slots.map(|item| Mutex::new((Some(item), None))).collect();
    let outcome = strategy.run_replicas(&|ctx| {
        let slot = &slots[ctx.local_id()];
        let item = lock(slot).0.take();
        let item = item.ok_or_else(|| Error::invalid("a strategy ran a replica twice"))?;
        ctx.notes().begin(&batches[ctx.local_id()]);
        let _random = RandomEnd;
        let stream = batches[ctx.local_id()].random;
        let is_own = |stream: &RandomStream| stream.is_chosen || ctx.num_replicas_in_sync() > 1;
        if let Some(stream) = stream.filter(is_own) {
            begin_random(OwnRandom::new(ctx.device(), ctx.replica_id(), stream));
        }
        let result = step(ctx, item)?;
        lock(slot).1 = Some(result);
        Ok(())
    });
    let random = batches.first().and_then(|batch| batch.random);
    if let (Some(stream), [first, _, ..]) = (random, replicas) {
        seed_after(&first.device, stream);
    }
    let results: Option<Vec<R>> = slots.into_iter().map(|slot| unlocked(slot).1).collect();
    let end = EndOfRun {
        workers: strategy.workers(),
        first_replica: replicas.first().map_or(0, |replica| replica.id),
        batches: &batches,
    };
    if let Err(error) = outcome.and_then(|()| args.end_run(&end)) {
        guard.poison(&error);
        args.undo_run()?;
        return Err(error);
    }
    let missing = || Error::invalid("a strategy left out a replica");
    results.map(PerReplica::new).ok_or_else(missing)
}
