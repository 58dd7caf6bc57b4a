//! How the coordinator reaches a worker.

use std::time::Duration;

use super::scheduler::Scheduler;
use crate::rpc::{Channel, ConnectError, RpcOptions};
use crate::worker::SERVICE;

/// How long a handshake, or the end of a stream, may take.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why there is no stream.
#[derive(Debug)]
pub(super) enum AttachFailure {
    /// There is no use to try again soon.
    Refused(String),
    /// The worker has another configuration.
    Different(Box<distribute_core::Error>),
    Later(String),
}

/// A connection to the worker, past the handshake.
pub(super) async fn dial(scheduler: &Scheduler, worker: usize) -> Result<Channel, AttachFailure> {
    let options = &scheduler.options;
    let mut rpc = RpcOptions::new(SERVICE, options.security.clone());
    rpc.keepalive_interval = options.keepalive_interval;
    rpc.keepalive_timeout = options.keepalive_timeout;
    let connected = Channel::connect(&scheduler.addresses[worker], &rpc, HANDSHAKE_TIMEOUT).await;
    connected.map_err(|error| match error {
        ConnectError::Refused(reason) => AttachFailure::Refused(reason),
        ConnectError::Unavailable(reason) => AttachFailure::Later(reason),
    })
}
