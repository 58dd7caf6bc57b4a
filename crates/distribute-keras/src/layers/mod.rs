//! The layers as burn modules.

mod attention;
mod conv;
mod dense;
mod flow;
mod merge;
mod norm;
mod plain;

use std::fmt;

use burn::module::Module;
use burn::nn::BatchNorm;
use burn::tensor::Tensor;
use rand::Rng;

pub(crate) use attention::Attention;
pub(crate) use conv::{Conv2d, SeparableConv2d, WindowOptions};
pub(crate) use dense::{Dense, Embedding};
pub(crate) use flow::{Flow, Value};
pub(crate) use norm::{LayerNorm, Normalization};
pub(crate) use plain::{Plain, PlainKind};

use crate::{Arguments, Shape};

/// Whether a forward pass is part of training.
pub enum Mode<'a> {
    /// Evaluation and prediction: `Dropout` does nothing, `BatchNormalization` uses its moving
    /// statistics.
    Inference,
    /// Training: `Dropout` draws its masks from this stream, see
    /// [`ReplicaContext::rng`](distribute_core::ReplicaContext::rng). `BatchNormalization` uses
    /// the statistics of the batch and moves its own.
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

/// What a layer receives beside its inputs.
pub(crate) struct Pass<'a, 'b> {
    pub(crate) mode: &'a mut Mode<'b>,
    pub(crate) arguments: Arguments,
    /// The shape of an example of what the call gives.
    pub(crate) output: Shape,
    /// The layer's activation is the model's head, which the loss has in it.
    pub(crate) without_activation: bool,
    /// A `Flatten` puts the values into Keras' order.
    pub(crate) reordered: bool,
}

impl Pass<'_, '_> {
    /// The stream of random numbers, if this call is part of training.
    fn training(&mut self) -> Option<&mut dyn Rng> {
        match self.mode {
            Mode::Training(rng) if !self.arguments.inference => Some(*rng),
            _ => None,
        }
    }
}

/// One layer. The names of the variants are part of the parameters' paths.
#[derive(Module, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a model has some hundred layers at most, and a box would be one more path to follow"
)]
pub(crate) enum Layer {
    Conv2d(Conv2d),
    Dense(Dense),
    Embedding(Embedding),
    Plain(Plain),
    SeparableConv2d(SeparableConv2d),
    BatchNorm(BatchNorm),
    LayerNorm(LayerNorm),
    Normalization(Normalization),
    Attention(Attention),
}

impl Layer {
    /// What the layer makes of what it receives, one value or several.
    pub(crate) fn forward(&self, inputs: Vec<Value>, pass: &mut Pass<'_, '_>) -> Option<Value> {
        match self {
            Self::Plain(Plain {
                kind: PlainKind::Merge(merge),
            }) => return merge::merge(*merge, pass.output, inputs),
            Self::Attention(layer) => return layer.forward(inputs, pass),
            _ => {}
        }
        let Value { flow: x, mask } = inputs.into_iter().next()?;
        // The mask goes on where Keras' layer supports masking.
        Some(match (self, x) {
            (Self::Conv2d(layer), Flow::Image(x)) => Value::of(layer.forward(x, pass)),
            (Self::SeparableConv2d(layer), Flow::Image(x)) => Value::of(layer.forward(x, pass)),
            (Self::Dense(layer), x) => Value {
                flow: layer.forward(x, pass),
                mask,
            },
            (Self::Embedding(layer), Flow::Flat(tokens)) => layer.forward(tokens),
            (Self::BatchNorm(layer), x) => Value::of(norm::batch_norm(layer, x, pass)),
            (Self::LayerNorm(layer), x) => Value {
                flow: layer.forward(x),
                mask,
            },
            (Self::Normalization(layer), x) => Value::of(layer.forward(x)),
            (Self::Plain(layer), flow) => layer.kind.forward(Value { flow, mask }, pass),
            // A plan never puts these on another shape.
            (Self::Conv2d(_) | Self::SeparableConv2d(_), flow)
            | (Self::Embedding(_) | Self::Attention(_), flow) => Value { flow, mask },
        })
    }

    /// Some of the layer's trained weights, flattened.
    pub(crate) fn any_weight(&self) -> Option<Tensor<1>> {
        match self {
            Self::Conv2d(layer) => Some(layer.kernel.val().flatten(0, 3)),
            Self::SeparableConv2d(layer) => Some(layer.pointwise.kernel.val().flatten(0, 3)),
            Self::Dense(layer) => Some(layer.kernel.val().flatten(0, 1)),
            Self::Embedding(layer) => Some(layer.embeddings.val().flatten(0, 1)),
            Self::Attention(layer) => Some(layer.output.kernel.val().flatten(0, 1)),
            Self::BatchNorm(_) | Self::LayerNorm(_) | Self::Normalization(_) | Self::Plain(_) => {
                None
            }
        }
    }

    /// The layer's kernel losses, on the autodiff graph.
    pub(crate) fn regularization_losses(&self) -> Vec<Tensor<1>> {
        let losses = match self {
            Self::Conv2d(layer) => vec![layer.loss()],
            Self::SeparableConv2d(layer) => {
                vec![layer.depthwise.loss(), layer.pointwise.loss()]
            }
            Self::Dense(layer) => vec![layer.loss()],
            Self::Embedding(layer) => vec![layer.loss()],
            Self::Attention(layer) => layer.projections().map(Dense::loss).to_vec(),
            Self::BatchNorm(_) | Self::LayerNorm(_) | Self::Normalization(_) | Self::Plain(_) => {
                Vec::new()
            }
        };
        losses.into_iter().flatten().collect()
    }
}
