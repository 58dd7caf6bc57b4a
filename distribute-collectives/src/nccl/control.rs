//! The group beside NCCL: by it the ranks find each other, compare their calls and hear who is
//! lost.

use crate::communicator::Communicator;
use crate::error::{CollectiveError, Result};
use crate::header::OperationHeader;
use crate::in_process::InProcessCommunicator;

pub(super) mod sealed {
    pub trait Sealed {}
}

/// A group that NCCL can be set up beside: [`in_process`](crate::in_process) for threads,
/// [`ProcessGroupOptions`](crate::ProcessGroupOptions) for processes and hosts.
pub trait ControlGroup: Communicator + sealed::Sealed {
    /// The failure that the group has heard of, without waiting; of a point-to-point call with
    /// `peer` only the loss of that rank counts.
    #[doc(hidden)]
    fn health(&self, header: &OperationHeader, peer: Option<usize>) -> Result<()>;
}

impl sealed::Sealed for InProcessCommunicator {}

impl ControlGroup for InProcessCommunicator {
    fn health(&self, header: &OperationHeader, peer: Option<usize>) -> Result<()> {
        let result = self.check_health(header, peer);
        result.map_err(|error| renamed(error, header))
    }
}

/// The error of an operation of the group, as one of the operation that it was done for.
pub(super) fn renamed(mut error: CollectiveError, header: &OperationHeader) -> CollectiveError {
    match &mut error {
        CollectiveError::PeerLost { op, sequence, .. }
        | CollectiveError::Timeout { op, sequence, .. }
        | CollectiveError::Mismatch { op, sequence, .. } => {
            *op = header.kind;
            *sequence = header.sequence;
        }
        _ => {}
    }
    error
}
