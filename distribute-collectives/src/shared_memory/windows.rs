//! Big operations: the vector goes through cache-sized slots, window by window.
//!
//! For window `k` a member
//!
//! 1. *publishes*: copies what other members need of it into its slot;
//! 2. *reduces* its share of the window over all members, once all have published it: its own part
//!    straight from its buffer, which also gets the result; the result also goes into a slot;
//! 3. *fetches* the other shares' results, once all have reduced theirs.
//!
//! The steps of three windows overlap, so that there is something to do while the others work:
//! publish `k + 2`, reduce `k + 1`, fetch `k`. Windows are counted over the life of the group
//! (`base` is the number before the operation), and a member's slots are used in turn.
//!
//! Which memory is accessed by which member, and when (the unsafe blocks here rely on this):
//!
//! - A member writes slot `k` of its own before it announces `Published` for `k`, and not before
//!   all others have announced `Fetched` for the window that used the slot before.
//! - The share of member `m` in the slots of all members is read, and in the slot that is the home
//!   of its result written, by `m` alone, from `Published` by all to `Reduced` by `m`.
//! - After `Reduced` by `m` its result is only read, until the reader announces `Fetched`.
//!
//! A member may return, and even end its process, when it has fetched its last window: what others
//! still read of it is in its slots, which no member writes before they have announced `Fetched`,
//! and the memory lives as long as any process maps it.
//!
//! Memory traffic of an all-reduce: every buffer is read once and written once; the slots stay in
//! the caches. Order of the reduction: canonical.

use std::ops::Range;

use crate::algorithm::exchange::segment_of;
use crate::buffer::{Buffer, Element, with_dtype};
use crate::communicator::chunk_range;
use crate::error::Result;
use crate::gathering::chunk;
use crate::header::Target;
use crate::reduce::{self, ReduceOp};
use crate::shared_memory::doorbell::{Operation, SegmentView};
use crate::shared_memory::layout::Counter;
use crate::shared_memory::{kernels, pieces};

/// One kind of operation, window by window. `window` counts over the life of the group, `index`
/// from the begin of the operation.
pub(crate) trait Program {
    fn windows(&self) -> usize;
    fn publish(&mut self, shared: &SegmentView, window: u64, index: usize);
    /// Whether shares are reduced; without, windows are fetched when they are published.
    fn reduces(&self) -> bool {
        false
    }
    fn reduce(&mut self, _shared: &SegmentView, _window: u64, _index: usize) {}
    fn fetch(&mut self, shared: &SegmentView, window: u64, index: usize);
}

/// Runs an operation whose headers agree. `base` is the number of windows before and after it.
pub(crate) fn run(
    shared: &SegmentView,
    operation: &Operation<'_>,
    base: &mut u64,
    program: &mut dyn Program,
) -> Result<()> {
    let (windows, slots) = (program.windows(), shared.layout.slots as u64);
    let fetch_after = if program.reduces() {
        Counter::Reduced
    } else {
        Counter::Published
    };
    for step in 0..windows + 2 {
        if step < windows {
            let window = *base + step as u64;
            let free = (window + 1).saturating_sub(slots);
            shared.wait_all(operation, Counter::Fetched, free)?;
            program.publish(shared, window, step);
            shared.announce(Counter::Published, window + 1);
        }
        if program.reduces() && (1..=windows).contains(&step) {
            let window = *base + step as u64 - 1;
            shared.wait_all(operation, Counter::Published, window + 1)?;
            program.reduce(shared, window, step - 1);
            shared.announce(Counter::Reduced, window + 1);
        }
        if step >= 2 {
            let window = *base + step as u64 - 2;
            shared.wait_all(operation, fetch_after, window + 1)?;
            program.fetch(shared, window, step - 2);
            shared.announce(Counter::Fetched, window + 1);
        }
    }
    *base += windows as u64;
    if !program.reduces() {
        // No member waits for the counter now, but the next operation counts from here.
        shared.announce(Counter::Reduced, *base);
    }
    Ok(())
}

/// `all_reduce`, `reduce` and `reduce_scatter`.
///
/// The vector has one share per member ([`chunk_range`]); window `k` consists of piece `k` of every
/// share, at the same place in every member's slot.
pub(crate) struct Reduction<'a, 'b> {
    buffers: &'a mut [Buffer<'b>],
    len: usize,
    size: usize,
    /// Elements of a piece.
    piece: usize,
    windows: usize,
    op: ReduceOp,
    target: Target,
}

impl<'a, 'b> Reduction<'a, 'b> {
    /// `size` is that of an element in bytes.
    pub(crate) fn new(
        shared: &SegmentView,
        buffers: &'a mut [Buffer<'b>],
        size: usize,
        op: ReduceOp,
        target: Target,
    ) -> Self {
        let most = shared.layout.slot_bytes / shared.members() / size;
        // Whole cache lines, where the slot has room for some.
        let line = 64 / size;
        let piece = if most >= line {
            most / line * line
        } else {
            most
        };
        let (piece, len) = (piece.max(1), pieces::len(buffers));
        Reduction {
            buffers,
            len,
            size,
            piece,
            // The first share is never shorter than another one.
            windows: chunk_range(len, shared.members(), 0).len().div_ceil(piece),
            op,
            target,
        }
    }

    /// Piece `index` of the share of `member`.
    fn range(&self, shared: &SegmentView, member: usize, index: usize) -> Range<usize> {
        let share = chunk_range(self.len, shared.members(), member);
        segment_of(&share, self.piece, index)
    }

    /// Where the piece of `member` lies in `holder`'s slot.
    fn place(&self, shared: &SegmentView, holder: usize, member: usize, window: u64) -> usize {
        shared.layout.slot(holder, window) + member * self.piece * self.size
    }

    /// Whether a member wants the other members' results.
    fn wants(&self, member: usize) -> bool {
        match self.target {
            Target::All => true,
            Target::Root(root) => member == root,
            Target::Shares => false,
        }
    }

    fn reduce_typed<T: Element>(&mut self, shared: &SegmentView, window: u64, index: usize) {
        let (me, members, op) = (shared.me, shared.members(), self.op);
        let range = self.range(shared, me, index);
        let places = |member: usize| self.place(shared, member, me, window);
        let wanted = shared.peers().any(|peer| self.wants(peer));
        let own_place = places(me);
        if members == 2 {
            let place = places(1 - me);
            pieces::for_each_mut::<T>(self.buffers, range, |offset, own| {
                let at = place + offset * size_of::<T>();
                // SAFETY: this member's share of a window that both have published, see above.
                let other = unsafe { shared.segment.elements_mut::<T>(at, own.len()) };
                match me {
                    0 => reduce::reduce_all(op, &mut [own, other]),
                    _ => reduce::reduce_all(op, &mut [other, own]),
                }
            });
            return;
        }
        let share = me * self.piece * self.size;
        pieces::for_each_mut::<T>(self.buffers, range, |offset, own| {
            let other = |member: usize, part: Range<usize>| {
                let at = shared.layout.slot(member, window) + share;
                let at = at + (offset + part.start) * size_of::<T>();
                // SAFETY: this member's share of a window that all have published, see above.
                unsafe { shared.segment.elements::<T>(at, part.len()) }
            };
            let at = own_place + offset * size_of::<T>();
            // SAFETY: as above; `other` is not called for this member.
            let copy = wanted.then(|| unsafe { shared.segment.elements_mut::<T>(at, own.len()) });
            kernels::reduce(shared, op, own, copy, other);
        });
    }
}

impl Program for Reduction<'_, '_> {
    fn windows(&self) -> usize {
        self.windows
    }

    fn publish(&mut self, shared: &SegmentView, window: u64, index: usize) {
        for member in shared.peers() {
            let range = self.range(shared, member, index);
            let at = self.place(shared, shared.me, member, window);
            pieces::copy_in(&shared.segment, at, self.buffers, range, self.size);
        }
    }

    fn reduces(&self) -> bool {
        true
    }

    fn reduce(&mut self, shared: &SegmentView, window: u64, index: usize) {
        if let Some(dtype) = self.buffers.first().map(Buffer::dtype) {
            with_dtype!(dtype, T => self.reduce_typed::<T>(shared, window, index));
        }
    }

    fn fetch(&mut self, shared: &SegmentView, window: u64, index: usize) {
        if !self.wants(shared.me) {
            return;
        }
        for member in shared.peers() {
            let range = self.range(shared, member, index);
            // Between two members the result replaces the input in the reader's slot: half as
            // many cache lines. Between more it is in the writer's slot, once for all readers.
            let home = if shared.members() == 2 {
                shared.me
            } else {
                member
            };
            let at = self.place(shared, home, member, window);
            pieces::copy_out(&shared.segment, at, self.buffers, range, self.size);
        }
    }
}

/// `broadcast`: the root publishes, the others fetch.
pub(crate) struct Broadcast<'a, 'b> {
    pub(crate) buffers: &'a mut [Buffer<'b>],
    pub(crate) len: usize,
    pub(crate) size: usize,
    pub(crate) root: usize,
    /// Elements of a window.
    pub(crate) window: usize,
}

impl Program for Broadcast<'_, '_> {
    fn windows(&self) -> usize {
        self.len.div_ceil(self.window)
    }

    fn publish(&mut self, shared: &SegmentView, window: u64, index: usize) {
        if shared.me == self.root {
            let at = shared.layout.slot(self.root, window);
            let range = segment_of(&(0..self.len), self.window, index);
            pieces::copy_in(&shared.segment, at, self.buffers, range, self.size);
        }
    }

    fn fetch(&mut self, shared: &SegmentView, window: u64, index: usize) {
        if shared.me != self.root {
            let at = shared.layout.slot(self.root, window);
            let range = segment_of(&(0..self.len), self.window, index);
            pieces::copy_out(&shared.segment, at, self.buffers, range, self.size);
        }
    }
}

/// `all_gather`: everybody publishes its input and fetches all others.
pub(crate) struct Gather<'a> {
    pub(crate) input: &'a [u8],
    /// Bytes of every member's input; they lie one after the other in the output.
    pub(crate) sizes: &'a [usize],
    pub(crate) output: &'a mut [u8],
    /// Bytes of a window.
    pub(crate) window: usize,
}

impl Program for Gather<'_> {
    fn windows(&self) -> usize {
        let most = self.sizes.iter().max().copied().unwrap_or(0);
        most.div_ceil(self.window)
    }

    fn publish(&mut self, shared: &SegmentView, window: u64, index: usize) {
        let range = segment_of(&(0..self.input.len()), self.window, index);
        let at = shared.layout.slot(shared.me, window);
        shared.segment.copy_in(at, &self.input[range]);
    }

    fn fetch(&mut self, shared: &SegmentView, window: u64, index: usize) {
        for member in shared.peers() {
            let range = segment_of(&chunk(self.sizes, member), self.window, index);
            let at = shared.layout.slot(member, window);
            shared.segment.copy_out(at, &mut self.output[range]);
        }
    }
}
