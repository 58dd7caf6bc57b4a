//! Operations that move elements: reshaping, slicing, joining, repeating.

use burn::tensor::Slice;
use distribute_core::burn_internals::ir::{
    CatOpIr, CreationOpIr, FlipOpIr, FullOpIr, PadModeIr, PadOpIr, PermuteOpIr, RepeatDimOpIr,
    ShapeOpIr, SliceAssignOpIr, SliceOpIr, SwapDimsOpIr, UnfoldOpIr,
};

use crate::stablehlo::{Binary, ElementType, GatherDimensions, TensorType, Value};

use super::context::Context;
use super::error::{Result, unsupported};
use super::types::{element_type, literal};

pub(super) fn reshape(cx: &mut Context, op: &ShapeOpIr) -> Result<()> {
    if let Some(argument) = cx.argument_behind(&op.input) {
        return cx.set_view(&op.out, argument);
    }
    let x = cx.get(&op.input)?;
    let extents = x.dims().iter().filter(|size| **size > 1).count();
    if extents > 1 && op.out.shape.len() == 1 {
        return cx.set_view(&op.out, x);
    }
    cx.set_reshaped(&op.out, &x)
}

pub(super) fn expand(cx: &mut Context, op: &ShapeOpIr) -> Result<()> {
    let x = cx.get(&op.input)?;
    let x = cx.builder.broadcast_to(&x, &op.out.shape)?;
    cx.set(&op.out, x)
}

pub(super) fn swap_dims(cx: &mut Context, op: &SwapDimsOpIr) -> Result<()> {
    let x = cx.get(&op.input)?;
    let mut axes: Vec<usize> = (0..x.rank()).collect();
    axes.swap(op.dim1, op.dim2);
    let x = cx.builder.transpose(&x, &axes)?;
    cx.set(&op.out, x)
}

pub(super) fn permute(cx: &mut Context, op: &PermuteOpIr) -> Result<()> {
    let x = cx.get(&op.input)?;
    let x = cx.builder.transpose(&x, &op.axes)?;
    cx.set(&op.out, x)
}

pub(super) fn flip(cx: &mut Context, op: &FlipOpIr) -> Result<()> {
    let x = cx.get(&op.input)?;
    let x = cx.builder.reverse(&x, &op.axes)?;
    cx.set(&op.out, x)
}

pub(super) fn cat(cx: &mut Context, op: &CatOpIr) -> Result<()> {
    let mut parts = Vec::with_capacity(op.tensors.len());
    for tensor in &op.tensors {
        parts.push(cx.get(tensor)?);
    }
    let x = cx.builder.concatenate(&parts, op.dim)?;
    cx.set(&op.out, x)
}

pub(super) fn repeat_dim(cx: &mut Context, op: &RepeatDimOpIr) -> Result<()> {
    let x = cx.get(&op.tensor)?;
    // One new dimension in front of the repeated one, then both are folded into one.
    let mut dims = x.dims().to_vec();
    dims.insert(op.dim, op.times);
    let mapping: Vec<usize> = (0..dims.len()).filter(|d| *d != op.dim).collect();
    let x = cx.builder.broadcast_in_dim(&x, &dims, &mapping)?;
    cx.set_reshaped(&op.out, &x)
}

pub(super) fn empty(cx: &mut Context, op: &CreationOpIr) -> Result<()> {
    // No step may rely on what is in an empty tensor.
    zeros(cx, op)
}

pub(super) fn zeros(cx: &mut Context, op: &CreationOpIr) -> Result<()> {
    let x = cx
        .builder
        .splat(&op.out.shape, element_type(op.out.dtype)?, 0i64);
    cx.set(&op.out, x)
}

pub(super) fn ones(cx: &mut Context, op: &CreationOpIr) -> Result<()> {
    let x = cx
        .builder
        .splat(&op.out.shape, element_type(op.out.dtype)?, 1i64);
    cx.set(&op.out, x)
}

pub(super) fn full(cx: &mut Context, op: &FullOpIr) -> Result<()> {
    let element = element_type(op.out.dtype)?;
    let x = cx.builder.splat(&op.out.shape, element, literal(op.value));
    cx.set(&op.out, x)
}

/// What a slice takes of one dimension: first element, how many, their distance, whether the
/// order is reversed.
struct Part {
    start: usize,
    count: usize,
    step: usize,
    reversed: bool,
}

/// burn's rule: the range says which elements, the sign of the step in which order; a negative
/// step begins at the last element of the range.
fn parts(ranges: &[Slice], dims: &[usize]) -> Vec<Part> {
    let whole = Slice::new(0, None, 1);
    dims.iter()
        .enumerate()
        .map(|(d, size)| {
            let slice = ranges.get(d).unwrap_or(&whole);
            let range = slice.to_range(*size);
            let step = slice.step().unsigned_abs().max(1);
            let count = range.len().div_ceil(step);
            let reversed = slice.is_reversed();
            let start = if reversed && count > 0 {
                range.end - 1 - (count - 1) * step
            } else {
                range.start.min(*size)
            };
            Part {
                start,
                count,
                step,
                reversed,
            }
        })
        .collect()
}

fn reversed_dims(parts: &[Part]) -> Vec<usize> {
    (0..parts.len()).filter(|d| parts[*d].reversed).collect()
}

pub(super) fn slice(cx: &mut Context, op: &SliceOpIr) -> Result<()> {
    let x = cx.get(&op.tensor)?;
    let parts = parts(&op.ranges, x.dims());
    let start: Vec<usize> = parts.iter().map(|p| p.start).collect();
    let limit: Vec<usize> = parts
        .iter()
        .map(|p| match p.count {
            0 => p.start,
            n => p.start + (n - 1) * p.step + 1,
        })
        .collect();
    let strides: Vec<usize> = parts.iter().map(|p| p.step).collect();
    let mut x = cx.builder.slice(&x, &start, &limit, &strides)?;
    let reversed = reversed_dims(&parts);
    if !reversed.is_empty() {
        x = cx.builder.reverse(&x, &reversed)?;
    }
    cx.set(&op.out, x)
}

pub(super) fn slice_assign(cx: &mut Context, op: &SliceAssignOpIr) -> Result<()> {
    let x = cx.get(&op.tensor)?;
    let value = cx.get(&op.value)?;
    let parts = parts(&op.ranges, x.dims());
    let counts: Vec<usize> = parts.iter().map(|p| p.count).collect();
    if counts.contains(&0) {
        return cx.set(&op.out, x);
    }
    let mut value = cx.builder.broadcast_to(&value, &counts)?;
    let reversed = reversed_dims(&parts);
    if !reversed.is_empty() {
        value = cx.builder.reverse(&value, &reversed)?;
    }
    if parts.iter().all(|p| p.step == 1) {
        let index = |cx: &mut Context, at: usize| cx.builder.scalar(ElementType::I32, at as i64);
        let start: Vec<Value> = parts.iter().map(|p| index(cx, p.start)).collect();
        let x = cx.builder.dynamic_update_slice(&x, &value, &start)?;
        return cx.set(&op.out, x);
    }
    // With steps: the value spread out over zeros, and where it is to be taken from.
    let covered = cx.builder.splat(&counts, ElementType::I1, true);
    let covered = spread_out(cx, &covered, &parts, x.dims())?;
    let value = spread_out(cx, &value, &parts, x.dims())?;
    let x = cx.builder.select(&covered, &value, &x)?;
    cx.set(&op.out, x)
}

fn spread_out(cx: &mut Context, x: &Value, parts: &[Part], dims: &[usize]) -> Result<Value> {
    let zero = cx.builder.scalar(x.element(), 0i64);
    let low: Vec<i64> = parts.iter().map(|p| p.start as i64).collect();
    let interior: Vec<i64> = parts.iter().map(|p| p.step as i64 - 1).collect();
    let end = |p: &Part| p.start + (p.count - 1) * p.step + 1;
    let high: Vec<i64> = parts
        .iter()
        .zip(dims)
        .map(|(p, size)| *size as i64 - end(p) as i64)
        .collect();
    Ok(cx.builder.pad(x, &zero, &low, &high, &interior)?)
}

pub(super) fn pad(cx: &mut Context, op: &PadOpIr) -> Result<()> {
    let mut x = cx.get(&op.input)?;
    match op.mode {
        PadModeIr::Constant(value) => {
            let value = cx.builder.scalar(x.element(), literal(value));
            let low: Vec<i64> = op.padding.iter().map(|p| p.0 as i64).collect();
            let high: Vec<i64> = op.padding.iter().map(|p| p.1 as i64).collect();
            let x = cx
                .builder
                .pad(&x, &value, &low, &high, &vec![0; low.len()])?;
            cx.set(&op.out, x)
        }
        PadModeIr::Reflect | PadModeIr::Edge => {
            let reflect = op.mode == PadModeIr::Reflect;
            for (dim, (before, after)) in op.padding.iter().enumerate() {
                x = pad_from_itself(cx, &x, dim, *before, *after, reflect)?;
            }
            cx.set(&op.out, x)
        }
    }
}

/// Pads one dimension with what is at its ends: mirrored without the end itself, or the end.
fn pad_from_itself(
    cx: &mut Context,
    x: &Value,
    dim: usize,
    before: usize,
    after: usize,
    reflect: bool,
) -> Result<Value> {
    let size = x.dims()[dim];
    let needed = if reflect { before.max(after) + 1 } else { 1 };
    if (before > 0 || after > 0) && size < needed {
        return unsupported(format!(
            "dimension {dim} of size {size} is too small to be padded"
        ));
    }
    let mut joined = Vec::new();
    if before > 0 {
        let range = if reflect { 1..before + 1 } else { 0..1 };
        joined.push(edge(cx, x, dim, range, before, reflect)?);
    }
    joined.push(x.clone());
    if after > 0 {
        let range = if reflect {
            size - 1 - after..size - 1
        } else {
            size - 1..size
        };
        joined.push(edge(cx, x, dim, range, after, reflect)?);
    }
    Ok(cx.builder.concatenate(&joined, dim)?)
}

fn edge(
    cx: &mut Context,
    x: &Value,
    dim: usize,
    range: std::ops::Range<usize>,
    count: usize,
    reflect: bool,
) -> Result<Value> {
    let mut start = vec![0; x.rank()];
    let mut limit = x.dims().to_vec();
    (start[dim], limit[dim]) = (range.start, range.end);
    let part = cx.builder.slice(x, &start, &limit, &vec![1; x.rank()])?;
    if reflect {
        return Ok(cx.builder.reverse(&part, &[dim])?);
    }
    limit[dim] = count;
    let all: Vec<usize> = (0..x.rank()).collect();
    Ok(cx.builder.broadcast_in_dim(&part, &limit, &all)?)
}

/// Sliding windows along one dimension: `[.., n, ..]` becomes `[.., windows, .., size]`.
pub(super) fn unfold(cx: &mut Context, op: &UnfoldOpIr) -> Result<()> {
    let x = cx.get(&op.input)?;
    let rank = x.rank();
    let windows = op.out.shape[op.dim];
    let ty = TensorType::new([windows, op.size], ElementType::I32);
    let first = cx.builder.iota(ty.clone(), 0)?;
    let first = cx.with_number(Binary::Multiply, &first, op.step as f64)?;
    let offset = cx.builder.iota(ty, 1)?;
    let index = cx.binary(Binary::Add, &first, &offset)?;
    let mut sizes = x.dims().to_vec();
    sizes[op.dim] = 1;
    let dims = GatherDimensions {
        // The windows come where the dimension was, their elements last.
        offset_dims: (0..rank).filter(|d| *d != op.dim).collect(),
        collapsed_slice_dims: vec![op.dim],
        start_index_map: vec![op.dim],
        index_vector_dim: 2,
    };
    let x = cx.builder.gather(&x, &index, &dims, &sizes)?;
    cx.set(&op.out, x)
}
