//! `CustomScaleLayer` of `InceptionResNetV2`.

use super::*;

/// The layer `CustomScaleLayer` of InceptionResNetV2 in `keras.applications`: the first value and
/// a part of the second.
#[derive(Debug, Clone, PartialEq)]
pub struct CustomScale {
    /// The part.
    pub scale: f64,
}

impl KerasLayer for CustomScale {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        Ok(Self {
            scale: fields.number("scale", 1.0)?,
        })
    }

    fn output_shape_of_all(&self, inputs: &[Shape]) -> Result<Shape, String> {
        Merge::Add.output_shape_of_all(inputs)
    }

    fn call_all(&self, inputs: Vec<Value>, pass: &mut Pass<'_, '_>) -> Option<Value> {
        let mut inputs = inputs.into_iter();
        let (first, second) = (inputs.next()?, inputs.next()?);
        let flow = super::flow::each!(second.flow, x => x.mul_scalar(self.scale));
        Merge::Add.call_all(vec![first, Value::of(flow)], pass)
    }
}
