//! `CenterCrop`.

use super::*;

/// `keras.layers.CenterCrop`: the middle of images, which are not smaller.
#[derive(Debug, Clone, PartialEq)]
pub struct CenterCrop {
    /// Rows and columns of the result.
    pub size: [usize; 2],
}

impl KerasLayer for CenterCrop {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        channels_last(fields)?;
        Ok(Self {
            size: [count(fields, "height")?, count(fields, "width")?],
        })
    }

    /// Keras 3 writes the default of these layers; which pass it is says the model.
    fn argument(&self, key: &str, value: &Json, _: &mut Arguments) -> bool {
        (key, value) == ("training", &Json::Bool(true))
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        let (height, width, channels) = input.needs_image()?;
        let [rows, columns] = self.size;
        if rows > height || columns > width {
            return Err(format!(
                "cuts {rows} rows and {columns} columns out of {input}, which it would have to \
                 enlarge; use a Resizing before it"
            ));
        }
        Ok(Shape::Image(rows, columns, channels))
    }

    fn call(&self, x: Value, _: &mut Pass<'_, '_>) -> Value {
        x.map_image(|x| {
            let [_, _, height, width] = x.dims();
            let [rows, columns] = self.size;
            // A plan sees to it that they fit.
            let (top, left) = (
                height.saturating_sub(rows) / 2,
                width.saturating_sub(columns) / 2,
            );
            Flow::Image(x.narrow(2, top, rows).narrow(3, left, columns))
        })
    }

    fn wants_image(&self) -> Option<bool> {
        Some(true)
    }
}
