//! `Cropping2D`.

use super::*;
use crate::shape::tuple;

/// `keras.layers.Cropping2D`.
#[derive(Debug, Clone, PartialEq)]
pub struct Cropping2D {
    /// Rows at the start and the end, columns at the start and the end.
    pub cropping: [(usize, usize); 2],
}

impl KerasLayer for Cropping2D {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        sides(fields, "cropping", 0).map(|cropping| Self { cropping })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        let (height, width, channels) = input.needs_image()?;
        let [rows, columns] = self.cropping;
        let left = |size: usize, (start, end): (usize, usize)| {
            let left = size.checked_sub(start)?.checked_sub(end)?;
            (left > 0).then_some(left)
        };
        match (left(height, rows), left(width, columns)) {
            (Some(height), Some(width)) => Ok(Shape::Image(height, width, channels)),
            _ => Err(format!(
                "`cropping` leaves nothing of {}",
                tuple(&[height, width])
            )),
        }
    }

    fn call(&self, x: Value, _: &mut Pass<'_, '_>) -> Value {
        let [rows, columns] = self.cropping;
        x.map_image(|x| {
            let [batch, channels, height, width] = x.dims();
            Flow::Image(x.slice([
                0..batch,
                0..channels,
                rows.0..height - rows.1,
                columns.0..width - columns.1,
            ]))
        })
    }

    fn changes_nothing(&self, _: Shape, _: bool) -> bool {
        self.cropping == [(0, 0); 2]
    }

    fn wants_image(&self) -> Option<bool> {
        Some(true)
    }
}
