//! One rank's membership in the group of ranks of its host.

use std::sync::Arc;

use crate::shared_memory::doorbell::SegmentView;
use crate::shared_memory::layout::{Layout, PART_BYTES_MAX};
use crate::shared_memory::segment::Segment;
use crate::status::GroupStatus;

/// Sizes of the parts of the segment. The leader's settings count for all members.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Operations up to this size need one meeting; every rank reduces everything itself. By
    /// default what suits the number of cores.
    pub(crate) inline_bytes: Option<usize>,
    /// Bytes of the windows that bigger operations are cut into; by default what suits the number
    /// of cores.
    pub(crate) slot_bytes: Option<usize>,
    /// Windows that a rank can be ahead; at least 3.
    pub(crate) slots: usize,
    /// Largest segment of a mailbox; see [`for_segments`](Self::for_segments).
    pub(crate) mailbox_bytes: usize,
    /// Bytes for buffers that the callers allocate, for each rank. Takes memory when used.
    pub(crate) heap_bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            inline_bytes: None,
            slot_bytes: None,
            slots: 4,
            mailbox_bytes: 2 * SEGMENT_BYTES,
            heap_bytes: 0,
        }
    }
}

/// Bytes of a segment: sender and receiver find it in the second-level cache.
pub(crate) const SEGMENT_BYTES: usize = 128 * 1024;

/// Most bytes of a segment: no mailbox has larger slots.
pub(crate) const SEGMENT_BYTES_MAX: usize = PART_BYTES_MAX;

impl Settings {
    /// Mailboxes for algorithms that cut buffers into segments of this size. Partial sums of half
    /// types travel as `f32`, so a segment can have twice as many bytes; and algorithms rely on
    /// two segments being on their way, so a segment must fit a slot in one piece: at most
    /// [`SEGMENT_BYTES_MAX`].
    pub(crate) fn for_segments(mut self, segment_bytes: usize) -> Self {
        self.mailbox_bytes = segment_bytes.max(SEGMENT_BYTES).saturating_mul(2);
        self
    }
}

/// The ranks of this host, connected by a segment. Dropping it unmaps the segment.
pub(crate) struct LocalGroup {
    pub(crate) shared: Arc<SegmentView>,
    pub(crate) status: Arc<GroupStatus>,
}

impl LocalGroup {
    pub(crate) fn new(
        segment: Segment,
        layout: Layout,
        ranks: &[usize],
        me: usize,
        status: Arc<GroupStatus>,
    ) -> LocalGroup {
        let shared = Arc::new(SegmentView::new(segment, layout, me, ranks.to_vec()));
        // Weak: the status may live longer than the mapping.
        let weak = Arc::downgrade(&shared);
        status.on_failure(move || {
            if let Some(shared) = weak.upgrade() {
                shared.ring(shared.me);
            }
        });
        LocalGroup { shared, status }
    }

    /// The ranks of this host, ascending: member `i` is rank `ranks()[i]`.
    pub(crate) fn ranks(&self) -> &[usize] {
        &self.shared.ranks
    }

    /// The member that a rank is, when it is on this host.
    pub(crate) fn member(&self, rank: usize) -> Option<usize> {
        self.shared.ranks.binary_search(&rank).ok()
    }

    /// Largest segment of a mailbox. [`send_with`](Self::send_with) cuts bigger ones into parts,
    /// which is safe only where the ranks do not send to each other at the same time.
    pub(crate) fn mailbox_bytes(&self) -> usize {
        self.shared.layout.mailbox_bytes
    }
}
