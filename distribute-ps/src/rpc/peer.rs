//! The process at the other end of a connection, as the listening side knows it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use distribute_core::collectives::control::peers::ConnectionGuard;
use tokio::sync::{Notify, Semaphore};

use crate::rpc::RpcOptions;

/// The unit of [`RpcOptions::connection_bytes`].
const MEMORY_UNIT: u64 = 4096;

/// What the server keeps of a Hello until the proof.
#[derive(Debug)]
pub(super) struct Challenge {
    pub(super) client: Vec<u8>,
    pub(super) server: Vec<u8>,
}

/// The process at the other end of a connection; a call finds it as `Arc<Peer>` among the
/// request's extensions.
pub struct Peer {
    remote: SocketAddr,
    pub(super) guard: Arc<ConnectionGuard>,
    challenge: Mutex<Option<Challenge>>,
    memory: Arc<Semaphore>,
    memory_units: u32,
    refusals: Arc<Refusals>,
    /// Who hears of its end.
    ended: Mutex<Option<Arc<Notify>>>,
}

/// The last process that was turned away.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<Option<String>>);

impl Refusals {
    /// Its address, and why.
    pub(super) fn last(&self) -> Option<String> {
        let last = self.0.lock();
        last.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn note(&self, address: impl fmt::Display, reason: &str) {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *place = Some(format!("{address}: {reason}"));
    }
}

impl Peer {
    pub(super) fn new(
        guard: Arc<ConnectionGuard>,
        options: &RpcOptions,
        refusals: Arc<Refusals>,
    ) -> Self {
        let units = options.connection_bytes.div_ceil(MEMORY_UNIT);
        let units = u32::try_from(units).unwrap_or(u32::MAX).max(1);
        Self {
            remote: guard.remote(),
            guard,
            challenge: Mutex::default(),
            memory: Arc::new(Semaphore::new(units as usize)),
            memory_units: units,
            refusals,
            ended: Mutex::default(),
        }
    }

    /// Wakes those that wait there when the connection has ended: of the last one that was named.
    pub(crate) fn notify_at_end(&self, waiting: &Arc<Notify>) {
        let mut place = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        *place = Some(waiting.clone());
    }

    /// Records why the process was turned away, for the messages of this process.
    pub(super) fn refuse(&self, reason: &str) {
        tracing::warn!(remote = %self.remote, reason, "a process was turned away");
        self.refusals.note(self.remote, reason);
    }

    /// The address of the process at the other end.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    pub(super) fn challenge(&self, challenge: Challenge) {
        let mut place = self
            .challenge
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *place = Some(challenge);
    }

    pub(super) fn take_challenge(&self) -> Option<Challenge> {
        let mut place = self
            .challenge
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        place.take()
    }

    pub(super) fn admit(&self) {
        self.guard.admit();
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
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiting) = ended.take() {
            waiting.notify_waiters();
        }
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let remote = &self.remote;
        f.debug_struct("Peer")
            .field("remote", remote)
            .finish_non_exhaustive()
    }
}
