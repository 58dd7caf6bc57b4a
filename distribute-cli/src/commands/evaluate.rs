//! `evaluate`: loss and accuracy of a checkpoint.

use distribute_classifier::{TargetsName, objective};
use distribute_core::Policy;
use distribute_fit::{Evaluation, evaluate, json_number};
use serde_json::json;

use super::report::Report;
use super::restore::{Purpose, Restored, restored};
use crate::events::{self, EventName};
use crate::failure::Failure;
use crate::flags::{EvaluateArgs, OutputFormat};
use crate::output_file::{cannot_write, check_file};

pub(crate) fn run(args: EvaluateArgs) -> Result<(), Failure> {
    if let Some(path) = &args.picture {
        check_file(path).map_err(|error| cannot_write(path, &error))?;
    }
    let mut restored = restored(&args.restore, &args.data, &args.devices, Purpose::Evaluate)?;
    if let Some(metrics) = args.metrics {
        let all = metrics.of_all().unwrap_or_default();
        restored.task.measure_others(&all, &metrics.of_outputs())?;
    }
    let is_of_values = restored.task.targets == TargetsName::Values;
    if is_of_values && (args.report || args.picture.is_some()) {
        return Err(Failure::usage(
            "--report and --picture count the answers of a classifier, and this model returns \
             values; leave them out",
        ));
    }
    let result = evaluate(
        &*restored.strategy,
        &restored.state,
        &restored.data,
        objective(Policy::float32(), restored.task.measured()),
    )?;
    let shown: Vec<String> = metrics(&result)
        .map(|(name, value)| format!("{name} {value:.4}"))
        .collect();
    let shown = shown.join(", ");
    let report = if args.report || args.picture.is_some() {
        Some(Report::of(&restored)?)
    } else {
        None
    };
    if let (Some(path), Some(report)) = (&args.picture, &report) {
        let title = format!(
            "{} of step {} on {} ({}): {shown}",
            restored.task.model_name(),
            restored.step,
            restored.task.dataset,
            restored.split.name()
        );
        report.write_picture(path, &title)?;
    }
    let report = report.filter(|_| args.report);
    if args.general.output == OutputFormat::Json {
        events::line(&json(&restored, &result))?;
        return report.map_or(Ok(()), |report| events::line(&report.json()));
    }
    events::line(&format!(
        "{} of step {} on {}: {shown}, loss {:.4} over {} examples ({})",
        restored.task.model_name(),
        restored.step,
        restored.task.dataset,
        result.logs.loss(),
        result.examples,
        restored.split.name()
    ))?;
    report.map_or(Ok(()), |report| events::line(&report.text()))
}

/// The metrics with their values.
fn metrics(result: &Evaluation) -> impl Iterator<Item = (&str, f64)> {
    result.logs.iter().filter(|(name, _)| *name != "loss")
}

/// The event for programs.
fn json(restored: &Restored, result: &Evaluation) -> String {
    let head = [
        (
            "checkpoint",
            json!(restored.checkpoint.display().to_string()),
        ),
        ("step", json!(restored.step)),
        ("model", json!(restored.task.model_name())),
        ("dataset", json!(restored.task.dataset.to_string())),
        ("split", json!(restored.split.name())),
        ("examples", json!(result.examples)),
        ("loss", json_number(result.logs.loss())),
    ];
    let metrics = metrics(result).map(|(name, value)| (name, json_number(value)));
    events::event(EventName::Evaluation, head.into_iter().chain(metrics))
}
