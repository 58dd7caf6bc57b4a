//! A tensor of a golden file, of any rank and kind, as an argument of a step: a compiled step takes
//! tensors and no values in host memory, and one that it only captured would keep the value of the
//! first call.

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use distribute_core::{Nest, ReduceOp, ReplicaContext};
use serde_json::Value;

use crate::outcome::Failure;
use crate::tensors::{number, reshaped, tensor};

type CoreResult<T> = distribute_core::Result<T>;

/// A tensor of any rank and kind: its elements as rows along its first axis, and its shape.
#[derive(Debug, Clone, Nest)]
pub(crate) struct DynamicTensor {
    elements: Elements,
    shape: Vec<usize>,
}

#[derive(Debug, Clone, Nest)]
enum Elements {
    Float(Tensor<2>),
    Int(Tensor<2, Int>),
    Bool(Tensor<2, Bool>),
    /// A bare number: not a tensor.
    Number(f64),
}

/// The extent of the first axis, and the elements of each of its rows. The first axis is kept
/// because it counts the examples of a batch.
fn rows(shape: &[usize]) -> [usize; 2] {
    let (first, others) = shape.split_first().unwrap_or((&1, &[]));
    [*first, others.iter().product()]
}

/// What a step has computed.
impl<const D: usize> From<Tensor<D>> for DynamicTensor {
    fn from(tensor: Tensor<D>) -> Self {
        let shape = tensor.dims().to_vec();
        let elements = Elements::Float(tensor.reshape(rows(&shape)));
        Self { elements, shape }
    }
}

impl<const D: usize> From<Tensor<D, Int>> for DynamicTensor {
    fn from(tensor: Tensor<D, Int>) -> Self {
        let shape = tensor.dims().to_vec();
        let elements = Elements::Int(tensor.reshape(rows(&shape)));
        Self { elements, shape }
    }
}

/// Calls `$body` with `$tensor` as a tensor of the rank and kind that the given one has.
macro_rules! with_tensor {
    ($given:expr, $tensor:ident => $body:expr) => {
        with_tensor!(@ $given, $tensor, $body; 1, 2, 3, 4, 5, 6)
    };
    (@ $given:expr, $tensor:ident, $body:expr; $($rank:literal),*) => {
        match ($given.rank(), $given.is_int()) {
            $(
                ($rank, false) => { let $tensor = $given.float::<$rank>()?; $body }
                ($rank, true) => { let $tensor = $given.int::<$rank>()?; $body }
            )*
            (rank, _) => {
                let what = format!("a tensor of rank {rank}");
                return Err($crate::outcome::Failure::schema(what).into());
            }
        }
    };
}
pub(crate) use with_tensor;

impl DynamicTensor {
    /// A tensor of the file on a device; a bare number stays one.
    pub(crate) fn new(value: &Value, device: &Device) -> Result<Self, Failure> {
        if value.is_number() {
            return Ok(Self {
                elements: Elements::Number(number(value)?),
                shape: Vec::new(),
            });
        }
        Ok(Self::of(&tensor(value)?, device))
    }

    /// Data from host memory on a device.
    pub(crate) fn of(data: &TensorData, device: &Device) -> Self {
        let (shape, dtype) = (data.shape().to_vec(), data.dtype());
        let row = reshaped(data, &rows(&shape));
        let options = (device, dtype);
        let elements = if dtype.is_float() {
            Elements::Float(Tensor::from_data(row, options))
        } else if dtype.is_bool() {
            Elements::Bool(Tensor::from_data(row, options))
        } else {
            Elements::Int(Tensor::from_data(row, options))
        };
        Self { elements, shape }
    }

    /// The number of axes; burn's smallest tensor has one.
    pub(crate) fn rank(&self) -> usize {
        self.shape.len().max(1)
    }

    /// The bare number, if it is one.
    pub(crate) fn number(&self) -> Option<f64> {
        match &self.elements {
            Elements::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// Whether the elements are integers.
    pub(crate) fn is_int(&self) -> bool {
        matches!(self.elements, Elements::Int(_))
    }

    fn axes<const D: usize>(&self) -> Result<[usize; D], Failure> {
        let shape = if self.shape.is_empty() {
            vec![1]
        } else {
            self.shape.clone()
        };
        let rank = shape.len();
        let wrong = |_| Failure::schema(format!("a tensor of rank {rank} in place of {D}"));
        shape.try_into().map_err(wrong)
    }

    /// A float tensor of this rank.
    pub(crate) fn float<const D: usize>(&self) -> Result<Tensor<D>, Failure> {
        match &self.elements {
            Elements::Float(row) => Ok(row.clone().reshape(self.axes::<D>()?)),
            other => Err(Failure::schema(format!("{other:?} in place of floats"))),
        }
    }

    /// An integer tensor of this rank.
    pub(crate) fn int<const D: usize>(&self) -> Result<Tensor<D, Int>, Failure> {
        match &self.elements {
            Elements::Int(row) => Ok(row.clone().reshape(self.axes::<D>()?)),
            other => Err(Failure::schema(format!("{other:?} in place of integers"))),
        }
    }

    /// The sum or mean over the replicas.
    pub(crate) fn all_reduce(self, ctx: &ReplicaContext, op: ReduceOp) -> CoreResult<Self> {
        let elements = match self.elements {
            Elements::Float(row) => Elements::Float(ctx.all_reduce(op, row)?),
            Elements::Int(row) => Elements::Int(ctx.all_reduce(op, row)?),
            Elements::Bool(row) => Elements::Bool(ctx.all_reduce(op, row)?),
            Elements::Number(number) => Elements::Number(ctx.all_reduce(op, number)?),
        };
        Ok(Self { elements, ..self })
    }

    /// The value of one replica, on all of them.
    pub(crate) fn broadcast(self, ctx: &ReplicaContext, root: usize) -> CoreResult<Self> {
        let elements = match self.elements {
            Elements::Float(row) => Elements::Float(ctx.broadcast(root, row)?),
            Elements::Int(row) => Elements::Int(ctx.broadcast(root, row)?),
            Elements::Bool(row) => Elements::Bool(ctx.broadcast(root, row)?),
            Elements::Number(number) => Elements::Number(ctx.broadcast(root, number)?),
        };
        Ok(Self { elements, ..self })
    }

    /// The values of all replicas, one behind the other along an axis.
    pub(crate) fn all_gather(&self, ctx: &ReplicaContext, axis: i64) -> CoreResult<Self> {
        with_tensor!(self, tensor => Ok(Self::from(ctx.all_gather(tensor, axis)?)))
    }

    /// The values, outside of a step.
    pub(crate) fn into_data(self) -> TensorData {
        let row = match self.elements {
            Elements::Float(row) => row.into_data(),
            Elements::Int(row) => row.into_data(),
            Elements::Bool(row) => row.into_data(),
            Elements::Number(number) => TensorData::new(vec![number], [1]),
        };
        reshaped(&row, &self.shape)
    }
}
