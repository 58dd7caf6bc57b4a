//! How the coordinator reaches a worker.

use std::time::Duration;

use distribute_net::handshake::Purpose;

use super::scheduler::Scheduler;
use crate::rpc::{Channel, ConnectError, RpcOptions};

/// How long a handshake, or the end of a stream, may take.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to the worker, past the handshake.
pub(super) async fn dial(scheduler: &Scheduler, worker: usize) -> Result<Channel, ConnectError> {
    let options = &scheduler.options;
    let mut rpc = RpcOptions::new(Purpose::Worker, Some(worker), options.security.clone());
    rpc.keepalive_interval = options.keepalive_interval;
    rpc.keepalive_timeout = options.keepalive_timeout;
    rpc.clock = scheduler.clock.clone();
    Channel::connect(&scheduler.addresses[worker], &rpc, HANDSHAKE_TIMEOUT).await
}
