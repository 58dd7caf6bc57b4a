//! The loss of a model: what was asked for, or what its file says that it was compiled with.

use distribute_data::{KerasMetric, LossFunction};
use distribute_keras::{Compiled, CompiledMetric, Head};
use serde_json::Value;

use crate::error::TaskError;
use crate::loss_name::LossName;
use crate::names::TargetsName;

/// What the model was compiled with.
///
/// # Errors
/// If it is a loss that is not here; `outputs` is the number of the model's outputs, for the
/// message.
pub(crate) fn compiled_loss(
    compiled: Option<&Compiled>,
    model: &str,
    outputs: usize,
) -> Result<Option<LossName>, TaskError> {
    let Some((compiled, name)) = compiled.and_then(|it| Some((it, it.loss.as_deref()?))) else {
        return Ok(None);
    };
    of_compiled(name, &compiled.loss_arguments, model, outputs).map(Some)
}

/// The loss of this name and with these arguments.
///
/// # Errors
/// If it is not here.
pub(crate) fn of_compiled(
    name: &str,
    arguments: &[(String, Value)],
    model: &str,
    outputs: usize,
) -> Result<LossName, TaskError> {
    let named = LossFunction::named(name);
    let function = named.and_then(|(_, function)| {
        let mut options = arguments.iter();
        options.try_fold(function, |function, (key, value)| {
            function.with_option(key, &text(value)).ok()
        })
    });
    match function {
        Some(function) => Ok(LossName::of(function, None)),
        None => Err(TaskError::OtherLoss {
            model: model.to_string(),
            loss: described(name, arguments),
            outputs,
        }),
    }
}

/// The value of an option as it is written in a text.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The loss for such targets: what is asked for, or what belongs to what the model ends with.
///
/// # Errors
/// If it is none for them.
///
/// The model, or the output that is meant, has this name, ends with this head and has this many
/// outputs.
pub(crate) fn resolved(
    asked: Option<LossName>,
    (name, head, outputs): (&str, Head, usize),
    targets: TargetsName,
) -> Result<LossName, TaskError> {
    if targets == TargetsName::Values {
        return of_values(asked, name, head, outputs);
    }
    let chosen = asked.map_or(LossName::CrossEntropy, |asked| {
        usual(asked, head, outputs).unwrap_or(asked)
    });
    if outputs == 1 && head == Head::Linear && chosen.is_of_values() {
        return Err(TaskError::Regression {
            model: name.to_string(),
        });
    }
    if outputs == 1 && is_of_classes(&chosen) {
        return Err(TaskError::LossOfClasses {
            model: name.to_string(),
            loss: chosen.name(),
            outputs,
            targets: "classes",
        });
    }
    Ok(chosen)
}

/// Whether a loss is of one choice among several classes.
fn is_of_classes(loss: &LossName) -> bool {
    use LossFunction as L;
    matches!(
        loss.function(),
        Some(
            L::CategoricalCrossentropy { .. }
                | L::SparseCategoricalCrossentropy { .. }
                | L::CategoricalFocalCrossentropy { .. }
                | L::CategoricalHinge
        )
    )
}

/// The name of old for a cross-entropy without options that belongs to the head.
fn usual(asked: LossName, head: Head, outputs: usize) -> Option<LossName> {
    let categorical = outputs > 1 && head != Head::Sigmoid;
    let LossName::Keras {
        function,
        from_logits: None,
    } = asked
    else {
        return None;
    };
    let plain = LossFunction::named(function.name())?.1 == function;
    let is_own = match function {
        LossFunction::CategoricalCrossentropy { .. }
        | LossFunction::SparseCategoricalCrossentropy { .. } => categorical,
        LossFunction::BinaryCrossentropy { .. } => {
            outputs == 1 && head != Head::Softmax || head == Head::Sigmoid
        }
        _ => false,
    };
    (plain && is_own).then_some(LossName::CrossEntropy)
}

fn of_values(
    asked: Option<LossName>,
    name: &str,
    head: Head,
    outputs: usize,
) -> Result<LossName, TaskError> {
    let keras = |function| LossName::of(function, None);
    let own = || match head {
        Head::Linear => LossName::Mse,
        Head::Sigmoid => keras(LossFunction::BinaryCrossentropy {
            from_logits: false,
            label_smoothing: 0.0,
        }),
        Head::Softmax => keras(LossFunction::CategoricalCrossentropy {
            from_logits: false,
            label_smoothing: 0.0,
        }),
    };
    let chosen = match asked {
        Some(LossName::CrossEntropy) if head != Head::Linear => own(),
        Some(asked) => asked,
        None => own(),
    };
    let is_sparse = matches!(
        chosen.function(),
        Some(LossFunction::SparseCategoricalCrossentropy { .. })
    );
    if is_sparse || outputs == 1 && is_of_classes(&chosen) {
        return Err(TaskError::LossOfClasses {
            model: name.to_string(),
            loss: chosen.name(),
            outputs,
            targets: "values",
        });
    }
    Ok(chosen)
}

/// Whether it is computed of the numbers before a sigmoid or softmax, which must be known then.
pub(crate) fn wants_head(loss: &LossName) -> bool {
    match loss {
        LossName::CrossEntropy => true,
        LossName::Mse | LossName::Mae => false,
        LossName::Keras {
            function,
            from_logits,
        } => function.from_logits().is_some() && *from_logits != Some(false),
    }
}

/// Whether targets must be from 0 to 1 for it.
pub(crate) fn wants_probabilities(loss: &LossName) -> bool {
    let function = loss.function();
    let has_logits = function.is_some_and(|function| function.from_logits().is_some());
    *loss == LossName::CrossEntropy || has_logits
}

/// What is measured if nothing else is said.
pub(crate) fn usual_metric(loss: &LossName, head: Head, targets: TargetsName) -> KerasMetric {
    let accuracy = KerasMetric::accuracy();
    if targets != TargetsName::Values {
        return accuracy;
    }
    let name = match (head, loss) {
        (Head::Softmax, _) => return accuracy,
        (Head::Sigmoid, _) => "binary_accuracy",
        (Head::Linear, LossName::Mae) => "mse",
        (Head::Linear, _) => "mae",
    };
    name.parse().unwrap_or(accuracy)
}

/// The metrics that the model was compiled with, and the names of what is not measured here.
pub(crate) fn compiled_metrics(compiled: &Compiled) -> (Vec<KerasMetric>, Vec<String>) {
    known_metrics(&compiled.metrics)
}

/// The metrics of these names and arguments, and the names of what is not measured here.
pub(crate) fn known_metrics(names: &[CompiledMetric]) -> (Vec<KerasMetric>, Vec<String>) {
    let (mut known, mut others) = (Vec::new(), Vec::new());
    for (name, options) in names {
        let options: Vec<String> = options
            .iter()
            .map(|(key, value)| format!("{key}={}", text(value)))
            .collect();
        match format!("{name}:{}", options.join(",")).parse() {
            Ok(metric) => known.push(metric),
            Err(_) if options.is_empty() => others.push(format!("the metric {name}")),
            Err(_) => others.push(format!("the metric {name}({})", options.join(", "))),
        }
    }
    (known, others)
}

fn described(name: &str, arguments: &[(String, Value)]) -> String {
    let arguments: Vec<String> = arguments
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    if arguments.is_empty() {
        name.to_string()
    } else {
        format!("{name}({})", arguments.join(", "))
    }
}
