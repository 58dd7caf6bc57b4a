//! `evaluate`: loss and accuracy of a checkpoint.

use distribute_classifier::objective;
use distribute_core::Policy;
use distribute_fit::{evaluate, json_number};
use serde_json::json;

use super::report::Report;
use super::restore::{Purpose, restored};
use crate::events::{self, EventName};
use crate::failure::Failure;
use crate::flags::{EvaluateArgs, OutputFormat};
use crate::output_file::{cannot_write, check_file};

pub(crate) fn run(args: EvaluateArgs) -> Result<(), Failure> {
    if let Some(path) = &args.picture {
        check_file(path).map_err(|error| cannot_write(path, &error))?;
    }
    let restored = restored(&args.restore, &args.data, &args.devices, Purpose::Evaluate)?;
    let result = evaluate(
        &*restored.strategy,
        &restored.state,
        &restored.data,
        objective(Policy::float32(), restored.task.loss),
    )?;
    let accuracy = result.logs.get("accuracy").unwrap_or(f64::NAN);
    let report = if args.report || args.picture.is_some() {
        Some(Report::of(&restored)?)
    } else {
        None
    };
    if let (Some(path), Some(report)) = (&args.picture, &report) {
        let title = format!(
            "{} of step {} on {} ({}): accuracy {accuracy:.4}",
            restored.task.model_name(),
            restored.step,
            restored.task.dataset,
            restored.split.name()
        );
        report.write_picture(path, &title)?;
    }
    let report = report.filter(|_| args.report);
    if args.general.output == OutputFormat::Json {
        let event = events::event(
            EventName::Evaluation,
            [
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
                ("accuracy", json_number(accuracy)),
            ],
        );
        events::line(&event)?;
        return report.map_or(Ok(()), |report| events::line(&report.json()));
    }
    events::line(&format!(
        "{} of step {} on {}: accuracy {accuracy:.4}, loss {:.4} over {} examples ({})",
        restored.task.model_name(),
        restored.step,
        restored.task.dataset,
        result.logs.loss(),
        result.examples,
        restored.split.name()
    ))?;
    report.map_or(Ok(()), |report| events::line(&report.text()))
}
