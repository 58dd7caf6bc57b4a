//! The arithmetic of `assign`, `assign_add` and `assign_sub` on one copy.

use burn::tensor::{DType, Element, TensorData, bf16, f16};

use crate::remote::RemoteChange;
use crate::{Error, Result};

/// What an update does with the copy and the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    Assign,
    Add,
    Sub,
}

impl From<Update> for RemoteChange {
    fn from(update: Update) -> Self {
        match update {
            Update::Assign => Self::Assign,
            Update::Add => Self::Add,
            Update::Sub => Self::Sub,
        }
    }
}

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
            DType::F32 => combine::<f32>(self, copy, value),
            DType::F64 => combine::<f64>(self, copy, value),
            DType::F16 => combine::<f16>(self, copy, value),
            DType::BF16 => combine::<bf16>(self, copy, value),
            DType::I32 => combine::<i32>(self, copy, value),
            DType::I64 => combine::<i64>(self, copy, value),
            DType::U8 => combine::<u8>(self, copy, value),
            other => Err(Error::DType {
                op: self.name(),
                dtype: other.name().to_string(),
            }),
        }
    }
}

fn combine<E: Element + Arithmetic>(
    update: Update,
    copy: &mut TensorData,
    value: &TensorData,
) -> Result<()> {
    let value = value.as_slice::<E>().map_err(Error::internal)?;
    let copy = copy.as_mut_slice::<E>().map_err(Error::internal)?;
    let operation = if update == Update::Add {
        E::plus
    } else {
        E::minus
    };
    for (copy, value) in copy.iter_mut().zip(value) {
        *copy = operation(*copy, *value);
    }
    Ok(())
}

/// Addition and subtraction; integers wrap around, as in TensorFlow.
trait Arithmetic: Copy {
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
}

macro_rules! arithmetic {
    ($($type:ty: $plus:path, $minus:path);*) => {$(
        impl Arithmetic for $type {
            fn plus(self, other: Self) -> Self {
                $plus(self, other)
            }

            fn minus(self, other: Self) -> Self {
                $minus(self, other)
            }
        }
    )*};
}

arithmetic!(
    f32: std::ops::Add::add, std::ops::Sub::sub;
    f64: std::ops::Add::add, std::ops::Sub::sub;
    f16: std::ops::Add::add, std::ops::Sub::sub;
    bf16: std::ops::Add::add, std::ops::Sub::sub;
    i32: i32::wrapping_add, i32::wrapping_sub;
    i64: i64::wrapping_add, i64::wrapping_sub;
    u8: u8::wrapping_add, u8::wrapping_sub
);

/// `value / replicas` in the value's own type; integers are truncated toward zero
/// (TensorFlow divides in f64 and casts back).
pub(super) fn share(value: &TensorData, replicas: usize) -> TensorData {
    let shares = value.iter::<f64>().map(|element| element / replicas as f64);
    let shares = TensorData::new(shares.collect::<Vec<f64>>(), value.shape().clone());
    shares.convert_dtype(value.dtype())
}
