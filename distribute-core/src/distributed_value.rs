//! What `reduce` and `gather` accept: per-replica values, and values that are the same everywhere.

use crate::{PerReplica, Replicated};

/// A value that a strategy can reduce or gather in cross-replica context.
///
/// [`PerReplica`] values, what [`run`](crate::StrategyExt::run) returns, have a component per
/// replica. [`Replicated`] marks a plain value: TensorFlow lets such values be reduced by the rules
/// that [`reduce`](crate::StrategyExt::reduce) states.
pub trait DistributedValue {
    /// The type of a component and of the result.
    type Value;

    /// The components.
    fn into_components(self) -> Components<Self::Value>;
}

/// The components of a [`DistributedValue`].
#[derive(Debug, Clone, PartialEq)]
pub enum Components<T> {
    /// One component per local replica, in replica order.
    PerReplica(Vec<T>),
    /// One value that stands for every replica.
    Same(T),
}

impl<T> DistributedValue for PerReplica<T> {
    type Value = T;

    fn into_components(self) -> Components<T> {
        Components::PerReplica(self.into_values())
    }
}

impl<T> DistributedValue for Replicated<T> {
    type Value = T;

    fn into_components(self) -> Components<T> {
        Components::Same(self.0)
    }
}
