//! `all_gather`, `broadcast` and variables as operations of a captured graph.

use burn::tensor::Slice;
use burn_backend::ops::{BoolTensorOps, FloatTensorOps, IntTensorOps};
use burn_capture::CaptureBackend;

use super::gradients::not_captured;
use super::{CapturedTensor, Trace};
use crate::{Error, Nest, ReduceOp, Result, host_reduce};

/// Concatenates all leaves of a value over the replicas: tensors by operations of the graph,
/// numbers, which are the same on every replica, right away.
pub(crate) fn all_gather(trace: &Trace, value: &mut dyn Nest, axis: i64) -> Result<()> {
    each(value, |given| match given {
        Leaf::Number(data) => {
            host_reduce::gather(vec![data; trace.num_replicas()], axis).map(Leaf::Number)
        }
        Leaf::Tensor(tensor) => {
            let spec = tensor.spec();
            let rank = spec.shape.len();
            if spec.dtype.is_bool() {
                return Err(Error::DType {
                    op: "gather",
                    dtype: spec.dtype.name().to_string(),
                });
            }
            let axis = usize::try_from(axis)
                .ok()
                .filter(|axis| *axis < rank)
                .ok_or(Error::Axis {
                    op: "gather",
                    axis,
                    rank,
                })?;
            Ok(Leaf::Tensor(trace.all_gather(tensor, axis)))
        }
    })
}

/// Gives every replica the value of replica `root`, which there is.
pub(crate) fn broadcast(trace: &Trace, value: &mut dyn Nest, root: usize) -> Result<()> {
    each(value, |given| {
        Ok(match given {
            Leaf::Number(data) => Leaf::Number(data),
            Leaf::Tensor(tensor) => Leaf::Tensor(of_replica(trace, tensor, root)),
        })
    })
}

/// The value that a tensor has on one replica.
pub(crate) fn of_replica(trace: &Trace, tensor: CapturedTensor, root: usize) -> CapturedTensor {
    if trace.num_replicas() == 1 {
        return tensor;
    }
    let shape = tensor.spec().shape;
    let mut stacked = vec![1];
    stacked.extend(&shape);
    let all = trace.all_gather(reshape(tensor, &stacked), 0);
    let whole = shape.iter().map(|size| Slice::from(0..*size));
    let mut part = vec![Slice::from(root..root + 1)];
    part.extend(whole);
    let own = match all.spec().dtype {
        dtype if dtype.is_float() => CaptureBackend::float_slice(all.0, &part),
        dtype if dtype.is_bool() => CaptureBackend::bool_slice(all.0, &part),
        _ => CaptureBackend::int_slice(all.0, &part),
    };
    reshape(CapturedTensor(own), &shape)
}

fn reshape(tensor: CapturedTensor, shape: &[usize]) -> CapturedTensor {
    let shape = burn::tensor::Shape::from(shape.to_vec());
    CapturedTensor(match tensor.spec().dtype {
        dtype if dtype.is_float() => CaptureBackend::float_reshape(tensor.0, shape),
        dtype if dtype.is_bool() => CaptureBackend::bool_reshape(tensor.0, shape),
        _ => CaptureBackend::int_reshape(tensor.0, shape),
    })
}

/// The sum or the difference of two tensors of one shape and type.
pub(crate) fn combine(
    first: CapturedTensor,
    second: CapturedTensor,
    is_sum: bool,
) -> CapturedTensor {
    let is_float = first.spec().dtype.is_float();
    CapturedTensor(match (is_float, is_sum) {
        (true, true) => CaptureBackend::float_add(first.0, second.0),
        (true, false) => CaptureBackend::float_sub(first.0, second.0),
        (false, true) => CaptureBackend::int_add(first.0, second.0),
        (false, false) => CaptureBackend::int_sub(first.0, second.0),
    })
}

/// A reduction of one tensor over all replicas.
pub(crate) fn reduce(
    trace: &Trace,
    op: ReduceOp,
    tensor: CapturedTensor,
) -> Result<CapturedTensor> {
    let mut reduced = trace.all_reduce(op, vec![tensor])?;
    Ok(reduced.swap_remove(0))
}

enum Leaf {
    Tensor(CapturedTensor),
    Number(burn::tensor::TensorData),
}

/// Replaces every leaf of a value.
fn each(value: &mut dyn Nest, mut change: impl FnMut(Leaf) -> Result<Leaf>) -> Result<()> {
    value.walk(&mut |leaf| {
        if let Some(tensor) = leaf.traced() {
            let captured = tensor.captured().ok_or_else(not_captured)?;
            if let Leaf::Tensor(new) = change(Leaf::Tensor(captured))? {
                tensor.bind_result(new);
            }
            return Ok(());
        }
        let number = leaf.take()?;
        match change(Leaf::Number(number))? {
            Leaf::Number(new) => leaf.put(new),
            Leaf::Tensor(_) => Ok(()),
        }
    })
}
