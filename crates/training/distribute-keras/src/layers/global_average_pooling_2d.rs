//! `GlobalAveragePooling2D`.

use super::*;

/// `keras.layers.GlobalAveragePooling2D`: the mean of every channel.
#[derive(Debug, Clone, PartialEq)]
pub struct GlobalAveragePooling2D {
    /// Whether the result is an image of one place.
    pub keepdims: bool,
}

impl KerasLayer for GlobalAveragePooling2D {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        keepdims(fields).map(|keepdims| Self { keepdims })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        pooled_shape(input, self.keepdims)
    }

    fn call(&self, x: Value, _: &mut Pass<'_, '_>) -> Value {
        x.map_image(|x| pooled(x, self.keepdims, |places| places.mean_dim(2)))
    }

    fn changes_nothing(&self, input: Shape, _: bool) -> bool {
        matches!(input, Shape::Image(1, 1, _))
    }

    fn wants_image(&self) -> Option<bool> {
        Some(true)
    }
}

/// The options of a pool over all places.
pub(super) fn keepdims(fields: &mut Fields<'_>) -> Result<bool, ModelError> {
    channels_last(fields)?;
    fields.flag("keepdims", false)
}

/// The shape of one place.
pub(super) fn pooled_shape(input: Shape, keepdims: bool) -> Result<Shape, String> {
    let (_, _, channels) = input.needs_image()?;
    Ok(if keepdims {
        Shape::Image(1, 1, channels)
    } else {
        Shape::Flat(channels)
    })
}

/// What `pool` makes of all places of a channel: `[batch, channels, places]`.
pub(super) fn pooled(x: Tensor<4>, keepdims: bool, pool: impl Fn(Tensor<3>) -> Tensor<3>) -> Flow {
    let [batch, channels, height, width] = x.dims();
    let pooled = pool(x.reshape([batch, channels, height * width]));
    if keepdims {
        Flow::Image(pooled.reshape([batch, channels, 1, 1]))
    } else {
        Flow::Flat(pooled.reshape([batch, channels]))
    }
}
