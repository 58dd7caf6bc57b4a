//! Arithmetic on gradients' elements, on the host: of all types of floats that are reduced, those
//! of 16 bits in f32.

use burn::tensor::{DType, TensorData, bf16, f16};

use crate::{Error, Result};

/// Runs an expression with `E` standing for the element type and `wide` for the type that it is
/// computed in.
macro_rules! for_float {
    ($op:literal, $dtype:expr, ($element:ident, $wide:ident) => $body:expr) => {
        match $dtype {
            DType::F32 => for_float!(@f32, f32, $element, $wide, $body),
            DType::F64 => for_float!(@f64, f64, $element, $wide, $body),
            DType::F16 => for_float!(@f16, f32, $element, $wide, $body),
            DType::BF16 => for_float!(@bf16, f32, $element, $wide, $body),
            other => Err(Error::DType {
                op: concat!($op, " (f16, bf16, f32 and f64)"),
                dtype: other.name().to_string(),
            }),
        }
    };
    (@$type:ty, $computed:ty, $element:ident, $wide:ident, $body:expr) => {{
        type $element = $type;
        type $wide = $computed;
        $body
    }};
}

/// An element in the type that it is computed in.
trait Computed<W> {
    fn widen(self) -> W;
    fn narrow(wide: W) -> Self;
}

macro_rules! computed {
    ($type:ty, $wide:ty, $widen:expr, $narrow:expr) => {
        impl Computed<$wide> for $type {
            #[inline]
            fn widen(self) -> $wide {
                $widen(self)
            }

            #[inline]
            fn narrow(wide: $wide) -> Self {
                $narrow(wide)
            }
        }
    };
}

computed!(f32, f32, std::convert::identity, std::convert::identity);
computed!(f64, f64, std::convert::identity, std::convert::identity);
computed!(f16, f32, f16::to_f32, f16::from_f32);
computed!(bf16, f32, bf16::to_f32, bf16::from_f32);

pub(super) fn add(sum: &mut TensorData, data: &TensorData) -> Result<()> {
    if sum.dtype() != data.dtype() {
        return Err(Error::invalid(format!(
            "accumulate: gradients of type {} cannot be added to those of type {}; compute both \
             with the same model",
            data.dtype().name(),
            sum.dtype().name()
        )));
    }
    for_float!("accumulate", sum.dtype(), (E, W) => {
        let from = data.as_slice::<E>().map_err(Error::internal)?;
        let into = sum.as_mut_slice::<E>().map_err(Error::internal)?;
        for (into, from) in into.iter_mut().zip(from) {
            let wide: W = into.widen() + from.widen();
            *into = E::narrow(wide);
        }
        Ok(())
    })
}

pub(super) fn scale(data: &mut TensorData, factor: f64) -> Result<()> {
    for_float!("clip", data.dtype(), (E, W) => {
        let factor = factor as W;
        let values = data.as_mut_slice::<E>().map_err(Error::internal)?;
        for value in values {
            let wide: W = value.widen() * factor;
            *value = E::narrow(wide);
        }
        Ok(())
    })
}

pub(super) fn sum_of_squares(data: &TensorData) -> Result<f64> {
    for_float!("global_norm", data.dtype(), (E, W) => {
        let values = data.as_slice::<E>().map_err(Error::internal)?.iter();
        let squares = values.map(|value| {
            let wide: W = value.widen();
            square(wide)
        });
        Ok(squares.sum())
    })
}

fn square(value: impl Into<f64>) -> f64 {
    value.into().powi(2)
}
