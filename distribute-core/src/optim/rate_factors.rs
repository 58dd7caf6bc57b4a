//! Learning rates of groups of parameters, for any optimizer.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{BurnOptimizer, Optimizer, ParameterUpdate, SlotStart, Updated};
use crate::macros::forward;
use crate::{Error, Result};

/// What the configuration of an optimizer calls its factors.
const KEY: &str = "learning_rate_factors";

/// An optimizer whose learning rate differs between groups of parameters (PyTorch: parameter groups
/// with an `lr` of their own; discriminative fine-tuning, Howard and Ruder, 2018).
///
/// The learning rate of a group is a factor times the rate of the state, so a schedule changes all
/// rates together. Weight decay that the optimizer has goes by the group's rate. It works wherever
/// the optimizer does: also on parameter servers and in compiled steps.
///
/// ```
/// use distribute_core::optim::{Adam, Optimizer, RateFactors};
///
/// let tuned = RateFactors::of(Adam::new(1e-3)).factor(["encoder"], 0.1).factor(["head"], 10.0);
/// assert_eq!(tuned.name(), "adam");
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct RateFactors<O> {
    inner: O,
    groups: Vec<RateGroup>,
}

/// Parameters, by texts that their paths contain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RateGroup {
    paths: Vec<String>,
    factor: f64,
    /// Whether weight decay goes by the group's rate, too.
    pub(super) decays: bool,
}

impl RateGroup {
    fn has(&self, path: &str) -> bool {
        self.paths.iter().any(|text| path.contains(text))
    }

    /// Refuses a factor that is no number, and a group without parameters.
    fn check(&self, paths: &[String]) -> Result<()> {
        let Self {
            paths: texts,
            factor,
            ..
        } = self;
        if !(factor.is_finite() && *factor >= 0.0) {
            return Err(Error::invalid(format!(
                "the factor {factor} of the learning rate of {texts:?} is negative or not a number"
            )));
        }
        if paths.iter().any(|path| self.has(path)) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{texts:?} have a learning rate of their own, but no path of the model's parameters \
             contains any of them ({})",
            paths.join(", ")
        )))
    }
}

impl<O: Optimizer> RateFactors<O> {
    /// This optimizer, with one rate for all parameters so far; its name stays.
    pub fn of(optimizer: O) -> Self {
        Self::with_groups(optimizer, Vec::new())
    }

    pub(super) fn with_groups(inner: O, groups: Vec<RateGroup>) -> Self {
        Self { inner, groups }
    }

    /// Multiplies the learning rate of the parameters whose path contains one of these texts, for
    /// example `bias`, by `factor`. A parameter of several groups has the factor that was added
    /// last.
    ///
    /// A group that has no parameter of the model, and a factor that is negative or not finite, are
    /// errors of the first update.
    pub fn factor(
        mut self,
        texts: impl IntoIterator<Item = impl Into<String>>,
        factor: f64,
    ) -> Self {
        self.groups.push(RateGroup {
            paths: texts.into_iter().map(Into::into).collect(),
            factor,
            decays: self.inner.config().get("weight_decay").is_some(),
        });
        self
    }

    /// Factors of the optimizer inside, which weight decay between them does not go by.
    fn inside(&self) -> Vec<RateGroup> {
        let config = self.inner.config();
        let groups = Vec::deserialize(&config[KEY]);
        // No groups where there is no such key.
        groups.unwrap_or_default()
    }
}

impl<O: Optimizer> Optimizer for RateFactors<O> {
    forward! { self => self.inner;
        fn name() -> &'static str;
        fn slots() -> &[&'static str];
        fn slot_start(slot: &str) -> SlotStart;
        fn learning_rate() -> f64;
        fn burn() -> Option<&BurnOptimizer>;
    }

    fn config(&self) -> Value {
        let mut config = self.inner.config();
        let all = self.inside().into_iter().chain(self.groups.clone());
        let all: Vec<RateGroup> = all.collect();
        if !all.is_empty() {
            config[KEY] = json!(all);
        }
        config
    }

    fn check_parameters(&self, paths: &[String]) -> Result<()> {
        self.groups
            .iter()
            .try_for_each(|group| group.check(paths))?;
        let mut both = self.groups.iter().zip(self.inside());
        if both.any(|(own, inside)| own.decays == inside.decays) {
            return Err(Error::invalid(
                "there are factors of the learning rate around factors of the learning rate: add \
                 all groups to one `RateFactors`",
            ));
        }
        self.inner.check_parameters(paths)
    }

    /// The optimizer's, then the optimizer's with the rate of each group.
    fn coefficients(&self, learning_rate: f64, step: u64) -> Vec<f64> {
        let factors = self.groups.iter().map(|group| group.factor);
        let all = [1.0].into_iter().chain(factors);
        all.flat_map(|factor| self.inner.coefficients(learning_rate * factor, step))
            .collect()
    }

    fn update(&self, of: ParameterUpdate<'_>) -> Result<Updated> {
        let rates = self.groups.len() + 1;
        let group = self.groups.iter().rposition(|group| group.has(of.path));
        let count = of.coefficients.len() / rates;
        let start = group.map_or(0, |group| count * (group + 1));
        let coefficients = &of.coefficients[start..start + count];
        self.inner.update(ParameterUpdate { coefficients, ..of })
    }
}
