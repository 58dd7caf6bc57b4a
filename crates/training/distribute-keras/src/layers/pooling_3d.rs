//! `MaxPooling3D` and `AveragePooling3D`.

use burn::tensor::module::avg_pool2d;
use burn::tensor::ops::{AvgPoolOptions, MaxPoolOptions};
use distribute_kernels::max_pool2d;

use super::*;

/// `keras.layers.MaxPooling3D` and `AveragePooling3D`.
#[derive(Debug, Clone, PartialEq)]
pub struct Pooling3D {
    /// The mean of a window, in which padding does not count, and not its largest value.
    pub average: bool,
    /// The windows.
    pub windows: Windows<3>,
}

impl KerasLayer for Pooling3D {
    fn parse(class: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        Ok(Self {
            average: matches!(class, "AveragePooling3D" | "AvgPool3D"),
            windows: Windows::of_pool(fields)?,
        })
    }

    fn class(&self) -> Option<&'static str> {
        Some(if self.average {
            "AveragePooling3D"
        } else {
            "MaxPooling3D"
        })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        self.windows.output_shape(input, input.features())
    }

    /// First the rows and columns, then the depths: neither the largest value nor the mean of as
    /// many values each depends on the order.
    fn call(&self, x: Value, _: &mut Pass<'_, '_>) -> Value {
        x.map_volume(|x| {
            let [batch, channels, depth, height, width] = x.dims();
            let places = self.windows.places([depth, height, width]);
            // A plan has found the places already.
            let [depths, rows, columns] = places.unwrap_or([1; 3]);
            let planes = x.reshape([batch, channels * depth, height, width]);
            let pads = self.windows.pads_of([depth, height, width]);
            let pooled = self.pool(planes, [1, 2], [pads[1], pads[2]]);
            let pooled = pooled.reshape([batch * channels, 1, depth, rows * columns]);
            let pooled = self.pool_depths(pooled, pads[0]);
            Flow::Volume(pooled.reshape([batch, channels, depths, rows, columns]))
        })
    }

    fn changes_nothing(&self, _: Shape, _: bool) -> bool {
        (self.windows.kernel_size, self.windows.strides) == ([1; 3], [1; 3])
    }
}

impl Pooling3D {
    fn pool(&self, x: Tensor<4>, axes: [usize; 2], pads: [(usize, usize); 2]) -> Tensor<4> {
        let size = axes.map(|axis| self.windows.kernel_size[axis]);
        self.pool_windows(x, size, axes.map(|axis| self.windows.strides[axis]), pads)
    }

    fn pool_depths(&self, x: Tensor<4>, pads: (usize, usize)) -> Tensor<4> {
        let (size, stride) = (self.windows.kernel_size[0], self.windows.strides[0]);
        self.pool_windows(x, [size, 1], [stride, 1], [pads, (0, 0)])
    }

    fn pool_windows(
        &self,
        x: Tensor<4>,
        size: [usize; 2],
        strides: [usize; 2],
        pads: [(usize, usize); 2],
    ) -> Tensor<4> {
        if self.average {
            let options = AvgPoolOptions::new(size)
                .with_stride(strides)
                .with_padding_pairs(pads)
                .with_count_include_pad(false);
            avg_pool2d(x, options)
        } else {
            let options = MaxPoolOptions::new(size)
                .with_stride(strides)
                .with_padding_pairs(pads);
            max_pool2d(x, options)
        }
    }
}
