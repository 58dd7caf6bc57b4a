//! The arithmetic of reductions: plain loops over slices that the compiler vectorises.
//!
//! Rules for every kernel here:
//!
//! - `f32 f64 i32 i64 u8` are combined in their own type. Integer sums and products wrap around.
//! - `f16` and `bf16` are combined in `f32`, and what two of them give is rounded at once, to
//!   nearest even.
//! - More than two inputs are combined in the canonical order, that of the [`tree`] over all of
//!   them: whoever combines some of them first gets the same bits.
//! - [`ReduceOp::Mean`] is the sum divided by the number of ranks, as in TensorFlow
//!   (`cross_device_ops.py`). For floats that is one division at the end, not a multiplication
//!   by a reciprocal. For integers it is the wrapped sum divided with truncation toward zero:
//!   TensorFlow returns floats there, so convert before the call when the fraction matters.
//! - [`ReduceOp::Min`] and [`ReduceOp::Max`] return NaN when any value is NaN (IEEE 754-2019
//!   `minimum`/`maximum`). Which NaN, and which zero when both occur, follows from the canonical
//!   order; in another order it is unspecified.
//! - A sum, mean or product of several values that is NaN is the NaN whose bits are all set
//!   ([`Accumulator::one_nan`]): which of two NaNs an addition returns is up to the compiler, and
//!   all ranks must have the same one. This is said of reductions here, in host memory; NCCL,
//!   devices and parameter servers add by themselves.

use std::ops::Range;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

pub use crate::buffer::{Accumulator, Arithmetic};
use crate::buffer::{Buffer, Element, with_slice};
use crate::names::named_enum;
use crate::tree;

named_enum! {
    all: pub,
    /// How the values of the ranks are combined, element by element.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[repr(u8)]
    pub enum ReduceOp {
        /// The sum.
        Sum => "sum",
        /// The sum divided by the world size.
        Mean => "mean",
        /// The smallest value.
        Min => "min",
        /// The largest value.
        Max => "max",
        /// The product.
        Prod => "prod",
    }
}

impl ReduceOp {
    /// What partial results are combined with: of a mean the last result is divided, no other one.
    pub(crate) fn undivided(self) -> Self {
        match self {
            ReduceOp::Mean => ReduceOp::Sum,
            other => other,
        }
    }
}

macro_rules! native_arithmetic {
    ($($type:ty),*) => {$(
        impl Arithmetic for $type {
            type Acc = $type;
            const NATIVE: bool = true;

            fn widen(src: &[Self], dst: &mut [Self]) {
                dst.copy_from_slice(src);
            }

            fn narrow(src: &[Self], dst: &mut [Self]) {
                dst.copy_from_slice(src);
            }
        }
    )*};
}
native_arithmetic!(f32, f64, i32, i64, u8);

macro_rules! zip_unaligned {
    ($type:ty) => {
        #[inline(always)]
        fn zip(dst: &mut [Self], src: &[u8], f: impl Fn(Self, Self) -> Self) {
            let (src, _) = src.as_chunks::<{ size_of::<$type>() }>();
            for (d, s) in dst.iter_mut().zip(src) {
                *d = f(*d, <$type>::from_ne_bytes(*s));
            }
        }
    };
}

macro_rules! float_accumulator {
    ($($type:ty),*) => {$(
        impl Accumulator for $type {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }

            // `other != other` is true for NaN only; written so that it becomes a compare and
            // a blend instead of a branch.
            #[inline(always)]
            fn minimum(self, other: Self) -> Self {
                if (other < self) | (other != other) { other } else { self }
            }

            #[inline(always)]
            fn maximum(self, other: Self) -> Self {
                if (other > self) | (other != other) { other } else { self }
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self * other
            }

            #[inline(always)]
            fn divide(self, world_size: usize) -> Self {
                self / world_size as $type
            }

            // Of all NaNs the cheapest to put there: the result of the comparison.
            #[inline(always)]
            fn one_nan(self) -> Self {
                if self != self { <$type>::from_bits(!0) } else { self }
            }

            zip_unaligned!($type);
        }
    )*};
}
float_accumulator!(f32, f64);

macro_rules! integer_accumulator {
    ($($type:ty => $wide:ty),*) => {$(
        impl Accumulator for $type {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn minimum(self, other: Self) -> Self {
                self.min(other)
            }

            #[inline(always)]
            fn maximum(self, other: Self) -> Self {
                self.max(other)
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn divide(self, world_size: usize) -> Self {
                // The quotient is never larger than `self`, so it fits.
                (self as $wide / world_size as $wide) as $type
            }

            #[inline(always)]
            fn one_nan(self) -> Self {
                self
            }

            zip_unaligned!($type);
        }
    )*};
}
integer_accumulator!(i32 => i64, i64 => i64, u8 => u64);

impl Arithmetic for f16 {
    type Acc = f32;
    const NATIVE: bool = false;

    fn widen(src: &[Self], dst: &mut [f32]) {
        src.convert_to_f32_slice(dst);
    }

    fn narrow(src: &[f32], dst: &mut [Self]) {
        dst.convert_from_f32_slice(src);
    }
}

impl Arithmetic for bf16 {
    type Acc = f32;
    const NATIVE: bool = false;

    fn widen(src: &[Self], dst: &mut [f32]) {
        for (to, from) in dst.iter_mut().zip(src) {
            *to = f32::from_bits(u32::from(from.to_bits()) << 16);
        }
    }

    fn narrow(src: &[f32], dst: &mut [Self]) {
        for (to, from) in dst.iter_mut().zip(src) {
            let bits = from.to_bits();
            let nearest_even = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
            // Rounding could carry a NaN's payload into infinity: keep it quiet instead.
            let nan = (bits >> 16) | 0x40;
            *to = bf16::from_bits(if from.is_nan() { nan } else { nearest_even } as u16);
        }
    }
}

/// Elements that are combined at a time; their copies stay in the first-level cache.
const BLOCK: usize = 512;

/// Which side of a node of the [`tree`] comes to the other one. It shows in minima and maxima
/// alone: in the sign of a zero and in which NaN it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// What comes is the left side.
    Left,
    /// What comes is the right side.
    Right,
}

/// `dst[i] = f(dst[i], src[i])`, or `f(src[i], dst[i])` where `src` is the left side.
#[inline(always)]
fn zip<A: Accumulator>(dst: &mut [A], src: &[u8], side: Side, f: impl Fn(A, A) -> A) {
    match side {
        Side::Left => A::zip(dst, src, |right, left| f(left, right)),
        Side::Right => A::zip(dst, src, f),
    }
}

/// `acc = acc op src`, in the accumulator's type. [`ReduceOp::Mean`] adds; see [`finish`].
///
/// # Panics
/// When the lengths differ.
pub fn combine<A: Accumulator>(op: ReduceOp, acc: &mut [A], src: &[A]) {
    combine_bytes(op, acc, bytemuck::cast_slice(src), Side::Right);
}

fn combine_bytes<A: Accumulator>(op: ReduceOp, acc: &mut [A], src: &[u8], side: Side) {
    assert_same_length(size_of_val(acc), src.len());
    match op {
        ReduceOp::Sum | ReduceOp::Mean => zip(acc, src, side, |a, b| a.sum(b).one_nan()),
        ReduceOp::Min => zip(acc, src, side, A::minimum),
        ReduceOp::Max => zip(acc, src, side, A::maximum),
        ReduceOp::Prod => zip(acc, src, side, |a, b| a.product(b).one_nan()),
    }
}

fn assert_same_length(dst: usize, src: usize) {
    assert_eq!(dst, src, "both sides of a reduction have one length");
}

/// The last step of a reduction over `world_size` ranks: divides for [`ReduceOp::Mean`], does
/// nothing otherwise.
pub fn finish<A: Accumulator>(op: ReduceOp, world_size: usize, acc: &mut [A]) {
    if op == ReduceOp::Mean {
        for value in acc {
            *value = value.divide(world_size);
        }
    }
}

/// Divides every element of a buffer, as [`finish`] does for [`ReduceOp::Mean`]: the last step of a
/// mean whose sum was made in several stages.
pub fn divide(buffer: &mut Buffer<'_>, world_size: usize) {
    with_slice!(buffer, values => divide_slice(values, world_size));
}

fn divide_slice<T: Element>(values: &mut [T], world_size: usize) {
    if T::NATIVE {
        finish(
            ReduceOp::Mean,
            world_size,
            bytemuck::cast_slice_mut::<T, T::Acc>(values),
        );
        return;
    }
    let mut acc = [zero::<T::Acc>(); BLOCK];
    for values in values.chunks_mut(BLOCK) {
        let acc = &mut acc[..values.len()];
        T::widen(values, acc);
        finish(ReduceOp::Mean, world_size, acc);
        T::narrow(acc, values);
    }
}

/// `dst = dst op src`. Half types are combined in `f32` and rounded once per call.
/// [`ReduceOp::Mean`] adds; see [`accumulate_last`].
///
/// # Panics
/// When the lengths differ.
pub fn accumulate<T: Element>(op: ReduceOp, dst: &mut [T], src: &[T]) {
    accumulate_bytes(op, dst, bytemuck::cast_slice(src), Side::Right);
}

/// [`accumulate`] with elements as they came, which need not be aligned and are the given side.
pub(crate) fn accumulate_bytes<T: Element>(op: ReduceOp, dst: &mut [T], src: &[u8], side: Side) {
    // A world size of 1 divides by one: no change, and no second rounding.
    accumulate_last_bytes(op.undivided(), 1, dst, src, side);
}

/// The last [`accumulate`] of a reduction over `world_size` ranks: also divides for
/// [`ReduceOp::Mean`], before the one rounding of half types.
///
/// # Panics
/// When the lengths differ.
pub fn accumulate_last<T: Element>(op: ReduceOp, world_size: usize, dst: &mut [T], src: &[T]) {
    accumulate_last_bytes(op, world_size, dst, bytemuck::cast_slice(src), Side::Right);
}

/// [`accumulate_last`] with elements as they came, which need not be aligned and are the given
/// side.
pub(crate) fn accumulate_last_bytes<T: Element>(
    op: ReduceOp,
    world_size: usize,
    dst: &mut [T],
    src: &[u8],
    side: Side,
) {
    assert_same_length(size_of_val(dst), src.len());
    if T::NATIVE {
        let dst = bytemuck::cast_slice_mut::<T, T::Acc>(dst);
        combine_bytes(op, dst, src, side);
        finish(op, world_size, dst);
        return;
    }
    let mut acc = [zero::<T::Acc>(); BLOCK];
    let mut wide = [zero::<T::Acc>(); BLOCK];
    let blocks = src.chunks(BLOCK * size_of::<T>());
    for (dst, src) in dst.chunks_mut(BLOCK).zip(blocks) {
        let (acc, wide) = (&mut acc[..dst.len()], &mut wide[..dst.len()]);
        T::widen(dst, acc);
        match bytemuck::try_cast_slice(src) {
            Ok(aligned) => T::widen(aligned, wide),
            Err(_) => {
                let copy = &mut [zero::<T>(); BLOCK][..dst.len()];
                bytemuck::cast_slice_mut(copy).copy_from_slice(src);
                T::widen(copy, wide);
            }
        }
        combine_bytes(op, acc, bytemuck::cast_slice(wide), side);
        finish(op, world_size, acc);
        T::narrow(acc, dst);
    }
}

/// `acc = acc op src` where `acc` is in the accumulator's type.
///
/// # Panics
/// When the lengths differ.
pub(crate) fn accumulate_wide<T: Element>(op: ReduceOp, acc: &mut [T::Acc], src: &[T]) {
    assert_same_length(acc.len(), src.len());
    if T::NATIVE {
        combine(op, acc, bytemuck::cast_slice(src));
        return;
    }
    let mut wide = [zero::<T::Acc>(); BLOCK];
    for (acc, src) in acc.chunks_mut(BLOCK).zip(src.chunks(BLOCK)) {
        let wide = &mut wide[..src.len()];
        T::widen(src, wide);
        combine(op, acc, wide);
    }
}

/// Reduces the inputs of all ranks in canonical order into `output`.
///
/// ```
/// use distribute_collectives::{ReduceOp, reduce};
///
/// let mut mean = [0.0_f32; 2];
/// reduce::reduce_into(ReduceOp::Mean, &[&[1.0, 2.0], &[3.0, 6.0]], &mut mean);
/// assert_eq!(mean, [2.0, 4.0]);
///
/// // (1e8 + 1) + (1e8 + 1): each one is lost.
/// let mut sum = [0.0_f32];
/// reduce::reduce_into(ReduceOp::Sum, &[&[1e8], &[1.0], &[1e8], &[1.0]], &mut sum);
/// assert_eq!(sum, [2e8]);
/// ```
///
/// # Panics
/// When there is no input or the lengths differ.
pub fn reduce_into<T: Element>(op: ReduceOp, inputs: &[&[T]], output: &mut [T]) {
    reduce_inputs(op, inputs.len(), |rank| inputs[rank], output);
}

/// [`reduce_into`] where `input` has the inputs of so many ranks.
pub(crate) fn reduce_inputs<'a, T: Element>(
    op: ReduceOp,
    ranks: usize,
    input: impl Fn(usize) -> &'a [T],
    output: &mut [T],
) {
    for start in (0..output.len()).step_by(BLOCK) {
        let range = start..output.len().min(start + BLOCK);
        let part = |rank: usize| &input(rank)[range.clone()];
        node(op, ranks, 0..ranks, &part, &mut output[range.clone()]);
    }
}

/// Reduces at most [`BLOCK`] elements of the inputs of a subtree of the tree over `divisor` ranks;
/// the whole tree also ends.
fn node<'a, T: Element>(
    op: ReduceOp,
    divisor: usize,
    ranks: Range<usize>,
    input: &impl Fn(usize) -> &'a [T],
    output: &mut [T],
) {
    if ranks.len() < 2 {
        output.copy_from_slice(input(ranks.start));
        return;
    }
    let middle = ranks.start + tree::left_side(ranks.len());
    // Sums are divided at the root.
    let inner = op.undivided();
    node(inner, 1, ranks.start..middle, input, output);
    if middle + 1 == ranks.end {
        return accumulate_last(op, divisor, output, input(middle));
    }
    let mut right = [zero::<T>(); BLOCK];
    let right = &mut right[..output.len()];
    node(inner, 1, middle..ranks.end, input, right);
    accumulate_last(op, divisor, output, right);
}

/// Reduces the slices of all ranks in canonical order and writes the result to every slice. Two to
/// four ranks are done in one pass over memory.
///
/// # Panics
/// When the lengths differ.
pub fn reduce_all<T: Element>(op: ReduceOp, slices: &mut [&mut [T]]) {
    let Some(len) = slices.first().map(|slice| slice.len()) else {
        return;
    };
    assert!(
        slices.iter().all(|slice| slice.len() == len),
        "all ranks have one length"
    );
    match slices {
        [_] => {}
        [a, b] if T::NATIVE => fused(op, [native(a), native(b)]),
        [a, b, c] if T::NATIVE => fused(op, [native(a), native(b), native(c)]),
        [a, b, c, d] if T::NATIVE => fused(op, [native(a), native(b), native(c), native(d)]),
        _ => {
            let all = 0..slices.len();
            reduce_ranks(op, all.clone(), all, len, slices);
        }
    }
}

/// Access to one slice per rank, for any number of ranks without a list of slices.
pub(crate) trait RankSlices<T> {
    /// Elements `range` of the slices of two ranks, the first of which is below the second.
    fn pair(&mut self, ranks: (usize, usize), range: Range<usize>) -> (&mut [T], &mut [T]);
}

impl<T> RankSlices<T> for [&mut [T]] {
    fn pair(&mut self, ranks: (usize, usize), range: Range<usize>) -> (&mut [T], &mut [T]) {
        let (below, above) = self.split_at_mut(ranks.1);
        (&mut below[ranks.0][range.clone()], &mut above[0][range])
    }
}

/// Reduces `len` elements of `ranks` in canonical order, in the ranks' slices, and writes the
/// result to those of the ranks `targets`, which are among them. What the slices of the others hold
/// afterwards is unspecified.
pub(crate) fn reduce_ranks<T: Element>(
    op: ReduceOp,
    ranks: Range<usize>,
    targets: Range<usize>,
    len: usize,
    slices: &mut (impl RankSlices<T> + ?Sized),
) {
    let first = ranks.start;
    for start in (0..len).step_by(BLOCK) {
        let range = start..len.min(start + BLOCK);
        let (mut left, count) = (ranks.len() - 1, ranks.len());
        for (into, from) in tree::pairs_of_terms(count) {
            let (into, from) = slices.pair((first + into, first + from), range.clone());
            left -= 1;
            match left {
                0 => accumulate_last(op, count, into, from),
                _ => accumulate(op, into, from),
            }
        }
        for rank in targets.clone().filter(|rank| *rank != first) {
            let (result, copy) = slices.pair((first, rank), range.clone());
            copy.copy_from_slice(result);
        }
    }
}

fn native<T: Element>(slice: &mut [T]) -> &mut [T::Acc] {
    bytemuck::cast_slice_mut(slice)
}

fn zero<A: bytemuck::Pod>() -> A {
    bytemuck::Zeroable::zeroed()
}

/// Two to four slices, in one pass: every one gets the result.
fn fused<A: Accumulator, const N: usize>(op: ReduceOp, slices: [&mut [A]; N]) {
    match op {
        ReduceOp::Sum => fold(slices, A::sum, A::one_nan),
        ReduceOp::Mean => fold(slices, A::sum, |sum| sum.one_nan().divide(N)),
        ReduceOp::Min => fold(slices, A::minimum, |value| value),
        ReduceOp::Max => fold(slices, A::maximum, |value| value),
        ReduceOp::Prod => fold(slices, A::product, A::one_nan),
    }
}

/// The loop of [`fused`], one for each reduction and number of slices. All are cut to one length
/// before it, so that no index in it is checked.
#[inline(always)]
fn fold<A: Accumulator, const N: usize>(
    slices: [&mut [A]; N],
    combine: impl Fn(A, A) -> A,
    finish: impl Fn(A) -> A,
) {
    let len = slices[0].len();
    let slices = slices.map(|slice| &mut slice[..len]);
    #[expect(
        clippy::needless_range_loop,
        reason = "all slices are read at one index"
    )]
    for index in 0..len {
        let pair = |first: usize| combine(slices[first][index], slices[first + 1][index]);
        let result = finish(match N {
            2 => pair(0),
            3 => combine(pair(0), slices[2][index]),
            _ => combine(pair(0), pair(2)),
        });
        // Constant indices, so that the array becomes registers.
        slices[0][index] = result;
        slices[1][index] = result;
        if N > 2 {
            slices[2][index] = result;
        }
        if N > 3 {
            slices[3][index] = result;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_comes_to_right<T: Element>(ones: &[T], others: &[T]) {
        let mut pairs: Vec<(T, T)> = Vec::new();
        for one in ones {
            pairs.extend(others.iter().map(|other| (*one, *other)));
        }
        // Longer than a block, so that vectorized loops and their ends are both taken.
        let pairs = pairs.iter().cycle().take(2 * BLOCK + 3);
        let (left, right): (Vec<T>, Vec<T>) = pairs.copied().unzip();
        let mut frame = vec![0; 1];
        frame.extend_from_slice(bytemuck::cast_slice(&left));
        for op in ReduceOp::ALL {
            let (mut expected, mut found) = (left.clone(), right.clone());
            accumulate_last(op, 2, &mut expected, &right);
            accumulate_last_bytes(op, 2, &mut found, &frame[1..], Side::Left);
            let bytes = |values| bytemuck::cast_slice::<T, u8>(values).to_vec();
            assert_eq!(bytes(&found), bytes(&expected), "{op} of {}", T::DTYPE);
        }
    }

    #[test]
    fn both_sides_give_the_same_bits() {
        let (nan, negative) = (f32::from_bits(0x7fc0_0001), f32::from_bits(0xffc0_0002));
        let values = [0.0, -0.0, 1.5, -3.0, f32::INFINITY, 1e-40, nan, negative];
        left_comes_to_right(&values, &values);
        let values = values.map(f64::from);
        left_comes_to_right(&values, &values);
        let values = values.map(half::bf16::from_f64);
        left_comes_to_right(&values, &values);
        let values = values.map(|value| half::f16::from_f32(value.to_f32()));
        left_comes_to_right(&values, &values);
        left_comes_to_right(&[i64::MIN, -1, 7], &[i64::MAX, 0, 3]);
        left_comes_to_right(&[i32::MIN, -1, 7], &[i32::MAX, 0, 3]);
        left_comes_to_right(&[0_u8, 200], &[100_u8, 255]);
    }
}
