//! `conformance`: the library against what TensorFlow recorded.

use ::conformance::{Selection, SelectionError, WorkerProgram, run_worker};

use crate::args::{ConformanceArgs, OutputFormat};
use crate::events;
use crate::failure::Failure;

/// This program as a worker process of the cases about several workers.
fn workers() -> Result<WorkerProgram, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::failed(format!("this program cannot find itself: {error}")))?;
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
    let report = selection.run().map_err(|error| match error {
        SelectionError::Unknown { .. } => Failure::usage(error),
        error => Failure::failed(error),
    })?;
    match args.output {
        OutputFormat::Text => events::line(report.to_string().trim_end())?,
        OutputFormat::Json => events::line(&report.to_json().to_string())?,
    }
    let failed = report.failures().len();
    if failed > 0 {
        return Err(Failure::failed(format!(
            "{failed} cases differ from TensorFlow; the report says which and how"
        )));
    }
    if !report.is_success() {
        return Err(Failure::failed(nothing_checked(report.skipped_subjects())));
    }
    Ok(())
}

/// Why a report without a failure is no success. What was selected may not be there.
fn nothing_checked(skipped: &[String]) -> String {
    let why = match skipped {
        [] => "no case has to do with what was selected".to_string(),
        skipped => format!("skipped {}", skipped.join("; ")),
    };
    format!("nothing was checked: {why}")
}
