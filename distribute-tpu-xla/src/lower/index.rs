//! Reading and writing by index tensors. An index outside is an error in burn's eager backends; a
//! program cannot fail, so there a read takes the nearest element and a write is left out.

use burn::tensor::IndexingUpdateOp;
use distribute_core::burn_internals::ir::{
    EmbeddingBackwardOpIr, EmbeddingOpIr, GatherNdOpIr, GatherOpIr, ScatterNdOpIr, ScatterOpIr,
    SelectAssignOpIr, SelectOpIr,
};

use crate::stablehlo::{
    Binary, Comparison, ElementType, GatherDimensions, ScatterDimensions, TensorType, Update, Value,
};

use super::context::Context;
use super::error::Result;
use super::options::Target;

/// Indices narrower than 64 bits, which a TPU has to emulate, if all of `dims` allow it.
fn narrow(cx: &mut Context, indices: &Value, dims: &[usize]) -> Value {
    let fits = dims.iter().all(|d| i32::try_from(*d).is_ok());
    match indices.element() {
        ElementType::I64 if fits => cx.builder.convert(indices, ElementType::I32),
        _ => indices.clone(),
    }
}

fn update(op: IndexingUpdateOp, element: ElementType) -> Update {
    match op {
        IndexingUpdateOp::Assign => Update::Assign,
        // Truth values are joined.
        IndexingUpdateOp::Add if element == ElementType::I1 => Update::Combine(Binary::Or),
        IndexingUpdateOp::Add => Update::Combine(Binary::Add),
        IndexingUpdateOp::Mul => Update::Combine(Binary::Multiply),
        IndexingUpdateOp::Min => Update::Combine(Binary::Minimum),
        IndexingUpdateOp::Max => Update::Combine(Binary::Maximum),
    }
}

/// Replaces a NaN by a value that never wins: in burn a NaN is neither the smaller nor the
/// larger one; in StableHLO it is both.
fn neutralize_nan(cx: &mut Context, value: Value, how: Update) -> Result<Value> {
    let never = match how {
        Update::Combine(Binary::Minimum) => f64::INFINITY,
        Update::Combine(Binary::Maximum) => f64::NEG_INFINITY,
        _ => return Ok(value),
    };
    if !value.element().is_float() {
        return Ok(value);
    }
    let never = cx.number_like(never, &value);
    let nan = cx.is_nan(&value)?;
    Ok(cx.builder.select(&nan, &never, &value)?)
}

/// Whole slices of `x` along `dim`; the indices' dimensions come in its place.
fn take(cx: &mut Context, x: &Value, indices: &Value, dim: usize) -> Result<Value> {
    let indices = narrow(cx, indices, x.dims());
    let mut sizes = x.dims().to_vec();
    sizes[dim] = 1;
    let rank = x.rank() - 1 + indices.rank();
    let dims = GatherDimensions {
        offset_dims: (0..rank)
            .filter(|d| !(dim..dim + indices.rank()).contains(d))
            .collect(),
        collapsed_slice_dims: vec![dim],
        start_index_map: vec![dim],
        index_vector_dim: indices.rank(),
    };
    Ok(cx.builder.gather(x, &indices, &dims, &sizes)?)
}

/// Whole slices along `dim` written to `x`; `indices` has one dimension.
fn put(
    cx: &mut Context,
    x: &Value,
    indices: &Value,
    value: &Value,
    dim: usize,
    how: Update,
) -> Result<Value> {
    let indices = narrow(cx, indices, x.dims());
    let dims = ScatterDimensions {
        update_window_dims: (0..x.rank()).filter(|d| *d != dim).collect(),
        inserted_window_dims: vec![dim],
        scatter_dims_to_operand_dims: vec![dim],
        index_vector_dim: 1,
    };
    let value = neutralize_nan(cx, value.clone(), how)?;
    Ok(cx.builder.scatter(x, &indices, &value, &dims, how)?)
}

pub(super) fn select(cx: &mut Context, op: &SelectOpIr) -> Result<()> {
    let x = cx.get(&op.tensor)?;
    let indices = cx.get(&op.indices)?;
    let x = take(cx, &x, &indices, op.dim)?;
    cx.set(&op.out, x)
}

pub(super) fn select_assign(cx: &mut Context, op: &SelectAssignOpIr) -> Result<()> {
    let x = cx.get(&op.tensor)?;
    let indices = cx.get(&op.indices)?;
    let value = cx.get(&op.value)?;
    let how = update(op.update, x.element());
    let x = put(cx, &x, &indices, &value, op.dim, how)?;
    cx.set(&op.out, x)
}

/// For each element of `indices` its own coordinates, with the index itself in place of
/// coordinate `dim`: `[.., rank]`.
fn coordinates(cx: &mut Context, indices: &Value, dim: usize, dims: &[usize]) -> Result<Value> {
    let indices = narrow(cx, indices, dims);
    let mut parts = Vec::with_capacity(indices.rank());
    for d in 0..indices.rank() {
        let part = if d == dim {
            indices.clone()
        } else {
            cx.builder.iota(indices.ty().clone(), d)?
        };
        let mut shape = indices.dims().to_vec();
        shape.push(1);
        parts.push(cx.builder.reshape(&part, &shape)?);
    }
    Ok(cx.builder.concatenate(&parts, indices.rank())?)
}

/// Whether `indices` name one element of `x` in each row along `dim`, and a TPU chooses it by
/// comparing: it reads and writes single elements one after the other, and each of these is an
/// operation of its own, while comparing is part of what makes the rows or uses them.
fn one_in_each_row(cx: &Context, x: &Value, indices: &Value, dim: usize) -> bool {
    let mut rows = x.dims().to_vec();
    cx.target == Target::Tpu
        && x.rank() > 1
        && x.element() != ElementType::I1
        && std::mem::replace(&mut rows[dim], 1) > 0
        && indices.dims() == &rows[..]
}

/// A mask of the shape of `x`: the element that the index of each row names, if any.
fn named_elements(cx: &mut Context, x: &Value, indices: &Value, dim: usize) -> Result<Value> {
    let indices = cx.builder.broadcast_to(indices, x.dims())?;
    let positions = cx.builder.iota(indices.ty().clone(), dim)?;
    Ok(cx.builder.compare(Comparison::Eq, &positions, &indices)?)
}

/// Indices that hold every position of a row of this size.
fn wide_enough(cx: &mut Context, indices: &Value, size: usize) -> Value {
    match indices.element() {
        ElementType::I8 | ElementType::I16 | ElementType::U8 | ElementType::U16 => {
            cx.builder.convert(indices, ElementType::I32)
        }
        _ => narrow(cx, indices, &[size]),
    }
}

/// The element of each row that `indices` name, or the nearest one.
fn chosen(cx: &mut Context, x: &Value, indices: &Value, dim: usize) -> Result<Value> {
    let size = x.dims()[dim];
    let at = wide_enough(cx, indices, size);
    let (first, last) = (
        cx.number_like(0.0, &at),
        cx.number_like((size - 1) as f64, &at),
    );
    let at = cx.builder.clamp(&first, &at, &last)?;
    let named = named_elements(cx, x, &at, dim)?;
    // Every number, -0 too, is the sum of itself and of any number of -0.
    let nothing = if x.element().is_float() { -0.0 } else { 0.0 };
    let nothing = cx.builder.scalar(x.element(), nothing);
    let nothings = cx.builder.broadcast_in_dim(&nothing, x.dims(), &[])?;
    let kept = cx.builder.select(&named, x, &nothings)?;
    let sum = cx
        .builder
        .reduce_with(Binary::Add, &kept, &nothing, &[dim])?;
    Ok(cx.builder.reshape(&sum, indices.dims())?)
}

/// `x` with `value` added to the element of each row that `indices` name, if there is such a one.
fn added(cx: &mut Context, x: &Value, indices: &Value, value: &Value, dim: usize) -> Result<Value> {
    let at = wide_enough(cx, indices, x.dims()[dim]);
    let named = named_elements(cx, x, &at, dim)?;
    let value = cx.builder.broadcast_to(value, x.dims())?;
    let sum = cx.binary(Binary::Add, x, &value)?;
    Ok(cx.builder.select(&named, &sum, x)?)
}

pub(super) fn gather(cx: &mut Context, op: &GatherOpIr) -> Result<()> {
    let x = cx.get(&op.tensor)?;
    let indices = cx.get(&op.indices)?;
    if one_in_each_row(cx, &x, &indices, op.dim) {
        let x = chosen(cx, &x, &indices, op.dim)?;
        return cx.set(&op.out, x);
    }
    let rank = x.rank();
    let indices = coordinates(cx, &indices, op.dim, x.dims())?;
    let dims = GatherDimensions {
        offset_dims: vec![],
        collapsed_slice_dims: (0..rank).collect(),
        start_index_map: (0..rank).collect(),
        index_vector_dim: rank,
    };
    let x = cx.builder.gather(&x, &indices, &dims, &vec![1; rank])?;
    cx.set(&op.out, x)
}

pub(super) fn scatter(cx: &mut Context, op: &ScatterOpIr) -> Result<()> {
    let x = cx.get(&op.tensor)?;
    let indices = cx.get(&op.indices)?;
    let value = cx.get(&op.value)?;
    let adds = update(op.update, x.element()) == Update::Combine(Binary::Add);
    if adds && one_in_each_row(cx, &x, &indices, op.dim) {
        let x = added(cx, &x, &indices, &value, op.dim)?;
        return cx.set(&op.out, x);
    }
    let rank = x.rank();
    let indices = coordinates(cx, &indices, op.dim, x.dims())?;
    let dims = ScatterDimensions {
        update_window_dims: vec![],
        inserted_window_dims: (0..rank).collect(),
        scatter_dims_to_operand_dims: (0..rank).collect(),
        index_vector_dim: rank,
    };
    let how = update(op.update, x.element());
    let value = neutralize_nan(cx, value, how)?;
    let x = cx.builder.scatter(&x, &indices, &value, &dims, how)?;
    cx.set(&op.out, x)
}

pub(super) fn gather_nd(cx: &mut Context, op: &GatherNdOpIr) -> Result<()> {
    let x = cx.get(&op.data)?;
    let indices = cx.get(&op.indices)?;
    let indices = narrow(cx, &indices, x.dims());
    let batch = indices.rank().saturating_sub(1);
    let depth = indices.dims().last().copied().unwrap_or(0);
    let mut sizes = x.dims().to_vec();
    sizes[..depth].fill(1);
    let dims = GatherDimensions {
        offset_dims: (batch..batch + x.rank() - depth).collect(),
        collapsed_slice_dims: (0..depth).collect(),
        start_index_map: (0..depth).collect(),
        index_vector_dim: batch,
    };
    let x = cx.builder.gather(&x, &indices, &dims, &sizes)?;
    cx.set(&op.out, x)
}

pub(super) fn scatter_nd(cx: &mut Context, op: &ScatterNdOpIr) -> Result<()> {
    let x = cx.get(&op.data)?;
    let indices = cx.get(&op.indices)?;
    let value = cx.get(&op.values)?;
    let indices = narrow(cx, &indices, x.dims());
    let batch = indices.rank().saturating_sub(1);
    let depth = indices.dims().last().copied().unwrap_or(0);
    let dims = ScatterDimensions {
        update_window_dims: (batch..value.rank()).collect(),
        inserted_window_dims: (0..depth).collect(),
        scatter_dims_to_operand_dims: (0..depth).collect(),
        index_vector_dim: batch,
    };
    let how = update(op.reduction, x.element());
    let value = neutralize_nan(cx, value, how)?;
    let x = cx.builder.scatter(&x, &indices, &value, &dims, how)?;
    cx.set(&op.out, x)
}

pub(super) fn embedding(cx: &mut Context, op: &EmbeddingOpIr) -> Result<()> {
    let weights = cx.get(&op.weights)?;
    let indices = cx.get(&op.indices)?;
    let x = take(cx, &weights, &indices, 0)?;
    cx.set(&op.out, x)
}

pub(super) fn embedding_backward(cx: &mut Context, op: &EmbeddingBackwardOpIr) -> Result<()> {
    let gradient = cx.get(&op.out_grad)?;
    let indices = cx.get(&op.indices)?;
    let count = indices.ty().num_elements();
    let width = op.out.shape[1];
    let indices = cx.builder.reshape(&indices, &[count])?;
    let gradient = cx.builder.reshape(&gradient, &[count, width])?;
    let ty = TensorType::new(op.out.shape.to_vec(), gradient.element());
    let zeros = cx.builder.splat(ty.dims(), ty.element(), 0i64);
    let how = Update::Combine(Binary::Add);
    let x = put(cx, &zeros, &indices, &gradient, 0, how)?;
    cx.set(&op.out, x)
}
