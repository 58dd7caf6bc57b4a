//! What a training run leaves behind.

use std::time::Duration;

use super::{Logs, Outcome, Position};

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
}

impl History {
    /// The last epoch's logs; empty if no epoch ended.
    pub fn last_logs(&self) -> Logs {
        self.epochs
            .last()
            .map(|record| record.logs.clone())
            .unwrap_or_default()
    }
}
