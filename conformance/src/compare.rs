//! Comparing what came with what TensorFlow returned.

use burn::tensor::{DType, TensorData};
use serde_json::Value;

use crate::outcome::Failure;
use crate::tensors::{number, tensor};

/// How close two floats must be: `|a - b| <= absolute + relative * |b|`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// The part that grows with the number.
    pub relative: f64,
    /// The part that does not.
    pub absolute: f64,
}

impl Tolerance {
    /// Reads `{"rtol": r, "atol": a}`; 1e-6 each where the file names none.
    pub(crate) fn parse(value: &Value) -> Self {
        Self {
            relative: value["rtol"].as_f64().unwrap_or(1e-6),
            absolute: value["atol"].as_f64().unwrap_or(1e-6),
        }
    }

    /// Half-precision numbers differ by a unit in their last place, integers never.
    fn of(self, dtype: DType) -> Self {
        let both = |bound: f64| Self {
            relative: bound.max(self.relative),
            absolute: bound.max(self.absolute),
        };
        match dtype {
            DType::F16 => both(1e-3),
            DType::BF16 => both(8e-3),
            dtype if dtype.is_float() => self,
            _ => Self {
                relative: 0.0,
                absolute: 0.0,
            },
        }
    }

    /// Whether `found` is close to `expected`; NaN is close to NaN.
    pub(crate) fn is_close(self, found: f64, expected: f64) -> bool {
        found == expected
            || (found.is_nan() && expected.is_nan())
            || (found - expected).abs() <= self.absolute + self.relative * expected.abs()
    }

    /// Compares type, shape and values. A bare number has no type.
    pub(crate) fn same(self, expected: &Value, found: &TensorData) -> Result<(), Failure> {
        let wanted = tensor(expected)?;
        let is_typed = expected.get("dtype").is_some();
        let differs = (is_typed && wanted.dtype() != found.dtype())
            || wanted.shape() != found.shape()
            || !self.of(found.dtype()).are_close(found, &wanted);
        if differs {
            return Err(Failure::new(show(&wanted), show(found)));
        }
        Ok(())
    }

    /// Compares with what another way of computing it gave.
    pub(crate) fn same_data(self, wanted: &TensorData, found: &TensorData) -> Result<(), Failure> {
        let is_alike = wanted.dtype() == found.dtype() && wanted.shape() == found.shape();
        if is_alike && self.of(found.dtype()).are_close(found, wanted) {
            Ok(())
        } else {
            Err(Failure::new(show(wanted), show(found)))
        }
    }

    fn are_close(self, found: &TensorData, wanted: &TensorData) -> bool {
        let mut pairs = found.iter::<f64>().zip(wanted.iter::<f64>());
        pairs.all(|(found, wanted)| self.is_close(found, wanted))
    }

    /// Compares a list of tensors.
    pub(crate) fn same_list(self, expected: &Value, found: &[TensorData]) -> Result<(), Failure> {
        let list = expected
            .as_array()
            .ok_or_else(|| Failure::schema("a list was expected"))?;
        if list.len() != found.len() {
            return Err(Failure::new(
                format!("{} values", list.len()),
                format!("{} values", found.len()),
            ));
        }
        for (index, (expected, found)) in list.iter().zip(found).enumerate() {
            self.same(expected, found)
                .map_err(|failure| failure.at(format!("[{index}]")))?;
        }
        Ok(())
    }

    /// Compares a bare number.
    pub(crate) fn same_number(self, expected: &Value, found: f64) -> Result<(), Failure> {
        let wanted = number(expected)?;
        if self.is_close(found, wanted) {
            return Ok(());
        }
        Err(Failure::new(wanted, found))
    }
}

/// Compares any two values exactly.
pub(crate) fn equal(expected: &Value, found: &Value) -> Result<(), Failure> {
    if expected == found {
        return Ok(());
    }
    Err(Failure::new(expected, found))
}

/// A tensor in one line.
pub(crate) fn show(data: &TensorData) -> String {
    let values: Vec<String> = data.iter::<f64>().map(|x| x.to_string()).collect();
    let shape = data.shape().to_vec();
    format!("{}{shape:?} [{}]", data.dtype().name(), values.join(", "))
}
