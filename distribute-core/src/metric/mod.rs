//! Metrics: numbers that steps collect on every replica and that are put together when read.
//!
//! A metric is made by a strategy and captured by steps. An update takes the context it is made
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
//! An update reads its tensors on the host, so on an accelerator it waits for them.

mod accuracy;
mod mean;
mod sums;

use std::fmt::Debug;

pub use accuracy::{BinaryAccuracy, CategoricalAccuracy, SparseCategoricalAccuracy};
pub use mean::{Mean, Sum};

use crate::Result;

/// What all metrics have in common; loops and loggers take a list of these.
pub trait Metric: Send + Sync + Debug {
    /// The name in tables and logs.
    fn name(&self) -> &str;

    /// The value over all replicas since the last reset, outside of a step.
    ///
    /// # Errors
    /// [`Error::InsideStep`](crate::Error::InsideStep) inside a step.
    fn result(&self) -> Result<f64>;

    /// Forgets everything, outside of a step.
    ///
    /// # Errors
    /// [`Error::InsideStep`](crate::Error::InsideStep) inside a step.
    fn reset_state(&self) -> Result<()>;
}

/// A metric of this name, with the calls that every one has, in its own name and as [`Metric`].
macro_rules! metric {
    (
        $(#[$meta:meta])*
        $type:ident { $($field:ident: $field_type:ty = $value:expr)? },
        $name:literal, $sums:ident => $result:expr
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone)]
        pub struct $type {
            sums: Sums,
            $($field: $field_type,)?
        }

        impl $type {
            /// A metric of this strategy, at zero.
            pub fn new(strategy: &(impl $crate::Strategy + ?Sized)) -> Self {
                Self {
                    sums: Sums::new(strategy),
                    $($field: $value,)?
                }
            }

            /// The value over all replicas since the last reset, outside of a step; 0 if there was
            /// no update.
            ///
            /// # Errors
            /// [`Error::InsideStep`](crate::Error::InsideStep) inside a step.
            pub fn result(&self) -> $crate::Result<f64> {
                let $sums = self.sums.total()?;
                Ok($result)
            }

            /// Forgets everything, outside of a step.
            ///
            /// # Errors
            /// [`Error::InsideStep`](crate::Error::InsideStep) inside a step.
            pub fn reset_state(&self) -> $crate::Result<()> {
                self.sums.reset()
            }
        }

        impl $crate::metric::Metric for $type {
            fn name(&self) -> &str {
                $name
            }

            fn result(&self) -> $crate::Result<f64> {
                <$type>::result(self)
            }

            fn reset_state(&self) -> $crate::Result<()> {
                <$type>::reset_state(self)
            }
        }
    };
}

use metric;
