//! How large a model, its data and its steps are.

use distribute_data::fit::RunInfo;
use distribute_data::readers::TrainTest;

use crate::commands::start::Start;
use crate::failure::Failure;
use crate::flags::TrainArgs;
use crate::task::Task;

/// A model of more is a mistake in a file; its memory would end the program.
const MAX_PARAMETERS: usize = 1 << 31;

/// Replicas' batches are never larger than this by default.
const MAX_BATCH_SIZE: usize = 64;
/// By default an epoch has at least so many steps, so that small data sets train well too.
const MIN_STEPS: usize = 20;

/// The epochs that were asked for, or the data set's default.
pub(in crate::commands) fn epochs(args: &TrainArgs, task: &Task) -> usize {
    let default = task.dataset.default_epochs();
    args.training.epochs.unwrap_or(default)
}

/// Refuses what no memory holds, and examples that do not fit each other or the replicas, of so
/// many workers together.
pub(in crate::commands) fn check_sizes(
    task: &Task,
    data: &TrainTest,
    (replicas, workers): (usize, usize),
) -> Result<(), Failure> {
    let parameters = task.plan.parameters();
    if parameters > MAX_PARAMETERS {
        return Err(Failure::refused(format!(
            "the model {} has more than {MAX_PARAMETERS} parameters; with gradients and optimizer \
             state that is over 32 GiB a replica: make its layers smaller",
            task.model_name()
        )));
    }
    if data.test.feature_shape() != data.train.feature_shape() {
        return Err(Failure::refused(format!(
            "{}: the training examples have the shape {:?}, the test examples {:?}; both must be \
             alike",
            task.dataset,
            data.train.feature_shape(),
            data.test.feature_shape()
        )));
    }
    if data.train.len() < replicas {
        let (dataset, examples) = (&task.dataset, data.train.len());
        let instead = match workers {
            0 | 1 => format!("use --replicas {examples} or fewer"),
            // Each has one at least, which no flag of a worker changes.
            _ if workers > examples => format!("start {examples} workers or fewer"),
            _ => format!("use --total-replicas {examples} or fewer, or start fewer workers"),
        };
        return Err(Failure::refused(format!(
            "{dataset} has {examples} training examples for {replicas} replicas; {instead}"
        )));
    }
    Ok(())
}

/// The largest power of two up to 64 that gives an epoch at least 20 steps.
fn default_batch_size(examples: usize, replicas: usize) -> usize {
    let most = (examples / (MIN_STEPS * replicas)).clamp(1, MAX_BATCH_SIZE);
    1 << most.ilog2()
}

/// How many examples a step has.
pub(in crate::commands) struct GlobalBatch {
    pub(in crate::commands) examples: usize,
    /// Of one replica, as it was asked for or follows from the data.
    pub(in crate::commands) share: usize,
    pub(in crate::commands) note: Option<String>,
}

impl GlobalBatch {
    /// A run that continues keeps its global batches, with however many replicas, unless another
    /// size is asked for (which is then refused). The size that is asked for is that of one
    /// replica, so it is the run's own if it gave the global one with any number of replicas that
    /// the run has had: the same command goes on as often as it is repeated.
    pub(in crate::commands) fn new(
        asked: Option<usize>,
        replicas: usize,
        examples: usize,
        start: &Start,
    ) -> Result<Self, Failure> {
        let share = asked.unwrap_or_else(|| default_batch_size(examples, replicas));
        let new = Self {
            examples: share.saturating_mul(replicas),
            share,
            note: None,
        };
        let Some(checkpoint) = start.resumed() else {
            return Ok(new);
        };
        let run = RunInfo::of(checkpoint)?;
        let (Some(global), Some(before)) = (run.global_batch_size, run.replicas) else {
            return Ok(new);
        };
        let is_own = |asked: usize| {
            let mut all = run.all_replicas.iter();
            all.any(|replicas| asked.saturating_mul(*replicas) == global)
        };
        if asked.is_some_and(|asked| !is_own(asked)) {
            return Ok(new);
        }
        let note = (before != replicas).then(|| {
            format!(
                "continuing a run of {before} replicas with {replicas}: {global} examples a step \
                 together as before, {} each",
                global.div_ceil(replicas)
            )
        });
        Ok(Self {
            examples: global,
            share,
            note,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::default_batch_size;

    #[test]
    fn the_default_batch_leaves_enough_steps() {
        assert_eq!(default_batch_size(1_438, 2), 32);
        assert_eq!(default_batch_size(1_438, 64), 1);
        assert_eq!(default_batch_size(60_000, 2), 64);
        assert_eq!(default_batch_size(5, 2), 1);
    }
}
