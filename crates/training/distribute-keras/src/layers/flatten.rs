//! `Flatten`.

use super::*;

/// `keras.layers.Flatten`.
#[derive(Debug, Clone, PartialEq)]
pub struct Flatten;

impl KerasLayer for Flatten {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        channels_last(fields).map(|()| Self)
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        Ok(Shape::Flat(input.elements()))
    }

    fn call(&self, x: Value, pass: &mut Pass<'_, '_>) -> Value {
        Value::of(Flow::Flat(x.flow.flatten(pass.reordered)))
    }

    fn changes_nothing(&self, _: Shape, _: bool) -> bool {
        true
    }

    fn treats_features_alike(&self) -> bool {
        true
    }

    fn wants_image(&self) -> Option<bool> {
        Some(false)
    }
}
