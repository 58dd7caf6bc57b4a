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
use burn::tensor::Tensor;
use distribute_core::{LocalBatchNorm, ReplicaContext, Result, SyncBatchNorm};
use rand::Rng;

pub(crate) use attention::Attention;
pub(crate) use conv::{Conv2d, SeparableConv2d, WindowOptions};
pub(crate) use dense::{Dense, Embedding};
pub(crate) use flow::{Flow, Value};
pub(crate) use norm::{LayerNorm, Normalization};
pub(crate) use plain::{Plain, PlainKind};

use crate::{Arguments, Shape};

/// Whether a forward pass is part of training.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each pass, on the stack"
)]
pub enum Mode<'a> {
    /// Evaluation and prediction: `Dropout` does nothing, `BatchNormalization` uses its moving
    /// statistics.
    Inference,
    /// Training, see [`training`](Self::training).
    Training {
        /// The replica that trains.
        ctx: &'a ReplicaContext,
        /// The stream of random numbers.
        rng: &'a mut dyn Rng,
        /// The weights of the examples, if they have some.
        weights: Option<Tensor<1>>,
    },
}

impl<'a> Mode<'a> {
    /// Training: `Dropout` draws its masks from this stream, see [`ReplicaContext::rng`].
    /// `BatchNormalization` uses the statistics of the batch and moves its own; of a
    /// `synchronized` one the batch is that of all replicas, so all of them make the pass
    /// together.
    pub fn training(ctx: &'a ReplicaContext, rng: &'a mut dyn Rng) -> Self {
        Self::Training {
            ctx,
            rng,
            weights: None,
        }
    }

    /// With the weights of a batch that was filled up, `[batch]`: the examples whose weight is 0
    /// count in no statistics of a `synchronized` `BatchNormalization`, see
    /// [`SyncBatchNorm::forward_weighted`]. In inference they change nothing.
    #[must_use]
    pub fn weighted(self, weights: Tensor<1>) -> Self {
        match self {
            Self::Inference => Self::Inference,
            Self::Training { ctx, rng, .. } => Self::Training {
                ctx,
                rng,
                weights: Some(weights),
            },
        }
    }
}

impl fmt::Debug for Mode<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inference => "Inference",
            Self::Training { .. } => "Training",
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
            Mode::Training { rng, .. } if !self.arguments.inference => Some(*rng),
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
    BatchNorm(LocalBatchNorm),
    LayerNorm(LayerNorm),
    Normalization(Normalization),
    Attention(Attention),
    SyncBatchNorm(SyncBatchNorm),
}

impl Layer {
    /// What the layer makes of what it receives, one value or several.
    ///
    /// # Errors
    /// Those of [`LocalBatchNorm::forward`] and [`SyncBatchNorm::forward`].
    pub(crate) fn forward(
        &self,
        inputs: Vec<Value>,
        pass: &mut Pass<'_, '_>,
    ) -> Result<Option<Value>> {
        match self {
            Self::Plain(Plain {
                kind: PlainKind::Merge(merge),
            }) => return Ok(merge::merge(*merge, pass.output, inputs)),
            Self::Attention(layer) => return Ok(layer.forward(inputs, pass)),
            _ => {}
        }
        let Some(Value { flow: x, mask }) = inputs.into_iter().next() else {
            return Ok(None);
        };
        // The mask goes on where Keras' layer supports masking.
        Ok(Some(match (self, x) {
            (Self::Conv2d(layer), Flow::Image(x)) => Value::of(layer.forward(x, pass)),
            (Self::SeparableConv2d(layer), Flow::Image(x)) => Value::of(layer.forward(x, pass)),
            (Self::Dense(layer), x) => Value {
                flow: layer.forward(x, pass),
                mask,
            },
            (Self::Embedding(layer), Flow::Flat(tokens)) => layer.forward(tokens),
            (Self::BatchNorm(layer), x) => Value::of(norm::batch_norm(layer, x, pass)?),
            (Self::SyncBatchNorm(layer), x) => Value::of(norm::sync_batch_norm(layer, x, pass)?),
            (Self::LayerNorm(layer), x) => Value {
                flow: layer.forward(x),
                mask,
            },
            (Self::Normalization(layer), x) => Value::of(layer.forward(x)),
            (Self::Plain(layer), flow) => layer.kind.forward(Value { flow, mask }, pass),
            // A plan never puts these on another shape.
            (Self::Conv2d(_) | Self::SeparableConv2d(_), flow)
            | (Self::Embedding(_) | Self::Attention(_), flow) => Value { flow, mask },
        }))
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
            Self::BatchNorm(_)
            | Self::SyncBatchNorm(_)
            | Self::LayerNorm(_)
            | Self::Normalization(_)
            | Self::Plain(_) => Vec::new(),
        };
        losses.into_iter().flatten().collect()
    }
}
