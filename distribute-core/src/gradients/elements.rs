//! Arithmetic on gradients' elements, on the host.

use burn::tensor::{DType, TensorData};

use crate::{Error, Result};

pub(super) fn add(sum: &mut TensorData, data: &TensorData) -> Result<()> {
    match (sum.dtype(), data.dtype()) {
        (DType::F32, DType::F32) => {
            let from = data.as_slice::<f32>().map_err(Error::step)?;
            let into = sum.as_mut_slice::<f32>().map_err(Error::step)?;
            into.iter_mut()
                .zip(from)
                .for_each(|(into, from)| *into += from);
        }
        (DType::F64, DType::F64) => {
            let from = data.as_slice::<f64>().map_err(Error::step)?;
            let into = sum.as_mut_slice::<f64>().map_err(Error::step)?;
            into.iter_mut()
                .zip(from)
                .for_each(|(into, from)| *into += from);
        }
        (other, _) => {
            let dtype = other.name().to_string();
            return Err(Error::DType {
                op: "accumulate (f32 and f64 only)",
                dtype,
            });
        }
    }
    Ok(())
}

pub(super) fn scale(data: &mut TensorData, factor: f64) -> Result<()> {
    match data.dtype() {
        DType::F32 => {
            #[allow(clippy::cast_possible_truncation)]
            let factor = factor as f32;
            let values = data.as_mut_slice::<f32>().map_err(Error::step)?;
            values.iter_mut().for_each(|value| *value *= factor);
        }
        DType::F64 => {
            let values = data.as_mut_slice::<f64>().map_err(Error::step)?;
            values.iter_mut().for_each(|value| *value *= factor);
        }
        other => {
            return Err(Error::DType {
                op: "clip (f32 and f64)",
                dtype: other.name().to_string(),
            });
        }
    }
    Ok(())
}

pub(super) fn sum_of_squares(data: &TensorData) -> Result<f64> {
    match data.dtype() {
        DType::F32 => {
            let values = data.as_slice::<f32>().map_err(Error::step)?;
            Ok(values.iter().map(|value| f64::from(*value).powi(2)).sum())
        }
        DType::F64 => {
            let values = data.as_slice::<f64>().map_err(Error::step)?;
            Ok(values.iter().map(|value| value.powi(2)).sum())
        }
        other => Err(Error::DType {
            op: "global_norm",
            dtype: other.name().to_string(),
        }),
    }
}
