//! Gradients in 16 bits on their way between workers.
//!
//! Each replica rounds its `f32` gradients to the wire type, to nearest even. What adds them up
//! computes in `f32` and rounds at every node of the canonical order; everybody widens the result
//! again, which is exact. So all workers have the same bits, and a sum of `P` replicas is off from
//! the exact one by at most `((1 + u)^(⌈log₂ P⌉ + 1) - 1) · Σ|xᵢ|`; `u` is 2⁻⁸ for bf16 and 2⁻¹¹
//! for f16. In f16 what is beyond 65504 becomes infinite.

use std::ops::Range;

use burn::tensor::{DType, Element as BurnElement, TensorData, bf16, f16};
use distribute_collectives::{Buffer, CollectiveError, Element, WireType};

use crate::{Error, Result};

/// Which of a list of buffers were `f32` and are of the wire type now.
pub(crate) struct Narrowed(Vec<bool>);

impl Narrowed {
    /// Rounds the buffers of `f32`, where there is a wire type. Allocates half of their size.
    pub(crate) fn of(wire: Option<WireType>, buffers: &mut [TensorData]) -> Result<Self> {
        let narrowed = buffers.iter_mut().map(|data| {
            let is_narrowed = wire.is_some() && data.dtype() == DType::F32;
            match wire.filter(|_| is_narrowed) {
                Some(WireType::Bf16) => narrow::<bf16>(data)?,
                Some(WireType::F16) => narrow::<f16>(data)?,
                None => (),
            }
            Ok(is_narrowed)
        });
        Ok(Self(narrowed.collect::<Result<_>>()?))
    }

    /// Makes the buffers of this range of the list what they were.
    pub(crate) fn restore(&self, range: Range<usize>, buffers: &mut [TensorData]) -> Result<()> {
        let narrowed = self.0.get(range).unwrap_or_default();
        for (data, is_narrowed) in buffers.iter_mut().zip(narrowed) {
            match data.dtype() {
                _ if !is_narrowed => {}
                DType::BF16 => widen::<bf16>(data)?,
                _ => widen::<f16>(data)?,
            }
        }
        Ok(())
    }
}

fn narrow<T: Element<Acc = f32> + BurnElement>(data: &mut TensorData) -> Result<()> {
    let values = data.as_slice::<f32>().map_err(Error::internal)?;
    *data = TensorData::new(narrowed::<T>(values), data.shape().clone());
    Ok(())
}

fn narrowed<T: Element<Acc = f32>>(values: &[f32]) -> Vec<T> {
    let mut narrow = vec![T::zeroed(); values.len()];
    T::narrow(values, &mut narrow);
    narrow
}

fn widen<T: Element<Acc = f32> + BurnElement>(data: &mut TensorData) -> Result<()> {
    let values = data.as_slice::<T>().map_err(Error::internal)?;
    let mut wide = vec![0.0_f32; values.len()];
    T::widen(values, &mut wide);
    *data = TensorData::new(wide, data.shape().clone());
    Ok(())
}

/// Calls `exchange` with the buffers, `f32` buffers rounded to `wire` if there is one, and
/// copies the results back. Allocates half of their size.
pub(super) fn through(
    wire: impl Into<Option<WireType>>,
    buffers: &mut [Buffer<'_>],
    exchange: impl FnOnce(&mut [Buffer<'_>]) -> Result<(), CollectiveError>,
) -> Result<(), CollectiveError> {
    match wire.into() {
        None => exchange(buffers),
        Some(WireType::Bf16) => through_type::<bf16>(buffers, exchange),
        Some(WireType::F16) => through_type::<f16>(buffers, exchange),
    }
}

fn through_type<T: Element<Acc = f32>>(
    buffers: &mut [Buffer<'_>],
    exchange: impl FnOnce(&mut [Buffer<'_>]) -> Result<(), CollectiveError>,
) -> Result<(), CollectiveError> {
    let of_buffer = |buffer: &Buffer<'_>| narrowed(f32::slice_of(buffer).unwrap_or_default());
    let mut narrow: Vec<Vec<T>> = buffers.iter().map(of_buffer).collect();
    let sent = buffers.iter_mut().zip(&mut narrow);
    let mut sent: Vec<Buffer<'_>> = sent
        .map(|(buffer, narrow)| match buffer {
            Buffer::F32(_) => T::buffer(narrow),
            Buffer::F64(values) => Buffer::F64(values),
            Buffer::F16(values) => Buffer::F16(values),
            Buffer::BF16(values) => Buffer::BF16(values),
            Buffer::I32(values) => Buffer::I32(values),
            Buffer::I64(values) => Buffer::I64(values),
            Buffer::U8(values) => Buffer::U8(values),
        })
        .collect();
    exchange(&mut sent)?;
    for (buffer, narrow) in buffers.iter_mut().zip(&narrow) {
        if let Buffer::F32(values) = buffer {
            T::widen(narrow, values);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use distribute_collectives::{Buffer, WireType};

    use super::through;

    #[test]
    fn half_of_the_bytes_are_exchanged_and_other_types_stay() {
        // 1 + 2^-8 is between two numbers of bf16; to the even one.
        let (mut a, mut b) = (
            vec![1.0 + 2.0_f32.powi(-8), -0.0, f32::NAN, 3.0e38],
            vec![7_i64],
        );
        let mut buffers = [Buffer::from(&mut a), Buffer::from(&mut b)];
        through(WireType::Bf16, &mut buffers, |sent| {
            assert_eq!((sent[0].size_bytes(), sent[1].size_bytes()), (8, 8));
            Ok(())
        })
        .unwrap();
        assert_eq!((a[0], a[1].to_bits()), (1.0, (-0.0_f32).to_bits()));
        assert!(a[2].is_nan() && (a[3] / 3.0e38 - 1.0).abs() < 0.004);
        assert_eq!(b, [7]);
        let mut large = vec![65504.0_f32, 1.0e5];
        through(WireType::F16, &mut [Buffer::from(&mut large)], |_| Ok(())).unwrap();
        assert_eq!(large, [65504.0, f32::INFINITY]);
    }
}
