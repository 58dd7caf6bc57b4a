//! The arithmetic of `assign`, `assign_add` and `assign_sub` on one copy.

use std::ops::{Add, Sub};

use burn::tensor::{DType, Element, TensorData, bf16, f16};

pub use crate::remote::RemoteChange as Update;
use crate::{Error, Result};

impl Update {
    /// The public name, for errors.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Assign => "assign",
            Self::Add => "assign_add",
            Self::Sub => "assign_sub",
        }
    }

    /// Changes `copy` in place. Both have one shape and type.
    pub(super) fn apply(self, copy: &mut TensorData, value: &TensorData) -> Result<()> {
        if self == Self::Assign {
            *copy = value.clone();
            return Ok(());
        }
        match copy.dtype() {
            DType::F32 => self.combine(copy, value, f32::add, f32::sub),
            DType::F64 => self.combine(copy, value, f64::add, f64::sub),
            DType::F16 => self.combine(copy, value, f16::add, f16::sub),
            DType::BF16 => self.combine(copy, value, bf16::add, bf16::sub),
            // As in TensorFlow.
            DType::I32 => self.combine(copy, value, i32::wrapping_add, i32::wrapping_sub),
            DType::I64 => self.combine(copy, value, i64::wrapping_add, i64::wrapping_sub),
            DType::U8 => self.combine(copy, value, u8::wrapping_add, u8::wrapping_sub),
            other => Err(Error::dtype(self.name(), other)),
        }
    }

    fn combine<E: Element>(
        self,
        copy: &mut TensorData,
        value: &TensorData,
        add: fn(E, E) -> E,
        sub: fn(E, E) -> E,
    ) -> Result<()> {
        let value = value.as_slice::<E>().map_err(Error::internal)?;
        let copy = copy.as_mut_slice::<E>().map_err(Error::internal)?;
        let operation = if self == Self::Add { add } else { sub };
        for (copy, value) in copy.iter_mut().zip(value) {
            *copy = operation(*copy, *value);
        }
        Ok(())
    }
}

/// `value / replicas` in the value's own type; integers are truncated toward zero
/// (TensorFlow divides in f64 and casts back).
pub(super) fn share(value: &TensorData, replicas: usize) -> TensorData {
    let shares = value.iter::<f64>().map(|element| element / replicas as f64);
    let shares = TensorData::new(shares.collect::<Vec<f64>>(), value.shape().clone());
    shares.convert_dtype(value.dtype())
}
