//! The purpose of a pass through the layers.

use std::fmt;

use burn::tensor::Tensor;
use distribute_core::ReplicaContext;
use rand::Rng;

use super::flow::Flow;
use crate::{Activation, Shape};

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
    /// `synchronized` one the batch is taken over all replicas, so all of them make the pass
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
    /// [`SyncBatchNorm::forward_weighted`](distribute_core::SyncBatchNorm::forward_weighted). In
    /// inference they change nothing.
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

/// The arguments of a call beside its inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Arguments {
    /// Keras' `training=False`: the layer infers even while the model trains.
    pub inference: bool,
    /// `use_causal_mask=True` of an attention: no step sees a later one.
    pub causal: bool,
    /// Keras' `mask`, which must be the padding that an `Embedding` with `mask_zero` leaves out.
    pub masked: bool,
    /// The last value that the call receives is a mask: 1 for what a layer reads, else 0 (Keras'
    /// `attention_mask`, or the `mask` of a recurrent layer).
    pub with_mask: bool,
    /// Which of the values is meant that the call gives: 0 for the first, which most layers have
    /// alone; behind it stand the last states of a recurrent layer with `return_state=True`.
    pub part: usize,
}

/// The arguments of a layer besides its inputs.
pub(crate) struct Pass<'a, 'b> {
    pub(crate) mode: &'a mut Mode<'b>,
    pub(crate) arguments: Arguments,
    /// The shape of one example of the call's output.
    pub(crate) output: Shape,
    /// The layer's activation is the model's head, which the loss has in it.
    pub(crate) without_activation: bool,
    /// A `Flatten` puts the values into Keras' order.
    pub(crate) reordered: bool,
    /// Where a layer puts the values that it gives beside the first.
    pub(crate) states: Vec<Tensor<2>>,
}

impl Pass<'_, '_> {
    /// The stream of random numbers, if this call is part of training.
    pub(super) fn training(&mut self) -> Option<&mut dyn Rng> {
        match self.mode {
            Mode::Training { rng, .. } if !self.arguments.inference => Some(*rng),
            _ => None,
        }
    }

    /// With the activation of the layer, if it is not the model's head.
    pub(super) fn activate(&self, x: Flow, activation: Activation) -> Flow {
        if self.without_activation {
            x
        } else {
            x.activate(activation)
        }
    }
}
