//! Sorting, and the largest elements in order. Floats are ordered as by Rust's `total_cmp`.

use distribute_core::burn_internals::ir::{
    ReduceDimOpIr, SortOpIr, SortWithIndicesOpIr, TopKWithIndicesOpIr,
};

use crate::stablehlo::Value;

use super::context::Context;
use super::error::Result;
use super::reduction::sorted;

pub(super) fn sort(cx: &mut Context, op: &SortOpIr) -> Result<()> {
    let x = cx.get(&op.input)?;
    let results = sorted(cx, &x, op.dim, op.descending, None)?;
    cx.set(&op.out, results[0].clone())
}

pub(super) fn argsort(cx: &mut Context, op: &SortOpIr) -> Result<()> {
    let x = cx.get(&op.input)?;
    let results = sorted(cx, &x, op.dim, op.descending, Some(&op.out))?;
    cx.set(&op.out, results[1].clone())
}

pub(super) fn sort_with_indices(cx: &mut Context, op: &SortWithIndicesOpIr) -> Result<()> {
    let x = cx.get(&op.input)?;
    let results = sorted(cx, &x, op.dim, op.descending, Some(&op.out_indices))?;
    cx.set(&op.out, results[0].clone())?;
    cx.set(&op.out_indices, results[1].clone())
}

/// The first `count` elements along `dim`.
fn first(cx: &mut Context, x: &Value, dim: usize, count: usize) -> Result<Value> {
    let mut limit = x.dims().to_vec();
    limit[dim] = count;
    let ones = vec![1; x.rank()];
    Ok(cx.builder.slice(x, &vec![0; x.rank()], &limit, &ones)?)
}

pub(super) fn top_k(cx: &mut Context, op: &ReduceDimOpIr) -> Result<()> {
    let x = cx.get(&op.input)?;
    let results = sorted(cx, &x, op.axis, true, None)?;
    let x = first(cx, &results[0], op.axis, op.out.shape[op.axis])?;
    cx.set(&op.out, x)
}

pub(super) fn arg_top_k(cx: &mut Context, op: &ReduceDimOpIr) -> Result<()> {
    let x = cx.get(&op.input)?;
    let results = sorted(cx, &x, op.axis, true, Some(&op.out))?;
    let x = first(cx, &results[1], op.axis, op.out.shape[op.axis])?;
    cx.set(&op.out, x)
}

pub(super) fn top_k_with_indices(cx: &mut Context, op: &TopKWithIndicesOpIr) -> Result<()> {
    let x = cx.get(&op.tensor)?;
    let results = sorted(cx, &x, op.dim, true, Some(&op.out_indices))?;
    let values = first(cx, &results[0], op.dim, op.k)?;
    let indices = first(cx, &results[1], op.dim, op.k)?;
    cx.set(&op.out, values)?;
    cx.set(&op.out_indices, indices)
}
