//! `UpSampling3D`.

use super::up_sampling_2d::repeated;
use super::*;

/// `keras.layers.UpSampling3D`: every place several times.
#[derive(Debug, Clone, PartialEq)]
pub struct UpSampling3D {
    /// How many places a place becomes along the depth, the rows and the columns.
    pub size: [usize; 3],
}

impl KerasLayer for UpSampling3D {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        channels_last(fields)?;
        let size = extents(fields, "size")?.unwrap_or([2; 3]);
        Ok(Self { size })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        let (dims, channels) = input.needs_volume()?;
        let all = |axis: usize| dims[axis].saturating_mul(self.size[axis]);
        Ok(Shape::Volume(all(0), all(1), all(2), channels))
    }

    fn call(&self, x: Value, _: &mut Pass<'_, '_>) -> Value {
        x.map_volume(|mut x| {
            for (axis, times) in self.size.into_iter().enumerate() {
                x = repeated(x, axis + 2, times);
            }
            Flow::Volume(x)
        })
    }

    fn changes_nothing(&self, _: Shape, _: bool) -> bool {
        self.size == [1; 3]
    }
}
