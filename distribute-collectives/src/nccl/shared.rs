//! A group of processes with several owners.

use std::sync::{Arc, Mutex, TryLockError};

use super::control::{ControlGroup, renamed, sealed};
use crate::communicator::{AbortHandle, Communicator};
use crate::error::Result;
use crate::forward::forward_operations;
use crate::header::OperationHeader;
use crate::process_group::ProcessCommunicator;
use crate::sync::unpoisoned;

impl sealed::Sealed for ProcessCommunicator {}

impl ControlGroup for ProcessCommunicator {
    fn health(&self, header: &OperationHeader, peer: Option<usize>) -> Result<()> {
        let result = self.status.health(header, peer);
        result.map_err(|error| renamed(error, header))
    }
}

/// A group of processes that several owners call in turn: NCCL is set up beside one handle of it,
/// and the program goes on using another.
///
/// The rule of a group is that of all its handles together: all ranks make the same calls in the
/// same order, whichever handle they make them on. The group ends with its last handle.
#[derive(Clone)]
pub struct SharedGroup {
    inner: Arc<Mutex<ProcessCommunicator>>,
    rank: usize,
    world_size: usize,
    abort: AbortHandle,
}

impl SharedGroup {
    /// The first handle of a group.
    pub fn new(group: ProcessCommunicator) -> Self {
        SharedGroup {
            rank: group.rank(),
            world_size: group.world_size(),
            abort: group.abort_handle(),
            inner: Arc::new(Mutex::new(group)),
        }
    }
}

impl Communicator for SharedGroup {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn abort_handle(&self) -> AbortHandle {
        self.abort.clone()
    }

    // The group is valid at every moment, also after a panic elsewhere.
    forward_operations!([group] => unpoisoned(group.inner.lock()));
}

impl sealed::Sealed for SharedGroup {}

impl ControlGroup for SharedGroup {
    fn health(&self, header: &OperationHeader, peer: Option<usize>) -> Result<()> {
        match self.inner.try_lock() {
            Ok(group) => group.health(header, peer),
            Err(TryLockError::Poisoned(group)) => group.into_inner().health(header, peer),
            // Another owner is in an operation, which hears of a failure by itself; then this one
            // does.
            Err(TryLockError::WouldBlock) => Ok(()),
        }
    }
}
