//! Keras' metrics by name, as sums that are added up over replicas and batches.

mod curve;
mod kind;
mod result;
mod sums;

use std::fmt;
use std::str::FromStr;

use burn::tensor::Tensor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::loss::LossFunction;
use kind::Kind;

/// A metric of Keras with its options.
///
/// Over one batch it is a list of sums ([`sums`](Self::sums)). Those of all replicas and batches
/// are added up, and the metric is a function of the totals ([`result`](Self::result)), so it is
/// the same for any number of replicas and for uneven batches.
///
/// Its text is Keras' name, and options behind a colon: `auc:curve=pr,num_thresholds=100`,
/// `f1_score:average=micro`, `top_k_categorical_accuracy:k=3`. The losses of
/// [`LossFunction`] are metrics too.
///
/// ```
/// use distribute_core::{Device, Tensor};
/// use distribute_data::KerasMetric;
///
/// let metric: KerasMetric = "precision".parse()?;
/// let device = Device::flex();
/// let predicted = Tensor::<2>::from_data([[0.9_f32], [0.8], [0.1]], &device);
/// let labels = Tensor::<2>::from_data([[1.0_f32], [0.0], [1.0]], &device);
/// let sums = metric.sums(predicted, labels, None);
/// let sums = sums.into_data().convert::<f64>().try_to_vec::<f64>().unwrap();
/// assert_eq!(metric.result(&sums), 0.5);
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KerasMetric {
    /// The name as it was asked for, in lower case.
    name: &'static str,
    kind: Kind,
}

impl KerasMetric {
    /// The metric `accuracy`: of one output the binary accuracy, of several the categorical one.
    #[must_use]
    pub const fn accuracy() -> Self {
        Self {
            name: "accuracy",
            kind: Kind::Accuracy,
        }
    }

    /// The name in logs: Keras' name, or the shorter one that it was asked for by.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether larger values are better (Keras: the direction of callbacks).
    #[must_use]
    pub fn is_better_larger(&self) -> bool {
        !matches!(
            self.kind,
            Kind::Loss(_)
                | Kind::RootMeanSquaredError
                | Kind::FalsePositives(_)
                | Kind::FalseNegatives(_)
        )
    }

    /// All names that are understood, without the shorter ones.
    pub fn names() -> impl Iterator<Item = &'static str> {
        let own = kind::NAMES.iter().map(|(name, ..)| *name);
        let is_own = |name: &&str| kind::NAMES.iter().any(|(own, ..)| own == name);
        own.chain(LossFunction::names().filter(move |name| !is_own(name)))
    }

    /// The sums of a batch, on its device: `predicted` is what the model returns, `[n, k]`, and
    /// `labels` of the same shape: values, zeros and a one for classes, or 0 and 1 of one output.
    /// `weights` are one number per example, such as 0 for what fills a batch up.
    ///
    /// # Panics
    /// If the shapes differ; inside a step the strategy reports it as an error.
    pub fn sums(
        &self,
        predicted: Tensor<2>,
        labels: Tensor<2>,
        weights: Option<&Tensor<1>>,
    ) -> Tensor<1> {
        sums::of(&self.kind, predicted, labels, weights)
    }

    /// How many sums it has for a model with this many outputs.
    #[must_use]
    pub fn count(&self, outputs: usize) -> usize {
        self.kind.count(outputs)
    }

    /// The metric of totals of [`sums`](Self::sums); 0 without examples.
    #[must_use]
    pub fn result(&self, sums: &[f64]) -> f64 {
        result::of(&self.kind, sums)
    }
}

impl fmt::Display for KerasMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        let usual = kind::named(self.name).map(|(_, kind)| kind.options());
        let own = self.kind.options().into_iter();
        let changed = own.zip(usual.unwrap_or_default());
        let changed = changed.filter(|(own, usual)| own != usual);
        for (index, ((key, value), _)) in changed.enumerate() {
            let before = if index == 0 { ':' } else { ',' };
            write!(f, "{before}{key}={value}")?;
        }
        Ok(())
    }
}

impl FromStr for KerasMetric {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, options) = text.split_once(':').unwrap_or((text, ""));
        let Some((name, kind)) = kind::named(name) else {
            return Err(distribute_error::unknown("metric", name, Self::names()));
        };
        let mut pairs = options.split(',').filter(|pair| !pair.is_empty());
        let kind = pairs.try_fold(kind, |kind, pair| {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(format!("`{pair}` is not OPTION=VALUE"));
            };
            kind.with_option(name, key.trim(), value.trim())
        })?;
        Ok(Self { name, kind })
    }
}

impl Serialize for KerasMetric {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for KerasMetric {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
