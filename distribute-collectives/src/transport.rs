//! What algorithms need from whatever carries bytes between ranks.
//!
//! The *buffers* of an operation are what is reduced or moved; a *segment* is a piece of them on
//! its way from one rank to another.
//!
//! Algorithms never know how a segment travels, so each of them is tested over the in-process
//! transport with tiny segments and runs over every other transport.

use crate::communicator::AbortHandle;
use crate::error::{CollectiveError, Result};
use crate::header::OperationHeader;

/// Segments that a transport holds for each ordered pair of ranks before
/// [`send_with`](Transport::send_with) blocks. Algorithms rely on it for progress.
pub const SEGMENTS_IN_FLIGHT: usize = 2;

/// One rank's access to the other ranks of its group.
///
/// Segments between two ranks arrive in the order in which they were sent. Collective operations
/// and point-to-point calls do not mix: a segment sent in one kind of operation is only received
/// in the same kind.
pub trait Transport: Send {
    /// This rank, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn world_size(&self) -> usize;

    /// A short name for descriptions, such as `in-process`.
    fn name(&self) -> &str;

    /// The segment size in bytes that suits this transport.
    fn segment_bytes(&self) -> usize;

    /// The same for an operation over `bytes` bytes in all, where that matters (default: it does
    /// not). The same on all ranks.
    fn segment_bytes_for(&self, _bytes: usize) -> usize {
        self.segment_bytes()
    }

    /// Most bytes of a segment that this transport carries in one piece (default: any number). The
    /// same on all ranks.
    fn max_segment_bytes(&self) -> usize {
        usize::MAX
    }

    /// Segments to one rank that an algorithm may send before the first of them is received,
    /// without being blocked. More keep a connection busy while ranks reduce; at least
    /// [`SEGMENTS_IN_FLIGHT`].
    fn segments_in_flight(&self) -> usize {
        SEGMENTS_IN_FLIGHT
    }

    /// Number of the next collective operation, from 0.
    fn sequence(&self) -> u64;

    /// Begins an operation: starts its deadline and, unless it is point-to-point, makes sure that
    /// all ranks begin the same one.
    ///
    /// # Errors
    /// [`Mismatch`](CollectiveError::Mismatch) on all ranks when the headers differ,
    /// [`Poisoned`](CollectiveError::Poisoned) after an earlier failure, and what else ends an
    /// operation.
    fn begin(&mut self, header: &OperationHeader) -> Result<()>;

    /// Ends an operation. A fatal error poisons this endpoint; it is returned unchanged.
    fn end(&mut self, header: &OperationHeader, result: Result<()>) -> Result<()>;

    /// Sends a segment of `bytes` bytes to rank `to`; `fill` writes it where the transport wants
    /// it. Blocks while [`SEGMENTS_IN_FLIGHT`] segments to that rank have not been received.
    fn send_with(&mut self, to: usize, bytes: usize, fill: &mut dyn FnMut(&mut [u8]))
    -> Result<()>;

    /// The same for a segment that lies in memory already (default: it is copied by
    /// [`send_with`](Transport::send_with)). The bytes may be changed as soon as this returns.
    fn send_bytes(&mut self, to: usize, bytes: &[u8]) -> Result<()> {
        self.send_with(to, bytes.len(), &mut |frame| frame.copy_from_slice(bytes))
    }

    /// Receives the next segment from rank `from`, which must have `bytes` bytes; `consume` reads
    /// it where it lies (not necessarily aligned).
    fn receive_with(
        &mut self,
        from: usize,
        bytes: usize,
        consume: &mut dyn FnMut(&[u8]),
    ) -> Result<()>;

    /// Ends the running operation on all ranks with `error`.
    fn fail(&mut self, error: CollectiveError);

    /// A handle that aborts the group from any thread.
    fn abort_handle(&self) -> AbortHandle;
}
