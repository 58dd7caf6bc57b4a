//! Cross-replica calls and variables as operations of a captured graph.

use crate::burn_internals::backend::ops::{BoolTensorOps, FloatTensorOps, IntTensorOps};
use crate::burn_internals::capture::CaptureBackend;
use burn::tensor::{Slice, TensorData};

use super::{CapturedTensor, Trace};
use crate::{Error, Leaf, Nest, NestPath, Result};

/// The value that a tensor has on one replica.
pub(crate) fn of_replica(trace: &Trace, tensor: CapturedTensor, root: usize) -> CapturedTensor {
    if trace.num_replicas() == 1 {
        return tensor;
    }
    let shape = tensor.spec().shape;
    let stacked = [&[1][..], &shape[..]].concat();
    let all = trace.all_gather(tensor.reshaped(&stacked), 0);
    let mut part = vec![Slice::from(root..root + 1)];
    part.extend(shape.iter().map(|size| Slice::from(0..*size)));
    let own = match all.spec().dtype {
        dtype if dtype.is_float() => CaptureBackend::float_slice(all.0, &part),
        dtype if dtype.is_bool() => CaptureBackend::bool_slice(all.0, &part),
        _ => CaptureBackend::int_slice(all.0, &part),
    };
    CapturedTensor(own).reshaped(&shape)
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

/// Replaces the tensors of a value, all at once, and its numbers, which are the same on every
/// replica, right away.
pub(crate) fn each(
    value: &mut dyn Nest,
    number: impl Fn(TensorData) -> Result<TensorData>,
    tensors: impl FnOnce(Vec<CapturedTensor>) -> Result<Vec<CapturedTensor>>,
) -> Result<()> {
    let mut captured = Vec::new();
    value.walk(&NestPath::ROOT, &mut |path, leaf| {
        let mut replace = |leaf: &mut dyn Leaf| {
            if let Some(tensor) = leaf.tensor() {
                captured.push(tensor.captured().ok_or_else(not_captured)?);
                return Ok(());
            }
            let data = leaf.take()?;
            leaf.put(number(data)?)
        };
        replace(leaf).map_err(|error| error.at(path))
    })?;
    let mut replaced = tensors(captured)?.into_iter();
    value.walk(&NestPath::ROOT, &mut |_, leaf| {
        if let Some(tensor) = leaf.tensor()
            && let Some(replaced) = replaced.next()
        {
            // The step has computed it without a gradient.
            tensor.bind(replaced, tensor.tracking().without_gradient());
        }
        Ok(())
    })
}

pub(crate) fn not_captured() -> Error {
    let instead = "compute it from the step's arguments, on `ctx.device()`";
    Error::not_compilable("`all_reduce` of a tensor of the CPU", instead)
}
