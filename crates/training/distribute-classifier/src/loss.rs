//! The loss of a model: what was asked for, or what its file says that it was compiled with.

use distribute_keras::{Compiled, Head, Plan};

use crate::error::TaskError;
use crate::names::LossName;

/// The loss of a model: what was asked for, or what it was compiled with.
///
/// # Errors
/// If it was compiled with a loss that is not here, and none is asked for.
pub(crate) fn loss(
    asked: Option<LossName>,
    compiled: Option<&Compiled>,
    plan: &Plan,
) -> Result<LossName, TaskError> {
    let head = plan.head();
    let outputs = plan.output().elements();
    let of_file = || compiled.and_then(|compiled| compiled.loss.as_deref());
    let chosen = match (asked, of_file()) {
        (Some(asked), _) => asked,
        (None, None) => LossName::CrossEntropy,
        (None, Some(name)) => {
            known(name, compiled, head, outputs).ok_or_else(|| TaskError::OtherLoss {
                model: plan.name.clone(),
                loss: described(name, compiled),
                outputs,
            })?
        }
    };
    if chosen != LossName::CrossEntropy && outputs == 1 && head == Head::Linear {
        return Err(TaskError::Regression {
            model: plan.name.clone(),
        });
    }
    Ok(chosen)
}

fn described(name: &str, compiled: Option<&Compiled>) -> String {
    let arguments = compiled.map_or(&[][..], |compiled| &compiled.loss_arguments);
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
