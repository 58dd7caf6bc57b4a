//! Losses on what layers give (Keras: `activity_regularizer`).

use burn::tensor::{FloatDType, Tensor};

use crate::Regularizer;
use crate::layers::Flow;

/// The sum of such losses in a pass, `[batch]`.
#[derive(Default)]
pub(super) struct ActivityLosses {
    pub(super) sum: Option<Tensor<1>>,
}

impl ActivityLosses {
    /// Adds the loss on the values of a call, of `batch` examples.
    pub(super) fn add(&mut self, regularizer: Regularizer, values: Flow, batch: usize) {
        // Computed in f32, whatever the layers compute in.
        let rows = values.flatten(false).cast(FloatDType::F32);
        let Regularizer { l1, l2 } = regularizer;
        let first = (l1 != 0.0).then(|| rows.clone().abs().mul_scalar(l1));
        let second = (l2 != 0.0).then(|| (rows.clone() * rows).mul_scalar(l2));
        let terms = match (first, second) {
            (Some(first), Some(second)) => Some(first + second),
            (one, other) => one.or(other),
        };
        // In a `TimeDistributed` every step of an example is a row.
        let losses = terms.map(|terms| {
            let [rows, columns] = terms.dims();
            let each = rows * columns / batch.max(1);
            terms.reshape([batch, each]).sum_dim(1).reshape([batch])
        });
        self.sum = match (self.sum.take(), losses) {
            (Some(sum), Some(losses)) => Some(sum + losses),
            (one, other) => one.or(other),
        };
    }
}
