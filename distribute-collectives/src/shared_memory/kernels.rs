//! Reductions whose inputs lie in different memories: this rank's in its buffer, the others' in
//! slots. The result is the same, bit by bit, as that of [`reduce_all`](crate::reduce::reduce_all).

use std::ops::Range;

use crate::buffer::Element;
use crate::reduce::{self, Accumulator, ReduceOp};

/// Elements worked on at a time; their copies stay in the first-level cache.
const BLOCK: usize = 1024;

/// The inputs of a reduction.
pub(crate) struct Inputs<F> {
    pub(crate) op: ReduceOp,
    pub(crate) members: usize,
    pub(crate) me: usize,
    /// Elements of another member's input.
    pub(crate) other: F,
}

impl<'a, T: Element, F: Fn(usize, Range<usize>) -> &'a [T]> Inputs<F> {
    /// Combines `own` with the same elements of all other members, in canonical order; the result
    /// is in `own`, and in `copy` when there is one (of the same length).
    pub(crate) fn reduce(&self, own: &mut [T], mut copy: Option<&mut [T]>) {
        let mut mine = [<T as bytemuck::Zeroable>::zeroed(); BLOCK];
        for start in (0..own.len()).step_by(BLOCK) {
            let range = start..own.len().min(start + BLOCK);
            let own = &mut own[range.clone()];
            let mine = &mut mine[..own.len()];
            mine.copy_from_slice(own);
            self.block(range.clone(), mine, own);
            if let Some(copy) = &mut copy {
                copy[range].copy_from_slice(own);
            }
        }
    }

    fn block(&self, range: Range<usize>, mine: &[T], own: &mut [T]) {
        let input = |member: usize| match member == self.me {
            true => mine,
            false => (self.other)(member, range.clone()),
        };
        match self.members {
            1 => {}
            2 if T::NATIVE => fused(self.op, [0, 1].map(input), own),
            3 if T::NATIVE => fused(self.op, [0, 1, 2].map(input), own),
            4 if T::NATIVE => fused(self.op, [0, 1, 2, 3].map(input), own),
            _ => wide(self.op, self.members, input, own),
        }
    }
}

/// Any number of inputs.
fn wide<'a, T: Element>(
    op: ReduceOp,
    members: usize,
    input: impl Fn(usize) -> &'a [T],
    own: &mut [T],
) {
    for start in (0..own.len()).step_by(reduce::BLOCK) {
        let range = start..own.len().min(start + reduce::BLOCK);
        let part = |member: usize| &input(member)[range.clone()];
        reduce::reduce_block(op, members, &part, &mut own[range.clone()]);
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
