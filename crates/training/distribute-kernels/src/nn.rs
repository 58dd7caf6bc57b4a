//! Layers with the parameters and settings of burn's, by whose configurations they are made.

use burn::module::{Module, Param};
use burn::nn::{PaddingConfig2d, conv, pool};
use burn::tensor::Tensor;
use burn::tensor::ops::{ConvOptions, MaxPoolOptions};

/// [`burn::nn::conv::Conv2d`] over [`conv2d`](crate::conv2d). Its parameters have the same names,
/// so that a checkpoint of the one is one of the other.
#[derive(Module, Debug)]
pub struct Conv2d {
    /// The filters, `[filters, channels / groups, rows, columns]`.
    pub weight: Param<Tensor<4>>,
    /// The bias, `[filters]`.
    pub bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    settings: Settings,
}

/// What burn's layer is configured with.
#[derive(Debug, Clone)]
struct Settings {
    stride: [usize; 2],
    dilation: [usize; 2],
    groups: usize,
    padding: PaddingConfig2d,
}

impl From<conv::Conv2d> for Conv2d {
    fn from(layer: conv::Conv2d) -> Self {
        Self {
            weight: layer.weight,
            bias: layer.bias,
            settings: Settings {
                stride: layer.stride,
                dilation: layer.dilation,
                groups: layer.groups,
                padding: layer.padding,
            },
        }
    }
}

impl Conv2d {
    /// Convolves images `[batch, channels, height, width]` to `[batch, filters, rows, columns]`.
    ///
    /// # Panics
    /// Where burn's layer does: the channels differ, or no filter fits into the padded image.
    #[must_use]
    pub fn forward(&self, images: Tensor<4>) -> Tensor<4> {
        let options = self.options(&images);
        crate::conv2d(images, self.weight.val(), self.bias(), options)
    }

    /// [`Conv2d::forward`] and [`relu`](burn::tensor::activation::relu) in one.
    ///
    /// # Panics
    /// As [`Conv2d::forward`].
    #[must_use]
    pub fn forward_relu(&self, images: Tensor<4>) -> Tensor<4> {
        let options = self.options(&images);
        crate::conv2d_relu(images, self.weight.val(), self.bias(), options)
    }

    fn bias(&self) -> Option<Tensor<1>> {
        self.bias.as_ref().map(Param::val)
    }

    fn options(&self, images: &Tensor<4>) -> ConvOptions<2> {
        let Settings {
            stride,
            dilation,
            groups,
            ref padding,
        } = self.settings;
        let [_, _, rows, columns] = self.weight.dims();
        let padding = padding_pairs(padding, images, [rows, columns], stride);
        ConvOptions::new_with_padding(stride, padding, dilation, groups)
    }
}

/// [`burn::nn::pool::MaxPool2d`] over [`max_pool2d`](crate::max_pool2d).
#[derive(Module, Debug)]
pub struct MaxPool2d {
    /// The settings.
    #[module(skip)]
    pub layer: pool::MaxPool2d,
}

impl From<pool::MaxPool2d> for MaxPool2d {
    fn from(layer: pool::MaxPool2d) -> Self {
        Self { layer }
    }
}

impl MaxPool2d {
    /// Pools images `[batch, channels, height, width]` to `[batch, channels, rows, columns]`.
    ///
    /// # Panics
    /// Where burn's layer does: no window fits into the padded image.
    #[must_use]
    pub fn forward(&self, images: Tensor<4>) -> Tensor<4> {
        let layer = &self.layer;
        let padding = padding_pairs(&layer.padding, &images, layer.kernel_size, layer.stride);
        let options = MaxPoolOptions::new(layer.kernel_size)
            .with_stride(layer.stride)
            .with_padding_pairs(padding)
            .with_dilation(layer.dilation)
            .with_ceil_mode(layer.ceil_mode);
        crate::max_pool2d(images, options)
    }
}

/// The padding before and after the rows, and the columns, as burn's layers have it.
fn padding_pairs(
    config: &PaddingConfig2d,
    images: &Tensor<4>,
    sizes: [usize; 2],
    strides: [usize; 2],
) -> [(usize, usize); 2] {
    let [_, _, height, width] = images.dims();
    let same = |input: usize, i: usize| {
        let windows = (input.div_ceil(strides[i]).saturating_sub(1)) * strides[i] + sizes[i];
        let missing = windows.saturating_sub(input);
        (missing / 2, missing - missing / 2)
    };
    match *config {
        PaddingConfig2d::Valid => [(0, 0); 2],
        PaddingConfig2d::Explicit(top, left, bottom, right) => [(top, bottom), (left, right)],
        PaddingConfig2d::Same => [same(height, 0), same(width, 1)],
    }
}
