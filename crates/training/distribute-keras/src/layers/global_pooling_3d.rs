//! `GlobalMaxPooling3D` and `GlobalAveragePooling3D`.

use super::global_average_pooling_2d::keepdims;
use super::global_max_pooling_2d::largest;
use super::*;

/// `keras.layers.GlobalMaxPooling3D` and `GlobalAveragePooling3D`.
#[derive(Debug, Clone, PartialEq)]
pub struct GlobalPooling3D {
    /// The mean of every channel, and not its largest value.
    pub average: bool,
    /// Whether the result is a volume of one place.
    pub keepdims: bool,
}

impl KerasLayer for GlobalPooling3D {
    fn parse(class: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        Ok(Self {
            average: matches!(class, "GlobalAveragePooling3D" | "GlobalAvgPool3D"),
            keepdims: keepdims(fields)?,
        })
    }

    fn class(&self) -> Option<&'static str> {
        Some(if self.average {
            "GlobalAveragePooling3D"
        } else {
            "GlobalMaxPooling3D"
        })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        let (_, channels) = input.needs_volume()?;
        Ok(if self.keepdims {
            Shape::Volume(1, 1, 1, channels)
        } else {
            Shape::Flat(channels)
        })
    }

    fn call(&self, x: Value, pass: &mut Pass<'_, '_>) -> Value {
        x.map_volume(|x| {
            let [batch, channels, ..] = x.dims();
            let places = x.flatten::<3>(2, 4);
            let pooled = if self.average {
                places.mean_dim(2)
            } else {
                largest(places, 2, pass)
            };
            if self.keepdims {
                Flow::Volume(pooled.reshape([batch, channels, 1, 1, 1]))
            } else {
                Flow::Flat(pooled.reshape([batch, channels]))
            }
        })
    }
}
