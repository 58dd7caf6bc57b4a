//! What the coordinator tells the parameter servers.

use crate::error::PsError;

/// What the servers should know.
#[derive(Debug, Default)]
pub(super) struct ServerNotice {
    /// Closures that have ended: their updates are not to be waited for.
    pub(super) ended: Vec<u64>,
    /// Closures whose workers were lost, or do not reach a server. They run again when the servers
    /// have been told; a server that heard of it later would forget that the next worker has
    /// pulled.
    pub(super) lost: Vec<LostClosure>,
    /// Closures below this one were cancelled.
    pub(super) cancelled_below: Option<u64>,
    /// All closures below this one have ended.
    pub(super) first_unfinished: u64,
}

impl ServerNotice {
    /// Whether a call at the servers waits for it.
    pub(super) fn is_urgent(&self) -> bool {
        !self.ended.is_empty() || !self.lost.is_empty() || self.cancelled_below.is_some()
    }
}

/// A closure whose worker was lost.
#[derive(Debug)]
pub(super) struct LostClosure {
    pub(super) closure: u64,
    pub(super) worker: usize,
    pub(super) reason: String,
    /// The worker's own error, if it is there and says that it does not reach a server: the
    /// closure ends with that if no other worker gets on either.
    pub(super) accusation: Option<PsError>,
}
