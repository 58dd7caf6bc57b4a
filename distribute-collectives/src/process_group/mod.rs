//! Groups whose ranks are processes: joining, and the communicator that comes of it.

mod binding;
mod bound;
mod communicator;
#[cfg(feature = "shm")]
mod hosts;
mod joining;
mod loopback;
#[cfg(feature = "shm")]
mod mixed;
mod options;
#[cfg(feature = "shm")]
mod sharing;
#[cfg(test)]
#[cfg(feature = "shm")]
mod tests;

pub use bound::BoundProcessGroup;
pub use communicator::ProcessCommunicator;
pub use loopback::loopback;
pub use options::{ProcessGroupOptions, ProcessTransport};
