//! `ZeroPadding2D`.

use burn::tensor::ops::PadMode;

use super::*;

/// `keras.layers.ZeroPadding2D`.
#[derive(Debug, Clone, PartialEq)]
pub struct ZeroPadding2D {
    /// Rows before and after, columns before and after.
    pub padding: [(usize, usize); 2],
}

impl KerasLayer for ZeroPadding2D {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        sides(fields, "padding", 1).map(|padding| Self { padding })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        let (height, width, channels) = input.needs_image()?;
        let [rows, columns] = self.padding;
        let padded = |size: usize, (before, after): (usize, usize)| {
            size.saturating_add(before).saturating_add(after)
        };
        Ok(Shape::Image(
            padded(height, rows),
            padded(width, columns),
            channels,
        ))
    }

    fn call(&self, x: Value, _: &mut Pass<'_, '_>) -> Value {
        x.map_image(|x| Flow::Image(x.pad(self.padding, PadMode::Constant(0.0))))
    }

    fn changes_nothing(&self, _: Shape, _: bool) -> bool {
        self.padding == [(0, 0); 2]
    }

    fn wants_image(&self) -> Option<bool> {
        Some(true)
    }
}
