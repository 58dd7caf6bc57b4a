//! The learning rates of a run, from its flags.

use std::sync::Arc;

use distribute_core::schedule::{LearningRateSchedule, PiecewiseConstantDecay, Warmup};

use crate::failure::Failure;
use crate::flags::{StrategyName, TrainingArgs};

/// The schedule of a run with this number of updates, starting at `rate`; `None` for a constant
/// rate.
pub(crate) fn schedule(
    args: &TrainingArgs,
    rate: f64,
    updates: u64,
) -> Result<Option<Arc<dyn LearningRateSchedule>>, Failure> {
    let warmup = args.warmup_steps.unwrap_or(0);
    let then: Arc<dyn LearningRateSchedule> = match (&args.lr_schedule, warmup) {
        (None, 0) => return Ok(None),
        (None, _) => Arc::new(PiecewiseConstantDecay::new(Vec::new(), vec![rate])?),
        (Some(flag), _) => flag.build(rate, updates.saturating_sub(warmup).max(1))?,
    };
    let all: Arc<dyn LearningRateSchedule> = match warmup {
        0 => then,
        steps => Arc::new(Warmup::new(steps, then)),
    };
    if args.optimizer_name() == "ftrl"
        && let Some(update) = (0..updates).find(|update| all.rate(*update) == 0.0)
    {
        return Err(Failure::usage(format!(
            "--optimizer ftrl divides by the learning rate, which --warmup-steps and --lr-schedule \
             make 0 after {update} updates: leave --warmup-steps out, give --lr-schedule an \
             `alpha`, or choose another optimizer"
        )));
    }
    Ok(Some(all))
}

/// Refuses micro-batches and a dynamic loss scale with workers of parameter servers.
pub(crate) fn check(args: &TrainingArgs, strategy: StrategyName) -> Result<(), Failure> {
    if strategy == StrategyName::ParameterServer && args.accumulate.is_some_and(|it| it > 1) {
        return Err(Failure::usage(
            "--accumulate does not go with --strategy parameter-server: a worker that is lost \
             would take the gradients of its steps with it; use a larger --batch-size",
        ));
    }
    let is_eager = ![StrategyName::ParameterServer, StrategyName::Tpu].contains(&strategy);
    if args.optimizer_name().starts_with("burn:") && !is_eager {
        return Err(Failure::usage(format!(
            "--optimizer {} updates whole weights and counts the updates itself, which --strategy \
             parameter-server and tpu cannot have: use one of Keras' optimizers",
            args.optimizer_name()
        )));
    }
    let has_scale = args.precision.policy().loss_scale().is_dynamic();
    if has_scale && strategy == StrategyName::ParameterServer {
        return Err(Failure::usage(
            "--precision f16 needs a dynamic loss scale, which --strategy parameter-server does \
             not have: use --precision bf16",
        ));
    }
    Ok(())
}

/// The number of training examples in an epoch, without a dropped last batch.
pub(crate) fn per_epoch(args: &TrainingArgs, examples: usize, global_batch: usize) -> usize {
    if args.drop_remainder {
        examples - examples % global_batch.max(1)
    } else {
        examples
    }
}

/// Refuses to drop the only batch.
pub(crate) fn check_remainder(
    args: &TrainingArgs,
    examples: usize,
    global_batch: usize,
) -> Result<(), Failure> {
    match per_epoch(args, examples, global_batch) {
        0 => Err(Failure::usage(format!(
            "--drop-remainder leaves nothing to train on: {examples} training examples are no \
             whole batch of {global_batch}; use a smaller --batch-size, or leave the flag out"
        ))),
        _ => Ok(()),
    }
}

/// The updates of a run: of `--steps`, or of its epochs.
pub(crate) fn updates(
    args: &TrainingArgs,
    epochs: usize,
    examples: usize,
    global_batch: usize,
) -> u64 {
    let examples = per_epoch(args, examples, global_batch);
    let batches = epochs.saturating_mul(examples.div_ceil(global_batch.max(1)));
    let updates = (batches / args.accumulate.unwrap_or(1)) as u64;
    args.steps
        .map_or(updates, |steps| steps.min(updates))
        .max(1)
}
