//! `ZeroPadding3D` and `Cropping3D`.

use burn::tensor::ops::PadMode;

use super::*;

/// `keras.layers.ZeroPadding3D` and `Cropping3D`.
#[derive(Debug, Clone, PartialEq)]
pub struct Sides3D {
    /// Whether places are taken away, and not added.
    pub cropping: bool,
    /// How many at the start and the end of the depths, the rows and the columns.
    pub sides: [(usize, usize); 3],
}

impl KerasLayer for Sides3D {
    fn parse(class: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        let cropping = class == "Cropping3D";
        let key = if cropping { "cropping" } else { "padding" };
        Ok(Self {
            cropping,
            sides: sides(fields, key, 1)?,
        })
    }

    fn class(&self) -> Option<&'static str> {
        Some(if self.cropping {
            "Cropping3D"
        } else {
            "ZeroPadding3D"
        })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        let (mut dims, channels) = input.needs_volume()?;
        for (dim, (start, end)) in dims.iter_mut().zip(self.sides) {
            let both = start.saturating_add(end);
            let left = if self.cropping {
                dim.checked_sub(both).filter(|left| *left > 0)
            } else {
                Some(dim.saturating_add(both))
            };
            *dim = left.ok_or_else(|| format!("`cropping` leaves nothing of {input}"))?;
        }
        let [depth, height, width] = dims;
        Ok(Shape::Volume(depth, height, width, channels))
    }

    fn call(&self, x: Value, _: &mut Pass<'_, '_>) -> Value {
        x.map_volume(|mut x| {
            if !self.cropping {
                return Flow::Volume(x.pad(self.sides, PadMode::Constant(0.0)));
            }
            for (axis, (start, end)) in self.sides.into_iter().enumerate() {
                let left = x.dims()[axis + 2] - start - end;
                x = x.narrow(axis + 2, start, left);
            }
            Flow::Volume(x)
        })
    }

    fn changes_nothing(&self, _: Shape, _: bool) -> bool {
        self.sides == [(0, 0); 3]
    }
}
