//! Reductions whose inputs lie in different memories: this rank's in its buffer, the others' in
//! slots. The result is the same, bit by bit, as that of [`reduce_all`](crate::reduce::reduce_all).

use std::ops::Range;

use crate::buffer::Element;
use crate::reduce::{self, Accumulator as _, Few, ReduceOp};
use crate::shared_memory::doorbell::SegmentView;

/// Elements worked on at a time; their copies stay in the first-level cache.
const BLOCK: usize = 1024;

/// Combines `own` with the same elements of all other members, in canonical order; the result is in
/// `own`, and in `copy` when there is one (of the same length). `other` has the elements of another
/// member's input.
pub(crate) fn reduce<'a, T: Element>(
    shared: &SegmentView,
    op: ReduceOp,
    own: &mut [T],
    mut copy: Option<&mut [T]>,
    other: impl Fn(usize, Range<usize>) -> &'a [T],
) {
    let mut mine = [<T as bytemuck::Zeroable>::zeroed(); BLOCK];
    for start in (0..own.len()).step_by(BLOCK) {
        let range = start..own.len().min(start + BLOCK);
        let own = &mut own[range.clone()];
        mine[..own.len()].copy_from_slice(own);
        let mine = &mine[..own.len()];
        let input = |member: usize| {
            if member == shared.me {
                mine
            } else {
                other(member, range.clone())
            }
        };
        let native = |member| bytemuck::cast_slice(input(member));
        match shared.members() {
            1 => {}
            2 if T::NATIVE => fused(op, Few::Two([0, 1].map(native)), own),
            3 if T::NATIVE => fused(op, Few::Three([0, 1, 2].map(native)), own),
            4 if T::NATIVE => fused(op, Few::Four([0, 1, 2, 3].map(native)), own),
            members => reduce::reduce_inputs(op, members, input, own),
        }
        if let Some(copy) = &mut copy {
            copy[range].copy_from_slice(own);
        }
    }
}

/// Two to four inputs, in one pass.
fn fused<T: Element>(op: ReduceOp, inputs: Few<&[T::Acc]>, output: &mut [T]) {
    T::Acc::reduce_into(op, inputs, bytemuck::cast_slice_mut(output));
}
