//! Matrix products and linear layers.

use distribute_core::burn_internals::ir::{
    LinearBiasBackwardOpIr, LinearOpIr, LinearWeightBackwardOpIr, LinearXBackwardOpIr, MatmulOpIr,
};

use crate::stablehlo::{Binary, DotDimensions, Value};

use super::context::Context;
use super::error::{Result, unsupported};
use super::reduction::over;

/// `[.., m, k] x [.., k, n]`, where batch dimensions of size one are repeated.
pub(super) fn matmul(cx: &mut Context, op: &MatmulOpIr) -> Result<()> {
    let lhs = cx.get(&op.lhs)?;
    let rhs = cx.get(&op.rhs)?;
    let x = product(cx, &lhs, &rhs, &op.out.shape)?;
    cx.set(&op.out, x)
}

/// The product with dimensions `out`, which say how the batches are repeated.
pub(super) fn product(cx: &mut Context, lhs: &Value, rhs: &Value, out: &[usize]) -> Result<Value> {
    let rank = out.len();
    if rank < 2 || lhs.rank() != rank || rhs.rank() != rank {
        return unsupported("both operands need the same number of dimensions, at least two");
    }
    let batch = rank - 2;
    if rhs.dims()[..batch].iter().all(|d| *d == 1) {
        // One matrix for all batches: its batches are rows of one product.
        let dims = &rhs.dims()[batch..];
        let rhs = cx.builder.reshape(rhs, dims)?;
        let dot = DotDimensions {
            lhs_contracting: vec![rank - 1],
            rhs_contracting: vec![0],
            ..DotDimensions::default()
        };
        return Ok(cx.builder.dot_general(lhs, &rhs, &dot)?);
    }
    let spread = |cx: &mut Context, x: &Value| -> Result<Value> {
        let dims = [&out[..batch], &x.dims()[batch..]].concat();
        Ok(cx.builder.broadcast_to(x, &dims)?)
    };
    let lhs = spread(cx, lhs)?;
    let rhs = spread(cx, rhs)?;
    let dot = DotDimensions {
        lhs_batching: (0..batch).collect(),
        rhs_batching: (0..batch).collect(),
        lhs_contracting: vec![rank - 1],
        rhs_contracting: vec![rank - 2],
    };
    Ok(cx.builder.dot_general(&lhs, &rhs, &dot)?)
}

/// A product that sums over one dimension of each operand.
fn contract(cx: &mut Context, lhs: &Value, over: usize, rhs: &Value, with: usize) -> Result<Value> {
    let dot = DotDimensions {
        lhs_contracting: vec![over],
        rhs_contracting: vec![with],
        ..DotDimensions::default()
    };
    Ok(cx.builder.dot_general(lhs, rhs, &dot)?)
}

pub(super) fn linear(cx: &mut Context, op: &LinearOpIr) -> Result<()> {
    let x = cx.get(&op.x)?;
    let weight = cx.get(&op.weight)?;
    let mut y = contract(cx, &x, x.rank() - 1, &weight, 0)?;
    if let Some(bias) = &op.bias {
        let bias = cx.get(bias)?;
        let bias = cx.spread(&bias, &y, &[y.rank() - 1])?;
        y = cx.binary(Binary::Add, &y, &bias)?;
    }
    cx.set(&op.out, y)
}

pub(super) fn linear_x_backward(cx: &mut Context, op: &LinearXBackwardOpIr) -> Result<()> {
    let weight = cx.get(&op.weight)?;
    let gradient = cx.get(&op.output_grad)?;
    let x = contract(cx, &gradient, gradient.rank() - 1, &weight, 1)?;
    cx.set(&op.out, x)
}

pub(super) fn linear_weight_backward(
    cx: &mut Context,
    op: &LinearWeightBackwardOpIr,
) -> Result<()> {
    let x = cx.get(&op.x)?;
    let gradient = cx.get(&op.output_grad)?;
    let rows: Vec<usize> = (0..x.rank() - 1).collect();
    let dot = DotDimensions {
        lhs_contracting: rows.clone(),
        rhs_contracting: rows,
        ..DotDimensions::default()
    };
    let x = cx.builder.dot_general(&x, &gradient, &dot)?;
    cx.set(&op.out, x)
}

pub(super) fn linear_bias_backward(cx: &mut Context, op: &LinearBiasBackwardOpIr) -> Result<()> {
    let gradient = cx.get(&op.output_grad)?;
    let rows: Vec<usize> = (0..gradient.rank() - 1).collect();
    let x = over(cx, Binary::Add, &gradient, &rows)?;
    cx.set_reshaped(&op.out, &x)
}
