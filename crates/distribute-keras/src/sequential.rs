//! The burn module that a plan becomes.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData, activation};

use crate::head::Loss;
use crate::layers::{Conv2d, Dense, Embedding, Flow, Layer, Pass, Plain, PlainKind, WindowOptions};
use crate::plan::PlannedLayer;
use crate::{Activation, Head, LayerSpec, Mode, ModelError, Plan, Shape, Weight};

/// A list of layers that feed each other (`keras.Sequential`).
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use distribute_core::Error;
/// use distribute_keras::{Mode, Sequential, built_in};
///
/// let spec = built_in("mnist-cnn", 10, 0).ok_or_else(|| Error::invalid("no such model"))?;
/// let plan = spec.plan(&[28, 28])?;
/// assert_eq!(plan.parameters(), 121_930);
/// let model = Sequential::initialized(&plan, 1, &Device::flex())?;
/// let images = Tensor::<2>::zeros([4, 28 * 28], &Device::flex());
/// assert_eq!(model.logits(images, &mut Mode::Inference).dims(), [4, 10]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Module, Debug)]
pub struct Sequential {
    layers: Vec<Layer>,
    #[module(skip)]
    input: Shape,
    #[module(skip)]
    head: Head,
}

impl Sequential {
    /// A model with the initial weights of `seed`: the same numbers on every machine.
    ///
    /// # Errors
    /// None for a plan made by [`ModelSpec::plan`](crate::ModelSpec::plan).
    pub fn initialized(plan: &Plan, seed: u64, device: &Device) -> Result<Self, ModelError> {
        let weights = plan.layers.iter().flat_map(|layer| &layer.weights);
        let weights = weights
            .zip(0..)
            .map(|((shape, initializer), stream)| initializer.draw(shape, seed, stream));
        Self::new(plan, weights.collect(), device)
    }

    /// A model with these weights, in the order and layout of Keras' `model.get_weights()`.
    ///
    /// # Errors
    /// [`ModelError::Weights`] if the number of weights or a shape differs.
    pub fn new(plan: &Plan, weights: Vec<Weight>, device: &Device) -> Result<Self, ModelError> {
        check_weights(plan, &weights)?;
        // Without a loss the activations stay where they are: `forward` gives what Keras gives.
        let (head, strip) = plan.ending().unwrap_or((Head::Linear, None));
        let mut weights = weights.into_iter();
        let mut layers = Vec::with_capacity(plan.layers.len());
        for (index, layer) in plan.layers.iter().enumerate() {
            let mine = weights.by_ref().take(layer.weights.len()).collect();
            layers.push(build(layer, mine, strip == Some(index), device));
        }
        Ok(Self {
            layers,
            input: plan.input,
            head,
        })
    }

    /// What Keras' model returns: probabilities if it ends with a softmax or sigmoid.
    ///
    /// `input` is as for [`logits`](Self::logits). The result is `[batch, outputs]`.
    pub fn forward<const D: usize>(&self, input: Tensor<D>, mode: &mut Mode<'_>) -> Tensor<2> {
        let logits = self.logits(input, mode);
        match self.head {
            Head::Linear => logits,
            Head::Softmax => activation::softmax(logits, 1),
            Head::Sigmoid => activation::sigmoid(logits),
        }
    }

    /// What the logits say of every class: `[batch, outputs]`, between 0 and 1. One output is the
    /// probability of class 1; behind a sigmoid each class has a probability of its own; else they
    /// add up to 1. This is what [`Head::loss`] compares with the labels.
    pub fn probabilities(&self, logits: Tensor<2>) -> Tensor<2> {
        match self.head.loss(logits.dims()[1]) {
            Loss::Binary | Loss::BinaryPerClass => activation::sigmoid(logits),
            Loss::Categorical => activation::softmax(logits, 1),
        }
    }

    /// The last layer's numbers, before a final softmax or sigmoid: `[batch, outputs]`.
    ///
    /// `input` holds one example after the other, each with as many values as the plan's input
    /// shape, channels last: `[batch, height, width]`, `[batch, values]`, ...
    ///
    /// # Panics
    /// If it holds another number of values; the plan has checked the data set's shape.
    pub fn logits<const D: usize>(&self, input: Tensor<D>, mode: &mut Mode<'_>) -> Tensor<2> {
        let mut flow = self.enter(input);
        let mut pass = Pass { mode, mask: None };
        for layer in &self.layers {
            flow = layer.forward(flow, &mut pass);
        }
        match flow {
            Flow::Flat(x) => x,
            Flow::Sequence(x) => x.flatten(1, 2),
            Flow::Image(x) => x.permute([0, 2, 3, 1]).flatten(1, 3),
        }
    }

    /// The sum of all kernel regularization losses (Keras: `sum(model.losses)`); nothing if no
    /// layer has one.
    pub fn regularization_loss(&self) -> Option<Tensor<1>> {
        let losses = self.layers.iter().filter_map(Layer::regularization_loss);
        losses.reduce(|sum, loss| sum + loss)
    }

    /// The loss of no examples: 0, on the autodiff graph of the model's weights.
    pub fn zero_loss(&self, device: &Device) -> Tensor<1> {
        let weights = self.layers.iter().find_map(Layer::any_weight);
        match weights {
            Some(weights) => weights.narrow(0, 0, 1).mul_scalar(0.0),
            None => Tensor::zeros([1], device),
        }
    }

    /// What the model ends with.
    pub fn head(&self) -> Head {
        self.head
    }

    /// Brings the input into the layout of the layers. For one channel that is another view.
    fn enter<const D: usize>(&self, input: Tensor<D>) -> Flow {
        let batch = input.dims()[0];
        match self.input {
            Shape::Flat(n) => Flow::Flat(input.reshape([batch, n])),
            Shape::Sequence(steps, features) => {
                Flow::Sequence(input.reshape([batch, steps, features]))
            }
            Shape::Image(height, width, 1) => Flow::Image(input.reshape([batch, 1, height, width])),
            Shape::Image(height, width, channels) => {
                let images = input.reshape([batch, height, width, channels]);
                Flow::Image(images.permute([0, 3, 1, 2]))
            }
        }
    }
}

fn check_weights(plan: &Plan, weights: &[Weight]) -> Result<(), ModelError> {
    let expected = plan.layers.iter().flat_map(|layer| &layer.weights);
    let error = |what| ModelError::Weights {
        model: plan.name.clone(),
        what,
    };
    let count = expected.clone().count();
    if count != weights.len() {
        let what = format!("{} weights were given for {count}", weights.len());
        return Err(error(what));
    }
    for (index, ((shape, _), weight)) in expected.zip(weights).enumerate() {
        let elements: usize = shape.iter().product();
        if *shape != weight.shape || elements != weight.values.len() {
            return Err(error(format!(
                "weight {index} has the shape {:?}, the model wants {shape:?}",
                weight.shape
            )));
        }
    }
    Ok(())
}

fn build(layer: &PlannedLayer, weights: Vec<Weight>, strip: bool, device: &Device) -> Layer {
    let mut weights = weights.into_iter();
    let kernel = weights.next();
    let bias = weights.next().map(|bias| parameter::<1>(bias, device));
    let keep = |activation: &Activation| match strip {
        true => Activation::Linear,
        false => *activation,
    };
    let regularizer = layer.spec.regularizer();
    match (&layer.spec, kernel) {
        (
            LayerSpec::Conv2D {
                kernel_size,
                strides,
                padding,
                dilation_rate,
                groups,
                activation,
                ..
            },
            Some(kernel),
        ) => Layer::Conv2d(Conv2d {
            kernel: parameter(filters_first(kernel), device),
            bias,
            options: WindowOptions {
                size: *kernel_size,
                strides: *strides,
                dilation: *dilation_rate,
                padding: *padding,
            },
            groups: *groups,
            activation: keep(activation),
            regularizer,
        }),
        (LayerSpec::Dense { activation, .. }, Some(kernel)) => Layer::Dense(Dense {
            kernel: parameter(channels_first_rows(kernel, layer.flattened), device),
            bias,
            activation: keep(activation),
            regularizer,
        }),
        (LayerSpec::Embedding { mask_zero, .. }, Some(embeddings)) => Layer::Embedding(Embedding {
            embeddings: parameter(embeddings, device),
            mask_zero: *mask_zero,
            regularizer,
        }),
        (spec, _) => Layer::Plain(Plain {
            kind: plain(spec, layer.flattened.is_some(), strip),
        }),
    }
}

fn plain(spec: &LayerSpec, channels_last: bool, strip: bool) -> PlainKind {
    let window = |size: &[usize; 2], strides: &[usize; 2], padding| WindowOptions {
        size: *size,
        strides: *strides,
        dilation: [1, 1],
        padding,
    };
    match spec {
        LayerSpec::MaxPooling2D {
            pool_size,
            strides,
            padding,
        } => PlainKind::MaxPooling2D(window(pool_size, strides, *padding)),
        LayerSpec::AveragePooling2D {
            pool_size,
            strides,
            padding,
        } => PlainKind::AveragePooling2D(window(pool_size, strides, *padding)),
        LayerSpec::GlobalAveragePooling2D => PlainKind::GlobalAveragePooling2D,
        LayerSpec::GlobalAveragePooling1D => PlainKind::GlobalAveragePooling1D,
        LayerSpec::Flatten => PlainKind::Flatten { channels_last },
        LayerSpec::Dropout { rate } => PlainKind::Dropout { rate: *rate },
        LayerSpec::Activation(activation) if !strip => PlainKind::Activation(*activation),
        // The head; and layers with weights, which are built elsewhere.
        _ => PlainKind::Activation(Activation::Linear),
    }
}

fn parameter<const D: usize>(weight: Weight, device: &Device) -> Param<Tensor<D>> {
    Param::from_tensor(Tensor::from_data(
        TensorData::new(weight.values, weight.shape),
        device,
    ))
}

/// (rows, columns, channels, filters) becomes (filters, channels, rows, columns).
fn filters_first(kernel: Weight) -> Weight {
    let &[rows, columns, channels, filters] = kernel.shape.as_slice() else {
        return kernel;
    };
    let mut values = Vec::with_capacity(kernel.values.len());
    for filter in 0..filters {
        for channel in 0..channels {
            for position in 0..rows * columns {
                values.push(kernel.values[(position * channels + channel) * filters + filter]);
            }
        }
    }
    Weight {
        shape: vec![filters, channels, rows, columns],
        values,
    }
}

/// The rows of a kernel behind a flattened image, from the order (height, width, channels) to
/// (channels, height, width).
fn channels_first_rows(kernel: Weight, image: Option<(usize, usize, usize)>) -> Weight {
    let (Some((height, width, channels)), &[_, outputs]) = (image, kernel.shape.as_slice()) else {
        return kernel;
    };
    let mut values = Vec::with_capacity(kernel.values.len());
    for channel in 0..channels {
        for position in 0..height * width {
            let row = (position * channels + channel) * outputs;
            values.extend_from_slice(&kernel.values[row..row + outputs]);
        }
    }
    Weight {
        shape: kernel.shape,
        values,
    }
}
