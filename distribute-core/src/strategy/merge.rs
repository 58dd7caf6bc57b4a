//! Leaving replica context in a step.

use crate::{PerReplica, ReplicaContext, Result, scope};

impl ReplicaContext {
    /// Leaves replica context: `merge` runs once, with all replicas' values, and its results go
    /// back to the replicas (TensorFlow: `ReplicaContext.merge_call`).
    ///
    /// `merge` runs on replica 0's thread, in cross-replica context: it may call `reduce` and
    /// `gather` and update variables, but not `run`. Blocks until all replicas have called it.
    ///
    /// # Errors
    /// What `merge` returns, on replica 0, and [`Error::Stopped`](crate::Error::Stopped) with its
    /// text on the others; [`Error::ReplicaMissing`](crate::Error::ReplicaMissing) if a replica
    /// ends its step without this call.
    pub fn merge_call<T: Send + 'static, R: Send + 'static>(
        &self,
        value: T,
        merge: impl FnOnce(PerReplica<T>) -> Result<PerReplica<R>>,
    ) -> Result<R> {
        self.exchange("merge_call", 0, value, |values| {
            let _cross_replica = scope::enter_merge();
            Ok(merge(PerReplica::new(values))?.into_values())
        })
    }
}
