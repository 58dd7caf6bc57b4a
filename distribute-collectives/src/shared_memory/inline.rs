//! Small operations: every member's whole input lies beside its arrival record, so that one meeting
//! is enough; every member reduces everything it needs itself.
//!
//! A member writes its inline buffer before it arrives and not again before the operation after the
//! next one (see [`arrival`](super::arrival)), so between the meeting and the end of the operation
//! nobody writes: the unsafe block here relies on that.

use std::ops::Range;

use crate::buffer::{Buffer, Element, with_dtype};
use crate::reduce::ReduceOp;
use crate::shared_memory::doorbell::SegmentView;
use crate::shared_memory::kernels::Inputs;
use crate::shared_memory::pieces;

/// Writes this member's buffers, before it arrives.
pub(crate) fn put(shared: &SegmentView, sequence: u64, buffers: &[Buffer<'_>], size: usize) {
    let at = shared.layout.inline(shared.me, sequence);
    pieces::copy_in(&shared.segment, at, buffers, 0..pieces::len(buffers), size);
}

/// Replaces the buffers by what `member` has put, after all have arrived.
pub(crate) fn take(
    shared: &SegmentView,
    sequence: u64,
    member: usize,
    buffers: &mut [Buffer<'_>],
    size: usize,
) {
    let at = shared.layout.inline(member, sequence);
    let all = 0..pieces::len(buffers);
    pieces::copy_out(&shared.segment, at, buffers, all, size);
}

/// Replaces the elements of `range` by their reduction over all members, after all have arrived.
pub(crate) fn reduce(
    shared: &SegmentView,
    sequence: u64,
    op: ReduceOp,
    buffers: &mut [Buffer<'_>],
    range: Range<usize>,
) {
    if let Some(dtype) = buffers.first().map(Buffer::dtype) {
        with_dtype!(dtype, T => reduce_typed::<T>(shared, sequence, op, buffers, range));
    }
}

fn reduce_typed<T: Element>(
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
            // SAFETY: after the meeting nobody writes, see the module.
            unsafe { shared.segment.elements::<T>(at, part.len()) }
        };
        let inputs = Inputs {
            op,
            members: shared.members(),
            me: shared.me,
            other,
        };
        inputs.reduce(own, None);
    });
}
