//! `Conv2D`.

use burn::tensor::ops::ConvOptions;
use distribute_kernels::{conv2d, conv2d_relu};

use super::layout::filters_first;
use super::*;

/// `keras.layers.Conv2D`.
#[derive(Debug, Clone, PartialEq)]
pub struct Conv2D {
    /// The number of output channels.
    pub filters: usize,
    /// The windows.
    pub windows: Windows,
    /// Into how many groups the channels are split.
    pub groups: usize,
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

impl Conv2D {
    /// The options of a convolution with these windows.
    pub(super) fn of(windows: Windows, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        channels_last(fields)?;
        let groups = optional_count(fields, "groups")?.unwrap_or(1);
        Ok(Self {
            filters: count(fields, "filters")?,
            windows,
            groups,
            activation: activation(fields)?,
            use_bias: fields.flag("use_bias", true)?,
            kernel_initializer: kernel_initializer(fields, "kernel_initializer")?,
            bias_initializer: bias_initializer(fields)?,
            kernel_regularizer: regularizer(fields, "kernel_regularizer")?,
        })
    }
}

impl KerasLayer for Conv2D {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        let windows = Windows::of_convolution(fields)?;
        Self::of(windows, fields)
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        let (_, _, channels) = input.needs_image()?;
        let (filters, groups) = (self.filters, self.groups);
        if channels % groups != 0 || filters % groups != 0 {
            return Err(format!(
                "{channels} channels and {filters} filters cannot be split into {groups} groups"
            ));
        }
        self.windows.output_shape(input, filters)
    }

    fn weights(&self, inputs: &[Shape]) -> Vec<Option<PlannedWeight>> {
        let [rows, columns] = self.windows.kernel_size;
        let kernel = [rows, columns, features(inputs) / self.groups, self.filters];
        let bias = self.use_bias.then_some(self.bias_initializer);
        vec![
            weight("kernel", &kernel, self.kernel_initializer),
            weight("bias", &[self.filters], bias),
        ]
    }

    fn build(&self, weights: &mut Weights<'_>) -> Option<BuiltLayer> {
        let kernel = filters_first(weights.next());
        Some(BuiltLayer::Conv2d(Conv2dWeights {
            kernel: weights.trained(kernel),
            bias: weights.optional(self.use_bias),
            windows: self.windows,
            groups: self.groups,
            activation: self.activation,
            regularizer: self.kernel_regularizer,
        }))
    }

    fn activation(&self) -> Activation {
        self.activation
    }

    fn wants_image(&self) -> Option<bool> {
        Some(true)
    }

    fn set_regularizer(&mut self, regularizer: Option<Regularizer>) {
        self.kernel_regularizer = regularizer;
    }
}

/// The kernel is `[filters, channels / groups, rows, columns]`.
#[derive(Module, Debug)]
pub(crate) struct Conv2dWeights {
    pub(super) kernel: Param<Tensor<4>>,
    pub(super) bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    pub(super) windows: Windows,
    #[module(skip)]
    pub(super) groups: usize,
    #[module(skip)]
    pub(super) activation: Activation,
    #[module(skip)]
    pub(super) regularizer: Option<Regularizer>,
}

/// Of images, a kernel and a bias.
type Operation = fn(Tensor<4>, Tensor<4>, Option<Tensor<1>>, ConvOptions<2>) -> Tensor<4>;

impl Built for Conv2dWeights {
    fn call(&self, x: Value, pass: &mut Pass<'_, '_>) -> distribute_core::Result<Value> {
        Ok(x.map_image(|x| self.of_image(x, pass)))
    }

    fn losses(&self) -> Vec<Option<Tensor<1>>> {
        vec![penalty(self.regularizer, &self.kernel)]
    }
}

impl Conv2dWeights {
    pub(super) fn of_image(&self, x: Tensor<4>, pass: &Pass<'_, '_>) -> Flow {
        match (pass.without_activation, self.activation) {
            (false, Activation::Relu) => Flow::Image(self.convolve_by(conv2d_relu, x)),
            (_, activation) => pass.activate(Flow::Image(self.convolve(x)), activation),
        }
    }

    /// The convolution and the bias, without the activation.
    pub(super) fn convolve(&self, x: Tensor<4>) -> Tensor<4> {
        self.convolve_by(conv2d, x)
    }

    fn convolve_by(&self, operation: Operation, x: Tensor<4>) -> Tensor<4> {
        let Windows {
            strides,
            dilation_rate,
            ..
        } = self.windows;
        let pads = self.windows.pads(&x);
        let options = ConvOptions::new_with_padding(strides, pads, dilation_rate, self.groups);
        let bias = self.bias.as_ref().map(Param::val);
        operation(x, self.kernel.val(), bias, options)
    }
}
