//! What one rank keeps about its group: who it is, and its operations.

use std::sync::Arc;

use crate::bookkeeping::Bookkeeping;
use crate::in_process::group::Group;

/// One rank's membership. Dropping it tells the others that this rank has gone.
pub(crate) struct Endpoint {
    pub(crate) group: Arc<Group>,
    pub(crate) rank: usize,
    pub(crate) operations: Bookkeeping,
}

impl Endpoint {
    pub(crate) fn new(group: Arc<Group>, rank: usize) -> Self {
        Endpoint {
            group,
            rank,
            operations: Bookkeeping::default(),
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let reason = if std::thread::panicking() {
            "its thread panicked"
        } else {
            "its endpoint was dropped"
        };
        self.group
            .leave(self.rank, self.operations.sequence(), reason);
    }
}
