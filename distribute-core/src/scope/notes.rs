//! What is known of a step of one replica beside its arguments.

use std::fmt;

use crate::Nest;
use crate::trace::Fingerprint;

/// What the sum of a replica's losses was divided by.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum LossDivisor {
    /// A number that is the same for all batches and replicas, such as the global batch size.
    Constant(f64),
    /// What follows from the batch of the replica: its examples, times the number of replicas.
    OwnBatch(f64),
}

impl LossDivisor {
    /// The number.
    pub fn value(self) -> f64 {
        match self {
            Self::Constant(value) | Self::OwnBatch(value) => value,
        }
    }
}

/// What is known of the batch that a step is handed.
#[derive(Debug, Default, Clone)]
pub(crate) struct BatchFacts {
    /// The extents of the first axes of its tensors.
    pub(crate) rows: Vec<usize>,
    /// The sizes of the global batches that it is a part of.
    pub(crate) global_batch_sizes: Vec<usize>,
}

impl BatchFacts {
    /// Whether there is a batch, and it has no examples.
    pub(crate) fn is_empty(&self) -> bool {
        !self.rows.is_empty() && self.rows.iter().all(|rows| *rows == 0)
    }

    /// Adds what is known of a per-replica value and of one replica's part of it.
    pub(crate) fn add(&mut self, part: &impl Nest, global_batch_size: Option<usize>) {
        part.fingerprint(self);
        if let Some(size) = global_batch_size
            && !self.global_batch_sizes.contains(&size)
        {
            self.global_batch_sizes.push(size);
        }
    }
}

impl Fingerprint for BatchFacts {
    fn fixed(&mut self, _: fmt::Arguments<'_>) {}

    fn rows(&mut self, rows: usize) {
        if !self.rows.contains(&rows) {
            self.rows.push(rows);
        }
    }
}

/// What is known of a step of one replica beside its arguments.
#[derive(Debug, Default)]
pub(crate) struct StepNotes {
    /// What is known of the batch that the step was handed.
    pub(crate) batch: BatchFacts,
    /// What losses were divided by.
    pub(crate) divisors: Vec<LossDivisor>,
}
