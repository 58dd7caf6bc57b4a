//! Loss objects with a reduction, and why most reductions are refused under a strategy.

use distribute_core::Result;

use super::functions::{
    Labels, LastAxis, binary_crossentropy, categorical_crossentropy, mean_squared_error,
    sparse_categorical_crossentropy,
};
use super::reduction::{LossValue, Reduction};

macro_rules! loss_object {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name {
            reduction: Reduction,
        }

        impl $name {
            /// A loss with this reduction. A reduction that cannot be used under a strategy is
            /// refused when the loss is called, as in TensorFlow: only then is it known where.
            pub fn new(reduction: Reduction) -> Self {
                Self { reduction }
            }

            /// The reduction.
            pub fn reduction(&self) -> Reduction {
                self.reduction
            }
        }
    };
}

loss_object!(
    /// [`sparse_categorical_crossentropy`](super::sparse_categorical_crossentropy) with a
    /// reduction (Keras: `SparseCategoricalCrossentropy(from_logits=True)`).
    SparseCategoricalCrossentropy
);
loss_object!(
    /// [`categorical_crossentropy`](super::categorical_crossentropy) with a reduction (Keras:
    /// `CategoricalCrossentropy(from_logits=True)`).
    CategoricalCrossentropy
);
loss_object!(
    /// [`binary_crossentropy`](super::binary_crossentropy) with a reduction (Keras:
    /// `BinaryCrossentropy(from_logits=True)`).
    BinaryCrossentropy
);
loss_object!(
    /// [`mean_squared_error`](super::mean_squared_error) with a reduction (Keras:
    /// `MeanSquaredError`).
    MeanSquaredError
);

impl SparseCategoricalCrossentropy {
    /// The loss of a batch.
    ///
    /// # Errors
    /// For [`Reduction::Auto`] and [`Reduction::SumOverBatchSize`] inside a step or scope of a
    /// strategy other than the default one; for a mean of losses that are not one row, or one
    /// number, per example of the batch.
    pub fn call<T>(&self, logits: T, labels: T::Indices) -> Result<LossValue<T::PerExample>>
    where
        T: LastAxis,
    {
        T::reduce(
            sparse_categorical_crossentropy(logits, labels),
            self.reduction,
        )
    }
}

macro_rules! call {
    ($name:ident, $function:ident, $labels:ident) => {
        impl $name {
            /// The loss of a batch.
            ///
            /// # Errors
            /// For [`Reduction::Auto`] and [`Reduction::SumOverBatchSize`] inside a step or scope
            /// of a strategy other than the default one; for a mean of losses that are not one
            /// row, or one number, per example of the batch.
            pub fn call<T: LastAxis>(
                &self,
                predictions: T,
                $labels: impl Labels<T>,
            ) -> Result<LossValue<T::PerExample>> {
                T::reduce($function(predictions, $labels), self.reduction)
            }
        }
    };
}

call!(CategoricalCrossentropy, categorical_crossentropy, labels);
call!(BinaryCrossentropy, binary_crossentropy, labels);
call!(MeanSquaredError, mean_squared_error, targets);
