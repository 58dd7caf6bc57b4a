//! What a variable refuses to do.

/// A use of a variable that its options do not allow; the text says which option to change.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VariableError {
    /// Synchronization NONE under a strategy that distributes variables.
    #[error(
        "variable synchronization NONE is not possible under {strategy}: use AUTO, ON_WRITE or \
         ON_READ"
    )]
    UnsupportedSynchronization {
        /// The strategy.
        strategy: String,
    },
    /// Aggregation MEAN of elements that have no fractions.
    #[error(
        "a variable of {dtype} elements cannot be aggregated with MEAN: use SUM or \
         ONLY_FIRST_REPLICA, or a floating-point type"
    )]
    MeanOfIntegers {
        /// The element type.
        dtype: String,
    },
    /// Several replicas update a variable that has no aggregation. TensorFlow lets the copies of a
    /// mirrored variable drift apart here; this library does not.
    #[error(
        "{op}: the replicas' values cannot become one without an aggregation; create the variable \
         with SUM, MEAN or ONLY_FIRST_REPLICA, or with synchronization ON_READ"
    )]
    AggregationRequired {
        /// The update.
        op: &'static str,
    },
    /// An on-read variable without aggregation was used outside of a step.
    #[error(
        "{op}: the copies of an ON_READ variable with aggregation NONE have no common value; read \
         them in a step, or create the variable with an aggregation"
    )]
    NoCommonValue {
        /// The call.
        op: &'static str,
    },
    /// `assign_add` or `assign_sub` outside of a step on an on-read variable that is summed: it is
    /// not defined which copy the amount goes to.
    #[error(
        "{op} on an ON_READ variable with aggregation SUM is not possible outside of a step: \
         assign the new total instead"
    )]
    UpdateOfSum {
        /// The update.
        op: &'static str,
    },
    /// The copies of an on-write variable took different numbers of updates, because a run failed
    /// between them.
    #[error(
        "{op}: the copies of the variable may differ since a failed run; assign it anew outside of \
         a step"
    )]
    Diverged {
        /// The call.
        op: &'static str,
    },
}

distribute_error::debug_as_message!(VariableError);
