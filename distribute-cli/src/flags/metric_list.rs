//! The flags `--metrics` and `--class-weight`.

use std::fmt;
use std::str::FromStr;

use distribute_data::KerasMetric;

/// Metrics of Keras with their options.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MetricList(pub(crate) Vec<KerasMetric>);

impl FromStr for MetricList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut metrics: Vec<String> = Vec::new();
        for part in text.split(',').map(str::trim) {
            // `auc:curve=PR,num_thresholds=50` is one metric.
            let is_option = part.contains('=') && !part.contains(':');
            match metrics.last_mut() {
                Some(last) if is_option => *last += &format!(",{part}"),
                _ => metrics.push(part.to_string()),
            }
        }
        let metrics = metrics.iter().map(|metric| metric.parse());
        Ok(Self(metrics.collect::<Result<_, String>>()?))
    }
}

impl fmt::Display for MetricList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&names.join(","))
    }
}

/// A class, by its number or name, and its weight.
pub(super) fn class_weight(text: &str) -> Result<(String, f32), String> {
    let pair = text.rsplit_once('=').and_then(|(class, weight)| {
        let weight: f32 = weight.trim().parse().ok()?;
        let fits = weight.is_finite() && weight >= 0.0;
        fits.then(|| (class.trim().to_string(), weight))
    });
    pair.ok_or_else(|| "CLASS=WEIGHT is needed, with a number from 0 on".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_belong_to_the_metric_before_them() {
        let text = "accuracy,auc:curve=PR,num_thresholds=50,f1_score:average=micro";
        let list: MetricList = text.parse().unwrap();
        assert_eq!(list.0.len(), 3);
        assert_eq!(list.to_string(), text);
        assert_eq!(class_weight("a=b=2").unwrap(), ("a=b".to_string(), 2.0));
        assert!(class_weight("a").is_err() && class_weight("a=-1").is_err());
    }
}
