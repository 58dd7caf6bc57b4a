//! Sums, means, products, extremes and where they are; over everything, some or one dimension.

use distribute_core::burn_internals::ir::{
    DimOpIr, ReduceDimOpIr, ReduceDimWithIndicesOpIr, ReduceDimsOpIr, ReduceOpIr, TensorIr,
};

use crate::stablehlo::{Binary, Comparison, ElementType, Scalar, TensorType, Unary, Value, Window};

use super::context::Context;
use super::error::Result;
use super::types::element_type;

/// The result of an empty reduction of this kind.
fn neutral(cx: &mut Context, op: Binary, element: ElementType) -> Value {
    let bits = element.size_in_bytes() as u32 * 8;
    let value = match (op, element.is_float()) {
        (Binary::Maximum, true) => Scalar::Float(f64::NEG_INFINITY),
        (Binary::Minimum, true) => Scalar::Float(f64::INFINITY),
        (Binary::Maximum, false) if element.is_signed() => Scalar::Int(-1i64 << (bits - 1)),
        (Binary::Minimum, false) if element.is_signed() => Scalar::UInt(u64::MAX >> (65 - bits)),
        (Binary::Minimum, false) => Scalar::UInt(u64::MAX),
        (Binary::And, _) => Scalar::Bool(true),
        (Binary::Multiply, _) => Scalar::Int(1),
        _ => Scalar::Int(0),
    };
    cx.builder.scalar(element, value)
}

/// Reduces `axes` of `x`, which the result does not have. Half floats are summed as f32.
pub(super) fn over(cx: &mut Context, op: Binary, x: &Value, axes: &[usize]) -> Result<Value> {
    let wide = match op {
        Binary::Add | Binary::Multiply => cx.wide(x),
        _ => x.clone(),
    };
    let initial = neutral(cx, op, wide.element());
    let reduced = cx.builder.reduce_with(op, &wide, &initial, axes)?;
    Ok(cx.builder.convert(&reduced, x.element()))
}

/// The mean over `axes`. Integers are divided towards zero.
pub(super) fn mean_over(cx: &mut Context, x: &Value, axes: &[usize]) -> Result<Value> {
    let count: usize = axes.iter().map(|d| x.dims()[*d]).product();
    let wide = cx.wide(x);
    let sum = over(cx, Binary::Add, &wide, axes)?;
    // The count may be larger than what eight bits hold.
    let sum = match sum.element() {
        ElementType::I8 | ElementType::I16 => cx.builder.convert(&sum, ElementType::I32),
        ElementType::U8 | ElementType::U16 => cx.builder.convert(&sum, ElementType::U32),
        _ => sum,
    };
    let mean = cx.with_number(Binary::Divide, &sum, count as f64)?;
    Ok(cx.builder.convert(&mean, x.element()))
}

fn all_axes(x: &Value) -> Vec<usize> {
    (0..x.rank()).collect()
}

fn whole(cx: &mut Context, op: &ReduceOpIr, how: Binary) -> Result<()> {
    let x = cx.in_any_dims(&op.input)?;
    let axes = all_axes(&x);
    let x = over(cx, how, &x, &axes)?;
    cx.set_reshaped(&op.out, &x)
}

fn dim(cx: &mut Context, op: &ReduceDimOpIr, how: Binary) -> Result<()> {
    let x = cx.get(&op.input)?;
    let x = over(cx, how, &x, &[op.axis])?;
    cx.set_reshaped(&op.out, &x)
}

pub(super) fn sum(cx: &mut Context, op: &ReduceOpIr) -> Result<()> {
    whole(cx, op, Binary::Add)
}

pub(super) fn sum_dim(cx: &mut Context, op: &ReduceDimOpIr) -> Result<()> {
    dim(cx, op, Binary::Add)
}

pub(super) fn sum_dims(cx: &mut Context, op: &ReduceDimsOpIr) -> Result<()> {
    let x = cx.get(&op.input)?;
    let x = over(cx, Binary::Add, &x, &op.axes)?;
    cx.set_reshaped(&op.out, &x)
}

pub(super) fn prod(cx: &mut Context, op: &ReduceOpIr) -> Result<()> {
    whole(cx, op, Binary::Multiply)
}

pub(super) fn prod_dim(cx: &mut Context, op: &ReduceDimOpIr) -> Result<()> {
    dim(cx, op, Binary::Multiply)
}

pub(super) fn max(cx: &mut Context, op: &ReduceOpIr) -> Result<()> {
    whole(cx, op, Binary::Maximum)
}

pub(super) fn max_dim(cx: &mut Context, op: &ReduceDimOpIr) -> Result<()> {
    dim(cx, op, Binary::Maximum)
}

pub(super) fn min(cx: &mut Context, op: &ReduceOpIr) -> Result<()> {
    whole(cx, op, Binary::Minimum)
}

pub(super) fn min_dim(cx: &mut Context, op: &ReduceDimOpIr) -> Result<()> {
    dim(cx, op, Binary::Minimum)
}

pub(super) fn mean(cx: &mut Context, op: &ReduceOpIr) -> Result<()> {
    let x = cx.get(&op.input)?;
    let axes = all_axes(&x);
    let x = mean_over(cx, &x, &axes)?;
    cx.set_reshaped(&op.out, &x)
}

pub(super) fn mean_dim(cx: &mut Context, op: &ReduceDimOpIr) -> Result<()> {
    let x = cx.get(&op.input)?;
    let x = mean_over(cx, &x, &[op.axis])?;
    cx.set_reshaped(&op.out, &x)
}

fn absolute(cx: &mut Context, input: &TensorIr) -> Result<Value> {
    let x = cx.get(input)?;
    if x.element().is_unsigned() {
        Ok(x)
    } else {
        cx.unary(Unary::Abs, &x)
    }
}

pub(super) fn max_abs(cx: &mut Context, op: &ReduceOpIr) -> Result<()> {
    let x = absolute(cx, &op.input)?;
    let axes = all_axes(&x);
    let x = over(cx, Binary::Maximum, &x, &axes)?;
    cx.set_reshaped(&op.out, &x)
}

pub(super) fn max_abs_dim(cx: &mut Context, op: &ReduceDimOpIr) -> Result<()> {
    let x = absolute(cx, &op.input)?;
    let x = over(cx, Binary::Maximum, &x, &[op.axis])?;
    cx.set_reshaped(&op.out, &x)
}

/// Whether each element counts as true: everything but zero.
fn truth(cx: &mut Context, input: &TensorIr) -> Result<Value> {
    let x = cx.get(input)?;
    if x.element() == ElementType::I1 {
        return Ok(x);
    }
    let zero = cx.number_like(0.0, &x);
    Ok(cx.builder.compare(Comparison::Ne, &x, &zero)?)
}

fn logical(
    cx: &mut Context,
    input: &TensorIr,
    out: &TensorIr,
    how: Binary,
    axis: Option<usize>,
) -> Result<()> {
    let x = truth(cx, input)?;
    let axes = axis.map_or_else(|| all_axes(&x), |axis| vec![axis]);
    let x = over(cx, how, &x, &axes)?;
    cx.set_reshaped(out, &x)
}

pub(super) fn all(cx: &mut Context, op: &ReduceOpIr) -> Result<()> {
    logical(cx, &op.input, &op.out, Binary::And, None)
}

pub(super) fn any(cx: &mut Context, op: &ReduceOpIr) -> Result<()> {
    logical(cx, &op.input, &op.out, Binary::Or, None)
}

pub(super) fn all_dim(cx: &mut Context, op: &ReduceDimOpIr) -> Result<()> {
    logical(cx, &op.input, &op.out, Binary::And, Some(op.axis))
}

pub(super) fn any_dim(cx: &mut Context, op: &ReduceDimOpIr) -> Result<()> {
    logical(cx, &op.input, &op.out, Binary::Or, Some(op.axis))
}

/// The largest or smallest element along `axis` and its position (`i32`), the first one of equals.
/// NaN wins over everything, the first one of several.
fn extreme(cx: &mut Context, x: &Value, axis: usize, max: bool) -> Result<[Value; 2]> {
    let how = if max {
        Binary::Maximum
    } else {
        Binary::Minimum
    };
    let position = cx
        .builder
        .iota(x.ty().with_element(ElementType::I32), axis)?;
    let worst = neutral(cx, how, x.element());
    let last = cx.builder.scalar(ElementType::I32, i64::from(i32::MAX));
    let better = if max { Comparison::Gt } else { Comparison::Lt };
    let float = x.element().is_float();
    let results = cx.builder.reduce(
        &[x, &position],
        &[&worst, &last],
        &[axis],
        |b, acc, next| {
            let mut wins = b.compare(better, &next[0], &acc[0])?;
            let mut ties = b.compare(Comparison::Eq, &next[0], &acc[0])?;
            if float {
                let nan = b.compare(Comparison::Ne, &next[0], &next[0])?;
                let nan_before = b.compare(Comparison::Ne, &acc[0], &acc[0])?;
                let number_before = b.unary(Unary::Not, &nan_before)?;
                let first_nan = b.binary(Binary::And, &nan, &number_before)?;
                wins = b.binary(Binary::Or, &wins, &first_nan)?;
                let both = b.binary(Binary::And, &nan, &nan_before)?;
                ties = b.binary(Binary::Or, &ties, &both)?;
            }
            let earlier = b.compare(Comparison::Lt, &next[1], &acc[1])?;
            let ties = b.binary(Binary::And, &ties, &earlier)?;
            let take = b.binary(Binary::Or, &wins, &ties)?;
            let value = b.select(&take, &next[0], &acc[0])?;
            Ok(vec![value, b.select(&take, &next[1], &acc[1])?])
        },
    )?;
    let mut dims = x.dims().to_vec();
    dims[axis] = 1;
    Ok([
        cx.builder.reshape(&results[0], &dims)?,
        cx.builder.reshape(&results[1], &dims)?,
    ])
}

fn arg(cx: &mut Context, op: &ReduceDimOpIr, max: bool) -> Result<()> {
    let x = cx.get(&op.input)?;
    let [_, position] = extreme(cx, &x, op.axis, max)?;
    cx.set_as(&op.out, &position)
}

pub(super) fn argmax(cx: &mut Context, op: &ReduceDimOpIr) -> Result<()> {
    arg(cx, op, true)
}

pub(super) fn argmin(cx: &mut Context, op: &ReduceDimOpIr) -> Result<()> {
    arg(cx, op, false)
}

fn with_indices(cx: &mut Context, op: &ReduceDimWithIndicesOpIr, max: bool) -> Result<()> {
    let x = cx.get(&op.tensor)?;
    let [value, position] = extreme(cx, &x, op.dim, max)?;
    cx.set(&op.out, value)?;
    cx.set_as(&op.out_indices, &position)
}

pub(super) fn max_dim_with_indices(cx: &mut Context, op: &ReduceDimWithIndicesOpIr) -> Result<()> {
    with_indices(cx, op, true)
}

pub(super) fn min_dim_with_indices(cx: &mut Context, op: &ReduceDimWithIndicesOpIr) -> Result<()> {
    with_indices(cx, op, false)
}

/// Each element with all before it along one dimension: a window that ends at the element.
fn cumulative(cx: &mut Context, op: &DimOpIr, how: Binary) -> Result<()> {
    let x = cx.get(&op.input)?;
    let size = x.dims()[op.axis];
    if size == 0 {
        return cx.set(&op.out, x);
    }
    let wide = cx.wide(&x);
    let mut window = Window::identity(x.rank());
    window.size[op.axis] = size;
    window.padding[op.axis] = (size as i64 - 1, 0);
    let initial = neutral(cx, how, wide.element());
    let results = cx
        .builder
        .reduce_window(&[&wide], &[&initial], &window, |b, acc, next| {
            Ok(vec![b.binary(how, &acc[0], &next[0])?])
        })?;
    cx.set_as(&op.out, &results[0])
}

pub(super) fn cumsum(cx: &mut Context, op: &DimOpIr) -> Result<()> {
    cumulative(cx, op, Binary::Add)
}

pub(super) fn cumprod(cx: &mut Context, op: &DimOpIr) -> Result<()> {
    cumulative(cx, op, Binary::Multiply)
}

pub(super) fn cummax(cx: &mut Context, op: &DimOpIr) -> Result<()> {
    cumulative(cx, op, Binary::Maximum)
}

pub(super) fn cummin(cx: &mut Context, op: &DimOpIr) -> Result<()> {
    cumulative(cx, op, Binary::Minimum)
}

/// Sorted values along `dim` and where they were (`out`'s element type).
pub(super) fn sorted(
    cx: &mut Context,
    x: &Value,
    dim: usize,
    descending: bool,
    indices: Option<&TensorIr>,
) -> Result<Vec<Value>> {
    let before = if descending {
        Comparison::Gt
    } else {
        Comparison::Lt
    };
    let mut operands = vec![x.clone()];
    if let Some(out) = indices {
        let ty = TensorType::new(x.dims(), element_type(out.dtype)?);
        operands.push(cx.builder.iota(ty, dim)?);
    }
    let operands: Vec<&Value> = operands.iter().collect();
    Ok(cx.builder.sort(&operands, dim, |b, args| {
        b.compare_total_order(before, &args[0], &args[1])
    })?)
}
