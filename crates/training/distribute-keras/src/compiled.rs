//! What a Keras model was compiled with, as its file says: `compile_config`.

use serde_json::{Map, Value};

use crate::keras_json::without_mark;

/// Loss, optimizer and metrics that a model file names (Keras 3: `model.compile(..)` before
/// `model.to_json()`).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Compiled {
    /// Keras' name of the loss in snake case, such as `mean_squared_error`.
    pub loss: Option<String>,
    /// Arguments of the loss that are not Keras' defaults, with their values.
    pub loss_arguments: Vec<(String, Value)>,
    /// Keras' name of the optimizer in lower case, such as `adam`.
    pub optimizer: Option<String>,
    /// The arguments of the optimizer that have a value.
    pub optimizer_config: Map<String, Value>,
    /// The names of the metrics, each with its arguments that are not Keras' defaults.
    pub metrics: Vec<(String, Vec<(String, Value)>)>,
    /// The losses of a model with several outputs; empty if one loss is given.
    pub losses: Vec<(OfOutput, CompiledLoss)>,
    /// The factors of the losses of several outputs.
    pub loss_weights: Vec<(OfOutput, f64)>,
    /// The metrics of several outputs; empty if they are not given for each.
    pub output_metrics: Vec<(OfOutput, Vec<CompiledMetric>)>,
    /// The metrics that count by the weights of the examples.
    pub weighted_metrics: Vec<CompiledMetric>,
    /// The same of several outputs.
    pub output_weighted_metrics: Vec<(OfOutput, Vec<CompiledMetric>)>,
    /// What else is set: `steps_per_execution`.
    pub others: Vec<String>,
}

/// The output that something is given for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OfOutput {
    /// By its name.
    Name(String),
    /// By its position.
    Position(usize),
}

impl OfOutput {
    /// Whether it is the output of this position and name.
    #[must_use]
    pub fn is(&self, position: usize, name: &str) -> bool {
        match self {
            Self::Name(own) => own == name,
            Self::Position(own) => *own == position,
        }
    }
}

/// The loss of one output: Keras' name in snake case, and its arguments that are not Keras'
/// defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct CompiledLoss {
    /// The name.
    pub name: String,
    /// The arguments with their values.
    pub arguments: Vec<(String, Value)>,
}

/// The name of a metric, and its arguments that are not Keras' defaults.
pub type CompiledMetric = (String, Vec<(String, Value)>);

/// What the text of a model file says that the model was compiled with (`compile_config`, or
/// `training_config` as Keras' HDF5 files have it); nothing if it says nothing.
#[must_use]
pub fn compiled(text: &str) -> Option<Compiled> {
    let root: Value = serde_json::from_str(without_mark(text)).ok()?;
    // The older form is that of HDF5 files.
    let forms = ["compile_config", "training_config"].into_iter();
    let config = forms.filter_map(|key| root[key].as_object()).next()?;
    let named = |key: &str| config.get(key).filter(|value| !value.is_null());
    let loss = named("loss");
    let optimizer = named("optimizer").or_else(|| named("optimizer_config"));
    let mut found = Compiled {
        loss: loss.and_then(name).map(|name| usual_name(&name)),
        optimizer: optimizer.and_then(name).map(|name| registered(&name)),
        ..Compiled::default()
    };
    found.loss_arguments = loss.map(arguments).unwrap_or_default();
    if let Some(Value::Object(arguments)) = optimizer.map(|optimizer| &optimizer["config"]) {
        let given = arguments
            .iter()
            .filter(|(key, value)| *key != "name" && !value.is_null());
        found.optimizer_config = given
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
    }
    let one_loss = |value: &Value| {
        Some(CompiledLoss {
            name: usual_name(&name(value)?),
            arguments: arguments(value),
        })
    };
    let each = loss.into_iter().flat_map(of_outputs);
    found.losses = each
        .filter_map(|(output, value)| Some((output, one_loss(value)?)))
        .collect();
    found.loss_weights = named("loss_weights").map_or_else(Vec::new, factors);
    if let Some(metrics) = named("metrics") {
        add_names(metrics, &mut found.metrics);
        found.output_metrics = metrics_of_outputs(metrics);
    }
    if let Some(metrics) = named("weighted_metrics") {
        add_names(metrics, &mut found.weighted_metrics);
        found.output_weighted_metrics = metrics_of_outputs(metrics);
    }
    if named("steps_per_execution").is_some_and(|steps| *steps != 1) {
        found.others.push("steps_per_execution".to_string());
    }
    (found != Compiled::default()).then_some(found)
}

/// The arguments of a loss or metric that are not Keras' defaults.
fn arguments(object: &Value) -> Vec<(String, Value)> {
    let arguments = object["config"].as_object().into_iter().flatten();
    let others = arguments.filter(|(key, value)| !is_usual(key, value));
    others
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// A name that stands for an object, or the class of one. A list of one loss is that loss.
fn name(value: &Value) -> Option<String> {
    match value {
        Value::String(name) => Some(name.clone()),
        Value::Array(one) if one.len() == 1 => name(&one[0]),
        // A function that Keras wrote down has its name in its configuration.
        Value::Object(object) if object.get("class_name")? == "function" => {
            object.get("config")?.as_str().map(ToString::to_string)
        }
        // What wraps a function is named as it was asked for.
        Value::Object(object) if object.get("class_name")? == "MeanMetricWrapper" => {
            let name = object.get("config")?.get("name")?;
            name.as_str().map(ToString::to_string)
        }
        Value::Object(object) => object.get("class_name")?.as_str().map(ToString::to_string),
        Value::Array(_) => Some("several losses".to_string()),
        _ => None,
    }
}

/// What is given for each output: by name or by position. What is given once is for the only one.
fn of_outputs(value: &Value) -> Vec<(OfOutput, &Value)> {
    let all: Vec<_> = match value {
        Value::Array(all) if all.len() > 1 => {
            let all = all.iter().enumerate();
            all.map(|(at, value)| (OfOutput::Position(at), value))
                .collect()
        }
        Value::Object(all) if !all.contains_key("class_name") => {
            let all = all.iter();
            all.map(|(name, value)| (OfOutput::Name(name.clone()), value))
                .collect()
        }
        _ => Vec::new(),
    };
    all.into_iter()
        .filter(|(_, value)| !value.is_null())
        .collect()
}

/// The factors of losses; one alone is of the first output.
fn factors(value: &Value) -> Vec<(OfOutput, f64)> {
    let alone = match value {
        Value::Array(one) if one.len() == 1 => one[0].as_f64(),
        other => other.as_f64(),
    };
    if let Some(factor) = alone {
        return vec![(OfOutput::Position(0), factor)];
    }
    let each = of_outputs(value).into_iter();
    each.filter_map(|(output, factor)| Some((output, factor.as_f64()?)))
        .collect()
}

fn metrics_of_outputs(value: &Value) -> Vec<(OfOutput, Vec<CompiledMetric>)> {
    let each = of_outputs(value).into_iter();
    each.map(|(output, value)| {
        let mut names = Vec::new();
        add_names(value, &mut names);
        (output, names)
    })
    .collect()
}

/// An optimizer in lower case, without the package that Keras 2 writes before it (`Custom>Adam`).
fn registered(name: &str) -> String {
    name.rsplit('>').next().unwrap_or(name).to_lowercase()
}

/// `MeanSquaredError` and `mse` are `mean_squared_error`.
fn usual_name(name: &str) -> String {
    let mut snake = String::new();
    let mut after_lower = false;
    for letter in name.chars() {
        snake.extend((letter.is_uppercase() && after_lower).then_some('_'));
        snake.extend(letter.to_lowercase());
        after_lower = letter.is_lowercase() || letter.is_numeric();
    }
    let usual = match &*snake {
        "mse" => "mean_squared_error",
        "mae" => "mean_absolute_error",
        "mape" => "mean_absolute_percentage_error",
        "msle" => "mean_squared_logarithmic_error",
        "bce" => "binary_crossentropy",
        "bfce" => "binary_focal_crossentropy",
        "kld" | "kldivergence" | "kullback_leibler_divergence" => "kl_divergence",
        "logcosh" => "log_cosh",
        _ => return snake,
    };
    usual.to_string()
}

/// Whether an argument of a loss is what Keras sets by default, or says how the model's outputs are
/// to be taken, which follows from its last layer.
fn is_usual(key: &str, value: &Value) -> bool {
    match key {
        "name" | "dtype" | "from_logits" | "fn" => true,
        "reduction" => value == "sum_over_batch_size" || value == "auto",
        "axis" => *value == -1,
        "label_smoothing" => value.as_f64() == Some(0.0),
        "summation_method" => value == "interpolation",
        "class_aggregation" => value == "uniform_average",
        "num_regressors" => value.as_f64() == Some(0.0),
        _ => value.is_null(),
    }
}

fn add_names(value: &Value, names: &mut Vec<(String, Vec<(String, Value)>)>) {
    match value {
        Value::Array(all) => all.iter().for_each(|one| add_names(one, names)),
        Value::Object(object) if !object.contains_key("class_name") => {
            object.values().for_each(|one| add_names(one, names));
        }
        one => names.extend(name(one).map(|name| (name, arguments(one)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_objects_say_the_same() {
        let named = r#"{"compile_config":{"optimizer":"SGD","loss":"mse","metrics":["accuracy"],
            "loss_weights":null,"steps_per_execution":1}}"#;
        let objects = r#"{"compile_config":{
            "optimizer":{"class_name":"SGD","config":{"name":"sgd","learning_rate":0.5,
                "weight_decay":null}},
            "loss":{"class_name":"MeanSquaredError","config":{"name":"mean_squared_error",
                "reduction":"sum_over_batch_size","dtype":"float32"}},
            "metrics":[{"class_name":"AUC","config":{}}],"weighted_metrics":["accuracy"]}}"#;
        let (named, objects) = (compiled(named).unwrap(), compiled(objects).unwrap());
        assert_eq!(named.loss.as_deref(), Some("mean_squared_error"));
        assert_eq!(
            (&named.loss, &named.optimizer),
            (&objects.loss, &objects.optimizer)
        );
        assert_eq!(objects.optimizer_config.len(), 1);
        assert_eq!(
            (&*objects.metrics, &*objects.others),
            (&[("AUC".to_string(), Vec::new())][..], &[][..])
        );
        assert_eq!(objects.weighted_metrics[0].0, "accuracy");
        assert!(objects.loss_arguments.is_empty());
    }

    #[test]
    fn the_form_of_hdf5_files_says_the_same() {
        let text = r#"{"training_config":{"loss":"mae","metrics":[[{"class_name":
            "MeanMetricWrapper","config":{"name":"accuracy","dtype":"float32",
            "fn":"binary_accuracy"}}]],"optimizer_config":{"class_name":"Custom>RMSprop",
            "config":{"rho":0.8}}}}"#;
        let found = compiled(text).unwrap();
        assert_eq!(found.loss.as_deref(), Some("mean_absolute_error"));
        assert_eq!(found.optimizer.as_deref(), Some("rmsprop"));
        assert_eq!(found.optimizer_config["rho"], 0.8);
        assert_eq!(found.metrics, [("accuracy".to_string(), Vec::new())]);
    }

    #[test]
    fn outputs_have_losses_weights_and_metrics_by_name_or_position() {
        let text = r#"{"compile_config":{"loss":{"a":"mse","b":{"class_name":"Huber","config":
            {"delta":2.0}}},"loss_weights":{"a":2.0,"b":null},"metrics":{"a":["mae","mse"]},
            "weighted_metrics":{"b":"mae"}}}"#;
        let found = compiled(text).unwrap();
        let of = |name: &str| OfOutput::Name(name.to_string());
        assert_eq!(found.losses[0].0, of("a"));
        assert_eq!(found.losses[0].1.name, "mean_squared_error");
        let huber = &found.losses[1].1;
        assert_eq!((&*huber.name, &*huber.arguments[0].0), ("huber", "delta"));
        assert_eq!(found.loss_weights, [(of("a"), 2.0)]);
        let names = |metrics: &[CompiledMetric]| metrics.iter().map(|it| it.0.clone()).collect();
        let metrics: Vec<String> = names(&found.output_metrics[0].1);
        assert_eq!(
            (&found.output_metrics[0].0, metrics),
            (&of("a"), vec!["mae".to_string(), "mse".to_string()],)
        );
        assert_eq!(found.output_weighted_metrics[0].0, of("b"));
        let lists = r#"{"compile_config":{"loss":["mse","mae"],"loss_weights":[1.0,0.5],
            "metrics":[["accuracy"],null]}}"#;
        let found = compiled(lists).unwrap();
        assert!(found.losses[1].0.is(1, "b") && !found.losses[1].0.is(0, "b"));
        assert_eq!(found.loss_weights[1], (OfOutput::Position(1), 0.5));
        assert_eq!(found.output_metrics.len(), 1);
    }

    #[test]
    fn losses_have_one_name_however_they_are_written() {
        for (name, all) in [
            (
                "binary_crossentropy",
                &["bce", "BCE", "BinaryCrossentropy"][..],
            ),
            ("mean_squared_error", &["mse", "MSE", "MeanSquaredError"]),
            ("mean_absolute_error", &["mae", "MAE", "MeanAbsoluteError"]),
            ("mean_absolute_percentage_error", &["mape", "MAPE"]),
            ("mean_squared_logarithmic_error", &["msle", "MSLE"]),
            (
                "kl_divergence",
                &["kld", "KLD", "KLDivergence", "kullback_leibler_divergence"],
            ),
            ("log_cosh", &["logcosh", "LogCosh"]),
            (
                "sparse_categorical_crossentropy",
                &["SparseCategoricalCrossentropy"],
            ),
            ("hinge", &["Hinge"]),
            ("ctc", &["CTC"]),
        ] {
            assert_eq!(usual_name(name), name);
            for written in all {
                assert_eq!(usual_name(written), name, "{written}");
            }
        }
    }

    #[test]
    fn arguments_that_change_a_loss_are_kept() {
        let text = r#"{"compile_config":{"loss":{"class_name":"CategoricalCrossentropy",
            "config":{"from_logits":true,"label_smoothing":0.1}}}}"#;
        let found = compiled(text).unwrap();
        assert_eq!(found.loss.as_deref(), Some("categorical_crossentropy"));
        assert_eq!(found.loss_arguments[0].0, "label_smoothing");
        assert_eq!(compiled(r#"{"compile_config":{}}"#), None);
        assert_eq!(compiled("{}"), None);
    }
}
