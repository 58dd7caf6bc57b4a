//! The mean and the sum of whatever steps hand in.

use super::sums::{Sums, Total, batch};
use crate::{Leaf, PerReplica, Result, Strategy, TensorData, VariableContext};

/// The weighted mean of all values (Keras: `tf.keras.metrics.Mean`).
///
/// Of per-replica losses that are scaled by the global batch size, the mean is smaller than the
/// loss by the number of replicas: use `reduce` with SUM, or a [`Mean`] of unscaled per-example
/// losses.
#[derive(Debug, Clone)]
pub struct Mean {
    sums: Sums,
}

/// The weighted sum of all values (Keras: `tf.keras.metrics.Sum`).
#[derive(Debug, Clone)]
pub struct Sum {
    sums: Sums,
}

/// The calls that everything with [`Sums`] has.
macro_rules! calls {
    ($total:ident => $result:expr) => {
        /// The value over all replicas since the last reset, outside of a step; 0 if there was no
        /// update.
        ///
        /// # Errors
        /// [`Error::InsideStep`](crate::Error::InsideStep) inside a step.
        pub fn result(&self) -> $crate::Result<f64> {
            let $total = self.sums.total()?;
            Ok($result)
        }

        /// Forgets everything, outside of a step.
        ///
        /// # Errors
        /// [`Error::InsideStep`](crate::Error::InsideStep) inside a step.
        pub fn reset_state(&self) -> $crate::Result<()> {
            self.sums.reset()
        }
    };
}

pub(super) use calls;

/// Of values, and of weights if there are some.
fn weighted(data: &[TensorData]) -> Result<Total> {
    batch(&data[0], data[0].shape(), data.get(1))
}

macro_rules! updates {
    ($type:ty, $total:ident => $result:expr) => {
        impl $type {
            /// One of this strategy, at zero.
            pub fn new(strategy: &(impl Strategy + ?Sized)) -> Self {
                Self {
                    sums: Sums::new(strategy),
                }
            }

            calls!($total => $result);

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
                    .map(|mut values| {
                        let values = values.take()?;
                        batch(&values, values.shape(), None)
                    })
                    .collect::<Result<Vec<_>>>()?;
                self.sums.add_all(totals)
            }
        }
    };
}

updates!(Mean, total => total.mean());
updates!(Sum, total => total.values);
