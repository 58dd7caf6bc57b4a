//! How the coordinator reaches a worker.

use super::link::{AttachFailure, HANDSHAKE_TIMEOUT};
use super::scheduler::Scheduler;
use crate::rpc::{Channel, ConnectError, RpcOptions};
use crate::worker::SERVICE;

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
