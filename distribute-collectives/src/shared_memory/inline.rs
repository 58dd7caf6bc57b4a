//! Small operations: every member's whole input lies beside its arrival record, so that one meeting
//! is enough; every member reduces everything it needs itself.
//!
//! A member writes its inline buffer before it arrives and not again before the operation after the
//! next one (see [`arrival`](super::arrival)), so between the meeting and the end of the operation
//! no member writes: the unsafe block here relies on that.

use std::ops::Range;

use crate::buffer::{Buffer, Element};
use crate::reduce::ReduceOp;
use crate::shared_memory::doorbell::SegmentView;
use crate::shared_memory::{kernels, pieces};

/// Replaces the elements of `range` by their reduction over all members, after all have arrived.
pub(crate) fn reduce<T: Element>(
    shared: &SegmentView,
    sequence: u64,
    op: ReduceOp,
    buffers: &mut [Buffer<'_>],
    range: Range<usize>,
) {
    let first = range.start;
    pieces::for_each_mut::<T>(buffers, range, |offset, own| {
        let other = |member: usize, part: Range<usize>| {
            let at = shared.layout.inline(member, sequence);
            let at = at + (first + offset + part.start) * size_of::<T>();
            // SAFETY: after the meeting no member writes, see the module.
            unsafe { shared.segment.elements::<T>(at, part.len()) }
        };
        kernels::reduce(shared, op, own, None, other);
    });
}
