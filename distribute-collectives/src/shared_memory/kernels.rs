//! Reductions whose inputs lie in different memories: this rank's in its buffer, the others' in
//! slots. The result is the same, bit by bit, as that of [`reduce_all`](crate::reduce::reduce_all).

use std::ops::Range;

use crate::buffer::Element;
use crate::reduce::{self, Accumulator, ReduceOp};
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
        let input = |member: usize| match member == shared.me {
            true => mine,
            false => other(member, range.clone()),
        };
        match shared.members() {
            1 => {}
            2 if T::NATIVE => fused(op, [0, 1].map(input), own),
            3 if T::NATIVE => fused(op, [0, 1, 2].map(input), own),
            4 if T::NATIVE => fused(op, [0, 1, 2, 3].map(input), own),
            members => reduce::reduce_inputs(op, members, input, own),
        }
        if let Some(copy) = &mut copy {
            copy[range].copy_from_slice(own);
        }
    }
}

/// Two to four inputs, in one pass.
fn fused<T: Element, const N: usize>(op: ReduceOp, inputs: [&[T]; N], output: &mut [T]) {
    let inputs = inputs.map(|input| bytemuck::cast_slice::<T, T::Acc>(input));
    let output = bytemuck::cast_slice_mut::<T, T::Acc>(output);
    match op {
        ReduceOp::Sum => fold(inputs, output, T::Acc::sum, T::Acc::one_nan),
        ReduceOp::Mean => fold(inputs, output, T::Acc::sum, |sum| sum.one_nan().divide(N)),
        ReduceOp::Min => fold(inputs, output, T::Acc::minimum, |value| value),
        ReduceOp::Max => fold(inputs, output, T::Acc::maximum, |value| value),
        ReduceOp::Prod => fold(inputs, output, T::Acc::product, T::Acc::one_nan),
    }
}

#[inline(always)]
fn fold<A: Accumulator, const N: usize>(
    inputs: [&[A]; N],
    output: &mut [A],
    combine: impl Fn(A, A) -> A,
    finish: impl Fn(A) -> A,
) {
    let inputs = inputs.map(|input| &input[..output.len()]);
    for (index, to) in output.iter_mut().enumerate() {
        let pair = |first: usize| combine(inputs[first][index], inputs[first + 1][index]);
        *to = finish(match N {
            2 => pair(0),
            3 => combine(pair(0), inputs[2][index]),
            _ => combine(pair(0), pair(2)),
        });
    }
}
