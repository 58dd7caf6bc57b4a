//! Decoupled weight decay for any optimizer, and AdamW.

use serde_json::json;

use super::{Adam, BurnOptimizer, Optimizer, ParameterUpdate, SlotStart, Updated};
use crate::macros::{forward, setters};
use crate::{Error, Result};

/// An optimizer with decoupled weight decay (Loshchilov and Hutter, 2017; the argument
/// `weight_decay` of every optimizer of Keras): before its update, `w -= lr * weight_decay * w`.
///
/// A parameter without a gradient does not decay, as in Keras.
///
/// ```
/// use distribute_core::optim::{Optimizer, Sgd, WeightDecay};
///
/// let decayed = WeightDecay::of(Sgd::new(0.1), 1e-4).exclude(["bias", "norm"]);
/// assert_eq!(decayed.name(), "sgd");
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct WeightDecay<O> {
    name: &'static str,
    inner: O,
    weight_decay: f64,
    excluded: Vec<String>,
}

/// `keras.optimizers.AdamW`: Adam with weight decay, 0.004 unless it says otherwise.
pub type AdamW = WeightDecay<Adam>;

impl<O> WeightDecay<O> {
    /// Keras' default for AdamW.
    pub(super) const ADAMW: f64 = 0.004;

    pub(super) fn named(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }
}

impl<O: Optimizer> WeightDecay<O> {
    /// This optimizer with weight decay; the name of the optimizer stays.
    pub fn of(optimizer: O, weight_decay: f64) -> Self {
        Self {
            name: optimizer.name(),
            inner: optimizer,
            weight_decay,
            excluded: Vec::new(),
        }
    }

    setters! { self;
        /// Sets the weight decay.
        weight_decay(weight_decay: f64) => weight_decay = weight_decay;
    }

    /// Excludes the parameters whose path contains one of these texts, for example `bias` (Keras:
    /// `exclude_from_weight_decay(var_names=..)`).
    pub fn exclude(mut self, texts: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.excluded.extend(texts.into_iter().map(Into::into));
        self
    }
}

impl AdamW {
    /// AdamW with Keras' defaults: Adam's, and a weight decay of 0.004.
    pub fn new(learning_rate: f64) -> Self {
        Self::of(Adam::new(learning_rate), Self::ADAMW).named("adamw")
    }

    /// Sets the decay rates of the two moments, each below 1.
    pub fn betas(mut self, beta_1: f64, beta_2: f64) -> Self {
        self.inner = self.inner.betas(beta_1, beta_2);
        self
    }

    setters! { self;
        /// Sets the number that keeps the division from zero.
        epsilon(epsilon: f64) => inner = self.inner.epsilon(epsilon);
    }
}

impl<O: Optimizer> Optimizer for WeightDecay<O> {
    fn name(&self) -> &'static str {
        self.name
    }

    forward! { self => self.inner;
        fn slots() -> &[&'static str];
        fn slot_start(slot: &str) -> SlotStart;
        fn learning_rate() -> f64;
        fn check_parameters(paths: &[String]) -> Result<()>;
        fn burn() -> Option<&BurnOptimizer>;
    }

    fn config(&self) -> serde_json::Value {
        let mut config = self.inner.config();
        config["weight_decay"] = json!(self.weight_decay);
        if !self.excluded.is_empty() {
            config["exclude_from_weight_decay"] = json!(self.excluded);
        }
        config
    }

    /// The optimizer's, then the factor of the weight that is left.
    fn coefficients(&self, learning_rate: f64, step: u64) -> Vec<f64> {
        let mut all = self.inner.coefficients(learning_rate, step);
        all.push(1.0 - learning_rate * self.weight_decay);
        all
    }

    fn update(&self, of: ParameterUpdate<'_>) -> Result<Updated> {
        let Some((keep, coefficients)) = of.coefficients.split_last() else {
            return Err(Error::invalid("weight decay needs one coefficient"));
        };
        let parameter = if self.excluded.iter().any(|text| of.path.contains(text)) {
            of.parameter
        } else {
            keep.scale(of.parameter)
        };
        self.inner.update(ParameterUpdate {
            coefficients,
            parameter,
            ..of
        })
    }
}
