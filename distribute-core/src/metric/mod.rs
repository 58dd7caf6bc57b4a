//! Metrics: numbers that steps collect on every replica and that are put together when read.
//!
//! A [`Metric`] makes values of predictions and labels, and their mean over all examples is what is
//! measured. It is the same one everywhere: [`StrategyExt::metric`](crate::StrategyExt::metric)
//! makes one of it that steps of your own update, the loop `Fit` and `evaluate` take it in their
//! objectives. [`Mean`] and [`Sum`] take values that are there already.
//!
//! What a strategy has made is captured by steps. An update takes the context it is made
//! in: a step's, where it changes the replica's own sums, without communication; or the strategy,
//! outside of a step, where every worker adds what it calls it with. [`result`](Mean::result) adds
//! up over the replicas (TensorFlow: metrics made of `SyncOnRead` variables with aggregation SUM).
//!
//! ```
//! use distribute_core::metric::Mean;
//! use distribute_core::{MirroredStrategy, StrategyExt};
//!
//! let strategy = MirroredStrategy::builder().replicas(2).build()?;
//! let mean = Mean::new(&strategy);
//! strategy.run((), |ctx, ()| mean.update_state(ctx, [1.25_f32, 2.25][ctx.replica_id()]))?;
//! assert_eq!(mean.result()?, 1.75);
//! mean.update_state(&strategy, 5.5_f32)?;
//! assert_eq!(mean.result()?, 3.0);
//! # Ok::<(), distribute_core::Error>(())
//! ```
//!
//! The arithmetic is Keras': sums of values times sample weights, over sums of weights; a metric
//! that saw nothing is 0. The sums are kept in f64 (Keras' f32 stops counting at 16,777,216).
//! An update reads its values on the host, so on an accelerator it waits for them.

mod accuracy;
mod distributed;
mod mean;
mod sums;

use burn::tensor::Tensor;

pub use accuracy::{BinaryAccuracy, CategoricalAccuracy, SparseCategoricalAccuracy};
pub use distributed::DistributedMetric;
pub use mean::{Mean, Sum};
pub use sums::weighted_mean;

use crate::Result;

/// What is measured of predictions `P` and labels `Y`: the mean of the values that it makes of
/// them, over the examples of all replicas and batches. A function that gives a value for every
/// example, `[n]`, is one.
///
/// ```
/// use distribute_core::metric::SparseCategoricalAccuracy;
/// use distribute_core::{MirroredStrategy, StrategyExt, Tensor, TensorData};
/// use burn::tensor::Int;
///
/// let strategy = MirroredStrategy::builder().replicas(2).build()?;
/// let accuracy = strategy.metric(SparseCategoricalAccuracy);
/// let error = strategy.metric(|scores: &Tensor<2>, _: &Tensor<1, Int>| {
///     (-scores.clone()).exp().sum_dim(1).squeeze_dim::<1>(1)
/// });
/// strategy.run((), |ctx, ()| {
///     let scores = Tensor::<2>::from_data([[0.25_f32, 0.75], [0.5, 0.5]], ctx.device());
///     let labels = Tensor::<1, Int>::from_data(TensorData::from([1_i64, 1]), ctx.device());
///     accuracy.update_state(ctx, &labels, &scores)?;
///     error.update_state(ctx, &labels, &scores)
/// })?;
/// assert_eq!(accuracy.result()?, 0.5);
/// assert!(error.result()? > 1.0);
/// # Ok::<(), distribute_core::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not measure predictions `{P}` by labels `{Y}`",
    note = "a metric of your own is a function: `|predicted: &{P}, labels: &{Y}| -> Tensor<1>`"
)]
pub trait Metric<P, Y> {
    /// The values of a batch, on the device of the predictions.
    ///
    /// # Errors
    /// If predictions and labels do not fit each other.
    fn values(&self, predictions: &P, labels: &Y) -> Result<MetricValues>;
}

impl<P, Y, F: Fn(&P, &Y) -> Tensor<1>> Metric<P, Y> for F {
    fn values(&self, predictions: &P, labels: &Y) -> Result<MetricValues> {
        Ok(self(predictions, labels).into())
    }
}

/// The values that a [`Metric`] makes of a batch: one for every example, or of the shape
/// `[n, ...]`. Any tensor becomes one.
#[derive(Debug, Clone)]
pub struct MetricValues {
    values: Tensor<1>,
    shape: Vec<usize>,
}

impl MetricValues {
    /// These values, in the order of rows of such a shape.
    fn new(values: Tensor<1>, shape: &[usize]) -> Self {
        Self {
            values,
            shape: shape.to_vec(),
        }
    }

    /// The mean of every example's values, `[n]`.
    pub fn of_examples(self) -> Tensor<1> {
        match &self.shape[..] {
            [] | [_] => self.values,
            [examples, inner @ ..] => {
                let values = self.values.reshape([*examples, inner.iter().product()]);
                values.mean_dim(1).squeeze_dim(1)
            }
        }
    }
}

impl<const D: usize> From<Tensor<D>> for MetricValues {
    fn from(values: Tensor<D>) -> Self {
        let shape = values.dims();
        Self::new(values.reshape([shape.iter().product::<usize>()]), &shape)
    }
}
