//! The windows of pooling operations, and the largest elements in them.

use distribute_core::burn_internals::ir::{TensorId, TensorIr};

use crate::stablehlo::{
    Binary, Builder, Comparison, ElementType, TensorType, Unary, Value, Window,
};

use super::error::Result;
use super::types::element_type;

/// A window over the spatial dimensions of `[batch, channels, ..]`.
#[derive(Clone, PartialEq)]
pub(super) struct Pool {
    pub(super) kernel: Vec<usize>,
    pub(super) stride: Vec<usize>,
    pub(super) padding: Vec<usize>,
    pub(super) dilation: Vec<usize>,
}

impl Pool {
    /// The extent of the window along a dimension.
    fn span(&self, d: usize) -> usize {
        (self.kernel[d] - 1) * self.dilation[d] + 1
    }

    /// Zeros or less after `input` elements so that exactly `output` windows fit, which is how
    /// both rounding modes come out.
    fn padding_after(&self, d: usize, input: usize, output: usize) -> i64 {
        let needed = output.saturating_sub(1) * self.stride[d] + self.span(d);
        needed as i64 - (input + self.padding[d]) as i64
    }

    /// The window for `x` and `output` windows along each spatial dimension; what no window
    /// touches is cut off `x`.
    pub(super) fn window(
        &self,
        builder: &mut Builder,
        x: &Value,
        output: &[usize],
    ) -> Result<(Value, Window)> {
        let mut window = Window::identity(x.rank());
        let mut limit = x.dims().to_vec();
        for d in 0..self.kernel.len() {
            let after = self.padding_after(d, x.dims()[d + 2], output[d]);
            window.size[d + 2] = self.kernel[d];
            window.strides[d + 2] = self.stride[d];
            window.dilations[d + 2] = self.dilation[d];
            window.padding[d + 2] = (self.padding[d] as i64, after.max(0));
            limit[d + 2] = (limit[d + 2] as i64 + after.min(0)).max(0) as usize;
        }
        let x = builder.slice(x, &vec![0; x.rank()], &limit, &vec![1; x.rank()])?;
        Ok((x, window))
    }
}

/// A pooling whose positions of largest elements have not been needed yet.
#[derive(Clone)]
pub(super) struct Pooled {
    pub(super) pool: Pool,
    /// The input in the graph and in the program.
    pub(super) input: TensorId,
    pub(super) x: Value,
    pub(super) positions: TensorIr,
}

impl Pooled {
    /// The positions, for other uses than the gradient of the same pooling.
    pub(super) fn positions(&self, builder: &mut Builder) -> Result<Value> {
        let windows = &self.positions.shape[2..];
        let [_, positions] = largest_with_positions(builder, &self.x, windows, &self.pool)?;
        Ok(builder.convert(&positions, element_type(self.positions.dtype)?))
    }
}

/// The largest element of each window; NaN where there is one.
pub(super) fn largest(
    builder: &mut Builder,
    x: &Value,
    windows: &[usize],
    pool: &Pool,
) -> Result<Value> {
    let (x, window) = pool.window(builder, x, windows)?;
    let lowest = builder.scalar(x.element(), f64::NEG_INFINITY);
    let mut results = builder.reduce_window(&[&x], &[&lowest], &window, |b, acc, next| {
        Ok(vec![b.binary(Binary::Maximum, &acc[0], &next[0])?])
    })?;
    Ok(results.swap_remove(0))
}

/// For each element its position in its plane, row by row, as `ui32`.
fn plane_positions(builder: &mut Builder, dims: &[usize]) -> Result<Value> {
    let plane: usize = dims[2..].iter().product();
    let ty = TensorType::new([plane], ElementType::U32);
    let positions = builder.iota(ty, 0)?;
    let positions = builder.reshape(&positions, &dims[2..])?;
    let kept: Vec<usize> = (2..dims.len()).collect();
    Ok(builder.broadcast_in_dim(&positions, dims, &kept)?)
}

/// The largest element of each window and its position in the plane as `i32`: of equals the first,
/// of NaNs the last; -1 where a window sees nothing but padding.
pub(super) fn largest_with_positions(
    builder: &mut Builder,
    x: &Value,
    windows: &[usize],
    pool: &Pool,
) -> Result<[Value; 2]> {
    let positions = plane_positions(builder, x.dims())?;
    let (positions, _) = pool.window(builder, &positions, windows)?;
    let (x, window) = pool.window(builder, x, windows)?;
    let lowest = builder.scalar(x.element(), f64::NEG_INFINITY);
    // The largest unsigned position loses against every other, and is -1 as a signed one.
    let nowhere = builder.scalar(ElementType::U32, -1i64);
    let operands = [&x, &positions];
    let results =
        builder.reduce_window(&operands, &[&lowest, &nowhere], &window, |b, acc, next| {
            let nan = b.compare(Comparison::Ne, &next[0], &next[0])?;
            let nan_before = b.compare(Comparison::Ne, &acc[0], &acc[0])?;
            let number_before = b.unary(Unary::Not, &nan_before)?;
            let larger = b.compare(Comparison::Gt, &next[0], &acc[0])?;
            let equal = b.compare(Comparison::Eq, &next[0], &acc[0])?;
            let earlier = b.compare(Comparison::Lt, &next[1], &acc[1])?;
            let later = b.compare(Comparison::Gt, &next[1], &acc[1])?;
            let equal = b.binary(Binary::And, &equal, &earlier)?;
            let nan_wins = b.binary(Binary::Or, &number_before, &later)?;
            let nan_wins = b.binary(Binary::And, &nan, &nan_wins)?;
            let take = b.binary(Binary::Or, &larger, &equal)?;
            let take = b.binary(Binary::Or, &take, &nan_wins)?;
            let value = b.select(&take, &next[0], &acc[0])?;
            Ok(vec![value, b.select(&take, &next[1], &acc[1])?])
        })?;
    let signed = builder.bitcast_convert(&results[1], ElementType::I32)?;
    Ok([results[0].clone(), signed])
}
