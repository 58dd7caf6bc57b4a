//! Buffers that lie in the segment: all-reduced where they are, without slots.
//!
//! Every member has a part of the segment for its buffers. When all members call an all-reduce with
//! a buffer at the same place of their parts, every member reduces its share of it over all
//! members' buffers and writes the result to all of them, as threads of one process do.
//!
//! Who touches what: from the meeting at the begin to `Reduced` by all members, the share of member
//! `m` in all buffers is accessed by `m` alone. The callers have lent their buffers to the call and
//! get them back after that. When a member is lost in between, the call of the others ends with an
//! error after which the buffers hold unspecified values; a member that is merely slow may write
//! its share even later. It writes elements of the same type, so every value stays valid.
//!
//! Memory traffic: each buffer is read once and written once, by whoever has the share.

use std::ops::Range;
use std::sync::Arc;

use crate::buffer::{Buffer, Element, with_dtype};
use crate::communicator::chunk_range;
use crate::error::Result;
use crate::reduce::{self, RankSlices, ReduceOp};
use crate::shared_memory::doorbell::{Operation, SegmentView};
use crate::shared_memory::layout::Counter;
use crate::shared_memory::pieces;

/// Bytes of a member's buffer that are worked on at a time: those of a few members fit the
/// second-level cache.
const BLOCK_BYTES: usize = 32 * 1024;
/// What every buffer starts at a multiple of.
const ALIGNMENT: usize = 4096;

/// Memory that all ranks of a host can reach, so that an all-reduce of it copies nothing; from
/// [`ProcessCommunicator::allocate_shared`](crate::ProcessCommunicator::allocate_shared).
///
/// All ranks that allocate the same sizes in the same order have their buffers at the same places,
/// which an all-reduce without copies needs; otherwise it is reduced as any other memory. Between
/// operations it belongs to this process alone. After an operation that failed its values are
/// unspecified, as those of any buffer are, and a rank that was merely slow may still change them
/// until it has noticed: copy nothing from it, join a new generation.
pub struct SharedBuffer {
    shared: Arc<SegmentView>,
    at: usize,
    bytes: usize,
}

impl SharedBuffer {
    /// The next free bytes of this member's part; `used` counts them. `None` when there are not
    /// enough. They are never freed before the segment is.
    pub(crate) fn allocate(
        shared: &Arc<SegmentView>,
        used: &mut usize,
        bytes: usize,
    ) -> Option<SharedBuffer> {
        let end = used
            .checked_add(bytes)?
            .checked_next_multiple_of(ALIGNMENT)?;
        if end > shared.layout.heap_bytes {
            return None;
        }
        let at = shared.heap() + std::mem::replace(used, end);
        let shared = shared.clone();
        Some(SharedBuffer { shared, at, bytes })
    }

    /// As many whole elements as fit.
    pub fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        let len = self.bytes / size_of::<T>();
        // SAFETY: every byte is handed out once, so `&mut self` makes the access exclusive in this
        // process; the other members access it only during an operation that it is lent to.
        unsafe { self.shared.segment.elements_mut(self.at, len) }
    }
}

impl SegmentView {
    /// Where this member's part begins.
    fn heap(&self) -> usize {
        self.layout.heap() + self.me * self.layout.heap_bytes
    }

    /// What tells the members that their buffers lie at the same place: 0 for any other buffer.
    pub(crate) fn place(&self, buffers: &[Buffer<'_>]) -> usize {
        let [buffer] = buffers else { return 0 };
        let bytes = buffer.as_bytes();
        let place = self.segment.offset_of(bytes).and_then(|at| {
            let place = at.checked_sub(self.heap())?;
            (place + bytes.len() <= self.layout.heap_bytes).then_some(place + 1)
        });
        place.unwrap_or(0)
    }
}

/// The elements of one block of all members.
struct Block<'a, T> {
    shared: &'a SegmentView,
    own: &'a mut [T],
    /// Where the block begins in a member's part.
    place: usize,
}

impl<T: Element> Block<'_, T> {
    fn other(&mut self, member: usize, range: Range<usize>) -> &mut [T] {
        let layout = &self.shared.layout;
        let at = layout.heap() + member * layout.heap_bytes;
        let at = at + self.place + range.start * size_of::<T>();
        // SAFETY: another member's buffer, lent to this operation, in this member's share, see the
        // module; `&mut self` lets one slice of it live at a time.
        unsafe { self.shared.segment.elements_mut(at, range.len()) }
    }
}

impl<T: Element> RankSlices<T> for Block<'_, T> {
    fn slice(&mut self, member: usize, range: Range<usize>) -> &mut [T] {
        match member == self.shared.me {
            true => &mut self.own[range],
            false => self.other(member, range),
        }
    }
}

fn reduce_block<T: Element>(op: ReduceOp, block: &mut Block<'_, T>) {
    let (me, members, len) = (block.shared.me, block.shared.members(), block.own.len());
    if members != 2 {
        return reduce::reduce_ranks(op, members, 0..members, len, block);
    }
    let layout = &block.shared.layout;
    let at = layout.heap() + (1 - me) * layout.heap_bytes + block.place;
    // SAFETY: as in `Block::other`; the only slice of the other member's buffer.
    let other = unsafe { block.shared.segment.elements_mut::<T>(at, len) };
    match me {
        0 => reduce::reduce_all(op, &mut [block.own, other]),
        _ => reduce::reduce_all(op, &mut [other, block.own]),
    }
}

/// All-reduces buffers at the same place (see [`SegmentView::place`]) of all members. Counts as one
/// window.
pub(crate) fn all_reduce(
    shared: &SegmentView,
    operation: &Operation<'_>,
    base: &mut u64,
    op: ReduceOp,
    buffers: &mut [Buffer<'_>],
) -> Result<()> {
    let place = shared.place(buffers).saturating_sub(1);
    let len = pieces::len(buffers);
    let share = chunk_range(len, shared.members(), shared.me);
    if let Some(dtype) = buffers.first().map(Buffer::dtype) {
        with_dtype!(dtype, T => {
            let step = BLOCK_BYTES / size_of::<T>();
            for start in share.clone().step_by(step) {
                let range = start..share.end.min(start + step);
                let place = place + start * size_of::<T>();
                pieces::for_each_mut::<T>(buffers, range, |_, own| {
                    reduce_block(op, &mut Block { shared, own, place });
                });
            }
        });
    }
    *base += 1;
    for counter in [Counter::Published, Counter::Fetched, Counter::Reduced] {
        shared.announce(counter, *base);
    }
    shared.wait_all(operation, Counter::Reduced, *base)
}
