//! What is asked for the outputs of a model by their names.

use distribute_data::KerasMetric;

use crate::loss_name::LossName;

/// Losses and metrics of the outputs of a model; each output by Keras' name of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OutputOptions {
    /// The loss of an output (Keras: `loss={"a": "mse"}`).
    pub losses: Vec<(String, LossName)>,
    /// The factor of the loss of an output in the loss that is minimized (Keras: `loss_weights`);
    /// 1 if it has none.
    pub loss_weights: Vec<(String, f64)>,
    /// A metric of an output (Keras: `metrics={"a": ["mae"]}`), in the order in which they are
    /// logged.
    pub metrics: Vec<(String, KerasMetric)>,
    /// Metrics that count by the weights of the examples (Keras: `weighted_metrics`), of one output
    /// or of all.
    pub weighted_metrics: Vec<(Option<String>, KerasMetric)>,
}

impl OutputOptions {
    /// The names of all outputs that something is asked for.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let losses = self.losses.iter().map(|(name, _)| name);
        let weights = self.loss_weights.iter().map(|(name, _)| name);
        let metrics = self.metrics.iter().map(|(name, _)| name);
        let weighted = self.weighted_metrics.iter();
        let weighted = weighted.filter_map(|(name, _)| name.as_ref());
        let all = losses.chain(weights).chain(metrics).chain(weighted);
        all.map(String::as_str)
    }

    /// The metrics of an output.
    pub(crate) fn metrics_of(&self, output: &str) -> Vec<KerasMetric> {
        let own = self.metrics.iter().filter(|(name, _)| name == output);
        own.map(|(_, metric)| *metric).collect()
    }

    /// The metrics of an output that count by the weights of the examples.
    pub(crate) fn weighted_of(&self, output: &str) -> Vec<KerasMetric> {
        let is_own = |name: &Option<String>| name.as_ref().is_none_or(|name| name == output);
        let own = self
            .weighted_metrics
            .iter()
            .filter(|(name, _)| is_own(name));
        own.map(|(_, metric)| *metric).collect()
    }
}
