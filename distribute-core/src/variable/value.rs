//! What a variable can hold.

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use crate::{Error, Leaf, Result};

/// What a [`DistributedVariable`](crate::DistributedVariable) holds and reads give: a number, a
/// tensor of a known rank, or a [`TensorData`] of any shape and element type.
pub trait VariableValue: Leaf + Sized {
    /// The value that is stored as `data`, on this device if it is a tensor.
    ///
    /// # Errors
    /// [`Error::Shape`] and [`Error::DType`] if it is no value of this type.
    fn from_data(data: TensorData, device: &Device) -> Result<Self>;
}

/// What a variable of `T` takes: a `T`. One of [`TensorData`] takes everything that a variable can
/// hold, if element type and shape fit.
#[diagnostic::on_unimplemented(
    message = "a variable of `{T}` cannot be set to `{Self}`",
    label = "not `{T}`",
    note = "a per-replica value would make the copies differ: hand it to a step, which assigns its \
            own component"
)]
pub trait AssignTo<T>: Leaf {}

impl<V: Leaf> AssignTo<TensorData> for V {}

impl VariableValue for TensorData {
    fn from_data(data: TensorData, _: &Device) -> Result<Self> {
        Ok(data)
    }
}

macro_rules! number {
    ($($type:ty),*) => {$(
        impl AssignTo<$type> for $type {}

        impl VariableValue for $type {
            fn from_data(data: TensorData, _: &Device) -> Result<Self> {
                let mut value = Self::default();
                value.put(data)?;
                Ok(value)
            }
        }
    )*};
}

number!(f32, f64, i32, i64, u8);

macro_rules! tensor {
    ($($kind:ty),*) => {$(
        impl<const D: usize> AssignTo<Tensor<D, $kind>> for Tensor<D, $kind> {}

        impl<const D: usize> VariableValue for Tensor<D, $kind> {
            fn from_data(data: TensorData, device: &Device) -> Result<Self> {
                if data.rank() != D {
                    return Err(not_of_rank(D, &data.shape().to_vec()));
                }
                let dtype = data.dtype();
                Ok(Self::from_data(data, (device, dtype)))
            }
        }
    )*};
}

tensor!(burn::tensor::Float, Int, Bool);

pub(super) fn not_of_rank(rank: usize, shape: &[usize]) -> Error {
    Error::invalid(format!(
        "a variable of shape {shape:?} is not a tensor of rank {rank}"
    ))
}
