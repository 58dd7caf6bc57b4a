//! `DepthwiseConv2D`.

use super::conv_2d::Conv2dWeights;
use super::layout::depthwise;
use super::*;

/// `keras.layers.DepthwiseConv2D`: a convolution of every channel by itself.
#[derive(Debug, Clone, PartialEq)]
pub struct DepthwiseConv2D {
    /// The windows.
    pub windows: Windows,
    /// How many channels every channel becomes.
    pub depth_multiplier: usize,
    /// Applied to the result.
    pub activation: Activation,
    /// Whether a bias per channel is added.
    pub use_bias: bool,
    /// How the kernel starts.
    pub depthwise_initializer: Initializer,
    /// How the bias starts.
    pub bias_initializer: Initializer,
    /// The loss on the kernel.
    pub depthwise_regularizer: Option<Regularizer>,
}

impl DepthwiseConv2D {
    /// The options of a convolution with these windows.
    pub(super) fn of(windows: Windows, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        let depth_multiplier = depth_multiplier(fields)?;
        Ok(Self {
            windows,
            depth_multiplier,
            activation: activation(fields)?,
            use_bias: fields.flag("use_bias", true)?,
            depthwise_initializer: kernel_initializer(fields, "depthwise_initializer")?,
            bias_initializer: bias_initializer(fields)?,
            depthwise_regularizer: regularizer(fields, "depthwise_regularizer")?,
        })
    }
}

impl KerasLayer for DepthwiseConv2D {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        let windows = Windows::of_convolution(fields)?;
        Self::of(windows, fields)
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        let channels = input.features().saturating_mul(self.depth_multiplier);
        self.windows.output_shape(input, channels)
    }

    fn weights(&self, inputs: &[Shape]) -> Vec<Option<PlannedWeight>> {
        let [rows, columns] = self.windows.kernel_size;
        let (channels, multiplier) = (features(inputs), self.depth_multiplier);
        let kernel = [rows, columns, channels, multiplier];
        let bias = self.use_bias.then_some(self.bias_initializer);
        vec![
            weight("kernel", &kernel, self.depthwise_initializer),
            weight("bias", &[channels.saturating_mul(multiplier)], bias),
        ]
    }

    fn old_name(&self, weight: &str) -> Option<&'static str> {
        (weight == "kernel").then_some("depthwise_kernel")
    }

    /// A convolution with a group per channel.
    fn build(&self, weights: &mut Weights<'_>) -> Option<BuiltLayer> {
        let kernel = depthwise(weights.next());
        Some(BuiltLayer::Conv2d(Conv2dWeights {
            kernel: weights.trained(kernel),
            bias: weights.optional(self.use_bias),
            windows: self.windows,
            groups: weights.features,
            activation: self.activation,
            regularizer: self.depthwise_regularizer,
        }))
    }

    fn activation(&self) -> Activation {
        self.activation
    }

    fn wants_image(&self) -> Option<bool> {
        Some(true)
    }

    fn set_regularizer(&mut self, regularizer: Option<Regularizer>) {
        self.depthwise_regularizer = regularizer;
    }
}

/// How many channels every channel becomes. Keras 2 writes groups too, and does not use them.
pub(super) fn depth_multiplier(fields: &mut Fields<'_>) -> Result<usize, ModelError> {
    channels_last(fields)?;
    fields.must_be("groups", 1, "leave it out: every channel is a group")?;
    Ok(optional_count(fields, "depth_multiplier")?.unwrap_or(1))
}
