//! Ranks of one process work on each other's buffers where they lie, through pointers (`unsafe`).
//!
//! Why this is sound, in one place:
//!
//! - A rank publishes pointers made from `&mut` (or, for inputs, `&`) slices that its caller has
//!   lent to the running call, and does not touch these slices itself until the operation is
//!   completed or withdrawn ([`Group::start`](super::group::Group::start)).
//! - No rank uses a pointer before all ranks have published, and then only while working on a
//!   claimed block. The call does not return, nor unwind (see [`CompletionGuard`]), before all
//!   blocks are done, so the memory outlives every use.
//! - Headers and lengths were compared before the start, so all ranks have the same types and
//!   lengths.
//! - Blocks are disjoint: a block is claimed once, by an atomic counter, and every element that is
//!   written belongs to one block. In a reduction, block `b` touches elements `b` of every rank and
//!   nothing else. In a broadcast the root's elements are only read.

use std::ops::Range;

use crate::buffer::{Element, with_dtype};
use crate::communicator::{GatherTarget, chunk_range};
use crate::error::Result;
use crate::failure::FailureKind;
use crate::gathering::Inputs;
use crate::header::{OperationHeader, Target};
use crate::in_process::group::Group;
use crate::in_process::raw_buffer::RawBuffer;
use crate::pieces;
use crate::reduce::{self, RankSlices, ReduceOp};

/// Elements of a block that a rank works on at a time: `block_elements` of a rank's share.
pub(crate) struct Plan<'a> {
    pub(crate) header: &'a OperationHeader,
    pub(crate) world_size: usize,
    /// How many ranks are reduced with each other, one part after the other.
    pub(crate) parts: &'a [usize],
    pub(crate) block_elements: usize,
}

impl Plan<'_> {
    /// The elements that belong to a rank's share of the work.
    fn share(&self, rank: usize) -> Range<usize> {
        let count = self.header.count;
        match (self.header.op, self.header.root) {
            // A rank that is alone has the result already.
            _ if self.world_size == 1 => 0..0,
            (Some(_), _) => chunk_range(count, self.world_size, rank),
            (None, Some(root)) if root == rank => 0..0,
            (None, _) => 0..count,
        }
    }

    fn blocks_of(&self, rank: usize) -> usize {
        self.share(rank).len().div_ceil(self.block_elements)
    }

    /// Number of blocks of the whole operation.
    pub(crate) fn blocks(&self) -> usize {
        (0..self.world_size).map(|rank| self.blocks_of(rank)).sum()
    }
}

/// Keeps the call from returning or unwinding while other ranks use its buffers.
pub(crate) struct CompletionGuard<'a> {
    pub(crate) group: &'a Group,
    pub(crate) sequence: u64,
}

impl Drop for CompletionGuard<'_> {
    fn drop(&mut self) {
        self.group.wait_completed(self.sequence);
    }
}

/// A claimed block; counts as done when dropped. If that happens in a panic the result is wrong,
/// so the operation fails on all ranks.
struct Claimed<'a> {
    group: &'a Group,
    rank: usize,
    header: &'a OperationHeader,
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let (rank, sequence) = (self.rank, self.header.sequence);
            let reason = "its thread panicked in the operation".to_string();
            let lost = FailureKind::Lost { rank, reason };
            self.group
                .record_failure(lost.into_error(self.header), sequence);
        }
        self.group.block_done(self.header.sequence);
    }
}

/// Does blocks of the running operation until none is left: first this rank's own share, whose
/// elements are likely in its cache, then what others have not begun (they may not even be
/// scheduled yet). Who does a block does not change its result.
///
/// `table` has the published buffers of all ranks, rank 0 first.
pub(crate) fn work(group: &Group, rank: usize, plan: &Plan<'_>, table: &[RawBuffer]) {
    for offset in 0..plan.world_size {
        let share = (rank + offset) % plan.world_size;
        let (range, blocks) = (plan.share(share), plan.blocks_of(share));
        while let Some(block) = group.claim(share, blocks) {
            let _claimed = Claimed {
                group,
                rank,
                header: plan.header,
            };
            let start = range.start + block * plan.block_elements;
            // A block may be as large as a number can be.
            let end = range.end.min(start.saturating_add(plan.block_elements));
            do_block(plan, table, share, start..end);
        }
    }
}

fn do_block(plan: &Plan<'_>, table: &[RawBuffer], share: usize, range: Range<usize>) {
    let header = plan.header;
    let Some(dtype) = header.dtype else { return };
    let count = header.buffers;
    let mut cut = pieces::cutter(range);
    for (index, buffer) in table[..count].iter().enumerate() {
        let Some((range, _)) = cut(buffer.len()) else {
            continue;
        };
        let at = |rank: usize| table[rank * count + index];
        match (header.op, header.root) {
            (Some(op), _) => {
                let mut first = 0;
                for part in plan.parts {
                    let ranks = first..first + part;
                    first = ranks.end;
                    let targets = match header.target() {
                        Target::All => ranks.clone(),
                        Target::Root(root) => root..root + 1,
                        Target::Shares => share..share + 1,
                    };
                    let range = range.clone();
                    with_dtype!(dtype, T => reduce_block::<T>(op, ranks, targets, at, range));
                }
            }
            (None, Some(root)) => with_dtype!(dtype, T => {
                // SAFETY: the root's elements are only read; the elements of `share` are in this
                // block.
                let (from, to) = unsafe {
                    (at(root).slice::<T>(range.clone()), at(share).slice_mut::<T>(range))
                };
                to.copy_from_slice(from);
            }),
            (None, None) => {}
        }
    }
}

/// Access to the elements of one claimed block of a reduction.
struct BlockSlices<F> {
    at: F,
    start: usize,
}

impl<T: Element, F: Fn(usize) -> RawBuffer> RankSlices<T> for BlockSlices<F> {
    fn pair(&mut self, low: usize, high: usize, range: Range<usize>) -> (&mut [T], &mut [T]) {
        let range = self.start + range.start..self.start + range.end;
        // SAFETY: made for a claimed block only; `&mut self` lets one pair live at a time, and the
        // buffers of two ranks are two.
        unsafe {
            (
                (self.at)(low).slice_mut(range.clone()),
                (self.at)(high).slice_mut(range),
            )
        }
    }
}

/// Reduces a block of `ranks` with each other.
fn reduce_block<T: Element>(
    op: ReduceOp,
    ranks: Range<usize>,
    targets: Range<usize>,
    at: impl Fn(usize) -> RawBuffer,
    range: Range<usize>,
) {
    // SAFETY: called for a claimed block; each rank's buffer is asked for once.
    let slice = |index: usize| unsafe { at(ranks.start + index).slice_mut::<T>(range.clone()) };
    if T::NATIVE && targets == ranks && ranks.len() <= 4 {
        let mut slices: [&mut [T]; 4] = std::array::from_fn(|index| {
            if index < ranks.len() {
                slice(index)
            } else {
                &mut []
            }
        });
        return reduce::reduce_all(op, &mut slices[..ranks.len()]);
    }
    let len = range.len();
    let mut slices = BlockSlices {
        at,
        start: range.start,
    };
    reduce::reduce_ranks::<T>(op, ranks, targets, len, &mut slices);
}

/// This rank's part of an `all_gather`: asks for memory and copies the inputs of all ranks into it.
/// Counts as one block. Without memory the operation fails on all ranks that are not done.
///
/// `table` has the published inputs of all ranks, whose sizes `inputs` knows.
pub(crate) fn gather(
    group: &Group,
    header: &OperationHeader,
    table: &[RawBuffer],
    inputs: &Inputs<'_>,
    output: &mut dyn GatherTarget,
) -> Result<()> {
    let _claimed = Claimed {
        group,
        rank: inputs.rank,
        header,
    };
    let mut rest = inputs
        .memory(output)
        .inspect_err(|error| group.record_failure(error.clone(), header.sequence))?;
    for input in table {
        let (to, after) = rest.split_at_mut(input.len());
        // SAFETY: published inputs are only read while the operation runs.
        to.copy_from_slice(unsafe { input.slice::<u8>(0..input.len()) });
        rest = after;
    }
    Ok(())
}
