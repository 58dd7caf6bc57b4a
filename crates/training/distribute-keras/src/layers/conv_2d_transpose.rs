//! `Conv2DTranspose`.

use burn::tensor::module::conv_transpose2d;
use burn::tensor::ops::{ConvTransposeOptions, PadMode};

use super::layout::filters_first;
use super::*;

/// `keras.layers.Conv2DTranspose`: the way back of a convolution from outputs to an image.
#[derive(Debug, Clone, PartialEq)]
pub struct Conv2DTranspose {
    /// The number of output channels.
    pub filters: usize,
    /// The windows of the convolution whose way back it is.
    pub windows: Windows,
    /// How many rows and columns more the result has than a convolution needs that gives the input;
    /// as many as give the usual size if it is not said.
    pub output_padding: Option<[usize; 2]>,
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

impl Conv2DTranspose {
    /// The options of a convolution with these windows.
    pub(super) fn of(
        windows: Windows,
        output_padding: Option<[usize; 2]>,
        fields: &mut Fields<'_>,
    ) -> Result<Self, ModelError> {
        channels_last(fields)?;
        fields.must_be("groups", 1, "leave it out")?;
        if windows.padding == Padding::Causal {
            return Err(fields.refuse("padding", "use valid or same"));
        }
        Ok(Self {
            filters: count(fields, "filters")?,
            windows,
            output_padding,
            activation: activation(fields)?,
            use_bias: fields.flag("use_bias", true)?,
            kernel_initializer: kernel_initializer(fields, "kernel_initializer")?,
            bias_initializer: bias_initializer(fields)?,
            kernel_regularizer: regularizer(fields, "kernel_regularizer")?,
        })
    }
}

impl KerasLayer for Conv2DTranspose {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        let windows = Windows::of_convolution(fields)?;
        let output_padding = paddings(fields)?;
        Self::of(windows, output_padding, fields)
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        let (height, width, _) = input.needs_image()?;
        let ends = ends(&self.windows, self.output_padding, [height, width])?;
        let [rows, columns] = ends.map(|end| end.output);
        Ok(Shape::Image(rows, columns, self.filters))
    }

    fn weights(&self, inputs: &[Shape]) -> Vec<Option<PlannedWeight>> {
        let [rows, columns] = self.windows.kernel_size;
        let kernel = [rows, columns, self.filters, features(inputs)];
        let bias = self.use_bias.then_some(self.bias_initializer);
        vec![
            weight("kernel", &kernel, self.kernel_initializer),
            weight("bias", &[self.filters], bias),
        ]
    }

    fn build(&self, weights: &mut Weights<'_>) -> Option<BuiltLayer> {
        let kernel = filters_first(weights.next());
        Some(BuiltLayer::Conv2dTranspose(Conv2dTransposeWeights {
            kernel: weights.trained(kernel),
            bias: weights.optional(self.use_bias),
            layer: self.clone(),
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

/// The option `output_padding`: one number for all axes, or a number for each; 0 is one too.
pub(super) fn paddings<const N: usize>(
    fields: &mut Fields<'_>,
) -> Result<Option<[usize; N]>, ModelError> {
    let found = match fields.get("output_padding") {
        None => return Ok(None),
        Some(Json::Array(list)) => {
            let all: Option<Vec<usize>> = list.iter().map(pad).collect();
            all.and_then(|all| <[usize; N]>::try_from(all).ok())
        }
        Some(one) => pad(one).map(|n| [n; N]),
    };
    let remedy = "use a whole number, or one per axis";
    let found = found.ok_or_else(|| fields.refuse("output_padding", remedy));
    found.map(Some)
}

/// Along one axis: how many places of what the windows cover are left out at the start, and how
/// many are the output.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    pub(super) before: usize,
    pub(super) covered: usize,
    pub(super) output: usize,
}

/// TensorFlow's rule: the output is the image of a convolution with these windows that gives the
/// input, and Keras says how large it is.
pub(super) fn ends<const N: usize>(
    windows: &Windows<N>,
    output_padding: Option<[usize; N]>,
    input: [usize; N],
) -> Result<[End; N], String> {
    let window = windows.extent();
    let mut all = [End {
        before: 0,
        covered: 0,
        output: 0,
    }; N];
    for (i, end) in all.iter_mut().enumerate() {
        let stride = windows.strides[i];
        let steps = input[i].saturating_sub(1).saturating_mul(stride);
        end.covered = steps.saturating_add(window[i]);
        let more = output_padding.map(|more| more[i]);
        end.output = match (windows.padding, more) {
            (Padding::Same, None) => input[i].saturating_mul(stride),
            (Padding::Same, Some(more)) => steps.saturating_add(window[i] % 2 + more),
            (_, None) => steps.saturating_add(window[i].max(stride)),
            (_, Some(more)) => end.covered.saturating_add(more),
        };
        let fits = match windows.padding {
            Padding::Same => end.output.div_ceil(stride) == input[i],
            _ => {
                end.output
                    .checked_sub(window[i])
                    .map(|rest| rest / stride + 1)
                    == Some(input[i])
            }
        };
        if !fits || end.output == 0 {
            return Err(format!(
                "no convolution with a window of {} and a stride of {stride} makes {} places of \
                 {}; use another output_padding",
                window[i], input[i], end.output
            ));
        }
        if windows.padding == Padding::Same {
            end.before = end.covered.saturating_sub(end.output) / 2;
        }
    }
    Ok(all)
}

/// The kernel is `[channels, filters, rows, columns]`.
#[derive(Module, Debug)]
pub(crate) struct Conv2dTransposeWeights {
    kernel: Param<Tensor<4>>,
    bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    layer: Conv2DTranspose,
}

impl Built for Conv2dTransposeWeights {
    fn call(&self, x: Value, pass: &mut Pass<'_, '_>) -> distribute_core::Result<Value> {
        Ok(x.map_image(|x| {
            let y = self.convolve(x);
            pass.activate(Flow::Image(y), self.layer.activation)
        }))
    }

    fn losses(&self) -> Vec<Option<Tensor<1>>> {
        vec![penalty(self.layer.kernel_regularizer, &self.kernel)]
    }
}

impl Conv2dTransposeWeights {
    fn convolve(&self, x: Tensor<4>) -> Tensor<4> {
        let [_, _, height, width] = x.dims();
        let Windows {
            strides,
            dilation_rate,
            ..
        } = self.layer.windows;
        let ends = ends(
            &self.layer.windows,
            self.layer.output_padding,
            [height, width],
        );
        let options = ConvTransposeOptions::new(strides, [0, 0], [0, 0], dilation_rate, 1);
        let mut y = conv_transpose2d(x, self.kernel.val(), None, options);
        // A plan has found the ends already.
        for (axis, end) in ends.into_iter().flatten().enumerate() {
            y = cut(y, axis + 2, end);
        }
        match &self.bias {
            Some(bias) => {
                let filters = self.layer.filters;
                y + bias.val().reshape([1, filters, 1, 1])
            }
            None => y,
        }
    }
}

/// What is the output of what the windows cover; zeros where they cover nothing.
pub(super) fn cut<const D: usize>(y: Tensor<D>, axis: usize, end: End) -> Tensor<D> {
    let missing = (end.before + end.output).saturating_sub(end.covered);
    let y = if missing > 0 {
        let mut pads = [(0, 0); D];
        pads[axis].1 = missing;
        y.pad(pads, PadMode::Constant(0.0))
    } else {
        y
    };
    y.narrow(axis, end.before, end.output)
}
