//! `run` under a strategy that runs steps as they are.

use std::sync::Mutex;

use super::{PoisonOnError, StepArgs, StepFn};
use crate::copies::EndOfRun;
use crate::sync::{lock, unlocked};
use crate::{Error, PerReplica, Result, Strategy, scope};

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
    let mut poison = PoisonOnError::default();
    let items = args.split(&strategy.id(), replicas.len(), &mut poison)?;
    // What goes to each replica, and what comes back.
    let slots = items.into_iter();
    let slots: Vec<_> = slots.map(|item| Mutex::new((Some(item), None))).collect();
    let outcome = strategy.run_replicas(&|ctx| {
        let slot = &slots[ctx.local_id()];
        let item = lock(slot).0.take();
        let item = item.ok_or_else(|| Error::invalid("a strategy ran a replica twice"))?;
        if let Some(facts) = poison.batches.get(ctx.local_id()) {
            scope::with_step(|notes| notes.batch.clone_from(facts));
        }
        let result = step(ctx, item)?;
        lock(slot).1 = Some(result);
        Ok(())
    });
    let results: Option<Vec<R>> = slots.into_iter().map(|slot| unlocked(slot).1).collect();
    let end = EndOfRun {
        workers: strategy.workers(),
        first_replica: replicas.first().map_or(0, |replica| replica.id),
        batches: &poison.batches,
    };
    if let Err(error) = outcome.and_then(|()| args.end_run(&end)) {
        poison.poison(&error);
        args.undo_run()?;
        return Err(error);
    }
    let missing = || Error::invalid("a strategy left out a replica");
    results.map(PerReplica::new).ok_or_else(missing)
}
