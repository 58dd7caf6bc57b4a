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
            "accumulate: gradients of type {} cannot be added to gradients of type {}; compute \
             both with the same model",
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
    map(data, |value| value * narrow, |value| value * factor)
}

pub(super) fn divide(data: &mut TensorData, divisor: f64) -> Result<()> {
    let narrow = divisor as f32;
    map(data, |value| value / narrow, |value| value / divisor)
}

/// NaN stays NaN.
pub(super) fn clamp(data: &mut TensorData, limit: f64) -> Result<()> {
    let narrow = limit as f32;
    let clamp = |value: f32| value.clamp(-narrow, narrow);
    map(data, clamp, |value| value.clamp(-limit, limit))
}

/// Changes each element, f64 by `wide` and all others by `narrow`.
fn map(
    data: &mut TensorData,
    narrow: impl Fn(f32) -> f32,
    wide: impl Fn(f64) -> f64,
) -> Result<()> {
    match data.dtype() {
        DType::F32 => each(data, narrow),
        DType::F64 => each(data, wide),
        DType::F16 => each(data, |value: f16| f16::from_f32(narrow(value.to_f32()))),
        DType::BF16 => each(data, |value: bf16| bf16::from_f32(narrow(value.to_f32()))),
        other => Err(Error::dtype(
            "clip or scale (f16, bf16, f32 and f64)",
            other,
        )),
    }
}

fn each<E: Element>(data: &mut TensorData, change: impl Fn(E) -> E) -> Result<()> {
    let values = data.as_mut_slice::<E>().map_err(Error::internal)?;
    values.iter_mut().for_each(|value| *value = change(*value));
    Ok(())
}

pub(super) fn are_finite(data: &TensorData) -> Result<bool> {
    match data.dtype() {
        DType::F32 => all(data, f32::is_finite),
        DType::F64 => all(data, f64::is_finite),
        DType::F16 => all(data, f16::is_finite),
        DType::BF16 => all(data, bf16::is_finite),
        other => Err(Error::dtype("a loss scale (f16, bf16, f32 and f64)", other)),
    }
}

/// Without a branch for each element.
fn all<E: Element>(data: &TensorData, is: impl Fn(E) -> bool) -> Result<bool> {
    let values = data.as_slice::<E>().map_err(Error::internal)?;
    let mut parts = values.chunks(1024);
    Ok(parts.all(|part| part.iter().fold(true, |all, value| all & is(*value))))
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
