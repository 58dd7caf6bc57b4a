//! The sizes of a model, its data and its steps.

use distribute_classifier::{Task, default_batch_size};
use distribute_fit::RunInfo;
use distribute_readers::TrainTest;

use crate::commands::start::Start;
use crate::failure::Failure;
use crate::flags::TrainArgs;

/// The epochs from the flag, or the dataset's default.
pub(in crate::commands) fn epochs(args: &TrainArgs, task: &Task) -> usize {
    let default = task.dataset.default_epochs();
    args.training.epochs.unwrap_or(default)
}

/// Refuses models that are too large, and examples that do not match each other or are too few for
/// the replicas of all workers.
pub(in crate::commands) fn check_sizes(
    task: &Task,
    data: &TrainTest,
    replicas: usize,
    workers: usize,
) -> Result<(), Failure> {
    task.check_sizes(data)?;
    if data.train.len() < replicas {
        let (dataset, examples) = (&task.dataset, data.train.len());
        let instead = match workers {
            0 | 1 => format!("use --replicas {examples} or fewer"),
            // Each worker has at least one replica.
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
pub(in crate::commands) struct GlobalBatch {
    pub(in crate::commands) examples: usize,
    /// The examples of one replica, from the flag or by default.
    pub(in crate::commands) share: usize,
    pub(in crate::commands) note: Option<String>,
}

impl GlobalBatch {
    /// A continued run keeps its global batch size with any number of replicas; another size is
    /// refused. The flag is the size for one replica. It is accepted if it gave the global batch
    /// size with any number of replicas that the run has had, so that the same command can be
    /// repeated.
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
