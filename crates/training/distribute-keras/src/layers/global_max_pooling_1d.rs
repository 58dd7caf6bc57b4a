//! `GlobalMaxPooling1D`.

use super::global_average_pooling_1d::pooled_steps;
use super::global_average_pooling_2d::keepdims;
use super::global_max_pooling_2d::largest;
use super::*;

/// `keras.layers.GlobalMaxPooling1D`: the largest value of every feature over the sequence, its
/// padding among them.
#[derive(Debug, Clone, PartialEq)]
pub struct GlobalMaxPooling1D {
    /// Whether the result is a sequence of one step.
    pub keepdims: bool,
}

impl KerasLayer for GlobalMaxPooling1D {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        keepdims(fields).map(|keepdims| Self { keepdims })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        pooled_steps(input, self.keepdims)
    }

    fn call(&self, x: Value, pass: &mut Pass<'_, '_>) -> Value {
        match x.flow {
            Flow::Sequence(steps) => {
                let most = largest(steps, 1, pass);
                Value::of(if self.keepdims {
                    Flow::Sequence(most)
                } else {
                    Flow::Flat(most.squeeze_dim(1))
                })
            }
            // A plan never puts it on another shape.
            _ => x,
        }
    }
}
