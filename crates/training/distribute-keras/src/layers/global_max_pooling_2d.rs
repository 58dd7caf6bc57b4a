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

    fn call(&self, x: Value, pass: &mut Pass<'_, '_>) -> Value {
        x.map_image(|x| pooled(x, self.keepdims, |places| largest(places, 2, pass)))
    }

    fn changes_nothing(&self, input: Shape, _: bool) -> bool {
        matches!(input, Shape::Image(1, 1, _))
    }

    fn wants_image(&self) -> Option<bool> {
        Some(true)
    }
}

/// The largest value along an axis. Its gradient is shared by all that are as large, as in
/// TensorFlow; in padded sequences many are.
pub(super) fn largest(x: Tensor<3>, axis: usize, pass: &Pass<'_, '_>) -> Tensor<3> {
    let most = x.clone().max_dim(axis);
    if matches!(pass.mode, Mode::Inference) {
        return most;
    }
    let most = most.detach();
    let dtype = x.dtype();
    let chosen = x.clone().detach().equal(most.clone().expand(x.dims()));
    let chosen = chosen.float().cast(dtype);
    let mean = (x * chosen.clone()).sum_dim(axis) / chosen.sum_dim(axis);
    // The value itself, which a mean of equal values is but for rounding.
    most + (mean.clone() - mean.detach())
}
