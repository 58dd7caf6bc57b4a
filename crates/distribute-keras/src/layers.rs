//! The layers as burn modules.

use std::fmt;

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use burn::tensor::module::{avg_pool2d, conv2d, embedding, linear, max_pool2d};
use burn::tensor::ops::{AvgPoolOptions, ConvOptions, MaxPoolOptions};
use distribute_core::dropout;
use rand::Rng;

use crate::plan::padding_pairs;
use crate::{Activation, Padding, Regularizer};

/// Whether a forward pass is part of training.
pub enum Mode<'a> {
    /// Evaluation and prediction: `Dropout` does nothing.
    Inference,
    /// Training: `Dropout` draws its masks from this stream, see
    /// [`ReplicaContext::rng`](distribute_core::ReplicaContext::rng).
    Training(&'a mut dyn Rng),
}

impl fmt::Debug for Mode<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inference => "Inference",
            Self::Training(_) => "Training",
        })
    }
}

/// What flows between the layers. Images are `[batch, channels, height, width]`.
#[derive(Debug, Clone)]
pub(crate) enum Flow {
    Flat(Tensor<2>),
    Sequence(Tensor<3>),
    Image(Tensor<4>),
}

impl Flow {
    /// Applies an activation over the axis that Keras calls the last one.
    fn activate(self, activation: Activation) -> Self {
        match self {
            Self::Flat(x) => Self::Flat(activation.apply(x, 1)),
            Self::Sequence(x) => Self::Sequence(activation.apply(x, 2)),
            Self::Image(x) => Self::Image(activation.apply(x, 1)),
        }
    }

    /// With a mask of `rng`; in a compiled step the program draws it.
    fn dropout(self, rate: f64, rng: &mut dyn Rng) -> Self {
        match self {
            Self::Flat(x) => Self::Flat(dropout(x, rate, rng)),
            Self::Sequence(x) => Self::Sequence(dropout(x, rate, rng)),
            Self::Image(x) => Self::Image(dropout(x, rate, rng)),
        }
    }
}

/// What a layer receives beside its input.
pub(crate) struct Pass<'a, 'b> {
    pub(crate) mode: &'a mut Mode<'b>,
    /// 1 for tokens and 0 for padding, `[batch, steps]`, behind an embedding with `mask_zero`.
    pub(crate) mask: Option<Tensor<2>>,
}

/// One layer. The names of the variants are part of the parameters' paths.
#[derive(Module, Debug)]
pub(crate) enum Layer {
    Conv2d(Conv2d),
    Dense(Dense),
    Embedding(Embedding),
    Plain(Plain),
}

impl Layer {
    pub(crate) fn forward(&self, x: Flow, pass: &mut Pass<'_, '_>) -> Flow {
        match (self, x) {
            (Self::Conv2d(layer), Flow::Image(x)) => layer.forward(x),
            (Self::Dense(layer), x) => layer.forward(x),
            (Self::Embedding(layer), Flow::Flat(tokens)) => layer.forward(tokens, pass),
            (Self::Plain(layer), x) => layer.kind.forward(x, pass),
            // A plan never puts these on another shape.
            (Self::Conv2d(_) | Self::Embedding(_), x) => x,
        }
    }

    /// Some of the layer's weights, flattened.
    pub(crate) fn any_weight(&self) -> Option<Tensor<1>> {
        match self {
            Self::Conv2d(layer) => Some(layer.kernel.val().flatten(0, 3)),
            Self::Dense(layer) => Some(layer.kernel.val().flatten(0, 1)),
            Self::Embedding(layer) => Some(layer.embeddings.val().flatten(0, 1)),
            Self::Plain(_) => None,
        }
    }

    /// The layer's kernel loss, on the autodiff graph.
    pub(crate) fn regularization_loss(&self) -> Option<Tensor<1>> {
        match self {
            Self::Conv2d(layer) => penalty(layer.regularizer, &layer.kernel),
            Self::Dense(layer) => penalty(layer.regularizer, &layer.kernel),
            Self::Embedding(layer) => penalty(layer.regularizer, &layer.embeddings),
            Self::Plain(_) => None,
        }
    }
}

fn penalty<const D: usize>(
    regularizer: Option<Regularizer>,
    kernel: &Param<Tensor<D>>,
) -> Option<Tensor<1>> {
    let Regularizer { l1, l2 } = regularizer?;
    let l1 = (l1 != 0.0).then(|| kernel.val().abs().sum().mul_scalar(l1));
    let l2 = (l2 != 0.0).then(|| {
        let kernel = kernel.val();
        (kernel.clone() * kernel).sum().mul_scalar(l2)
    });
    match (l1, l2) {
        (Some(l1), Some(l2)) => Some(l1 + l2),
        (one, other) => one.or(other),
    }
}

/// A convolution; the kernel is `[filters, channels / groups, rows, columns]`.
#[derive(Module, Debug)]
pub(crate) struct Conv2d {
    pub(crate) kernel: Param<Tensor<4>>,
    pub(crate) bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    pub(crate) options: WindowOptions,
    #[module(skip)]
    pub(crate) groups: usize,
    #[module(skip)]
    pub(crate) activation: Activation,
    #[module(skip)]
    pub(crate) regularizer: Option<Regularizer>,
}

/// Windows of a convolution or a pool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WindowOptions {
    pub(crate) size: [usize; 2],
    pub(crate) strides: [usize; 2],
    pub(crate) dilation: [usize; 2],
    pub(crate) padding: Padding,
}

impl WindowOptions {
    fn pairs(&self, x: &Tensor<4>) -> [(usize, usize); 2] {
        let [_, _, height, width] = x.dims();
        let window = [0, 1].map(|i| (self.size[i] - 1) * self.dilation[i] + 1);
        padding_pairs([height, width], window, self.strides, self.padding)
    }
}

impl Conv2d {
    fn forward(&self, x: Tensor<4>) -> Flow {
        let pairs = self.options.pairs(&x);
        let WindowOptions {
            strides, dilation, ..
        } = self.options;
        let options = ConvOptions::new_with_padding(strides, pairs, dilation, self.groups);
        let bias = self.bias.as_ref().map(Param::val);
        let y = conv2d(x, self.kernel.val(), bias, options);
        Flow::Image(self.activation.apply(y, 1))
    }
}

/// A matrix product on the last axis; the kernel is `[inputs, outputs]`.
#[derive(Module, Debug)]
pub(crate) struct Dense {
    pub(crate) kernel: Param<Tensor<2>>,
    pub(crate) bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    pub(crate) activation: Activation,
    #[module(skip)]
    pub(crate) regularizer: Option<Regularizer>,
}

impl Dense {
    fn forward(&self, x: Flow) -> Flow {
        let bias = self.bias.as_ref().map(Param::val);
        let y = match x {
            Flow::Flat(x) => Flow::Flat(linear(x, self.kernel.val(), bias)),
            Flow::Sequence(x) => Flow::Sequence(linear(x, self.kernel.val(), bias)),
            // A plan never puts a Dense layer on images.
            Flow::Image(x) => Flow::Image(x),
        };
        y.activate(self.activation)
    }
}

/// One vector per token; `[tokens, dimensions]`.
#[derive(Module, Debug)]
pub(crate) struct Embedding {
    pub(crate) embeddings: Param<Tensor<2>>,
    #[module(skip)]
    pub(crate) mask_zero: bool,
    #[module(skip)]
    pub(crate) regularizer: Option<Regularizer>,
}

impl Embedding {
    fn forward(&self, tokens: Tensor<2>, pass: &mut Pass<'_, '_>) -> Flow {
        if self.mask_zero {
            let mask = tokens.clone().not_equal_elem(0.0).float();
            pass.mask = Some(mask.cast(tokens.dtype()));
        }
        Flow::Sequence(embedding(self.embeddings.val(), tokens.int()))
    }
}

/// A layer without parameters.
#[derive(Module, Debug)]
pub(crate) struct Plain {
    #[module(skip)]
    pub(crate) kind: PlainKind,
}

/// The layers without parameters.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PlainKind {
    MaxPooling2D(WindowOptions),
    AveragePooling2D(WindowOptions),
    GlobalAveragePooling2D,
    GlobalAveragePooling1D,
    /// `channels_last`: put the features into Keras' order, because the model ends here.
    Flatten {
        channels_last: bool,
    },
    Dropout {
        rate: f64,
    },
    Activation(Activation),
}

impl PlainKind {
    fn forward(self, x: Flow, pass: &mut Pass<'_, '_>) -> Flow {
        match (self, x) {
            (Self::MaxPooling2D(window), Flow::Image(x)) => {
                let options = MaxPoolOptions::new(window.size)
                    .with_stride(window.strides)
                    .with_padding_pairs(window.pairs(&x));
                Flow::Image(max_pool2d(x, options))
            }
            (Self::AveragePooling2D(window), Flow::Image(x)) => {
                let options = AvgPoolOptions::new(window.size)
                    .with_stride(window.strides)
                    .with_padding_pairs(window.pairs(&x))
                    .with_count_include_pad(false);
                Flow::Image(avg_pool2d(x, options))
            }
            (Self::GlobalAveragePooling2D, Flow::Image(x)) => {
                let [batch, channels, height, width] = x.dims();
                let x = x.reshape([batch, channels, height * width]);
                Flow::Flat(x.mean_dim(2).reshape([batch, channels]))
            }
            (Self::GlobalAveragePooling1D, Flow::Sequence(x)) => {
                Flow::Flat(masked_mean(x, pass.mask.take()))
            }
            (Self::Flatten { channels_last }, x) => {
                pass.mask = None;
                Flow::Flat(flatten(x, channels_last))
            }
            (Self::Dropout { rate }, x) => match pass.mode {
                Mode::Training(rng) if rate > 0.0 => x.dropout(rate, *rng),
                _ => x,
            },
            (Self::Activation(activation), x) => x.activate(activation),
            // A plan never puts these on another shape.
            (_, x) => x,
        }
    }
}

fn flatten(x: Flow, channels_last: bool) -> Tensor<2> {
    match x {
        Flow::Flat(x) => x,
        Flow::Sequence(x) => x.flatten(1, 2),
        Flow::Image(x) if channels_last => x.permute([0, 2, 3, 1]).flatten(1, 3),
        Flow::Image(x) => x.flatten(1, 3),
    }
}

/// The mean over the steps that are not padding. A text of padding alone has the mean 0.
fn masked_mean(x: Tensor<3>, mask: Option<Tensor<2>>) -> Tensor<2> {
    let [batch, _, features] = x.dims();
    let Some(mask) = mask else {
        return x.mean_dim(1).reshape([batch, features]);
    };
    let count = mask.clone().sum_dim(1).clamp_min(1.0);
    let sum = (x * mask.unsqueeze_dim::<3>(2)).sum_dim(1);
    sum.reshape([batch, features]) / count
}
