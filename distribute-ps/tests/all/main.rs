//! Parameter servers, workers and coordinators, on loopback ports and as processes.

mod coordinator;
mod embedding;
mod fit;
mod security;
mod servers;
mod stopwatch;
mod strategy;

use std::time::Duration;

/// Fails instead of hanging.
fn within_limit<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
    hostile::limit::within(Duration::from_secs(300), test)
}
