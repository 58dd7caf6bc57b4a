//! Where one gradient is, and the arithmetic on it there.

use std::sync::OnceLock;

use burn::tensor::{DType, Device, Shape, Tensor, TensorData};

use super::elements;
use crate::computed::is_off_host;
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
    /// The copy in host memory, once it was requested.
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
pub(super) struct Arithmetic {
    pub(super) elements: fn(&mut TensorData, f64) -> Result<()>,
    number: fn(Tensor<1>, f64) -> Tensor<1>,
    tensor: fn(Tensor<1>, Tensor<1>) -> Tensor<1>,
}

/// Multiplies.
pub(super) const MULTIPLIED: Arithmetic = Arithmetic {
    elements: elements::scale,
    number: |gradient, factor| gradient.mul_scalar(factor),
    tensor: |gradient, factor| gradient * factor,
};

/// Divides. What is divided by a large number needs no inverse of it, which may be so small that a
/// device takes it for 0.
pub(super) const DIVIDED: Arithmetic = Arithmetic {
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

    /// The tensor of the step that is being captured, if it is one.
    pub(super) fn captured(&self) -> Option<&CapturedTensor> {
        match self {
            Self::Captured(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// The values in host memory. Values on a device are copied the first time, which waits for the
    /// device.
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

    /// The same; what burn has put into host memory is taken out of its tensor, unless it `keeps`
    /// it there.
    pub(super) fn settled(self, keeps: bool) -> Result<Self> {
        match self {
            Self::Device(found) if !keeps && !is_off_host(&found.tensor.device()) => {
                Self::Device(found).into_host().map(Self::Host)
            }
            other => Ok(other),
        }
    }

    /// The same as a flattened tensor on `device`. What is in host memory stays in its memory.
    pub(crate) fn into_flat(self, device: &Device) -> Result<Tensor<1>> {
        match self {
            Self::Host(data) => {
                let (count, dtype) = (data.num_elements(), data.dtype());
                let flat = with_shape(data, Shape::new([count]))?;
                Ok(Tensor::from_data(flat, (device, dtype)))
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

    /// Changes all elements by an operation with a number.
    pub(super) fn change(&mut self, by: &Arithmetic, number: &Number) -> Result<()> {
        if let (Self::Device(_), Number::Captured(_)) = (&*self, number) {
            return Err(not_here());
        }
        self.replace(
            |data| match number {
                Number::Host(number) => (by.elements)(data, *number),
                Number::Captured(_) => Err(not_here()),
            },
            |gradient| {
                in_wide(gradient, |it, wide| match number {
                    Number::Host(number) => (by.number)(it, *number),
                    Number::Captured(number) => {
                        (by.tensor)(it, trace::of_type(number.clone(), wide))
                    }
                })
            },
        )
    }

    /// Brings all elements to between `-limit` and `limit`.
    pub(super) fn clamp(&mut self, limit: f64) -> Result<()> {
        self.replace(
            |data| elements::clamp(data, limit),
            |gradient| gradient.clamp(-limit, limit),
        )
    }

    /// Replaces the elements where they are: those in host memory in place, others as a flattened
    /// tensor.
    fn replace(
        &mut self,
        on_host: impl FnOnce(&mut TensorData) -> Result<()>,
        elsewhere: impl FnOnce(Tensor<1>) -> Tensor<1>,
    ) -> Result<()> {
        match self {
            Self::Host(data) => return on_host(data),
            Self::Device(found) => {
                *self = Self::device(elsewhere(found.tensor.clone()), found.shape.clone());
            }
            Self::Captured(tensor) => {
                let shape = tensor.spec().shape;
                if let Some(changed) = trace::captured(&elsewhere(tensor.flat())) {
                    *tensor = changed.reshaped(&shape);
                }
            }
            Self::Compiled => return Err(not_here()),
        }
        Ok(())
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

/// The square root of the sum of all squared elements, in `f64`: of those on devices first, with
/// one copy to the host, then of those in host memory, in order.
pub(super) fn norm<'a>(
    dense: impl Iterator<Item = &'a Residence> + Clone,
    rows: impl Iterator<Item = &'a TensorData>,
) -> Result<Number> {
    if let Some(norm) = captured_norm(dense.clone().filter_map(Residence::captured)) {
        return Ok(Number::Captured(norm));
    }
    let squares = of_devices(dense.clone(), |gradient| {
        // Squares of 16 bits are soon infinite, and their sums inexact.
        let wide = match gradient.dtype() {
            DType::F16 | DType::BF16 => gradient.cast(DType::F32),
            _ => gradient,
        };
        wide.powi_scalar(2).sum()
    })?;
    let mut sum = 0.0;
    for square in squares {
        sum += square;
    }
    for data in of_host(dense).chain(rows.map(Ok)) {
        sum += elements::sum_of_squares(data?)?;
    }
    Ok(Number::Host(sum.sqrt()))
}

/// Whether no element is infinite or NaN: of those on devices first, with one copy to the host,
/// then of those in host memory.
pub(super) fn are_finite<'a>(
    dense: impl Iterator<Item = &'a Residence> + Clone,
    rows: impl Iterator<Item = &'a TensorData>,
) -> Result<bool> {
    // 0, or NaN if an element is not finite.
    let blemish = |elements: Tensor<1>| (elements.clone() - elements).sum().cast(DType::F32);
    let blemishes = of_devices(dense.clone(), blemish)?;
    let is_fine = !blemishes.into_iter().any(f64::is_nan);
    let mut all = of_host(dense).chain(rows.map(Ok));
    all.try_fold(is_fine, |is_fine, data| {
        let data = data?;
        Ok(is_fine && elements::are_finite(data)?)
    })
}

/// A number of each gradient on a device; they are copied to the host together.
fn of_devices<'a>(
    gradients: impl Iterator<Item = &'a Residence>,
    number: impl Fn(Tensor<1>) -> Tensor<1>,
) -> Result<Vec<f64>> {
    let numbers: Vec<Tensor<1>> = gradients
        .filter_map(|gradient| match gradient {
            Residence::Device(found) => Some(number(found.tensor.clone())),
            _ => None,
        })
        .collect();
    if numbers.is_empty() {
        return Ok(Vec::new());
    }
    let numbers = Tensor::cat(numbers, 0).try_into_data();
    Ok(numbers.map_err(Error::internal)?.iter::<f64>().collect())
}

/// The gradients that are on no device.
fn of_host<'a>(
    gradients: impl Iterator<Item = &'a Residence>,
) -> impl Iterator<Item = Result<&'a TensorData>> {
    let others = gradients.filter(|gradient| !matches!(gradient, Residence::Device(_)));
    others.map(Residence::host)
}

/// Whether no element of captured gradients is infinite or NaN, as a tensor of shape `[1]`: 1, or
/// 0. `None` if none is captured.
pub(super) fn captured_are_finite<'a>(
    gradients: impl Iterator<Item = &'a Residence>,
) -> Option<Tensor<1>> {
    let captured = gradients.filter_map(Residence::captured);
    let filled = captured.filter(|tensor| !tensor.spec().shape.contains(&0));
    let are_finite = filled.map(|tensor| tensor.flat().is_finite().float().min());
    are_finite.reduce(|all, one| all * one)
}

/// Of shape `[1]`, in `f32`, or in `f64` if all gradients are. What is larger than 1 is squared as
/// a part of the largest, so that no square is infinite before the norm is.
fn captured_norm<'a>(
    gradients: impl Iterator<Item = &'a CapturedTensor> + Clone,
) -> Option<Tensor<1>> {
    let mut all = gradients.clone();
    let dtype = if all.all(|gradient| gradient.spec().dtype == DType::F64) {
        DType::F64
    } else {
        DType::F32
    };
    let flat = || {
        let flat = gradients.clone().map(CapturedTensor::flat);
        flat.map(|gradient| trace::of_type(gradient, dtype))
    };
    let largest = flat()
        .map(|gradient| gradient.abs().max())
        .reduce(|a, b| a.max_pair(b))?
        .clamp_min(1.0);
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
                for by in [&MULTIPLIED, &DIVIDED] {
                    let mut host = Residence::Host(data.clone());
                    let mut device = Residence::device(tensor.clone(), shape.clone());
                    host.change(by, &number).unwrap();
                    device.change(by, &number).unwrap();
                    let found = device.into_host().unwrap();
                    assert_eq!(found.dtype(), dtype);
                    assert_eq!(host.host().unwrap(), &found, "{number:?}");
                }
            }
        }
    }
}
