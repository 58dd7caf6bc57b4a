//! The optimizer of a run: what was asked for, or what the model's file says that it was compiled
//! with. What cannot be done is named.

use std::sync::Arc;

use burn::module::Module;
use distribute_core::optim::{self, Optimizer, from_config};
use distribute_core::{Clip, Error, TrainState};
use distribute_keras::Compiled;
use serde_json::{Map, Value, json};

use crate::loss::{compiled_metrics, known_metrics};

/// Arguments of Keras' optimizers that are no arguments of an optimizer here, and what to do.
const OTHERWISE: [(&str, &str); 3] = [
    ("decay", "use a schedule"),
    (
        "loss_scale_factor",
        "use `Policy::mixed_float16`, which scales the loss",
    ),
    (
        "gradient_accumulation_steps",
        "use `TrainState::accumulate_mean`",
    ),
];
/// Keras' arguments that limit gradients, of which one may be given.
const CLIPS: [&str; 3] = ["global_clipnorm", "clipnorm", "clipvalue"];
/// What says nothing of an update.
const NO_MATTER: [&str; 5] = [
    "name",
    "jit_compile",
    "is_legacy_optimizer",
    "use_ema",
    "ema_momentum",
];

/// What trains where nothing else is said.
const DEFAULT_OPTIMIZER: &str = "adam";

/// An optimizer by its name, and numbers of it. A number that is not given is the one that the
/// model was compiled with ([`Task::complete`](crate::Task::complete)), or else Keras' default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OptimizerOptions {
    /// One of [`optim::names`] or [`optim::burn_names`]; adam if there is none.
    pub name: Option<&'static str>,
    /// The size of an update.
    pub learning_rate: Option<f64>,
    /// Shrinks all weights by this times the rate in every update.
    pub weight_decay: Option<f64>,
    /// Leaves out parameters whose names contain one of these texts.
    pub weight_decay_exclude: Vec<String>,
    /// Scales the summed gradients of an update to at most this norm (Keras: `global_clipnorm`).
    pub clip_norm: Option<f64>,
    /// Arguments of the optimizer by Keras' names, such as `momentum`, which go before those that
    /// the model was compiled with; also `clipnorm` and `clipvalue`.
    pub settings: Map<String, Value>,
    /// Keeps averages of the weights with this momentum (Keras: `ema_momentum`).
    pub ema: Option<f64>,
    /// What else the model was compiled with.
    pub compiled: Option<Map<String, Value>>,
}

impl OptimizerOptions {
    /// The name of the optimizer.
    pub fn name(&self) -> &'static str {
        self.name.unwrap_or(DEFAULT_OPTIMIZER)
    }

    /// The optimizer.
    ///
    /// # Errors
    /// If it cannot have one of the numbers.
    pub fn build(&self) -> Result<Arc<dyn Optimizer>, Error> {
        self.clip()?;
        let all = self.compiled.iter().flatten().chain(&self.settings);
        let all = all.filter(|(key, _)| !CLIPS.contains(&key.as_str()));
        let all: Map<String, Value> = all
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let mut config = Value::Object(all);
        let numbers = [
            ("learning_rate", self.learning_rate),
            ("weight_decay", self.weight_decay),
            ("ema_momentum", self.ema),
        ];
        for (key, number) in numbers {
            if let Some(number) = number {
                config[key] = json!(number);
            }
        }
        config["use_ema"] = json!(self.ema.is_some());
        config["exclude_from_weight_decay"] = json!(self.weight_decay_exclude);
        from_config(self.name(), &config)
    }

    /// A state that clips its gradients as the options say.
    pub fn clipped<M: Module + 'static>(&self, state: TrainState<M>) -> TrainState<M> {
        // More than one limit was refused when the optimizer was built.
        match self.clip() {
            Ok(Some(clip)) => state.clip(clip),
            _ => state,
        }
    }

    /// How gradients are limited: as the options say, or else as the model was compiled.
    fn clip(&self) -> Result<Option<Clip>, Error> {
        let of = |from: &Map<String, Value>| -> Result<Vec<Clip>, Error> {
            let given = CLIPS.iter().filter_map(|key| Some((*key, from.get(*key)?)));
            let clips = given.map(|(key, value)| {
                let limit = value.as_f64().filter(|limit| *limit > 0.0);
                let limit = limit.ok_or_else(|| {
                    Error::invalid(format!("{key} is a number above 0, not {value}"))
                })?;
                Ok(match key {
                    "clipnorm" => Clip::Norm(limit),
                    "clipvalue" => Clip::Value(limit),
                    _ => Clip::GlobalNorm(limit),
                })
            });
            clips.collect()
        };
        let mut asked = of(&self.settings)?;
        asked.extend(self.clip_norm.map(Clip::GlobalNorm));
        if asked.len() > 1 {
            return Err(Error::invalid(
                "of clip_norm (global_clipnorm), clipnorm and clipvalue one can be given",
            ));
        }
        let compiled = match &self.compiled {
            Some(compiled) => of(compiled)?,
            None => Vec::new(),
        };
        Ok(asked.into_iter().chain(compiled).next())
    }
}

/// Takes what the options do not say from what the model was compiled with; says what is not used.
pub(crate) fn complete(compiled: &Compiled, options: &mut OptimizerOptions) -> Vec<String> {
    let mut unused: Vec<String> = compiled.others.clone();
    unused.extend(compiled_metrics(compiled).1);
    unused.extend(known_metrics(&compiled.weighted_metrics).1);
    let mut said = Vec::new();
    match (&compiled.optimizer, options.name) {
        (None, _) => {}
        (Some(name), Some(asked)) if asked != name => {
            unused.push(format!(
                "the optimizer {name} (`OptimizerOptions::name` {asked})"
            ));
        }
        (Some(name), _) => {
            let Some(known) = optim::names().find(|known| known == name) else {
                unused.push(format!("the optimizer {name}, which is not here"));
                return not_used(said, unused);
            };
            options.name = Some(known);
            let config = usable(&compiled.optimizer_config, options, &mut unused);
            said.push(format!(
                "the model was compiled with {known}, which it is trained with"
            ));
            options.compiled = Some(config);
        }
    }
    not_used(said, unused)
}

fn not_used(mut said: Vec<String>, unused: Vec<String>) -> Vec<String> {
    if !unused.is_empty() {
        said.push(format!(
            "of what the model was compiled with this is not used: {}",
            unused.join(", ")
        ));
    }
    said
}

/// The arguments that the optimizer takes; the options go before them.
fn usable(
    config: &Map<String, Value>,
    options: &mut OptimizerOptions,
    unused: &mut Vec<String>,
) -> Map<String, Value> {
    let number = |key: &str| config.get(key).and_then(Value::as_f64);
    let clips_otherwise = CLIPS.iter().any(|key| options.settings.contains_key(*key));
    if !clips_otherwise {
        options.clip_norm = options.clip_norm.or(number("global_clipnorm"));
    }
    options.weight_decay = options.weight_decay.or(number("weight_decay"));
    if config.get("use_ema") == Some(&Value::Bool(true)) && options.ema.is_none() {
        options.ema = number("ema_momentum");
    }
    if config.get("learning_rate").is_some_and(Value::is_number) {
        options.learning_rate = options.learning_rate.or(number("learning_rate"));
    } else if config.contains_key("learning_rate") {
        unused.push("its schedule of the learning rate (use a schedule)".to_string());
    }
    let mut usable = Map::new();
    for (key, value) in config {
        let otherwise = OTHERWISE.iter().find(|(known, _)| known == key);
        if key == "decay" && value.as_f64() == Some(0.0) {
            continue;
        }
        let taken = ["learning_rate", "weight_decay", "global_clipnorm"].contains(&&**key);
        if let Some((key, instead)) = otherwise {
            unused.push(format!("{key} ({instead})"));
        } else if key == "ema_overwrite_frequency" && options.ema.is_none() {
            // Without averages it says nothing.
        } else if !taken && !NO_MATTER.contains(&&**key) {
            usable.insert(key.clone(), value.clone());
        }
    }
    usable
}
