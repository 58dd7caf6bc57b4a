//! `SeparableConv2D`.

use super::conv_2d::Conv2dWeights;
use super::depthwise_conv_2d::depth_multiplier;
use super::layout::{depthwise, filters_first};
use super::*;

/// `keras.layers.SeparableConv2D`: a convolution of every channel by itself, then one of 1 x 1
/// that mixes them.
#[derive(Debug, Clone, PartialEq)]
pub struct SeparableConv2D {
    /// The number of output channels.
    pub filters: usize,
    /// The windows of the first convolution.
    pub windows: Windows,
    /// How many channels every channel becomes between the two.
    pub depth_multiplier: usize,
    /// Applied to the result.
    pub activation: Activation,
    /// Whether a bias per channel is added at the end.
    pub use_bias: bool,
    /// How the first kernel starts.
    pub depthwise_initializer: Initializer,
    /// How the second kernel starts.
    pub pointwise_initializer: Initializer,
    /// How the bias starts.
    pub bias_initializer: Initializer,
    /// The loss on the first kernel.
    pub depthwise_regularizer: Option<Regularizer>,
    /// The loss on the second kernel.
    pub pointwise_regularizer: Option<Regularizer>,
}

impl SeparableConv2D {
    /// The options of a convolution with these windows.
    pub(super) fn of(windows: Windows, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        let depth_multiplier = depth_multiplier(fields)?;
        // Keras 2 also writes a convolution's initializer, but uses the two below.
        fields.neutral(&["kernel_initializer"]);
        Ok(Self {
            filters: count(fields, "filters")?,
            windows,
            depth_multiplier,
            activation: activation(fields)?,
            use_bias: fields.flag("use_bias", true)?,
            depthwise_initializer: kernel_initializer(fields, "depthwise_initializer")?,
            pointwise_initializer: kernel_initializer(fields, "pointwise_initializer")?,
            bias_initializer: bias_initializer(fields)?,
            depthwise_regularizer: regularizer(fields, "depthwise_regularizer")?,
            pointwise_regularizer: regularizer(fields, "pointwise_regularizer")?,
        })
    }
}

impl KerasLayer for SeparableConv2D {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        let windows = Windows::of_convolution(fields)?;
        Self::of(windows, fields)
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        self.windows.output_shape(input, self.filters)
    }

    fn weights(&self, inputs: &[Shape]) -> Vec<Option<PlannedWeight>> {
        let [rows, columns] = self.windows.kernel_size;
        let (channels, multiplier) = (features(inputs), self.depth_multiplier);
        let first = [rows, columns, channels, multiplier];
        let bias = self.use_bias.then_some(self.bias_initializer);
        let second = [1, 1, channels.saturating_mul(multiplier), self.filters];
        vec![
            weight("depthwise_kernel", &first, self.depthwise_initializer),
            weight("pointwise_kernel", &second, self.pointwise_initializer),
            weight("bias", &[self.filters], bias),
        ]
    }

    fn build(&self, weights: &mut Weights<'_>) -> Option<BuiltLayer> {
        let (first, second) = (depthwise(weights.next()), filters_first(weights.next()));
        Some(BuiltLayer::SeparableConv2d(SeparableConv2dWeights {
            depthwise: Conv2dWeights {
                kernel: weights.trained(first),
                bias: None,
                windows: self.windows,
                groups: weights.features,
                activation: Activation::Linear,
                regularizer: self.depthwise_regularizer,
            },
            pointwise: Conv2dWeights {
                kernel: weights.trained(second),
                bias: weights.optional(self.use_bias),
                windows: Windows::pool([1, 1], [1, 1], Padding::Valid),
                groups: 1,
                activation: self.activation,
                regularizer: self.pointwise_regularizer,
            },
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
        self.pointwise_regularizer = regularizer;
    }
}

/// A convolution of every channel by itself, then one of 1 x 1.
#[derive(Module, Debug)]
pub(crate) struct SeparableConv2dWeights {
    depthwise: Conv2dWeights,
    pointwise: Conv2dWeights,
}

impl Built for SeparableConv2dWeights {
    fn call(&self, x: Value, pass: &mut Pass<'_, '_>) -> distribute_core::Result<Value> {
        Ok(x.map_image(|x| self.pointwise.of_image(self.depthwise.convolve(x), pass)))
    }

    fn losses(&self) -> Vec<Option<Tensor<1>>> {
        [self.depthwise.losses(), self.pointwise.losses()].concat()
    }
}
