//! Reading and writing by index tensors. An index outside is an error in burn's eager backends; a
//! program cannot fail, so there a read takes the nearest element and a write is left out.

use burn::tensor::IndexingUpdateOp;
use burn_ir::{
    EmbeddingBackwardOpIr, EmbeddingOpIr, GatherNdOpIr, GatherOpIr, ScatterNdOpIr, ScatterOpIr,
    SelectAssignOpIr, SelectOpIr,
};

use crate::stablehlo::{
    Binary, ElementType, GatherDimensions, ScatterDimensions, TensorType, Update, Value,
};

use super::context::Context;
use super::error::Result;

/// Indices narrower than 64 bits, which a TPU has to emulate, if all of `dims` allow it.
fn narrow(cx: &mut Context, indices: &Value, dims: &[usize]) -> Value {
    let fits = dims.iter().all(|d| i32::try_from(*d).is_ok());
    match indices.element() {
        ElementType::I64 if fits => cx.b.convert(indices, ElementType::I32),
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

/// What is written. A NaN is neither the smaller nor the larger one, in burn; in StableHLO it is
/// both.
fn updates(cx: &mut Context, value: Value, how: Update) -> Result<Value> {
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
    Ok(cx.b.select(&nan, &never, &value)?)
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
    Ok(cx.b.gather(x, &indices, &dims, &sizes)?)
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
    let value = updates(cx, value.clone(), how)?;
    Ok(cx.b.scatter(x, &indices, &value, &dims, how)?)
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
        let part = match d == dim {
            true => indices.clone(),
            false => cx.b.iota(indices.ty().clone(), d)?,
        };
        let mut shape = indices.dims().to_vec();
        shape.push(1);
        parts.push(cx.b.reshape(&part, &shape)?);
    }
    Ok(cx.b.concatenate(&parts, indices.rank())?)
}

pub(super) fn gather(cx: &mut Context, op: &GatherOpIr) -> Result<()> {
    let x = cx.get(&op.tensor)?;
    let indices = cx.get(&op.indices)?;
    let rank = x.rank();
    let indices = coordinates(cx, &indices, op.dim, x.dims())?;
    let dims = GatherDimensions {
        offset_dims: vec![],
        collapsed_slice_dims: (0..rank).collect(),
        start_index_map: (0..rank).collect(),
        index_vector_dim: rank,
    };
    let x = cx.b.gather(&x, &indices, &dims, &vec![1; rank])?;
    cx.set(&op.out, x)
}

pub(super) fn scatter(cx: &mut Context, op: &ScatterOpIr) -> Result<()> {
    let x = cx.get(&op.tensor)?;
    let indices = cx.get(&op.indices)?;
    let value = cx.get(&op.value)?;
    let rank = x.rank();
    let indices = coordinates(cx, &indices, op.dim, x.dims())?;
    let dims = ScatterDimensions {
        update_window_dims: vec![],
        inserted_window_dims: (0..rank).collect(),
        scatter_dims_to_operand_dims: (0..rank).collect(),
        index_vector_dim: rank,
    };
    let how = update(op.update, x.element());
    let value = updates(cx, value, how)?;
    let x = cx.b.scatter(&x, &indices, &value, &dims, how)?;
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
    let x = cx.b.gather(&x, &indices, &dims, &sizes)?;
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
    let value = updates(cx, value, how)?;
    let x = cx.b.scatter(&x, &indices, &value, &dims, how)?;
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
    let indices = cx.b.reshape(&indices, &[count])?;
    let gradient = cx.b.reshape(&gradient, &[count, width])?;
    let ty = TensorType::new(op.out.shape.to_vec(), gradient.element());
    let zeros = cx.b.splat(ty.dims(), ty.element(), 0i64);
    let how = Update::Combine(Binary::Add);
    let x = put(cx, &zeros, &indices, &gradient, 0, how)?;
    cx.set(&op.out, x)
}
