//! What a model file says that the model was compiled with: loss and optimizer are taken from it
//! unless flags name others, and what cannot be done is named.

use distribute_core::optim;
use distribute_keras::{Compiled, Head, Plan};
use serde_json::{Map, Value};

use crate::failure::Failure;
use crate::flags::{LossName, OptimizerName, TrainingArgs};

/// Arguments of Keras' optimizers that are no arguments of an optimizer here, and what to do.
const OTHERWISE: [(&str, &str); 5] = [
    ("decay", "use --lr-schedule"),
    (
        "clipnorm",
        "use --clip-norm, which is Keras' global_clipnorm",
    ),
    ("clipvalue", "use --clip-norm"),
    (
        "loss_scale_factor",
        "use --precision f16, which scales the loss",
    ),
    ("gradient_accumulation_steps", "use --accumulate"),
];
/// What says nothing of an update.
const NO_MATTER: [&str; 5] = [
    "name",
    "jit_compile",
    "is_legacy_optimizer",
    "use_ema",
    "ema_momentum",
];

/// The loss of a model: what was asked for, or what it was compiled with.
///
/// # Errors
/// If it was compiled with a loss that is not here, and none is asked for.
pub(crate) fn loss(
    asked: Option<LossName>,
    compiled: Option<&Compiled>,
    plan: &Plan,
) -> Result<LossName, Failure> {
    let head = plan.head();
    let outputs = plan.output().elements();
    let of_file = || compiled.and_then(|compiled| compiled.loss.as_deref());
    let chosen = match (asked, of_file()) {
        (Some(asked), _) => asked,
        (None, None) => LossName::CrossEntropy,
        (None, Some(name)) => known(name, compiled, head, outputs).ok_or_else(|| {
            Failure::usage(format!(
                "{}: it was compiled with the loss {}, which is not trained with here on {outputs} \
                 outputs of this kind; choose another: --loss cross-entropy, mse or mae",
                plan.name,
                described(name, compiled)
            ))
        })?,
    };
    if chosen != LossName::CrossEntropy && outputs == 1 && head == Head::Linear {
        return Err(Failure::usage(format!(
            "{}: one output without a sigmoid, compared with classes by their difference, is a \
             regression, and this program trains classifiers; end with a sigmoid, or choose --loss \
             cross-entropy",
            plan.name
        )));
    }
    Ok(chosen)
}

fn described(name: &str, compiled: Option<&Compiled>) -> String {
    let arguments = compiled.map_or(&[][..], |compiled| &compiled.loss_arguments);
    let arguments: Vec<String> = arguments
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    match arguments.is_empty() {
        true => name.to_string(),
        false => format!("{name}({})", arguments.join(", ")),
    }
}

/// The loss of this name, if it is the one that is computed for such outputs.
fn known(name: &str, compiled: Option<&Compiled>, head: Head, outputs: usize) -> Option<LossName> {
    if compiled.is_some_and(|compiled| !compiled.loss_arguments.is_empty()) {
        return None;
    }
    let categorical = outputs > 1 && head != Head::Sigmoid;
    match name {
        "sparse_categorical_crossentropy" | "categorical_crossentropy" if categorical => {
            Some(LossName::CrossEntropy)
        }
        "binary_crossentropy" if !categorical => Some(LossName::CrossEntropy),
        "mean_squared_error" => Some(LossName::Mse),
        "mean_absolute_error" => Some(LossName::Mae),
        _ => None,
    }
}

/// Takes what flags do not say from what the model was compiled with; says what is not used.
pub(crate) fn complete(compiled: &Compiled, args: &mut TrainingArgs) -> Vec<String> {
    let mut unused: Vec<String> = compiled.others.clone();
    let is_accuracy = |name: &&String| matches!(&*name.to_lowercase(), "accuracy" | "acc");
    let metrics = compiled.metrics.iter().filter(|name| !is_accuracy(name));
    unused.extend(metrics.map(|name| format!("the metric {name}")));
    let mut said = Vec::new();
    match (&compiled.optimizer, args.optimizer) {
        (None, _) => {}
        (Some(name), Some(asked)) if asked.0 != name => {
            unused.push(format!("the optimizer {name} (--optimizer {})", asked.0));
        }
        (Some(name), _) => {
            let Some(known) = optim::names().find(|known| known == name) else {
                unused.push(format!("the optimizer {name}, which is not here"));
                return not_used(said, unused);
            };
            args.optimizer = Some(OptimizerName(known));
            let config = usable(&compiled.optimizer_config, args, &mut unused);
            said.push(format!(
                "the model was compiled with {known}, which it is trained with"
            ));
            args.compiled_optimizer = Some(Value::Object(config));
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

/// The arguments that the optimizer takes; flags go before them.
fn usable(
    config: &Map<String, Value>,
    args: &mut TrainingArgs,
    unused: &mut Vec<String>,
) -> Map<String, Value> {
    let number = |key: &str| config.get(key).and_then(Value::as_f64);
    args.clip_norm = args.clip_norm.or(number("global_clipnorm"));
    args.weight_decay = args.weight_decay.or(number("weight_decay"));
    if config.get("use_ema") == Some(&Value::Bool(true)) && args.ema.is_none() {
        args.ema = number("ema_momentum");
    }
    if config.get("learning_rate").is_some_and(Value::is_number) {
        args.learning_rate = args.learning_rate.or(number("learning_rate"));
    } else if config.contains_key("learning_rate") {
        unused.push("its schedule of the learning rate (use --lr-schedule)".to_string());
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
        } else if key == "ema_overwrite_frequency" && args.ema.is_none() {
            // Without averages it says nothing.
        } else if !taken && !NO_MATTER.contains(&&**key) {
            usable.insert(key.clone(), value.clone());
        }
    }
    usable
}
