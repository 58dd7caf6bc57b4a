//! `multi_worker.json`: what every worker of a job with several processes sees.
//!
//! The workers are real processes of a [`WorkerProgram`]: this process sends each of them the
//! operation and what TensorFlow's worker of the same name saw, and gets its outcome. The
//! workers of the scenario `main` stay for all its cases; the other scenarios damage their job and
//! get a new one for each case.

mod input;
mod member;
mod operations;

use std::time::Duration;

use serde_json::{Value, json};

pub use member::run_worker;

use crate::case::Case;
use crate::compare::equal;
use crate::env::Env;
use crate::job::{Job, Setting};
use crate::json::Fields;
use crate::outcome::{Checked, Failure, Outcome};

/// How long a worker waits for the others where the case is about a worker that does not come.
const SHORT: Duration = Duration::from_millis(300);
/// The code with which the last task of the scenario `peer_dies` ends.
const DYING: i32 = 17;
/// How long it waits elsewhere.
const LONG: Duration = Duration::from_secs(30);

pub(super) fn check(case: &Case, env: &Env<'_>) -> Checked {
    let tasks = case
        .value()
        .and_then(|value| value.get("per_task"))
        .and_then(Value::as_object)
        .ok_or_else(|| Failure::schema("no `expect.per_task`"))?;
    let tasks: Vec<(&str, &Value)> = tasks.iter().map(|(name, value)| (&**name, value)).collect();
    let scenario = Scenario::of(case)?;
    let program = env
        .workers
        .ok_or_else(|| Failure::schema("no program for the workers"))?;
    let setting = Setting {
        roles: case.roles.clone(),
        replicas: case.strategy.replicas,
        timeout: if scenario == Scenario::PeerSlow {
            SHORT
        } else {
            LONG
        },
    };
    if scenario == Scenario::Main {
        return env.jobs.with(program, &setting, |job| {
            job.check(case.op(), &tasks, env.tolerance())
        });
    }
    let mut job = Job::start(program, &setting)?;
    if case.op() == "process exit codes" {
        exit_codes(&mut job, scenario, &tasks, env)
    } else {
        scenario.check(&mut job, case.op(), &tasks, env)
    }
}

/// What happens to the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scenario {
    Main,
    ShapeMismatch,
    PeerDies,
    PeerSlow,
}

impl Scenario {
    fn of(case: &Case) -> Result<Self, Failure> {
        match case.inputs.text("scenario")? {
            "main" => Ok(Self::Main),
            "shape_mismatch" => Ok(Self::ShapeMismatch),
            "peer_dies" => Ok(Self::PeerDies),
            "peer_slow" => Ok(Self::PeerSlow),
            other => Err(Failure::schema(format!("unknown scenario `{other}`"))),
        }
    }

    fn check(self, job: &mut Job, op: &str, tasks: &[(&str, &Value)], env: &Env<'_>) -> Checked {
        let is_missing = |expected: &Value| expected["missing"] == true;
        let mut present = Vec::new();
        for (name, expected) in tasks {
            if is_missing(expected) {
                job.exit(name, 1)?
            } else {
                present.push((*name, *expected))
            }
        }
        if self != Self::PeerSlow {
            return job.check(op, &present, env.tolerance());
        }
        // The slow one calls when those that waited have given up.
        let waits = |expected: &Value| expected["error"]["class"] == "DeadlineExceededError";
        let (waiting, slow): (Vec<_>, Vec<_>) = present
            .into_iter()
            .partition(|(_, expected)| waits(expected));
        job.check(op, &waiting, env.tolerance())?;
        job.check(op, &slow, env.tolerance())
    }
}

/// How the processes end after their scenario.
fn exit_codes(
    job: &mut Job,
    scenario: Scenario,
    tasks: &[(&str, &Value)],
    env: &Env<'_>,
) -> Checked {
    let error = json!({"error": {"class": "UnavailableError", "message": ""}});
    let failing: Vec<(&str, &Value)> = tasks.iter().map(|(name, _)| (*name, &error)).collect();
    match scenario {
        Scenario::ShapeMismatch => {
            job.check("all_reduce_shape_mismatch", &failing, env.tolerance())?;
        }
        Scenario::PeerSlow => {
            for task in &failing {
                job.check("all_reduce_timeout", &[*task], env.tolerance())?;
            }
        }
        Scenario::PeerDies | Scenario::Main => {}
    }
    for (index, (name, expected)) in tasks.iter().enumerate().rev() {
        let dies = scenario == Scenario::PeerDies && index == tasks.len() - 1;
        let found = if dies {
            job.exit(name, DYING).map(|()| Some(DYING))?
        } else {
            job.close(name)?
        };
        equal(expected, &json!(found)).map_err(|failure| failure.at(name))?;
    }
    Ok(Outcome::Passed)
}
