//! `Conv3D`.

use burn::tensor::module::conv3d;
use burn::tensor::ops::{ConvOptions, PadMode};

use super::layout::filters_first;
use super::*;

/// `keras.layers.Conv3D`.
#[derive(Debug, Clone, PartialEq)]
pub struct Conv3D {
    /// The number of output channels.
    pub filters: usize,
    /// The windows.
    pub windows: Windows<3>,
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

impl KerasLayer for Conv3D {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        channels_last(fields)?;
        let groups = optional_count(fields, "groups")?.unwrap_or(1);
        Ok(Self {
            filters: count(fields, "filters")?,
            windows: Windows::of_convolution(fields)?,
            groups,
            activation: activation(fields)?,
            use_bias: fields.flag("use_bias", true)?,
            kernel_initializer: kernel_initializer(fields, "kernel_initializer")?,
            bias_initializer: bias_initializer(fields)?,
            kernel_regularizer: regularizer(fields, "kernel_regularizer")?,
        })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        let (_, channels) = input.needs_volume()?;
        let (filters, groups) = (self.filters, self.groups);
        if channels % groups != 0 || filters % groups != 0 {
            return Err(format!(
                "{channels} channels and {filters} filters cannot be split into {groups} groups"
            ));
        }
        self.windows.output_shape(input, filters)
    }

    fn weights(&self, inputs: &[Shape]) -> Vec<Option<PlannedWeight>> {
        let [depth, rows, columns] = self.windows.kernel_size;
        let channels = features(inputs) / self.groups;
        let kernel = [depth, rows, columns, channels, self.filters];
        let bias = self.use_bias.then_some(self.bias_initializer);
        vec![
            weight("kernel", &kernel, self.kernel_initializer),
            weight("bias", &[self.filters], bias),
        ]
    }

    fn build(&self, weights: &mut Weights<'_>) -> Option<BuiltLayer> {
        let kernel = filters_first(weights.next());
        Some(BuiltLayer::Conv3d(Conv3dWeights {
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

/// The kernel is `[filters, channels / groups, depth, rows, columns]`.
#[derive(Module, Debug)]
pub(crate) struct Conv3dWeights {
    kernel: Param<Tensor<5>>,
    bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    layer: Conv3D,
}

impl Built for Conv3dWeights {
    fn call(&self, x: Value, pass: &mut Pass<'_, '_>) -> distribute_core::Result<Value> {
        let layer = &self.layer;
        Ok(x.map_volume(|x| {
            let [_, _, depth, height, width] = x.dims();
            let pads = layer.windows.pads_of([depth, height, width]);
            // burn's operation pads both ends of an axis alike.
            let x = match pads {
                [(0, 0), (0, 0), (0, 0)] => x,
                pads => x.pad(pads, PadMode::Constant(0.0)),
            };
            let Windows {
                strides,
                dilation_rate,
                ..
            } = layer.windows;
            let options = ConvOptions::new(strides, [0; 3], dilation_rate, layer.groups);
            let bias = self.bias.as_ref().map(Param::val);
            let y = conv3d(x, self.kernel.val(), bias, options);
            pass.activate(Flow::Volume(y), layer.activation)
        }))
    }

    fn losses(&self) -> Vec<Option<Tensor<1>>> {
        vec![penalty(self.layer.kernel_regularizer, &self.kernel)]
    }
}
