//! What is computed of each output: its targets, its loss and its metrics.

use distribute_data::KerasMetric;
use distribute_keras::{Compiled, CompiledMetric, OfOutput, Plan, PlannedOutput};
use serde_json::Value;

use super::OutputTask;
use crate::error::TaskError;
use crate::loss;
use crate::loss_name::LossName;
use crate::measured::{MeasuredOutput, TargetPlace};
use crate::names::TargetsName;
use crate::output_options::OutputOptions;

/// What is asked for, for all outputs and for each.
pub(crate) struct Asked<'a> {
    pub(crate) loss: Option<LossName>,
    pub(crate) metrics: Option<&'a [KerasMetric]>,
    pub(crate) outputs: &'a OutputOptions,
    pub(crate) compiled: Option<&'a Compiled>,
}

/// The outputs of a model for targets of these widths, in the order of the model's outputs.
///
/// # Errors
/// What does not fit: a name of no output, targets of another width, a loss that is not for them.
pub(crate) fn decided(
    asked: &Asked<'_>,
    plan: &Plan,
    widths: &[usize],
) -> Result<Vec<OutputTask>, TaskError> {
    check_names(asked.outputs, plan)?;
    let heads = plan.heads().zip(widths);
    let mut first = 0;
    let outputs = plan.outputs.iter().zip(heads).enumerate();
    let outputs = outputs.map(
        |(position, (output, (head, width)))| -> Result<_, TaskError> {
            let place = place(plan, output, first, *width)?;
            first += width;
            let name = described(plan, output);
            let loss = loss_of(asked, plan, position, output)?;
            let targets = targets(place);
            let features = output.shape.features();
            let loss = loss::resolved(loss, (&name, head, features), targets)?;
            let metrics = metrics_of(asked, plan, position, output, || {
                loss::usual_metric(&loss, head, targets)
            });
            Ok(OutputTask {
                name: output.name.clone(),
                shape: output.shape.dims(),
                measured: MeasuredOutput {
                    name: (plan.outputs.len() > 1).then(|| output.name.clone()),
                    loss,
                    weight: weight_of(asked, position, output),
                    metrics,
                    weighted_metrics: weighted_of(asked, plan, position, output),
                    outputs: features,
                    target: Some(place),
                },
            })
        },
    );
    let outputs: Vec<OutputTask> = outputs.collect::<Result<_, _>>()?;
    if outputs
        .iter()
        .any(|output| loss::wants_head(&output.measured.loss))
    {
        plan.check_head()?;
    }
    Ok(outputs)
}

/// The outputs that a checkpoint was trained for.
pub(crate) fn restored(plan: &Plan, stored: &Value) -> Option<Vec<OutputTask>> {
    let stored = stored.as_array()?;
    let mut first = 0;
    let outputs = plan.outputs.iter().zip(stored).map(|(output, stored)| {
        let width = usize::try_from(stored["width"].as_u64()?).ok()?;
        first += width;
        let metrics = |key: &str| -> Option<Vec<KerasMetric>> {
            let all = stored[key].as_array()?.iter();
            all.map(|text| text.as_str()?.parse().ok()).collect()
        };
        Some(OutputTask {
            name: output.name.clone(),
            shape: output.shape.dims(),
            measured: MeasuredOutput {
                name: (plan.outputs.len() > 1).then(|| output.name.clone()),
                loss: stored["loss"].as_str()?.parse().ok()?,
                weight: stored["loss_weight"].as_f64(),
                metrics: metrics("metrics")?,
                weighted_metrics: metrics("weighted_metrics")?,
                outputs: output.shape.features(),
                target: Some(TargetPlace {
                    first: first - width,
                    width,
                    is_class: stored["is_class"].as_bool()?,
                }),
            },
        })
    });
    outputs.collect()
}

/// How errors name an output.
fn described(plan: &Plan, output: &PlannedOutput) -> String {
    match plan.outputs.len() {
        1 => plan.name.clone(),
        _ => format!("{}, output {},", plan.name, output.name),
    }
}

/// Refuses what is asked for by a name of no output.
///
/// # Errors
/// [`TaskError::NamedData`] with the names that there are.
pub(crate) fn check_names(asked: &OutputOptions, plan: &Plan) -> Result<(), TaskError> {
    let known = |name: &str| plan.outputs.iter().any(|output| output.name == name);
    let unknown = asked.names().find(|name| !known(name));
    let Some(name) = unknown else {
        return Ok(());
    };
    let names: Vec<&str> = plan
        .outputs
        .iter()
        .map(|output| output.name.as_str())
        .collect();
    Err(TaskError::NamedData {
        model: plan.name.clone(),
        what: format!("there is no output {name}, but {}", names.join(", ")),
    })
}

/// Where the targets of an output are, and whether they are classes: one number at each place
/// where the output has several.
fn place(
    plan: &Plan,
    output: &PlannedOutput,
    first: usize,
    width: usize,
) -> Result<TargetPlace, TaskError> {
    let (elements, features) = (output.shape.elements(), output.shape.features());
    if elements > features && plan.is_masked(output.value) {
        return Err(TaskError::NamedData {
            model: plan.name.clone(),
            what: format!(
                "the output {} is masked: Keras leaves its padding out of the loss and the \
                 metrics, which is not supported here; leave out `Masking` or `mask_zero=True`, or \
                 train it by a step of your own",
                output.name
            ),
        });
    }
    let is_class = features > 1 && width * features == elements;
    if is_class || width == elements {
        return Ok(TargetPlace {
            first,
            width,
            is_class,
        });
    }
    let classes = match (features, elements / features.max(1)) {
        (1, _) => String::new(),
        (_, 1) => ", or the number of a class".to_string(),
        (_, places) => format!(", or {places} numbers of classes"),
    };
    Err(TaskError::NamedData {
        model: plan.name.clone(),
        what: format!(
            "the output {} has the shape {}, and there are {width} target values for each \
             example; give {elements}{classes}",
            output.name, output.shape
        ),
    })
}

fn targets(place: TargetPlace) -> TargetsName {
    if place.is_class {
        TargetsName::Classes
    } else {
        TargetsName::Values
    }
}

fn named<'a, T>(all: &'a [(String, T)], output: &PlannedOutput) -> Option<&'a T> {
    let found = all.iter().find(|(name, _)| *name == output.name);
    found.map(|(_, value)| value)
}

fn compiled_for<'a, T>(
    all: &'a [(OfOutput, T)],
    position: usize,
    output: &PlannedOutput,
) -> Option<&'a T> {
    let found = all.iter().find(|(of, _)| of.is(position, &output.name));
    found.map(|(_, value)| value)
}

/// The loss that is asked for, or that the model was compiled with.
fn loss_of(
    asked: &Asked<'_>,
    plan: &Plan,
    position: usize,
    output: &PlannedOutput,
) -> Result<Option<LossName>, TaskError> {
    if let Some(loss) = named(&asked.outputs.losses, output).copied().or(asked.loss) {
        return Ok(Some(loss));
    }
    let Some(compiled) = asked.compiled else {
        return Ok(None);
    };
    let each = compiled_for(&compiled.losses, position, output);
    let each = each.map(|loss| (loss.name.as_str(), loss.arguments.as_slice()));
    let one = || {
        let name = compiled
            .loss
            .as_deref()
            .filter(|_| compiled.losses.is_empty())?;
        Some((name, compiled.loss_arguments.as_slice()))
    };
    let Some((name, arguments)) = each.or_else(one) else {
        if compiled.losses.is_empty() {
            return Ok(None);
        }
        return Err(TaskError::NamedData {
            model: plan.name.clone(),
            what: format!(
                "the output {} was compiled without a loss, which is not supported; choose one by \
                 `OutputOptions::losses`, with a factor of 0 in `OutputOptions::loss_weights` if \
                 nothing is to be learned of it",
                output.name
            ),
        });
    };
    let outputs = output.shape.features();
    loss::of_compiled(name, arguments, &described(plan, output), outputs).map(Some)
}

fn weight_of(asked: &Asked<'_>, position: usize, output: &PlannedOutput) -> Option<f64> {
    let own = named(&asked.outputs.loss_weights, output).copied();
    let compiled = || {
        let weights = &asked.compiled?.loss_weights;
        compiled_for(weights, position, output).copied()
    };
    let given = if asked.outputs.loss_weights.is_empty() {
        compiled()
    } else {
        own
    };
    given.filter(|weight| *weight != 1.0)
}

fn metrics_of(
    asked: &Asked<'_>,
    plan: &Plan,
    position: usize,
    output: &PlannedOutput,
    usual: impl FnOnce() -> KerasMetric,
) -> Vec<KerasMetric> {
    let own = asked.outputs.metrics_of(&output.name);
    if !own.is_empty() {
        return own;
    }
    if let Some(metrics) = asked.metrics {
        return metrics.to_vec();
    }
    let compiled = asked.compiled.filter(|_| asked.outputs.metrics.is_empty());
    if let Some(compiled) = compiled
        && !compiled.metrics.is_empty()
    {
        let each = &compiled.output_metrics;
        let names = names_of(each, &compiled.metrics, plan, position, output);
        return loss::known_metrics(names).0;
    }
    let is_said = !asked.outputs.metrics.is_empty() || compiled.is_some_and(is_compiled);
    if is_said {
        return Vec::new();
    }
    vec![usual()]
}

/// The metrics that a model was compiled with for an output. A list for the only output is all of
/// its metrics, and not one metric for each output.
fn names_of<'a>(
    each: &'a [(OfOutput, Vec<CompiledMetric>)],
    all: &'a [CompiledMetric],
    plan: &Plan,
    position: usize,
    output: &PlannedOutput,
) -> &'a [CompiledMetric] {
    if plan.outputs.len() == 1 || each.is_empty() {
        return all;
    }
    compiled_for(each, position, output).map_or(&[], Vec::as_slice)
}

/// Whether a loss for several outputs is given, so that Keras measures nothing else.
fn is_compiled(compiled: &Compiled) -> bool {
    !compiled.losses.is_empty()
}

fn weighted_of(
    asked: &Asked<'_>,
    plan: &Plan,
    position: usize,
    output: &PlannedOutput,
) -> Vec<KerasMetric> {
    if !asked.outputs.weighted_metrics.is_empty() {
        return asked.outputs.weighted_of(&output.name);
    }
    let Some(compiled) = asked.compiled else {
        return Vec::new();
    };
    let each = &compiled.output_weighted_metrics;
    let names = names_of(each, &compiled.weighted_metrics, plan, position, output);
    loss::known_metrics(names).0
}
