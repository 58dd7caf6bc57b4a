//! How a variable is kept in step over the replicas.

use std::fmt;

use crate::{Error, ReduceOp, Result};

/// How the values that the replicas assign, or hold, become one value
/// (TensorFlow: `tf.VariableAggregation`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum VariableAggregation {
    /// Not at all: several replicas cannot update an on-write variable, and an on-read variable
    /// cannot be read outside of a step.
    #[default]
    None,
    /// The sum over the replicas.
    Sum,
    /// The mean over the replicas; for floating-point variables only.
    Mean,
    /// Replica 0's value.
    OnlyFirstReplica,
}

/// When the copies of a variable are brought together
/// (TensorFlow: `tf.VariableSynchronization`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum VariableSynchronization {
    /// The strategy decides, which means [`OnWrite`](Self::OnWrite).
    #[default]
    Auto,
    /// Every update is aggregated first and then applied to all copies: they are always equal.
    OnWrite,
    /// Updates in a step change the replica's own copy; the copies are aggregated when the
    /// variable is read outside of a step. For counters and metrics.
    OnRead,
    /// One copy without distribution; refused where there are several replicas.
    None,
}

/// How to create a variable. The default is TensorFlow's.
///
/// ```
/// use distribute_core::{VariableAggregation, VariableOptions, VariableSynchronization};
///
/// let counter = VariableOptions::default()
///     .synchronization(VariableSynchronization::OnRead)
///     .aggregation(VariableAggregation::Sum);
/// assert_eq!(counter, VariableOptions::on_read_sum());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use]
pub struct VariableOptions {
    /// When the copies are brought together.
    pub synchronization: VariableSynchronization,
    /// How.
    pub aggregation: VariableAggregation,
    /// Whether an optimizer may change it; by default all but on-read variables are trainable.
    pub trainable: Option<bool>,
}

impl VariableOptions {
    /// An on-read variable whose copies are summed: what counters are made of.
    pub fn on_read_sum() -> Self {
        Self::default()
            .synchronization(VariableSynchronization::OnRead)
            .aggregation(VariableAggregation::Sum)
    }

    /// Sets when the copies are brought together.
    pub fn synchronization(mut self, synchronization: VariableSynchronization) -> Self {
        self.synchronization = synchronization;
        self
    }

    /// Sets how values of several replicas become one.
    pub fn aggregation(mut self, aggregation: VariableAggregation) -> Self {
        self.aggregation = aggregation;
        self
    }

    /// Sets whether an optimizer may change it.
    pub fn trainable(mut self, trainable: bool) -> Self {
        self.trainable = Some(trainable);
        self
    }
}

/// What kind of variable a strategy made of the options.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum VariableKind {
    /// One copy, nothing to aggregate: under the default and the one-device strategy
    /// (TensorFlow: `ResourceVariable`).
    Plain,
    /// A copy per replica, always equal (TensorFlow: `MirroredVariable`).
    Mirrored,
    /// A copy per replica, aggregated when read (TensorFlow: `SyncOnReadVariable`).
    SyncOnRead,
    /// One copy in host memory; updates of several replicas are aggregated
    /// (TensorFlow: `AggregatingVariable`).
    Aggregating,
}

impl VariableAggregation {
    /// What the values of the replicas are reduced with; none where the first replica's counts.
    pub(super) fn reduction(self, op: &'static str) -> Result<Option<ReduceOp>> {
        match self {
            Self::None => Err(Error::AggregationRequired { op }),
            Self::Sum => Ok(Some(ReduceOp::Sum)),
            Self::Mean => Ok(Some(ReduceOp::Mean)),
            Self::OnlyFirstReplica => Ok(None),
        }
    }
}

impl fmt::Display for VariableAggregation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "NONE",
            Self::Sum => "SUM",
            Self::Mean => "MEAN",
            Self::OnlyFirstReplica => "ONLY_FIRST_REPLICA",
        })
    }
}

impl fmt::Display for VariableSynchronization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "AUTO",
            Self::OnWrite => "ON_WRITE",
            Self::OnRead => "ON_READ",
            Self::None => "NONE",
        })
    }
}
