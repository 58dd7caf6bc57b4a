//! Groups whose ranks are processes: joining, and the communicator that comes of it.

mod options;

pub use options::{ProcessGroupOptions, ProcessTransport};
