//! Loss objects as part of a ready objective.

use burn::tensor::Tensor;
use distribute_core::metric::{
    CategoricalAccuracy, Metric, MetricValues, SparseCategoricalAccuracy,
};
use distribute_core::{Error, ReplicaContext, Result};

use super::function::LossFunction;
use super::functions::{
    Labels, LastAxis, binary_crossentropy, categorical_crossentropy, mean_squared_error,
    sparse_categorical_crossentropy,
};
use super::reduction::Reduction;
use super::{
    BinaryCrossentropy, CategoricalCrossentropy, MeanSquaredError, SparseCategoricalCrossentropy,
};

/// A loss of predictions `P` and labels `Y` that `Supervised` takes.
pub trait BatchLoss<P, Y> {
    /// This replica's part of the loss of the global batch.
    ///
    /// # Errors
    /// The errors of [`AverageLoss::of`](super::AverageLoss::of) and of the reduction.
    fn average(
        &self,
        ctx: &ReplicaContext,
        predicted: P,
        labels: Y,
        weights: Option<Tensor<1>>,
    ) -> Result<Tensor<1>>;

    /// The number of examples.
    fn examples(&self, found: &(P, Y)) -> usize;
}

/// A loss with the accuracy that Keras picks for it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say which predictions are right",
    note = "report a number of your own: `.metric(\"name\", |predicted, labels| ..)`"
)]
pub trait LossWithAccuracy {
    /// A [`Metric`](distribute_core::metric::Metric).
    type Accuracy;

    /// The accuracy.
    fn accuracy(&self) -> Self::Accuracy;
}

/// The average over the global batch, or what a reduction makes of the losses.
fn averaged<P: LastAxis>(
    ctx: &ReplicaContext,
    per_example: P::PerExample,
    weights: Option<Tensor<1>>,
    reduction: Reduction,
) -> Result<Tensor<1>> {
    match (reduction, weights) {
        (Reduction::None, weights) => P::average(per_example, ctx, weights),
        (reduction, None) => P::reduce(per_example, reduction)?.reduced(),
        (reduction, Some(_)) => Err(Error::invalid(format!(
            "a loss object with the reduction {reduction} cannot weigh examples; use \
             Reduction::None, which is averaged over the global batch"
        ))),
    }
}

impl<P: LastAxis> BatchLoss<P, P::Indices> for SparseCategoricalCrossentropy {
    fn average(
        &self,
        ctx: &ReplicaContext,
        predicted: P,
        labels: P::Indices,
        weights: Option<Tensor<1>>,
    ) -> Result<Tensor<1>> {
        let losses = sparse_categorical_crossentropy(predicted, labels);
        averaged::<P>(ctx, losses, weights, self.reduction())
    }

    fn examples(&self, (predicted, _): &(P, P::Indices)) -> usize {
        predicted.examples()
    }
}

macro_rules! batch_loss {
    ($name:ident, $function:ident) => {
        impl<P: LastAxis, Y: Labels<P>> BatchLoss<P, Y> for $name {
            fn average(
                &self,
                ctx: &ReplicaContext,
                predicted: P,
                labels: Y,
                weights: Option<Tensor<1>>,
            ) -> Result<Tensor<1>> {
                let losses = $function(predicted, labels);
                averaged::<P>(ctx, losses, weights, self.reduction())
            }

            fn examples(&self, (predicted, _): &(P, Y)) -> usize {
                predicted.examples()
            }
        }
    };
}

batch_loss!(CategoricalCrossentropy, categorical_crossentropy);
batch_loss!(BinaryCrossentropy, binary_crossentropy);
batch_loss!(MeanSquaredError, mean_squared_error);

impl<P: LastAxis, Y: Labels<P>> BatchLoss<P, Y> for LossFunction {
    fn average(
        &self,
        ctx: &ReplicaContext,
        predicted: P,
        labels: Y,
        weights: Option<Tensor<1>>,
    ) -> Result<Tensor<1>> {
        P::average(self.of(predicted, labels), ctx, weights)
    }

    fn examples(&self, (predicted, _): &(P, Y)) -> usize {
        predicted.examples()
    }
}

macro_rules! accuracy {
    ($loss:ty, $accuracy:ident) => {
        impl LossWithAccuracy for $loss {
            type Accuracy = $accuracy;

            fn accuracy(&self) -> $accuracy {
                $accuracy
            }
        }
    };
}

accuracy!(SparseCategoricalCrossentropy, SparseCategoricalAccuracy);
accuracy!(CategoricalCrossentropy, CategoricalAccuracy);
accuracy!(BinaryCrossentropy, SideOfLogits);

/// The share of logits that are on the label's side: above 0 where the label is above a half.
#[derive(Debug, Clone, Copy)]
pub struct SideOfLogits;

impl<const D: usize, Y: Labels<Tensor<D>> + Clone> Metric<Tensor<D>, Y> for SideOfLogits {
    fn values(&self, logits: &Tensor<D>, labels: &Y) -> Result<MetricValues> {
        let labels = labels.clone().into_float();
        let right = logits
            .clone()
            .greater_elem(0)
            .equal(labels.greater_elem(0.5));
        Ok(right.float().into())
    }
}
