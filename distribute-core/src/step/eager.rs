//! `run` under a strategy that runs steps as they are.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;

use super::{Item, RunGuard, Split, States, StepArgs, StepFn};
use crate::burn_internals::wants_autodiff;
use crate::copies::EndOfRun;
use crate::nest::with_autodiff_of;
use crate::notes::BatchFacts;
use crate::random::{OwnRandom, RandomEnd, RandomStream, begin_random, seed_after};
use crate::sync::{lock, panic_message, unlocked};
use crate::{Error, Nest, PerReplica, ReplicaContext, Result, Strategy};

/// Runs a step once per local replica and waits for all of them.
pub(crate) fn run<'a, S, A, R>(
    strategy: &S,
    mut args: A,
    step: &'a StepFn<'a, A, R>,
) -> Result<PerReplica<R>>
where
    S: Strategy + ?Sized,
    A: StepArgs + 'a,
    R: Nest + Send,
{
    let replicas = strategy.replicas();
    let mut guard = RunGuard::default();
    let mut batches = vec![BatchFacts::default(); replicas.len()];
    let is_evaluated = A::STATES == States::Shared;
    let mut kept = A::Kept::default();
    let mut split = Split {
        strategy: &strategy.id(),
        batches: &mut batches,
        guard: &mut guard,
        is_evaluated,
    };
    let items = args.split(&mut kept, &mut split)?;
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
        let result = if is_evaluated {
            evaluate(ctx, item, step)?
        } else {
            step(ctx, item)?
        };
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

/// One replica's call of a step that evaluates: without autodiff, but for what it returns, which is
/// as another step returns it.
fn evaluate<'a, A, R>(
    ctx: &ReplicaContext,
    item: Item<'_, A>,
    step: &'a StepFn<'a, A, R>,
) -> Result<R>
where
    A: StepArgs + 'a,
    R: Nest,
{
    let ended = {
        let _evaluation = ctx.evaluation();
        catch_unwind(AssertUnwindSafe(|| step(ctx, item)))
    };
    let mut result = ended.unwrap_or_else(|panic| {
        if !wants_autodiff(&panic_message(&*panic)) {
            resume_unwind(panic);
        }
        Err(Error::invalid(
            "a gradient in a step that evaluates: all its states are passed as `&state`, so its \
             tensors and `ctx.device()` have no autodiff; for the gradient of an input, \
             `x.autodiff().require_grad()` before the model's forward pass; to train the model, \
             pass it as `&mut state`, or as `InTraining::new(&state)` if it is not changed",
        ))
    })?;
    with_autodiff_of(ctx.device(), &mut result);
    Ok(result)
}
