//! `RepeatVector`.

use super::*;

/// `keras.layers.RepeatVector`: the same features in every step.
#[derive(Debug, Clone, PartialEq)]
pub struct RepeatVector {
    /// The number of steps.
    pub n: usize,
}

impl KerasLayer for RepeatVector {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        count(fields, "n").map(|n| Self { n })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        match input {
            Shape::Flat(features) => Ok(Shape::Sequence(self.n, features)),
            _ => Err(format!("needs features alone, gets {input}")),
        }
    }

    fn call(&self, x: Value, _: &mut Pass<'_, '_>) -> Value {
        match x.flow {
            Flow::Flat(x) => {
                let [batch, features] = x.dims();
                let steps = x.unsqueeze_dim::<3>(1).expand([batch, self.n, features]);
                Value::of(Flow::Sequence(steps))
            }
            // A plan never puts it on another shape.
            _ => x,
        }
    }
}
