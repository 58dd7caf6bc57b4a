//! `conformance`: compares the library with recorded outputs of TensorFlow.

use ::conformance::{FailedCase, FamilyName, Report, Selection, WorkerProgram, run_worker};

use crate::events;
use crate::failure::Failure;
use crate::flags::{ConformanceArgs, OutputFormat};

/// This program as a worker process of the cases about several workers.
fn workers() -> Result<WorkerProgram, Failure> {
    let program = std::env::current_exe().map_err(|error| {
        Failure::failed(format!("cannot find the file of this program: {error}"))
    })?;
    Ok(WorkerProgram::new(program)
        .arg("conformance")
        .arg("--worker"))
}

/// Runs the selected cases and prints the report; failed cases fail the command.
pub(crate) fn run(args: ConformanceArgs) -> Result<(), Failure> {
    if args.worker {
        return Ok(run_worker()?);
    }
    let selection = Selection {
        golden: args.golden,
        strategies: args.strategy,
        communicators: args.communicator,
        families: args.family,
        workers: Some(workers()?),
    };
    let report = selection.run()?;
    match args.output {
        OutputFormat::Text => events::line(report.to_string().trim_end())?,
        OutputFormat::Json => events::line(&report.to_json().to_string())?,
    }
    if let Some(text) = failed(&report) {
        return Err(Failure::failed(text));
    }
    if !report.is_success() {
        return Err(Failure::refused(nothing_checked(report.skipped_subjects())));
    }
    Ok(())
}

/// The message about a report with failures. Unknown files are counted separately.
fn failed(report: &Report) -> Option<String> {
    let is_unknown = |case: &&FailedCase| case.family == FamilyName::Unknown;
    let unknown = report.failures().iter().filter(is_unknown).count();
    let different = report.failures().len() - unknown;
    let of = |count: usize, text: &str| (count > 0).then(|| format!("{count} cases {text}"));
    let parts: Vec<String> = [
        of(different, "differ from TensorFlow"),
        of(
            unknown,
            "were not run, because their files are not named after a family",
        ),
    ]
    .into_iter()
    .flatten()
    .collect();
    let said = parts.join(" and ");
    (!said.is_empty()).then(|| format!("{said}; the report says which and how"))
}

/// Why a report without failures is not a success, for example because nothing was selected.
fn nothing_checked(skipped: &[String]) -> String {
    let why = match skipped {
        [] => "no case matches the selection".to_string(),
        skipped => format!("skipped {}", skipped.join("; ")),
    };
    format!("nothing was checked: {why}")
}
