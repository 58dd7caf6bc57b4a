//! Where one gradient is, and the arithmetic on it there.

use std::sync::OnceLock;

use burn::tensor::{DType, Device, Shape, Tensor, TensorData};

use super::elements;
use crate::trace::{self, CapturedTensor};
use crate::{Error, Result};

/// One gradient, where it is. Nothing moves it but what has to.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "there are as many as parameters")]
pub(crate) enum Residence {
    /// In host memory, in the shape of its parameter.
    Host(TensorData),
    /// In the memory of a device.
    Device(DeviceGradient),
    /// A tensor of the step that is being captured, in the shape of its parameter.
    Captured(CapturedTensor),
    /// On the devices of a compiled step: the mirrored value has its tensor.
    Compiled,
}

/// A gradient in the memory of a device.
#[derive(Debug, Clone)]
pub(crate) struct DeviceGradient {
    /// Flattened.
    tensor: Tensor<1>,
    /// That of the parameter.
    shape: Shape,
    /// The copy in host memory, once somebody has asked for it.
    copy: OnceLock<TensorData>,
}

/// A number that is computed from gradients: on the host, or of shape `[1]` in a captured step.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "one at a time")]
pub(crate) enum Number {
    Host(f64),
    Captured(Tensor<1>),
}

/// One operation with a number, wherever a gradient and the number are.
struct Arithmetic {
    elements: fn(&mut TensorData, f64) -> Result<()>,
    number: fn(Tensor<1>, f64) -> Tensor<1>,
    tensor: fn(Tensor<1>, Tensor<1>) -> Tensor<1>,
}

const MULTIPLIED: Arithmetic = Arithmetic {
    elements: elements::scale,
    number: |gradient, factor| gradient.mul_scalar(factor),
    tensor: |gradient, factor| gradient * factor,
};

const DIVIDED: Arithmetic = Arithmetic {
    elements: elements::divide,
    number: |gradient, divisor| gradient.div_scalar(divisor),
    tensor: |gradient, divisor| gradient / divisor,
};

impl Residence {
    pub(super) fn device(tensor: Tensor<1>, shape: Shape) -> Self {
        let copy = OnceLock::new();
        Self::Device(DeviceGradient {
            tensor,
            shape,
            copy,
        })
    }

    /// The values in host memory; those of a device are copied the first time, which waits for it.
    pub(super) fn host(&self) -> Result<&TensorData> {
        match self {
            Self::Host(data) => Ok(data),
            Self::Device(found) => match found.copy.get() {
                Some(data) => Ok(data),
                None => {
                    let data = fetch(found.tensor.clone(), found.shape.clone())?;
                    Ok(found.copy.get_or_init(|| data))
                }
            },
            Self::Captured(_) => Err(Error::host_read("a gradient")),
            Self::Compiled => Err(not_here()),
        }
    }

    /// The same in host memory.
    pub(super) fn into_host(self) -> Result<TensorData> {
        match self {
            Self::Host(data) => Ok(data),
            Self::Device(found) => fetch(found.tensor, found.shape),
            other => other.host().cloned(),
        }
    }

    /// The same as a flattened tensor on `device`. What is in host memory stays in its memory.
    pub(super) fn into_flat(self, device: &Device) -> Result<Tensor<1>> {
        match self {
            Self::Host(data) => {
                let dtype = data.dtype();
                Ok(Tensor::from_data(flat_data(data)?, (device, dtype)))
            }
            Self::Device(found) => Ok(found.tensor),
            Self::Captured(tensor) => Ok(tensor.flat()),
            Self::Compiled => Err(not_here()),
        }
    }

    /// The sum with another gradient of the same parameter, where both are; else in host memory.
    pub(super) fn add(self, other: Self) -> Result<Self> {
        Ok(match (self, other) {
            (Self::Device(sum), Self::Device(other)) => {
                Self::device(sum.tensor.add(other.tensor), sum.shape)
            }
            (Self::Captured(sum), Self::Captured(other)) => {
                Self::Captured(trace::combine(sum, other, true))
            }
            (sum, other) => {
                let mut sum = sum.into_host()?;
                elements::add(&mut sum, &other.into_host()?)?;
                Self::Host(sum)
            }
        })
    }

    /// Multiplies all elements.
    pub(super) fn scale(&mut self, factor: &Number) -> Result<()> {
        self.change(factor, &MULTIPLIED)
    }

    /// Divides all elements. What is divided by a large number needs no inverse of it, which may be
    /// so small that a device takes it for 0.
    pub(super) fn divide(&mut self, divisor: &Number) -> Result<()> {
        self.change(divisor, &DIVIDED)
    }

    fn change(&mut self, number: &Number, by: &Arithmetic) -> Result<()> {
        match (&mut *self, number) {
            (Self::Host(data), Number::Host(number)) => (by.elements)(data, *number),
            (Self::Device(found), Number::Host(number)) => {
                let changed = in_wide(found.tensor.clone(), |it, _| (by.number)(it, *number));
                *self = Self::device(changed, found.shape.clone());
                Ok(())
            }
            (Self::Captured(tensor), number) => {
                let shape = tensor.spec().shape;
                let changed = in_wide(tensor.flat(), |it, wide| match number {
                    Number::Host(number) => (by.number)(it, *number),
                    Number::Captured(number) => {
                        (by.tensor)(it, trace::of_type(number.clone(), wide))
                    }
                });
                if let Some(changed) = trace::captured(&changed) {
                    *tensor = changed.reshaped(&shape);
                }
                Ok(())
            }
            _ => Err(not_here()),
        }
    }

    /// Brings all elements to between `-limit` and `limit`.
    pub(super) fn clamp(&mut self, limit: f64) -> Result<()> {
        match &mut *self {
            Self::Host(data) => elements::clamp(data, limit),
            Self::Device(found) => {
                let clamped = found.tensor.clone().clamp(-limit, limit);
                *self = Self::device(clamped, found.shape.clone());
                Ok(())
            }
            Self::Captured(tensor) => {
                let shape = tensor.spec().shape;
                if let Some(clamped) = trace::captured(&tensor.flat().clamp(-limit, limit)) {
                    *tensor = clamped.reshaped(&shape);
                }
                Ok(())
            }
            Self::Compiled => Err(not_here()),
        }
    }
}

/// Changes a gradient in `f32` if its elements have 16 bits, as on the host: a number may be too
/// large for them, or not exact.
fn in_wide(gradient: Tensor<1>, change: impl FnOnce(Tensor<1>, DType) -> Tensor<1>) -> Tensor<1> {
    let dtype = gradient.dtype();
    let wide = match dtype {
        DType::F64 => dtype,
        _ => DType::F32,
    };
    trace::of_type(change(trace::of_type(gradient, wide), wide), dtype)
}

impl Number {
    /// What gradients of this norm are multiplied by to have a norm of at most `clip_norm`: NaN if
    /// their norm is not finite, nothing if it is small enough.
    pub(super) fn clip_factor(&self, clip_norm: f64) -> Option<Self> {
        match self {
            Self::Host(norm) if !norm.is_finite() => Some(Self::Host(f64::NAN)),
            Self::Host(norm) if *norm > clip_norm => Some(Self::Host(clip_norm / norm)),
            Self::Host(_) => None,
            Self::Captured(norm) => {
                // 0, or NaN if the norm is not finite.
                let blemish = norm.clone() - norm.clone();
                let factor = norm.clone().clamp_min(clip_norm).recip();
                Some(Self::Captured(factor.mul_scalar(clip_norm) + blemish))
            }
        }
    }
}

/// The square root of the sum of all squared elements: of those on devices first, with one copy to
/// the host, then of those in host memory, in order.
pub(super) fn norm<'a>(
    dense: impl Iterator<Item = &'a Residence> + Clone,
    rows: impl Iterator<Item = &'a TensorData>,
) -> Result<Number> {
    let captured = dense.clone().filter_map(|gradient| match gradient {
        Residence::Captured(tensor) => Some(tensor),
        _ => None,
    });
    if let Some(norm) = captured_norm(captured) {
        return Ok(Number::Captured(norm));
    }
    let on_device = dense.clone().filter_map(|gradient| match gradient {
        Residence::Device(found) => Some(&found.tensor),
        _ => None,
    });
    let mut sum = device_sum_of_squares(on_device)?;
    for gradient in dense {
        match gradient {
            Residence::Host(data) => sum += elements::sum_of_squares(data)?,
            Residence::Compiled => return Err(not_here()),
            _ => {}
        }
    }
    for data in rows {
        sum += elements::sum_of_squares(data)?;
    }
    Ok(Number::Host(sum.sqrt()))
}

/// In `f64`, with one copy to the host.
fn device_sum_of_squares<'a>(tensors: impl Iterator<Item = &'a Tensor<1>>) -> Result<f64> {
    let sums = tensors.map(|tensor| {
        // Squares of 16 bits are soon infinite, and their sums inexact.
        let wide = match tensor.dtype() {
            DType::F16 | DType::BF16 => tensor.clone().cast(DType::F32),
            _ => tensor.clone(),
        };
        wide.powi_scalar(2).sum()
    });
    let sums: Vec<Tensor<1>> = sums.collect();
    if sums.is_empty() {
        return Ok(0.0);
    }
    let sums = Tensor::cat(sums, 0)
        .try_into_data()
        .map_err(Error::internal)?;
    Ok(sums.iter::<f64>().sum())
}

/// Whether no element is infinite or NaN: of those on devices first, with one copy to the host,
/// then of those in host memory.
pub(super) fn are_finite<'a>(
    dense: impl Iterator<Item = &'a Residence>,
    rows: impl Iterator<Item = &'a TensorData>,
) -> Result<bool> {
    let (mut on_host, mut blemishes) = (Vec::new(), Vec::new());
    for gradient in dense {
        match gradient {
            Residence::Device(found) => {
                let elements = found.tensor.clone();
                // 0, or NaN if an element is not finite.
                let blemish = (elements.clone() - elements).sum();
                blemishes.push(blemish.cast(DType::F32));
            }
            other => on_host.push(other.host()?),
        }
    }
    if !blemishes.is_empty() {
        let sums = Tensor::cat(blemishes, 0);
        let sums = sums.try_into_data().map_err(Error::internal)?;
        if sums.iter::<f32>().any(f32::is_nan) {
            return Ok(false);
        }
    }
    let mut all = on_host.into_iter().chain(rows).map(elements::are_finite);
    all.try_fold(true, |finite, is_finite| Ok(finite && is_finite?))
}

/// Whether no element of captured gradients is infinite or NaN, as a tensor of shape `[1]`: 1, or
/// 0. `None` if none is captured.
pub(super) fn captured_are_finite<'a>(
    gradients: impl Iterator<Item = &'a Residence>,
) -> Option<Tensor<1>> {
    let are_finite = gradients.filter_map(|gradient| match gradient {
        Residence::Captured(tensor) if tensor.spec().shape.contains(&0) => None,
        Residence::Captured(tensor) => Some(tensor.flat().is_finite().float().min()),
        _ => None,
    });
    are_finite.reduce(|all, one| all * one)
}

/// Of shape `[1]`, in `f32`, or in `f64` if all gradients are. What is larger than 1 is squared as
/// a part of the largest, so that no square is infinite before the norm is.
fn captured_norm<'a>(
    gradients: impl Iterator<Item = &'a CapturedTensor> + Clone,
) -> Option<Tensor<1>> {
    let mut all = gradients.clone();
    let dtype = match all.all(|gradient| gradient.spec().dtype == DType::F64) {
        true => DType::F64,
        false => DType::F32,
    };
    let flat = || {
        let flat = gradients.clone().map(CapturedTensor::flat);
        flat.map(|gradient| trace::of_type(gradient, dtype))
    };
    let largest = flat().map(|gradient| gradient.abs().max());
    let largest = largest.reduce(|a, b| a.max_pair(b))?.clamp_min(1.0);
    let squares = flat().map(|gradient| {
        let part = gradient / largest.clone();
        (part.clone() * part).sum()
    });
    let sum = squares.reduce(|sum, square| sum + square)?;
    Some(sum.sqrt() * largest)
}

/// Copies a flattened tensor to host memory. Waits for the device.
fn fetch(tensor: Tensor<1>, shape: Shape) -> Result<TensorData> {
    let data = tensor.try_into_data().map_err(Error::internal)?;
    with_shape(data, shape)
}

/// The same memory with one dimension.
fn flat_data(data: TensorData) -> Result<TensorData> {
    let count = data.num_elements();
    with_shape(data, Shape::new([count]))
}

/// The same memory in other dimensions.
pub(crate) fn with_shape(data: TensorData, shape: Shape) -> Result<TensorData> {
    let (bytes, _, dtype) = data.into_parts();
    TensorData::try_from_bytes(bytes, shape, dtype).map_err(Error::internal)
}

fn not_here() -> Error {
    Error::invalid("a gradient that is not on the host")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also where the number is no number of their type: f16 ends at 65504.
    #[test]
    fn gradients_of_16_bits_are_changed_alike_in_both_memories() {
        let values = TensorData::from([1.0_f32, -3.0, 0.1, 60_000.0]);
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            let data = values.clone().convert_dtype(dtype);
            let tensor = Tensor::from_data(data.clone(), (&Device::flex(), dtype));
            let shape = data.shape().clone();
            for number in [1.0 / 3.0, 65_536.0, 1e-4].map(Number::Host) {
                for change in [Residence::scale, Residence::divide] {
                    let mut host = Residence::Host(data.clone());
                    let mut device = Residence::device(tensor.clone(), shape.clone());
                    change(&mut host, &number).unwrap();
                    change(&mut device, &number).unwrap();
                    let found = device.into_host().unwrap();
                    assert_eq!(found.dtype(), dtype);
                    assert_eq!(host.host().unwrap(), &found, "{number:?}");
                }
            }
        }
    }
}
