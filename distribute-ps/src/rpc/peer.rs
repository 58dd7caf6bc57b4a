//! The process at the other end of a connection, as the listening side knows it.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::rpc::RpcOptions;
use crate::rpc::heard::LastHeard;

/// The process at the other end of a connection.
pub(crate) struct Peer {
    remote: SocketAddr,
    heard: LastHeard,
    /// Called at its end.
    ended: Mutex<Option<Arc<Notify>>>,
}

impl Peer {
    pub(crate) fn new(remote: SocketAddr, options: &RpcOptions) -> Self {
        Self {
            remote,
            heard: LastHeard::new(options),
            ended: Mutex::default(),
        }
    }

    /// Wakes those that wait there when the connection has ended: of the last one that was named.
    pub(crate) fn notify_at_end(&self, waiting: &Arc<Notify>) {
        *self.ended.lock() = Some(waiting.clone());
    }

    /// The address of the process at the other end.
    pub(crate) fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// When something was last heard of that process.
    pub(crate) fn heard(&self) -> &LastHeard {
        &self.heard
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(waiting) = self.ended.get_mut().take() {
            waiting.notify_waiters();
        }
    }
}
