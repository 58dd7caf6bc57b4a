//! One rank's membership in the group of ranks of its host.

use std::sync::Arc;

use crate::shared_memory::doorbell::SegmentView;
use crate::shared_memory::layout::Layout;
use crate::shared_memory::segment::Segment;
use crate::status::GroupStatus;

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
        let shared = Arc::new(SegmentView {
            segment,
            layout,
            me,
            ranks: ranks.to_vec(),
            spin_policy: Default::default(),
        });
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
