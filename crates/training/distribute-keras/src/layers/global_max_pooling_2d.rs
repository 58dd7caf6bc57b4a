//! `GlobalMaxPooling2D`.

use super::global_average_pooling_2d::{keepdims, pooled, pooled_shape};
use super::*;

/// `keras.layers.GlobalMaxPooling2D`: the largest value of every channel.
#[derive(Debug, Clone, PartialEq)]
pub struct GlobalMaxPooling2D {
    /// Whether the result is an image of one place.
    pub keepdims: bool,
}

impl KerasLayer for GlobalMaxPooling2D {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        keepdims(fields).map(|keepdims| Self { keepdims })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        pooled_shape(input, self.keepdims)
    }

    fn call(&self, x: Value, _: &mut Pass<'_, '_>) -> Value {
        x.map_image(|x| pooled(x, self.keepdims, |places| places.max_dim(2)))
    }

    fn changes_nothing(&self, input: Shape, _: bool) -> bool {
        matches!(input, Shape::Image(1, 1, _))
    }

    fn wants_image(&self) -> Option<bool> {
        Some(true)
    }
}
