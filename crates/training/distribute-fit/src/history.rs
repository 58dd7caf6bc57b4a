//! What a training run leaves behind.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Logs, RankReport};

/// A place in the data: where training continues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Position {
    /// The epoch, from 0.
    pub epoch: usize,
    /// Global batches of that epoch that were used already.
    pub batches: usize,
}

/// Why training ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Outcome {
    /// All epochs are done.
    Completed,
    /// The limit of [`Fit::max_steps`](super::Fit::max_steps) is reached.
    MaxSteps,
    /// [`EarlyStopping`](super::callbacks::EarlyStopping): the value did not improve any more.
    EarlyStopped {
        /// The value that was watched.
        monitor: String,
        /// The epoch with the best one, from 0.
        best_epoch: usize,
        /// The best one.
        #[serde(with = "super::exact")]
        best: f64,
    },
    /// [`TerminateOnNan`](super::callbacks::TerminateOnNan): the loss is NaN or infinite. The
    /// weights are useless; nothing is saved.
    NotFinite {
        /// The step after which it was seen.
        step: u64,
    },
    /// [`Interrupt`](super::callbacks::Interrupt): it was asked for (Ctrl-C). The run can be
    /// resumed from [`History::position`](super::History).
    Interrupted,
    /// Another callback asked for it.
    Requested {
        /// Its reason.
        why: String,
    },
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Completed => f.write_str("all epochs are done"),
            Self::MaxSteps => f.write_str("the limit of steps is reached"),
            Self::EarlyStopped {
                monitor,
                best_epoch,
                best,
            } => {
                let epoch = best_epoch + 1;
                write!(
                    f,
                    "stopped early: {monitor} was best ({best:.4}) in epoch {epoch}"
                )
            }
            Self::NotFinite { step } => write!(
                f,
                "stopped: the loss is not finite after step {step}; lower the learning rate"
            ),
            Self::Interrupted => f.write_str("interrupted"),
            Self::Requested { why } => write!(f, "stopped: {why}"),
        }
    }
}

/// One epoch (or the part of one that ran before [`Outcome::MaxSteps`]).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct EpochRecord {
    /// The epoch, from 0.
    pub epoch: usize,
    /// Whether the epoch ended because the data did; false if [`Outcome::MaxSteps`] cut it short.
    pub complete: bool,
    /// Optimizer steps at its end, over all epochs.
    pub step: u64,
    /// The learning rate of its last step; that of the last step before, if it made none (all its
    /// micro-batches wait for their update).
    pub learning_rate: f64,
    /// Averages over its examples; validation values start with `val_`.
    pub logs: Logs,
    /// Examples trained on in this process; a resumed epoch's earlier part is not counted.
    pub examples: u64,
    /// Time of the training part.
    pub training_time: Duration,
    /// Time of the validation part.
    pub validation_time: Duration,
}

impl EpochRecord {
    /// Training examples per second, without validation.
    pub fn examples_per_second(&self) -> f64 {
        self.examples as f64 / self.training_time.as_secs_f64()
    }
}

/// What [`Fit::run`](super::Fit::run) gives (Keras: the `History` object).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct History {
    /// The epochs of this run, without those before a resume.
    pub epochs: Vec<EpochRecord>,
    /// Why training ended.
    pub outcome: Outcome,
    /// Where a next run would continue.
    pub position: Position,
    /// How the ranks of several workers compare ([`Fit::compare_ranks`](super::Fit)); `None` for
    /// one worker, and for a run that is too short.
    pub ranks: Option<RankReport>,
}

impl History {
    /// The last epoch's logs; empty if no epoch ended.
    pub fn last_logs(&self) -> Logs {
        let last = self.epochs.last();
        last.map(|record| record.logs.clone()).unwrap_or_default()
    }
}
