//! `AveragePooling2D`.

use burn::tensor::module::avg_pool2d;
use burn::tensor::ops::AvgPoolOptions;

use super::*;

/// `keras.layers.AveragePooling2D`.
#[derive(Debug, Clone, PartialEq)]
pub struct AveragePooling2D {
    /// Rows and columns of a window.
    pub pool_size: [usize; 2],
    /// Steps between windows.
    pub strides: [usize; 2],
    /// What happens at the borders; padding does not count in the average.
    pub padding: Padding,
}

impl AveragePooling2D {
    pub(super) fn of(windows: Windows) -> Self {
        Self {
            pool_size: windows.kernel_size,
            strides: windows.strides,
            padding: windows.padding,
        }
    }

    fn windows(&self) -> Windows {
        Windows::pool(self.pool_size, self.strides, self.padding)
    }
}

impl KerasLayer for AveragePooling2D {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        Windows::of_pool(fields).map(Self::of)
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        self.windows().output_shape(input, input.features())
    }

    fn call(&self, x: Value, _: &mut Pass<'_, '_>) -> Value {
        x.map_image(|x| {
            let options = AvgPoolOptions::new(self.pool_size)
                .with_stride(self.strides)
                .with_padding_pairs(self.windows().pads(&x))
                .with_count_include_pad(false);
            Flow::Image(avg_pool2d(x, options))
        })
    }

    fn changes_nothing(&self, _: Shape, _: bool) -> bool {
        (self.pool_size, self.strides) == ([1, 1], [1, 1])
    }

    fn wants_image(&self) -> Option<bool> {
        Some(true)
    }
}
