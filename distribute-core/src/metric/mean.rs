//! The mean and the sum of whatever steps hand in.

use super::metric;
use super::sums::{Sums, Total, batch};
use crate::{Leaf, PerReplica, Result, TensorData, VariableContext};

metric! {
    /// The weighted mean of all values (Keras: `tf.keras.metrics.Mean`).
    ///
    /// Of per-replica losses that are scaled by the global batch size, the mean is smaller than the
    /// loss by the number of replicas: use `reduce` with SUM, or a [`Mean`] of unscaled per-example
    /// losses.
    Mean {}, "mean", total => total.mean()
}

metric! {
    /// The weighted sum of all values (Keras: `tf.keras.metrics.Sum`).
    Sum {}, "sum", total => total.values
}

/// Of values, and of weights if there are some.
fn weighted(data: &[TensorData]) -> Result<Total> {
    batch(&data[0], data.get(1))
}

macro_rules! updates {
    ($type:ty) => {
        impl $type {
            /// Adds values: a number, a tensor or a
            /// [`TensorData`](crate::TensorData) of any shape. An empty one counts nothing.
            ///
            /// # Errors
            /// [`Error::MixedStrategies`](crate::Error::MixedStrategies) in another strategy's
            /// step.
            pub fn update_state(
                &self,
                context: &(impl VariableContext + ?Sized),
                mut values: impl Leaf,
            ) -> Result<()> {
                self.sums.update(context, &mut [&mut values], weighted)
            }

            /// [`update_state`](Self::update_state) with a weight for every example, or one for
            /// all. Values are averaged over the trailing dimensions that weights lack.
            ///
            /// # Errors
            /// Also [`Error::Shape`](crate::Error::Shape) if the weights do not fit.
            pub fn update_state_weighted(
                &self,
                context: &(impl VariableContext + ?Sized),
                mut values: impl Leaf,
                mut weights: impl Leaf,
            ) -> Result<()> {
                self.sums
                    .update(context, &mut [&mut values, &mut weights], weighted)
            }

            /// Adds what a `run` returned, outside of a step.
            ///
            /// # Errors
            /// [`Error::InsideStep`](crate::Error::InsideStep) inside a step,
            /// [`Error::ReplicaCount`](crate::Error::ReplicaCount) for a value of another strategy.
            pub fn update_all(&self, values: PerReplica<impl Leaf>) -> Result<()> {
                let totals = values
                    .into_values()
                    .into_iter()
                    .map(|mut values| batch(&values.take()?, None))
                    .collect::<Result<Vec<_>>>()?;
                self.sums.add_all(totals)
            }
        }
    };
}

updates!(Mean);
updates!(Sum);
