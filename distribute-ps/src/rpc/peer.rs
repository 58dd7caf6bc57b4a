//! The process at the other end of a connection, as the listening side knows it.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

use crate::rpc::RpcOptions;
use crate::rpc::heard::LastHeard;

/// The unit of [`RpcOptions::connection_bytes`].
const MEMORY_UNIT: u64 = 4096;

/// The process at the other end of a connection.
pub(crate) struct Peer {
    remote: SocketAddr,
    heard: LastHeard,
    memory: Arc<Semaphore>,
    memory_units: u32,
    /// Who hears of its end.
    ended: Mutex<Option<Arc<Notify>>>,
}

impl Peer {
    pub(super) fn new(remote: SocketAddr, options: &RpcOptions) -> Self {
        let units = options.connection_bytes.div_ceil(MEMORY_UNIT);
        let units = u32::try_from(units).unwrap_or(u32::MAX).max(1);
        Self {
            remote,
            heard: LastHeard::new(options),
            memory: Arc::new(Semaphore::new(units as usize)),
            memory_units: units,
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

    /// Waits until the connection may hold so many bytes more, for as long as the result lives.
    pub(crate) async fn reserve(&self, bytes: u64) -> Option<tokio::sync::OwnedSemaphorePermit> {
        let units = u32::try_from(bytes.div_ceil(MEMORY_UNIT)).unwrap_or(u32::MAX);
        let units = units.min(self.memory_units);
        self.memory.clone().acquire_many_owned(units).await.ok()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(waiting) = self.ended.get_mut().take() {
            waiting.notify_waiters();
        }
    }
}
