//! Arithmetic on gradients' elements, on the host: of all types of floats that are reduced, those
//! of 16 bits in f32.

use burn::tensor::{DType, Element, TensorData, bf16, f16};
use distribute_collectives::ReduceOp;
use distribute_collectives::reduce::accumulate;

use crate::host_reduce::for_element;
use crate::{Error, Result};

pub(super) fn add(sum: &mut TensorData, data: &TensorData) -> Result<()> {
    if sum.dtype() != data.dtype() {
        return Err(Error::invalid(format!(
            "accumulate: gradients of type {} cannot be added to those of type {}; compute both \
             with the same model",
            data.dtype().name(),
            sum.dtype().name()
        )));
    }
    let (op, dtype) = ("accumulate (f16, bf16, f32 and f64)", sum.dtype());
    if !dtype.is_float() {
        return Err(Error::dtype(op, dtype));
    }
    for_element!(op, dtype, E => {
        let from = data.as_slice::<E>().map_err(Error::internal)?;
        let into = sum.as_mut_slice::<E>().map_err(Error::internal)?;
        accumulate(ReduceOp::Sum, into, from);
        Ok(())
    })
}

pub(super) fn scale(data: &mut TensorData, factor: f64) -> Result<()> {
    let narrow = factor as f32;
    match data.dtype() {
        DType::F32 => each(data, |value: f32| value * narrow),
        DType::F64 => each(data, |value: f64| value * factor),
        DType::F16 => each(data, |value: f16| f16::from_f32(value.to_f32() * narrow)),
        DType::BF16 => each(data, |value: bf16| bf16::from_f32(value.to_f32() * narrow)),
        other => Err(Error::dtype("clip (f16, bf16, f32 and f64)", other)),
    }
}

fn each<E: Element>(data: &mut TensorData, change: impl Fn(E) -> E) -> Result<()> {
    let values = data.as_mut_slice::<E>().map_err(Error::internal)?;
    values.iter_mut().for_each(|value| *value = change(*value));
    Ok(())
}

pub(super) fn sum_of_squares(data: &TensorData) -> Result<f64> {
    match data.dtype() {
        DType::F32 => squares::<f32>(data),
        DType::F64 => squares::<f64>(data),
        DType::F16 => squares::<f16>(data),
        DType::BF16 => squares::<bf16>(data),
        other => Err(Error::dtype("global_norm (f16, bf16, f32 and f64)", other)),
    }
}

fn squares<E: Element + Into<f64>>(data: &TensorData) -> Result<f64> {
    let values = data.as_slice::<E>().map_err(Error::internal)?.iter();
    let wide = values.map(|value| -> f64 { (*value).into() });
    Ok(wide.map(|value| value.powi(2)).sum())
}
