//! How the coordinator reaches a worker.

use super::link::{Failed, PATIENCE};
use super::shared::Shared;
use crate::rpc::{Channel, ConnectError, RpcOptions};
use crate::worker::SERVICE;

/// A connection to the worker, past the handshake.
pub(super) async fn dial(shared: &Shared, worker: usize) -> Result<Channel, Failed> {
    let options = &shared.options;
    let mut rpc = RpcOptions::new(SERVICE, options.security.clone());
    rpc.keepalive_interval = options.keepalive_interval;
    rpc.keepalive_timeout = options.keepalive_timeout;
    let connected = Channel::connect(&shared.addresses[worker], &rpc, PATIENCE).await;
    connected.map_err(|error| match error {
        ConnectError::Refused(reason) => Failed::Refused(reason),
        ConnectError::Unavailable(reason) => Failed::Later(reason),
    })
}
