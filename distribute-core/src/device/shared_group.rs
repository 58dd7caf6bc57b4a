//! The group of the workers, and another handle of it, beside which NCCL is set up.

#[cfg(feature = "nccl")]
pub use distribute_collectives::nccl::SharedGroup;
use distribute_collectives::{Communicator, ProcessCommunicator};

/// There is none without NCCL.
#[cfg(not(feature = "nccl"))]
pub type SharedGroup = std::convert::Infallible;

/// Both handles.
pub(crate) type Joined = (Box<dyn Communicator>, Option<SharedGroup>);

#[cfg(feature = "nccl")]
pub(crate) fn with_handle(group: ProcessCommunicator) -> Joined {
    let shared = SharedGroup::new(group);
    (Box::new(shared.clone()), Some(shared))
}

#[cfg(not(feature = "nccl"))]
pub(crate) fn with_handle(group: ProcessCommunicator) -> Joined {
    (Box::new(group), None)
}
