//! The flags `--metrics`, `--loss`, `--loss-weights`, `--columns` and `--class-weight`.

use std::fmt;
use std::str::FromStr;

use distribute_classifier::LossName;
use distribute_data::KerasMetric;

/// Metrics of Keras with their options, of all outputs, or of one by its name.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MetricList(pub(crate) Vec<(Option<String>, KerasMetric)>);

impl MetricList {
    /// The metrics of all outputs, if there are some.
    pub(crate) fn of_all(&self) -> Option<Vec<KerasMetric>> {
        let all = self.0.iter().filter(|(output, _)| output.is_none());
        let all: Vec<KerasMetric> = all.map(|(_, metric)| *metric).collect();
        (!all.is_empty()).then_some(all)
    }

    /// The metrics of outputs by their names.
    pub(crate) fn of_outputs(&self) -> Vec<(String, KerasMetric)> {
        let own = self.0.iter();
        own.filter_map(|(output, metric)| Some((output.clone()?, *metric)))
            .collect()
    }
}

/// A loss of the model, or of an output by its name.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LossFlag {
    pub(crate) output: Option<String>,
    pub(crate) loss: LossName,
}

impl FromStr for LossFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (output, loss) = of_output(text);
        Ok(Self {
            output,
            loss: loss.parse()?,
        })
    }
}

impl fmt::Display for LossFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(output) = &self.output {
            write!(f, "{output}=")?;
        }
        f.write_str(&self.loss.name())
    }
}

/// What stands before the name of a loss or metric, whose options are behind a colon.
fn of_output(text: &str) -> (Option<String>, &str) {
    let head = text.split(':').next().unwrap_or_default();
    match head.rfind('=') {
        Some(place) => (Some(text[..place].trim().to_string()), &text[place + 1..]),
        None => (None, text),
    }
}

impl FromStr for MetricList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut metrics: Vec<String> = Vec::new();
        for part in text.split(',').map(str::trim) {
            // `auc:curve=PR,num_thresholds=50` is one metric.
            let value = part.split_once('=').map(|(_, value)| value);
            // `a=mae` is a metric of the output a.
            let names_metric = |value: &str| value.parse::<KerasMetric>().is_ok();
            let is_option = value.is_some_and(|value| !names_metric(value)) && !part.contains(':');
            match metrics.last_mut() {
                Some(last) if is_option => *last += &format!(",{part}"),
                _ => metrics.push(part.to_string()),
            }
        }
        let metrics = metrics.iter().map(|metric| {
            let (output, metric) = of_output(metric);
            Ok((output, metric.parse()?))
        });
        Ok(Self(metrics.collect::<Result<_, String>>()?))
    }
}

impl fmt::Display for MetricList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.iter().map(|(output, metric)| match output {
            Some(output) => format!("{output}={metric}"),
            None => metric.to_string(),
        });
        f.write_str(&names.collect::<Vec<_>>().join(","))
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

/// An output, and the factor of its loss.
pub(super) fn loss_weight(text: &str) -> Result<(String, f64), String> {
    let pair = text.rsplit_once('=').and_then(|(output, weight)| {
        let weight: f64 = weight.trim().parse().ok()?;
        let fits = weight.is_finite() && weight >= 0.0;
        fits.then(|| (output.trim().to_string(), weight))
    });
    pair.ok_or_else(|| "OUTPUT=FACTOR is needed, with a number from 0 on".to_string())
}

/// An input or output, and the columns or the array that belong to it.
pub(super) fn columns(text: &str) -> Result<(String, Vec<String>), String> {
    let pair = text.split_once('=').map(|(name, columns)| {
        let columns = columns.split(',').map(|column| column.trim().to_string());
        (name.trim().to_string(), columns.collect::<Vec<_>>())
    });
    let named = pair.filter(|(name, columns)| {
        !name.is_empty() && columns.iter().all(|column| !column.is_empty())
    });
    named.ok_or_else(|| "NAME=COLUMN,... is needed, of an input or output".to_string())
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
        let text = "a=mae,b=auc:curve=PR,num_thresholds=50,mse";
        let list: MetricList = text.parse().unwrap();
        assert_eq!(list.to_string(), text);
        assert_eq!(list.of_all().unwrap().len(), 1);
        assert_eq!(list.of_outputs()[1].0, "b");
        for text in ["a=huber:delta=2", "huber:delta=2", "mse"] {
            assert_eq!(text.parse::<LossFlag>().unwrap().to_string(), text);
        }
        assert_eq!(loss_weight("a=0.5").unwrap(), ("a".to_string(), 0.5));
        let found = columns("a=b, c").unwrap();
        assert_eq!(
            found,
            ("a".to_string(), vec!["b".to_string(), "c".to_string()])
        );
        assert!(loss_weight("a").is_err() && columns("a=").is_err() && columns("b").is_err());
        assert_eq!(class_weight("a=b=2").unwrap(), ("a=b".to_string(), 2.0));
        assert!(class_weight("a").is_err() && class_weight("a=-1").is_err());
    }
}
