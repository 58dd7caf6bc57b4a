//! `ConvLSTM1D`, `ConvLSTM2D` and `ConvLSTM3D`.

use burn::tensor::module::conv3d;
use burn::tensor::ops::{ConvOptions, PadMode};
use distribute_core::dropout;

use super::layout::filters_first;
use super::nd::Nd;
use super::*;

/// `keras.layers.ConvLSTM1D`, `ConvLSTM2D` and `ConvLSTM3D`: an LSTM over a sequence of images,
/// whose products are convolutions (Shi et al., 2015).
///
/// Images of fewer axes are volumes with axes of length 1 before theirs.
#[derive(Debug, Clone, PartialEq)]
pub struct ConvLstm {
    /// How many axes beside the channels an image has: 1 to 3.
    pub axes: usize,
    /// The number of output channels.
    pub filters: usize,
    /// The windows on the inputs. The windows on the state have the same extents.
    pub windows: Windows<3>,
    /// Applied to the candidate, and to the state before the output gate.
    pub activation: Activation,
    /// Applied to the gates.
    pub recurrent_activation: Activation,
    /// Whether a bias per gate and channel is added.
    pub use_bias: bool,
    /// Whether the bias of the forget gate starts as 1.
    pub unit_forget_bias: bool,
    /// How the kernel on the inputs starts.
    pub kernel_initializer: Initializer,
    /// How the kernel on the state starts.
    pub recurrent_initializer: Initializer,
    /// How the bias starts.
    pub bias_initializer: Initializer,
    /// The loss on the kernel on the inputs.
    pub kernel_regularizer: Option<Regularizer>,
    /// The loss on the kernel on the state.
    pub recurrent_regularizer: Option<Regularizer>,
    /// Whether it gives what every step gives, and not the last step alone.
    pub return_sequences: bool,
    /// Whether it reads the steps from the last to the first.
    pub go_backwards: bool,
    /// The fraction of the inputs that is set to zero in training, the same in all steps.
    pub dropout: f64,
    /// The fraction of the state that is set to zero in training, the same in all steps.
    pub recurrent_dropout: f64,
}

/// Input gate, forget gate, candidate and output gate.
const GATES: usize = 4;

impl KerasLayer for ConvLstm {
    fn parse(class: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        channels_last(fields)?;
        let remedy = "set it to False: examples that are shuffled and shared among replicas do not \
                      continue the examples of the batch before";
        fields.must_be("stateful", false, remedy)?;
        fields.must_be("return_state", false, "set it to False")?;
        fields.must_be("zero_output_for_mask", false, "set it to False")?;
        fields.must_be("time_major", false, "set it to False")?;
        fields.neutral(&["unroll", "seed"]);
        let axes = match class {
            "ConvLSTM1D" => 1,
            "ConvLSTM2D" => 2,
            _ => 3,
        };
        let sigmoid = Activation::Sigmoid;
        Ok(Self {
            axes,
            filters: count(fields, "filters")?,
            windows: windows(fields, axes)?,
            activation: activation_of(fields, "activation", Activation::Tanh)?,
            recurrent_activation: activation_of(fields, "recurrent_activation", sigmoid)?,
            use_bias: fields.flag("use_bias", true)?,
            unit_forget_bias: fields.flag("unit_forget_bias", true)?,
            kernel_initializer: kernel_initializer(fields, "kernel_initializer")?,
            recurrent_initializer: initializer(
                fields,
                "recurrent_initializer",
                Initializer::ORTHOGONAL,
            )?,
            bias_initializer: bias_initializer(fields)?,
            kernel_regularizer: regularizer(fields, "kernel_regularizer")?,
            recurrent_regularizer: regularizer(fields, "recurrent_regularizer")?,
            return_sequences: fields.flag("return_sequences", false)?,
            go_backwards: fields.flag("go_backwards", false)?,
            dropout: optional_rate(fields, "dropout")?,
            recurrent_dropout: optional_rate(fields, "recurrent_dropout")?,
        })
    }

    fn class(&self) -> Option<&'static str> {
        Some(match self.axes {
            1 => "ConvLSTM1D",
            2 => "ConvLSTM2D",
            _ => "ConvLSTM3D",
        })
    }

    fn inputs(&self) -> &'static [&'static str] {
        &["sequences"]
    }

    fn writes_training(&self) -> bool {
        true
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        let dims = input.dims();
        let &[steps, ref places @ .., _] = &dims[..] else {
            return Err(format!("needs steps of images, gets {input}"));
        };
        if places.len() != self.axes {
            return Err(format!(
                "needs steps, {} axes and channels, gets {input}",
                self.axes
            ));
        }
        let places = self.windows.places(in_volume(places))?;
        let places = places.into_iter().skip(3 - self.axes);
        let first = self.return_sequences.then_some(steps);
        let all: Vec<usize> = first
            .into_iter()
            .chain(places)
            .chain([self.filters])
            .collect();
        Shape::of(&all).ok_or_else(|| format!("gives too many axes of {input}"))
    }

    fn weights(&self, inputs: &[Shape]) -> Vec<Option<PlannedWeight>> {
        let columns = self.filters.saturating_mul(GATES);
        let window = &self.windows.kernel_size[3 - self.axes..];
        let name = |weight: &str| format!("conv_lstm_cell/{weight}");
        let bias = self.use_bias.then_some(self.bias_initializer);
        let mut bias = weight(name("bias"), &[columns], bias);
        if let Some(bias) = bias.as_mut().filter(|_| self.unit_forget_bias) {
            bias.ones = self.filters..self.filters.saturating_mul(2);
        }
        let kernel = [window, &[features(inputs), columns]].concat();
        let of_state = [window, &[self.filters, columns]].concat();
        vec![
            weight(name("kernel"), &kernel, self.kernel_initializer),
            weight(
                name("recurrent_kernel"),
                &of_state,
                self.recurrent_initializer,
            ),
            bias,
        ]
    }

    fn sublayer(&self, _: usize, _: &str) -> &str {
        "cell"
    }

    fn build(&self, weights: &mut Weights<'_>) -> Option<BuiltLayer> {
        let mut kernel = || {
            let mut kernel = filters_first(weights.next());
            while kernel.shape.len() < 5 {
                kernel.shape.insert(2.min(kernel.shape.len()), 1);
            }
            weights.trained(kernel)
        };
        let (kernel, recurrent_kernel) = (kernel(), kernel());
        Some(BuiltLayer::ConvLstm(ConvLstmWeights {
            kernel,
            recurrent_kernel,
            bias: weights.optional(self.use_bias),
            layer: self.clone(),
        }))
    }

    fn mask(&self, masks: &[Option<usize>], _: usize) -> Result<Option<usize>, String> {
        match first_mask(masks) {
            None => Ok(None),
            Some(_) => Err("leaves out no steps; take the Masking layer away".to_string()),
        }
    }
}

/// A rate that may be left out.
fn optional_rate(fields: &mut Fields<'_>, key: &'static str) -> Result<f64, ModelError> {
    match fields.get(key) {
        Some(_) => rate(fields, key),
        None => Ok(0.0),
    }
}

/// The options of the windows, for this many axes.
fn windows(fields: &mut Fields<'_>, axes: usize) -> Result<Windows<3>, ModelError> {
    fn of<const N: usize>(fields: &mut Fields<'_>) -> Result<Windows<3>, ModelError> {
        let windows = Windows::<N>::of_convolution(fields)?;
        if windows.padding == Padding::Causal {
            return Err(fields.refuse("padding", "use valid or same"));
        }
        Ok(Windows {
            kernel_size: in_volume(&windows.kernel_size),
            strides: in_volume(&windows.strides),
            padding: windows.padding,
            dilation_rate: in_volume(&windows.dilation_rate),
        })
    }
    match axes {
        1 => of::<1>(fields),
        2 => of::<2>(fields),
        _ => of::<3>(fields),
    }
}

/// Up to three extents behind as many ones as make them three.
fn in_volume(extents: &[usize]) -> [usize; 3] {
    let mut all = [1; 3];
    let first = all.len().saturating_sub(extents.len());
    for (own, extent) in all.iter_mut().skip(first).zip(extents) {
        *own = *extent;
    }
    all
}

/// The kernels are `[4 * filters, channels, depth, rows, columns]`.
#[derive(Module, Debug)]
pub(crate) struct ConvLstmWeights {
    kernel: Param<Tensor<5>>,
    recurrent_kernel: Param<Tensor<5>>,
    bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    layer: ConvLstm,
}

impl Built for ConvLstmWeights {
    fn call(&self, x: Value, pass: &mut Pass<'_, '_>) -> distribute_core::Result<Value> {
        let dims = x.flow.keras_dims();
        let &[batch, steps, ref places @ .., channels] = &dims[..] else {
            // A plan never puts it on another shape.
            return Ok(x);
        };
        let [depth, rows, columns] = in_volume(places);
        let volumes = [batch * steps, depth, rows, columns, channels];
        let Nd::R5(volumes) = Nd::of(x.flow).reshape(&volumes) else {
            return Ok(Value::of(Flow::Flat(Tensor::zeros(
                [0, 0],
                &self.kernel.device(),
            ))));
        };
        let outputs = self.read(volumes.permute([0, 4, 1, 2, 3]), [batch, steps], pass);
        let last = outputs.last().map(|last| last.dims());
        let [_, filters, depth, rows, columns] = last.unwrap_or([0; 5]);
        let all = if self.layer.return_sequences {
            let all = [batch * steps, filters, depth, rows, columns];
            Tensor::stack::<6>(outputs, 1).reshape(all)
        } else {
            outputs
                .into_iter()
                .next_back()
                .unwrap_or_else(|| self.kernel.val())
        };
        let last = Nd::R5(all.permute([0, 2, 3, 4, 1]));
        let shape = [vec![batch], pass.output.dims()].concat();
        Ok(Value::of(last.reshape(&shape).into_flow()))
    }

    fn losses(&self) -> Vec<Option<Tensor<1>>> {
        vec![
            penalty(self.layer.kernel_regularizer, &self.kernel),
            penalty(self.layer.recurrent_regularizer, &self.recurrent_kernel),
        ]
    }
}

/// Masks of a dropout, one for each gate, or none.
type Masks = Vec<Tensor<5>>;

impl ConvLstmWeights {
    /// What each step gives of volumes `[batch * steps, channels, depth, rows, columns]`, in the
    /// order in which the steps are read.
    fn read(
        &self,
        x: Tensor<5>,
        [batch, steps]: [usize; 2],
        pass: &mut Pass<'_, '_>,
    ) -> Vec<Tensor<5>> {
        let layer = &self.layer;
        let [_, channels, depth, rows, columns] = x.dims();
        let masks = drawn(
            layer.dropout,
            [batch, channels, depth, rows, columns],
            &x,
            pass,
        );
        // Of a batch the same mask in all steps.
        let masks: Masks = masks
            .into_iter()
            .map(|mask| {
                let mask = mask.unsqueeze_dim::<6>(1);
                let all = [batch, steps, channels, depth, rows, columns];
                mask.expand(all)
                    .reshape([batch * steps, channels, depth, rows, columns])
            })
            .collect();
        let z = convolved(x, &self.kernel.val(), &masks, layer.windows);
        let z = match &self.bias {
            Some(bias) => z + bias.val().reshape([1, layer.filters * GATES, 1, 1, 1]),
            None => z,
        };
        let [_, gates, depth, rows, columns] = z.dims();
        let state = [batch, layer.filters, depth, rows, columns];
        let masks = drawn(layer.recurrent_dropout, state, &z, pass);
        let z = z.reshape([batch, steps, gates * depth * rows * columns]);
        let mut h = Tensor::zeros(state, (&z.device(), z.dtype()));
        let mut c = h.clone();
        let of_state = Windows::pool(layer.windows.kernel_size, [1; 3], Padding::Same);
        let mut outputs = Vec::with_capacity(steps);
        for step in 0..steps {
            let at = if layer.go_backwards {
                steps - 1 - step
            } else {
                step
            };
            let z = z.clone().narrow(1, at, 1);
            let z = z.reshape([batch, gates, depth, rows, columns]);
            let sum = z + convolved(h, &self.recurrent_kernel.val(), &masks, of_state);
            let gate = |at: usize| sum.clone().narrow(1, at * layer.filters, layer.filters);
            let open = |at: usize| layer.recurrent_activation.apply(gate(at), 1);
            c = open(1) * c + open(0) * layer.activation.apply(gate(2), 1);
            h = open(3) * layer.activation.apply(c.clone(), 1);
            outputs.push(h.clone());
        }
        outputs
    }
}

/// The masks of a dropout in training.
fn drawn(rate: f64, dims: [usize; 5], like: &Tensor<5>, pass: &mut Pass<'_, '_>) -> Masks {
    let device = like.device().without_autodiff();
    match pass.training().filter(|_| rate > 0.0) {
        None => Vec::new(),
        Some(rng) => {
            let ones = || Tensor::ones(dims, (&device, like.dtype()));
            (0..GATES).map(|_| dropout(ones(), rate, rng)).collect()
        }
    }
}

/// The convolution of volumes; with masks each gate's filters see the volumes times its mask.
fn convolved(x: Tensor<5>, kernel: &Tensor<5>, masks: &Masks, windows: Windows<3>) -> Tensor<5> {
    let [_, _, depth, rows, columns] = x.dims();
    let pads = windows.pads_of([depth, rows, columns]);
    let Windows {
        strides,
        dilation_rate,
        ..
    } = windows;
    let of = |x: Tensor<5>, kernel: Tensor<5>| {
        // burn's operation pads both ends of an axis alike.
        let x = match pads {
            [(0, 0), (0, 0), (0, 0)] => x,
            pads => x.pad(pads, PadMode::Constant(0.0)),
        };
        conv3d(
            x,
            kernel,
            None,
            ConvOptions::new(strides, [0; 3], dilation_rate, 1),
        )
    };
    if masks.is_empty() {
        return of(x, kernel.clone());
    }
    let filters = kernel.dims()[0] / masks.len();
    let parts = masks.iter().enumerate().map(|(gate, mask)| {
        let kernel = kernel.clone().narrow(0, gate * filters, filters);
        of(x.clone() * mask.clone(), kernel)
    });
    Tensor::cat(parts.collect(), 1)
}
