//! Reductions of slices, in the canonical order: the order of the [`tree`] over all ranks. A rank
//! that combines some of them first gets the same bits.
//!
//! The loops, and the rules for roundings, integers, NaN and zeros, come from the crate
//! `distribute-reductions`. Here half types are combined in `f32`, and what two of them give is
//! rounded at once, to nearest even; a mean is divided at the end. Which NaN a minimum or maximum
//! is, and which zero when both occur, follows from the canonical order; in another order it is
//! unspecified.
//!
//! This is said of reductions here, in host memory; NCCL, devices and parameter servers add by
//! themselves.

use std::ops::Range;

pub use distribute_reductions::{Accumulator, Arithmetic, ReduceOp};
pub(crate) use distribute_reductions::{Few, Side};

use crate::buffer::{Buffer, Element, with_slice};
use crate::tree;

/// Elements that are combined at a time; their copies stay in the first-level cache.
const BLOCK: usize = 512;

/// `acc = acc op src`, in the accumulator's type. [`ReduceOp::Mean`] adds; see [`finish`].
///
/// # Panics
/// When the lengths differ.
pub fn combine<A: Accumulator>(op: ReduceOp, acc: &mut [A], src: &[A]) {
    combine_bytes(op, acc, bytemuck::cast_slice(src), Side::Right);
}

fn combine_bytes<A: Accumulator>(op: ReduceOp, acc: &mut [A], src: &[u8], side: Side) {
    assert_same_length(size_of_val(acc), src.len());
    A::combine(op, acc, src, side);
}

fn assert_same_length(dst: usize, src: usize) {
    assert_eq!(dst, src, "both sides of a reduction have one length");
}

/// The last step of a reduction over `world_size` ranks: divides for [`ReduceOp::Mean`], does
/// nothing otherwise.
pub fn finish<A: Accumulator>(op: ReduceOp, world_size: usize, acc: &mut [A]) {
    if op == ReduceOp::Mean {
        A::divide(acc, world_size);
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

/// [`reduce_into`] where `input` has the inputs of this many ranks.
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
        [a, b] if T::NATIVE => T::Acc::reduce_all(op, Few::Two([a, b].map(native))),
        [a, b, c] if T::NATIVE => T::Acc::reduce_all(op, Few::Three([a, b, c].map(native))),
        [a, b, c, d] if T::NATIVE => T::Acc::reduce_all(op, Few::Four([a, b, c, d].map(native))),
        _ => {
            let all = 0..slices.len();
            reduce_ranks(op, all.clone(), all, len, slices);
        }
    }
}

/// Access to one slice per rank, for any number of ranks without a list of slices.
pub(crate) trait RankSlices<T> {
    /// Elements `range` of the slices of two ranks, of which `low` is below `high`.
    fn pair(&mut self, low: usize, high: usize, range: Range<usize>) -> (&mut [T], &mut [T]);
}

impl<T> RankSlices<T> for [&mut [T]] {
    fn pair(&mut self, low: usize, high: usize, range: Range<usize>) -> (&mut [T], &mut [T]) {
        let (below, above) = self.split_at_mut(high);
        (&mut below[low][range.clone()], &mut above[0][range])
    }
}

/// Reduces `len` elements of `ranks` in canonical order, in the ranks' slices, and writes the
/// result to the slices of the ranks `targets`, which are among them. What the slices of the others
/// hold afterwards is unspecified.
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
            let (into, from) = slices.pair(first + into, first + from, range.clone());
            left -= 1;
            match left {
                0 => accumulate_last(op, count, into, from),
                _ => accumulate(op, into, from),
            }
        }
        for rank in targets.clone().filter(|rank| *rank != first) {
            let (result, copy) = slices.pair(first, rank, range.clone());
            copy.copy_from_slice(result);
        }
    }
}

fn native<'a, T: Element>(slice: &'a mut &mut [T]) -> &'a mut [T::Acc] {
    bytemuck::cast_slice_mut(slice)
}

fn zero<A: bytemuck::Pod>() -> A {
    bytemuck::Zeroable::zeroed()
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
