//! Groups whose ranks are processes: joining, and the communicator that comes of it.

mod bound;
mod communicator;
mod hosts;
mod loopback;
mod mixed;
mod options;
#[cfg(test)]
mod tests;

pub use bound::BoundProcessGroup;
pub use communicator::ProcessCommunicator;
pub use loopback::loopback;
pub use options::{ProcessGroupOptions, ProcessTransport};
