//! `Rescaling`.

use super::flow::each;
use super::weights::{per_feature, tensor};
use super::*;

/// `keras.layers.Rescaling`: `x * scale + offset`.
#[derive(Debug, Clone, PartialEq)]
pub struct Rescaling {
    /// The factor: one, or one per feature.
    pub scale: Vec<f64>,
    /// What is added: one number, or one per feature.
    pub offset: Vec<f64>,
}

impl KerasLayer for Rescaling {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        Ok(Self {
            scale: optional_numbers(fields, "scale")?.unwrap_or_else(|| vec![1.0]),
            offset: optional_numbers(fields, "offset")?.unwrap_or_else(|| vec![0.0]),
        })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        input.needs_per_feature("scale", &self.scale)?;
        input.needs_per_feature("offset", &self.offset)?;
        Ok(input)
    }

    fn call(&self, x: Value, _: &mut Pass<'_, '_>) -> Value {
        let x = x.flow;
        if let (&[scale], &[offset]) = (&self.scale[..], &self.offset[..]) {
            return Value::of(each!(x, x => if offset == 0.0 {
                x.mul_scalar(scale)
            } else {
                x.mul_scalar(scale).add_scalar(offset)
            }));
        }
        let features = self.scale.len().max(self.offset.len());
        let device = x.device().without_autodiff();
        let constants = |values: &[f64]| tensor(per_feature(values, features), &device);
        Value::of(x.scale_features(constants(&self.scale), constants(&self.offset)))
    }

    fn changes_nothing(&self, _: Shape, _: bool) -> bool {
        let mut scale = self.scale.iter();
        scale.all(|scale| *scale == 1.0) && self.offset.iter().all(|offset| *offset == 0.0)
    }
}
