//! What is computed of the outputs of a model and the targets.

use std::sync::Arc;

use distribute_data::KerasMetric;
use distribute_keras::Head;

use crate::loss;
use crate::loss_name::LossName;

/// The loss, and what is measured beside it.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    pub(crate) loss: LossName,
    pub(crate) metrics: Arc<[KerasMetric]>,
    /// The number of the model's outputs.
    pub(crate) outputs: usize,
}

impl Measured {
    /// This loss with these metrics, in the order in which they are logged, of a model with
    /// this number of outputs.
    #[must_use]
    pub fn new(loss: LossName, metrics: &[KerasMetric], outputs: usize) -> Self {
        Self {
            loss,
            metrics: metrics.into(),
            outputs,
        }
    }

    /// Whether outputs of such a model are taken for numbers before a sigmoid or softmax, although
    /// it ends with neither.
    pub(crate) fn is_of_logits(&self, head: Head) -> bool {
        head == Head::Linear && loss::wants_head(&self.loss)
    }

    /// Whether only the accuracy is measured, and a model's outputs are compared with each other or
    /// with 0.
    pub(crate) fn is_of_accuracy(&self, head: Head) -> bool {
        let is_old = !matches!(self.loss, LossName::Keras { .. });
        let of_classes = is_old || head != Head::Linear || self.is_of_logits(head);
        of_classes && *self.metrics == [KerasMetric::accuracy()]
    }
}

impl From<LossName> for Measured {
    /// With the accuracy alone.
    fn from(loss: LossName) -> Self {
        Self::new(loss, &[KerasMetric::accuracy()], 1)
    }
}
