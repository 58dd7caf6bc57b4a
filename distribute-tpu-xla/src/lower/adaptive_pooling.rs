//! Averages over windows that divide the input as evenly as possible: window `i` of `n` along a
//! dimension of size `s` reaches from `floor(i s / n)` to `ceil((i + 1) s / n)`.

use distribute_core::burn_internals::ir::{
    AdaptiveAvgPool1dBackwardOpIr, AdaptiveAvgPool1dOpIr, AdaptiveAvgPool2dBackwardOpIr,
    AdaptiveAvgPool2dOpIr, AdaptiveAvgPool3dBackwardOpIr, AdaptiveAvgPool3dOpIr, TensorIr,
};

use crate::stablehlo::{Binary, DotDimensions, ElementType, TensorType, Value};

use super::context::Context;
use super::error::Result;

/// First and last-plus-one element of a window.
fn bounds(window: usize, windows: usize, size: usize) -> (usize, usize) {
    (
        window * size / windows,
        ((window + 1) * size).div_ceil(windows),
    )
}

/// `[windows, size]`: one over the window's length where it covers the element, else zero.
fn weights(cx: &mut Context, windows: usize, size: usize, element: ElementType) -> Result<Value> {
    let mut bytes = Vec::with_capacity(windows * size * 8);
    for window in 0..windows {
        let (start, end) = bounds(window, windows, size);
        for i in 0..size {
            let covered = (start..end).contains(&i);
            let weight = if covered {
                1.0 / (end - start) as f64
            } else {
                0.0
            };
            bytes.extend_from_slice(&f64::to_le_bytes(weight));
        }
    }
    let ty = TensorType::new([windows, size], ElementType::F64);
    let weights = cx.builder.constant(ty, &bytes)?;
    Ok(cx.builder.convert(&weights, element))
}

/// Multiplies one dimension of `x` with a matrix: dimension `over` of the matrix is summed over,
/// the other one takes its place.
fn apply(cx: &mut Context, x: &Value, dim: usize, matrix: &Value, over: usize) -> Result<Value> {
    let dot = DotDimensions {
        lhs_contracting: vec![dim],
        rhs_contracting: vec![over],
        ..DotDimensions::default()
    };
    let y = cx.builder.dot_general(x, matrix, &dot)?;
    // The new dimension is the last one.
    let last = x.rank() - 1;
    let mut order: Vec<usize> = (0..last).collect();
    order.insert(dim, last);
    Ok(cx.builder.transpose(&y, &order)?)
}

/// Where all windows have one size: their means by splitting the dimension in two.
fn even(cx: &mut Context, x: &Value, dim: usize, windows: usize) -> Result<Value> {
    let mut dims = x.dims().to_vec();
    let size = dims[dim] / windows;
    dims[dim] = windows;
    dims.insert(dim + 1, size);
    let split = cx.builder.reshape(x, &dims)?;
    super::reduction::mean_over(cx, &split, &[dim + 1])
}

fn even_backward(cx: &mut Context, y: &Value, dim: usize, size: usize) -> Result<Value> {
    let windows = y.dims()[dim];
    let share = cx.with_number(Binary::Divide, y, (size / windows) as f64)?;
    let mut dims = y.dims().to_vec();
    dims.insert(dim + 1, size / windows);
    let mapping: Vec<usize> = (0..dims.len()).filter(|d| *d != dim + 1).collect();
    let spread = cx.builder.broadcast_in_dim(&share, &dims, &mapping)?;
    let mut joined = y.dims().to_vec();
    joined[dim] = size;
    Ok(cx.builder.reshape(&spread, &joined)?)
}

fn pool(cx: &mut Context, x: &TensorIr, out: &TensorIr) -> Result<()> {
    let x = cx.get(x)?;
    let mut x = cx.wide(&x);
    for dim in 2..x.rank() {
        let (size, windows) = (x.dims()[dim], out.shape[dim]);
        x = if windows > 0 && size.is_multiple_of(windows) {
            even(cx, &x, dim, windows)?
        } else {
            let weights = weights(cx, windows, size, x.element())?;
            apply(cx, &x, dim, &weights, 1)?
        };
    }
    cx.set_as(out, &x)
}

fn backward(cx: &mut Context, x: &TensorIr, gradient: &TensorIr, out: &TensorIr) -> Result<()> {
    let gradient = cx.get(gradient)?;
    let mut y = cx.wide(&gradient);
    for dim in 2..y.rank() {
        let (size, windows) = (x.shape[dim], y.dims()[dim]);
        y = if windows > 0 && size.is_multiple_of(windows) {
            even_backward(cx, &y, dim, size)?
        } else {
            let weights = weights(cx, windows, size, y.element())?;
            apply(cx, &y, dim, &weights, 0)?
        };
    }
    cx.set_as(out, &y)
}

/// The functions for one number of spatial dimensions.
macro_rules! adaptive {
    ($($pool:ident($op:ty), $back:ident($back_op:ty);)*) => {
        $(pub(super) fn $pool(cx: &mut Context, op: &$op) -> Result<()> {
            pool(cx, &op.x, &op.out)
        }

        pub(super) fn $back(cx: &mut Context, op: &$back_op) -> Result<()> {
            backward(cx, &op.x, &op.grad, &op.out)
        })*
    };
}

adaptive! {
    adaptive_avg_pool1d(AdaptiveAvgPool1dOpIr),
        adaptive_avg_pool1d_backward(AdaptiveAvgPool1dBackwardOpIr);
    adaptive_avg_pool2d(AdaptiveAvgPool2dOpIr),
        adaptive_avg_pool2d_backward(AdaptiveAvgPool2dBackwardOpIr);
    adaptive_avg_pool3d(AdaptiveAvgPool3dOpIr),
        adaptive_avg_pool3d_backward(AdaptiveAvgPool3dBackwardOpIr);
}
