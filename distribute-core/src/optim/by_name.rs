//! Optimizers by name and configuration: what checkpoints, parameter servers and programs keep of
//! them.

use std::mem;
use std::sync::Arc;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    Adadelta, Adagrad, Adam, AdamW, Adamax, Constrained, Constraint, Ftrl, Lion, MovingAverage,
    Nadam, Optimizer, RateFactors, RateGroup, RmsProp, Sgd, WeightDecay, of_burn,
};
use crate::{Error, Result};

type Build = fn(&Value) -> serde_json::Result<(Arc<dyn Optimizer>, Common)>;

/// All optimizers of this crate by name. `adamw` is Adam that decays weights by default.
const ALL: [(&str, Build); 10] = [
    ("adadelta", build::<Adadelta>),
    ("adagrad", build::<Adagrad>),
    ("adam", build::<Adam>),
    ("adamax", build::<Adamax>),
    ("adamw", build::<Adam>),
    ("ftrl", build::<Ftrl>),
    ("lion", build::<Lion>),
    ("nadam", build::<Nadam>),
    ("rmsprop", build::<RmsProp>),
    ("sgd", build::<Sgd>),
];

fn build<O>(config: &Value) -> serde_json::Result<(Arc<dyn Optimizer>, Common)>
where
    O: Optimizer + Default + Serialize + DeserializeOwned + 'static,
{
    let (optimizer, common) = read::<O>(config)?;
    Ok((Arc::new(optimizer), common))
}

/// What is an optimizer's own of a configuration, and what is around it. What is not there has its
/// default; what neither of them has is refused.
fn read<T>(config: &Value) -> serde_json::Result<(T, Common)>
where
    T: Default + Serialize + DeserializeOwned,
{
    let given: Map<String, Value> = Map::deserialize(config)?;
    let own = serde_json::to_value(T::default())?;
    let common = serde_json::to_value(Common::default())?;
    let defaults = [&own, &common].into_iter().filter_map(Value::as_object);
    let known: Vec<&str> = defaults
        .clone()
        .flat_map(Map::keys)
        .map(String::as_str)
        .collect();
    let all = defaults
        .flatten()
        .chain(&given)
        .map(|(name, value)| (name.clone(), value.clone()));
    let all = Value::Object(all.collect());
    let parts = (T::deserialize(&all)?, Common::deserialize(&all)?);
    match given.keys().find(|name| !known.contains(&name.as_str())) {
        None => Ok(parts),
        Some(unknown) => Err(serde_json::Error::custom(format!(
            "unknown field `{unknown}`, there are {}",
            known.join(", ")
        ))),
    }
}

/// The arguments that every optimizer of Keras has, and learning rates of groups.
#[derive(Debug, Serialize, Deserialize)]
struct Common {
    weight_decay: Option<f64>,
    exclude_from_weight_decay: Vec<String>,
    learning_rate_factors: Vec<RateGroup>,
    use_ema: bool,
    ema_momentum: f64,
    ema_overwrite_frequency: Option<u64>,
    constraints: Vec<Constraint>,
}

impl Default for Common {
    fn default() -> Self {
        Self {
            weight_decay: None,
            exclude_from_weight_decay: Vec::new(),
            learning_rate_factors: Vec::new(),
            use_ema: false,
            ema_momentum: 0.99,
            ema_overwrite_frequency: None,
            constraints: Vec::new(),
        }
    }
}

impl Common {
    fn around(
        mut self,
        name: &'static str,
        mut optimizer: Arc<dyn Optimizer>,
    ) -> Result<Arc<dyn Optimizer>> {
        let groups = mem::take(&mut self.learning_rate_factors);
        // Weight decay goes by the rate of a group, or by the rate of all.
        let (outside, inside) = groups.into_iter().partition(|group| group.decays);
        optimizer = with_factors(optimizer, inside);
        optimizer = self.with_decay(name, optimizer)?;
        optimizer = with_factors(optimizer, outside);
        let constraints = mem::take(&mut self.constraints);
        let optimizer = self.with_average(optimizer)?;
        if constraints.is_empty() {
            return Ok(optimizer);
        }
        Ok(Arc::new(Constrained::of(optimizer, constraints)))
    }

    fn with_average(&self, optimizer: Arc<dyn Optimizer>) -> Result<Arc<dyn Optimizer>> {
        if !self.use_ema {
            return Ok(optimizer);
        }
        let averaged = MovingAverage::of(optimizer, self.ema_momentum)?;
        Ok(Arc::new(match self.ema_overwrite_frequency {
            None => averaged,
            Some(updates) => averaged.overwrite_every(updates)?,
        }))
    }

    fn with_decay(
        &mut self,
        name: &'static str,
        optimizer: Arc<dyn Optimizer>,
    ) -> Result<Arc<dyn Optimizer>> {
        let excluded = mem::take(&mut self.exclude_from_weight_decay);
        let decay = match name {
            "adamw" => Some(self.weight_decay.unwrap_or(AdamW::ADAMW)),
            _ => self.weight_decay,
        };
        match decay {
            None if !excluded.is_empty() => Err(Error::invalid(format!(
                "the optimizer `{name}` has no weight decay that something could be excluded \
                 from: set `weight_decay` beside `exclude_from_weight_decay`"
            ))),
            None => Ok(optimizer),
            Some(decay) => {
                let decayed = WeightDecay::of(optimizer, decay).named(name);
                Ok(Arc::new(decayed.exclude(excluded)))
            }
        }
    }
}

fn with_factors(optimizer: Arc<dyn Optimizer>, groups: Vec<RateGroup>) -> Arc<dyn Optimizer> {
    if groups.is_empty() {
        return optimizer;
    }
    Arc::new(RateFactors::with_groups(optimizer, groups))
}

/// What of an optimizer of burn is chosen by name; all else is set in a program.
#[derive(Debug, Default, Serialize, Deserialize)]
struct OfBurn {
    learning_rate: Option<f64>,
}

fn build_burn(
    name: &str,
    build: of_burn::Build,
    config: &Value,
) -> serde_json::Result<(Arc<dyn Optimizer>, Common)> {
    let default = if name == "burn:sgd" { 0.01 } else { 0.001 };
    let (OfBurn { learning_rate }, common) = read(config)?;
    let optimizer = build(learning_rate.unwrap_or(default));
    Ok((Arc::new(optimizer), common))
}

/// The names of all optimizers of this crate, in alphabetical order.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(name, _)| *name)
}

/// The names of burn's optimizers ([`BurnOptimizer`](super::BurnOptimizer)), such as `burn:lamb`.
pub fn burn_names() -> impl Iterator<Item = &'static str> {
    of_burn::ALL.iter().map(|(name, _)| *name)
}

/// The optimizer of this name with these hyper-parameters, as [`Optimizer::config`] gives them;
/// what is not there has Keras' default. Capitals make no difference: `Adam` is `adam`.
///
/// Every optimizer also takes `weight_decay` and `exclude_from_weight_decay` ([`WeightDecay`]),
/// `learning_rate_factors` ([`RateFactors`]), `constraints` ([`Constrained`]), and `use_ema`,
/// `ema_momentum` and `ema_overwrite_frequency` ([`MovingAverage`]). Of burn's ([`burn_names`])
/// these and the `learning_rate` can be set, all else is burn's default.
///
/// ```
/// use distribute_core::optim::from_config;
/// use serde_json::json;
///
/// let lion = from_config("lion", &json!({"learning_rate": 1e-4, "weight_decay": 0.1}))?;
/// assert_eq!(lion.learning_rate(), 1e-4);
/// assert_eq!(from_config("Adam", &json!({}))?.name(), "adam");
/// let error = from_config("adammax", &json!({})).unwrap_err();
/// assert!(error.to_string().contains("did you mean `adamax`?"));
/// # Ok::<(), distribute_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`] for another name, which says the nearest one, for a hyper-parameter
/// that the optimizer does not have, and for a value that is none.
pub fn from_config(name: &str, config: &Value) -> Result<Arc<dyn Optimizer>> {
    // Keras writes its classes in capitals (`Adam`), and takes either in `keras.optimizers.get`.
    let keras = ALL
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name));
    let burns = of_burn::ALL
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name));
    let (name, built) = match (keras, burns) {
        (Some((name, build)), _) => (*name, build(config)),
        (None, Some((name, build))) => (*name, build_burn(name, *build, config)),
        (None, None) => {
            let all = names().chain(burn_names());
            let unknown = distribute_error::unknown("optimizer", name, all);
            return Err(Error::invalid(unknown));
        }
    };
    let (optimizer, common) = built.map_err(|error| {
        Error::invalid(format!(
            "the configuration {config} of the optimizer `{name}`: {error}"
        ))
    })?;
    common.around(name, optimizer)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{burn_names, from_config, names};

    #[test]
    fn what_an_optimizer_says_of_itself_builds_it_again() {
        for name in names().chain(burn_names()) {
            let first = from_config(
                name,
                &json!({
                    "learning_rate": 0.1,
                    "weight_decay": 0.3,
                    "exclude_from_weight_decay": ["bias"],
                    "learning_rate_factors": [
                        {"paths": ["kernel"], "factor": 2.0, "decays": true},
                        {"paths": ["bias"], "factor": 3.0, "decays": false},
                    ],
                    "use_ema": true,
                    "ema_momentum": 0.7,
                    "ema_overwrite_frequency": 5,
                }),
            )
            .unwrap();
            assert_eq!(first.name(), name);
            let again = from_config(name, &first.config()).unwrap();
            assert_eq!(again.config(), first.config(), "{name}");
            assert_eq!(again.slots(), first.slots(), "{name}");
            for step in [1, 2, 5, 1000] {
                let found = again.coefficients(0.1, step);
                assert_eq!(found, first.coefficients(0.1, step), "{name}");
            }
        }
    }

    /// Checkpoints from before AMSGrad say nothing of it.
    #[test]
    fn a_flag_that_came_later_is_written_while_it_is_on() {
        for (amsgrad, written) in [(false, None), (true, Some(true))] {
            let adam = from_config("adam", &json!({"amsgrad": amsgrad})).unwrap();
            assert_eq!(adam.config()["amsgrad"].as_bool(), written);
            assert_eq!(adam.slots().len(), if amsgrad { 3 } else { 2 });
        }
        let sgd = from_config("sgd", &json!({})).unwrap().config();
        let all = json!({"learning_rate": 0.01, "momentum": 0.0, "nesterov": false});
        assert_eq!(sgd, all);
    }

    #[test]
    fn what_an_optimizer_does_not_have_is_named() {
        let error = |name, config| from_config(name, &config).unwrap_err().to_string();
        let unknown = error("lion", json!({"rho": 0.9}));
        assert!(
            unknown.ends_with(
                "`lion`: unknown field `rho`, there are beta_1, beta_2, learning_rate, \
                 constraints, ema_momentum, ema_overwrite_frequency, exclude_from_weight_decay, \
                 learning_rate_factors, use_ema, weight_decay"
            ),
            "{unknown}"
        );
        let other = error("nadam", json!({"amsgrad": false}));
        assert!(other.contains("unknown field `amsgrad`"), "{other}");
        let text = error("sgd", json!("momentum"));
        assert!(text.contains("expected a map"), "{text}");
        let kind = error("adam", json!({"learning_rate": "fast"}));
        assert!(kind.contains("expected f64"), "{kind}");
        let momentum = error("sgd", json!({"use_ema": true, "ema_momentum": 1.5}));
        assert!(momentum.contains("from 0 to 1, got 1.5"), "{momentum}");
        let decay = error("sgd", json!({"exclude_from_weight_decay": ["bias"]}));
        assert!(decay.contains("set `weight_decay`"), "{decay}");
        let often = json!({"use_ema": true, "ema_overwrite_frequency": 0});
        let often = error("sgd", often);
        assert!(often.contains("got 0"), "{often}");
    }
}
