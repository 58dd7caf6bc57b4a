//! `Conv3DTranspose`.

use burn::tensor::module::conv_transpose3d;
use burn::tensor::ops::ConvTransposeOptions;

use super::conv_2d_transpose::{cut, ends, paddings};
use super::layout::filters_first;
use super::*;

/// `keras.layers.Conv3DTranspose`: the way back of a convolution from outputs to a volume.
#[derive(Debug, Clone, PartialEq)]
pub struct Conv3DTranspose {
    /// The number of output channels.
    pub filters: usize,
    /// The windows of the convolution whose way back it is.
    pub windows: Windows<3>,
    /// See [`Conv2DTranspose::output_padding`].
    pub output_padding: Option<[usize; 3]>,
    /// Applied to the result.
    pub activation: Activation,
    /// Whether a bias per channel is added.
    pub use_bias: bool,
    /// How the kernel starts.
    pub kernel_initializer: Initializer,
    /// How the bias starts.
    pub bias_initializer: Initializer,
    /// The loss on the kernel.
    pub kernel_regularizer: Option<Regularizer>,
}

impl KerasLayer for Conv3DTranspose {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        channels_last(fields)?;
        fields.must_be("groups", 1, "leave it out")?;
        Ok(Self {
            filters: count(fields, "filters")?,
            windows: Windows::of_convolution(fields)?,
            output_padding: paddings(fields)?,
            activation: activation(fields)?,
            use_bias: fields.flag("use_bias", true)?,
            kernel_initializer: kernel_initializer(fields, "kernel_initializer")?,
            bias_initializer: bias_initializer(fields)?,
            kernel_regularizer: regularizer(fields, "kernel_regularizer")?,
        })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        let (input, _) = input.needs_volume()?;
        let ends = ends(&self.windows, self.output_padding, input)?;
        let [depth, rows, columns] = ends.map(|end| end.output);
        Ok(Shape::Volume(depth, rows, columns, self.filters))
    }

    fn weights(&self, inputs: &[Shape]) -> Vec<Option<PlannedWeight>> {
        let [depth, rows, columns] = self.windows.kernel_size;
        let kernel = [depth, rows, columns, self.filters, features(inputs)];
        let bias = self.use_bias.then_some(self.bias_initializer);
        vec![
            weight("kernel", &kernel, self.kernel_initializer),
            weight("bias", &[self.filters], bias),
        ]
    }

    fn build(&self, weights: &mut Weights<'_>) -> Option<BuiltLayer> {
        let kernel = filters_first(weights.next());
        Some(BuiltLayer::Conv3dTranspose(Conv3dTransposeWeights {
            kernel: weights.trained(kernel),
            bias: weights.optional(self.use_bias),
            layer: self.clone(),
        }))
    }

    fn activation(&self) -> Activation {
        self.activation
    }

    fn set_regularizer(&mut self, regularizer: Option<Regularizer>) {
        self.kernel_regularizer = regularizer;
    }
}

/// The kernel is `[channels, filters, depth, rows, columns]`.
#[derive(Module, Debug)]
pub(crate) struct Conv3dTransposeWeights {
    kernel: Param<Tensor<5>>,
    bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    layer: Conv3DTranspose,
}

impl Built for Conv3dTransposeWeights {
    fn call(&self, x: Value, pass: &mut Pass<'_, '_>) -> distribute_core::Result<Value> {
        Ok(x.map_volume(|x| {
            let y = self.convolve(x);
            pass.activate(Flow::Volume(y), self.layer.activation)
        }))
    }

    fn losses(&self) -> Vec<Option<Tensor<1>>> {
        vec![penalty(self.layer.kernel_regularizer, &self.kernel)]
    }
}

impl Conv3dTransposeWeights {
    fn convolve(&self, x: Tensor<5>) -> Tensor<5> {
        let [_, _, depth, height, width] = x.dims();
        let windows = &self.layer.windows;
        let ends = ends(windows, self.layer.output_padding, [depth, height, width]);
        let (strides, dilation) = (windows.strides, windows.dilation_rate);
        let options = ConvTransposeOptions::new(strides, [0; 3], [0; 3], dilation, 1);
        let mut y = conv_transpose3d(x, self.kernel.val(), None, options);
        // A plan has found the ends already.
        for (axis, end) in ends.into_iter().flatten().enumerate() {
            y = cut(y, axis + 2, end);
        }
        match &self.bias {
            Some(bias) => {
                let filters = self.layer.filters;
                y + bias.val().reshape([1, filters, 1, 1, 1])
            }
            None => y,
        }
    }
}
