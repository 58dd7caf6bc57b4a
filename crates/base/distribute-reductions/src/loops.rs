//! The loops, generic over the numbers; each type's instances are made in this crate.

use crate::number::Number;
use crate::op::{ReduceOp, Side};

pub(crate) fn combine<N: Number>(op: ReduceOp, dst: &mut [N], src: &[u8], side: Side) {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => zip(dst, src, side, |a, b| a.sum(b).one_nan()),
        ReduceOp::Min => zip(dst, src, side, N::minimum),
        ReduceOp::Max => zip(dst, src, side, N::maximum),
        ReduceOp::Prod => zip(dst, src, side, |a, b| a.product(b).one_nan()),
    }
}

/// `dst[i] = f(dst[i], src[i])`, or `f(src[i], dst[i])` where `src` is the left side.
#[inline(always)]
fn zip<N: Number>(dst: &mut [N], src: &[u8], side: Side, f: impl Fn(N, N) -> N) {
    match side {
        Side::Left => N::zip(dst, src, |right, left| f(left, right)),
        Side::Right => N::zip(dst, src, f),
    }
}

pub(crate) fn divide<N: Number>(values: &mut [N], count: usize) {
    for value in values {
        *value = value.divided(count);
    }
}

/// Calls a fold with what combines two values and what ends a reduction, one instance
/// for each operation.
macro_rules! fold_with {
    ($op:expr, $count:expr, $fold:ident($($argument:expr),*)) => {
        match $op {
            ReduceOp::Sum => $fold($($argument,)* N::sum, N::one_nan),
            ReduceOp::Mean => $fold($($argument,)* N::sum, |sum| sum.one_nan().divided($count)),
            ReduceOp::Min => $fold($($argument,)* N::minimum, |value| value),
            ReduceOp::Max => $fold($($argument,)* N::maximum, |value| value),
            ReduceOp::Prod => $fold($($argument,)* N::product, N::one_nan),
        }
    };
}

pub(crate) fn reduce_into<N: Number, const COUNT: usize>(
    op: ReduceOp,
    inputs: [&[N]; COUNT],
    output: &mut [N],
) {
    fold_with!(op, COUNT, fold_into(inputs, output));
}

pub(crate) fn reduce_all<N: Number, const COUNT: usize>(op: ReduceOp, slices: [&mut [N]; COUNT]) {
    fold_with!(op, COUNT, fold_all(slices));
}

/// Two to four values in their order: `0 op 1`, `(0 op 1) op 2`, or `(0 op 1) op (2 op 3)`.
#[inline(always)]
fn in_order<N, const COUNT: usize>(value: impl Fn(usize) -> N, combine: impl Fn(N, N) -> N) -> N {
    let pair = |first: usize| combine(value(first), value(first + 1));
    match COUNT {
        2 => pair(0),
        3 => combine(pair(0), value(2)),
        _ => combine(pair(0), pair(2)),
    }
}

#[inline(always)]
fn fold_into<N: Number, const COUNT: usize>(
    inputs: [&[N]; COUNT],
    output: &mut [N],
    combine: impl Fn(N, N) -> N,
    finish: impl Fn(N) -> N,
) {
    let inputs = inputs.map(|input| &input[..output.len()]);
    for (index, to) in output.iter_mut().enumerate() {
        let input = |of: usize| inputs[of][index];
        *to = finish(in_order::<N, COUNT>(input, &combine));
    }
}

/// All slices are cut to one length before the loop, so that no index in it is checked.
#[inline(always)]
fn fold_all<N: Number, const COUNT: usize>(
    slices: [&mut [N]; COUNT],
    combine: impl Fn(N, N) -> N,
    finish: impl Fn(N) -> N,
) {
    let len = slices[0].len();
    let slices = slices.map(|slice| &mut slice[..len]);
    #[expect(
        clippy::needless_range_loop,
        reason = "all slices are read at one index"
    )]
    for index in 0..len {
        let input = |of: usize| slices[of][index];
        let result = finish(in_order::<N, COUNT>(input, &combine));
        // Constant indices, so that the array becomes registers.
        slices[0][index] = result;
        slices[1][index] = result;
        if COUNT > 2 {
            slices[2][index] = result;
        }
        if COUNT > 3 {
            slices[3][index] = result;
        }
    }
}
