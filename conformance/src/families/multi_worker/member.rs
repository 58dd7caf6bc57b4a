//! A worker process: runs the operations that come on standard input and answers each with its
//! outcome.

use std::io::{BufRead, Write};
use std::time::Duration;

use distribute_core::{CommunicationOptions, Error, MultiWorkerMirroredStrategy, Result};
use serde_json::{Value, json};

use super::{input, operations};
use crate::compare::Tolerance;
use crate::json::Fields;
use crate::outcome::{Checked, Failure, Outcome};

/// The work of a worker process that a [`WorkerProgram`](crate::WorkerProgram) starts: joins the
/// cluster of `TF_CONFIG`, and serves cases until standard input ends. Writes answers to standard
/// output, so nothing else may.
///
/// # Errors
/// If the workers do not meet, or standard input or output breaks. Cases that fail are no errors.
pub fn run_worker() -> Result<()> {
    let mut orders = std::io::stdin().lock().lines();
    let mut next = || -> Result<Option<Value>> {
        let Some(line) = orders.next().transpose()? else {
            return Ok(None);
        };
        serde_json::from_str(&line).map(Some).map_err(Error::step)
    };
    let Some(setting) = next()? else {
        return Ok(());
    };
    let timeout = Duration::from_millis(setting["timeout_ms"].as_u64().unwrap_or(30_000));
    let replicas = setting.count("replicas")?;
    let strategy = MultiWorkerMirroredStrategy::builder()
        .replicas(replicas)
        .communication_options(CommunicationOptions {
            timeout: Some(timeout),
            ..CommunicationOptions::default()
        })
        .build()?;
    while let Some(order) = next()? {
        if let Some(code) = order["exit"].as_i64() {
            std::process::exit(i32::try_from(code).unwrap_or(1));
        }
        let answer = outcome_message(check(&strategy, &order));
        let mut out = std::io::stdout().lock();
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

fn check(strategy: &MultiWorkerMirroredStrategy, order: &Value) -> Checked {
    let task = operations::Task {
        strategy,
        expect: order.field("expect")?,
        tolerance: Tolerance {
            relative: order["tolerance"][0].as_f64().unwrap_or(0.0),
            absolute: order["tolerance"][1].as_f64().unwrap_or(0.0),
        },
    };
    let op = order.text("op")?;
    match op.strip_prefix("dataset_") {
        Some(dataset) => input::check(&task, dataset),
        None => task.check(op),
    }
}

fn outcome_message(checked: Checked) -> Value {
    match checked {
        Ok(Outcome::Passed) => json!({ "passed": true }),
        Ok(Outcome::Deviation(deviation)) => json!({ "deviation": deviation.name() }),
        Ok(Outcome::NotApplicable(rule)) => json!({ "rule": rule.name() }),
        Err(Failure { expected, got, at }) => {
            json!({ "expected": expected, "got": got, "at": at })
        }
    }
}
