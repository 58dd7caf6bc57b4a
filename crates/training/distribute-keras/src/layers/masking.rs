//! `Masking`.

use super::*;

/// `keras.layers.Masking`: leaves out the steps all of whose values are one number.
#[derive(Debug, Clone, PartialEq)]
pub struct Masking {
    /// The number.
    pub mask_value: f64,
}

impl KerasLayer for Masking {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        Ok(Self {
            mask_value: fields.number("mask_value", 0.0)?,
        })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        input.needs_sequence().map(|_| input)
    }

    fn call(&self, x: Value, _: &mut Pass<'_, '_>) -> Value {
        let Flow::Sequence(x) = x.flow else {
            // A plan never puts it on another shape.
            return x;
        };
        let dtype = x.dtype();
        let counts = x.clone().not_equal_elem(self.mask_value).any_dim(2).float();
        let counts = counts.cast(dtype);
        let mask = counts.clone().squeeze_dim(2);
        Value {
            flow: Flow::Sequence(x * counts),
            mask: Some(mask),
        }
    }

    fn mask(&self, _: &[Option<usize>], call: usize) -> Result<Option<usize>, String> {
        Ok(Some(call))
    }
}
