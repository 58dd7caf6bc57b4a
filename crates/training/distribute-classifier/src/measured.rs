//! What is computed of the outputs of a model and the targets.

use std::sync::Arc;

use distribute_data::KerasMetric;
use distribute_keras::Head;

use crate::loss;
use crate::loss_name::LossName;

/// The losses of a model's outputs, and what is measured beside them.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    pub(crate) outputs: Arc<[MeasuredOutput]>,
}

/// What is computed of one output and its targets.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredOutput {
    /// The prefix of its loss and metrics in the logs, if the model has several outputs.
    pub(crate) name: Option<String>,
    pub(crate) loss: LossName,
    /// The factor of its loss.
    pub(crate) weight: Option<f64>,
    pub(crate) metrics: Vec<KerasMetric>,
    /// Metrics that count by the weights of the examples.
    pub(crate) weighted_metrics: Vec<KerasMetric>,
    /// The number of outputs, at each place of an image or a sequence.
    pub(crate) outputs: usize,
    /// Where the targets are; nothing if all that an example has are for this output.
    pub(crate) target: Option<TargetPlace>,
}

/// The targets of an output in the row of an example's targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TargetPlace {
    /// The first value.
    pub(crate) first: usize,
    /// How many there are.
    pub(crate) width: usize,
    /// Each is the number of a class.
    pub(crate) is_class: bool,
}

impl Measured {
    /// This loss with these metrics, in the order in which they are logged, of a model with one
    /// output of this many numbers.
    #[must_use]
    pub fn new(loss: LossName, metrics: &[KerasMetric], outputs: usize) -> Self {
        Self::of(vec![MeasuredOutput {
            name: None,
            loss,
            weight: None,
            metrics: metrics.to_vec(),
            weighted_metrics: Vec::new(),
            outputs,
            target: None,
        }])
    }

    /// Of all outputs, in the order of the model's.
    pub(crate) fn of(outputs: Vec<MeasuredOutput>) -> Self {
        Self {
            outputs: outputs.into(),
        }
    }
}

impl MeasuredOutput {
    /// The name of a value of this output in the logs, as Keras has it.
    pub(crate) fn logged(&self, value: &str) -> String {
        let prefix = self.name.as_ref().map(|name| format!("{name}_"));
        prefix.unwrap_or_default() + value
    }

    /// The name of a metric that counts by the weights of the examples.
    pub(crate) fn logged_weighted(&self, metric: &KerasMetric) -> String {
        let is_twice = self.metrics.iter().any(|it| it.name() == metric.name());
        let prefix = if is_twice { "weighted_" } else { "" };
        self.logged(&format!("{prefix}{}", metric.name()))
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
