//! A metric of Keras with its name in the logs.

use std::fmt;

use distribute_data::KerasMetric;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A metric, and the name of its own that it has in the logs, if it has one.
///
/// Its text is the metric's text, behind the name: `auc:curve=PR`, `output_auc=auc:curve=PR`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NamedMetric {
    name: Option<String>,
    pub(super) metric: KerasMetric,
}

impl NamedMetric {
    pub(super) fn new(name: impl Into<String>, metric: KerasMetric) -> Self {
        let name = Some(name.into());
        Self {
            name: name.filter(|name| name != metric.name()),
            metric,
        }
    }

    /// The name in the logs.
    pub(super) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(self.metric.name())
    }
}

impl From<KerasMetric> for NamedMetric {
    fn from(metric: KerasMetric) -> Self {
        Self { name: None, metric }
    }
}

impl fmt::Display for NamedMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "{name}=")?;
        }
        write!(f, "{}", self.metric)
    }
}

impl Serialize for NamedMetric {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for NamedMetric {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        // An option of the metric stands behind a colon.
        let head = text.split(':').next().unwrap_or_default();
        let (name, metric) = match head.rfind('=') {
            Some(place) => (Some(text[..place].to_string()), &text[place + 1..]),
            None => (None, text.as_str()),
        };
        let metric = metric.parse().map_err(serde::de::Error::custom)?;
        Ok(Self { name, metric })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_keeps_its_name_in_a_checkpoint() {
        let auc: KerasMetric = "auc:num_thresholds=50".parse().unwrap();
        for (metric, text) in [
            (NamedMetric::from(auc), "\"auc:num_thresholds=50\""),
            (
                NamedMetric::new("a=b_auc", auc),
                "\"a=b_auc=auc:num_thresholds=50\"",
            ),
        ] {
            assert_eq!(serde_json::to_string(&metric).unwrap(), text);
            assert_eq!(serde_json::from_str::<NamedMetric>(text).unwrap(), metric);
        }
    }
}
