//! Closures that fail, and workers and servers that are lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use distribute_core::{Error, TensorData};
use distribute_ps::{HostTensor, PsError, RemoteValue, StepRegistry, WorkerContext};
use serde_json::{Value, json};

use super::closures::{VARIABLE, register_add, zero};
use super::cluster::{Cluster, LIMIT};
use crate::case::Case;
use crate::compare::equal;
use crate::env::Env;
use crate::families::support::expected;
use crate::json::Fields;
use crate::outcome::{Checked, Failure, Outcome, passed};
use crate::tensors::{scalar, tensor};

/// What the failing step says, as in the golden file.
const PURPOSE: &str = "failed on purpose";

/// Registers `good`, `bad`, and `wait`, which runs until it is cancelled.
fn register(registry: &mut StepRegistry) -> Result<(), PsError> {
    registry.step("good", |_: &WorkerContext, (): ()| Ok(1.0_f32))?;
    registry.step("wait", |worker: &WorkerContext, (): ()| {
        let until = Instant::now() + LIMIT;
        while Instant::now() < until {
            worker.check_cancelled()?;
            std::thread::yield_now();
        }
        Ok(1.0_f32)
    })?;
    registry.step("bad", |_: &WorkerContext, (): ()| -> Result<f32, PsError> {
        Err(PsError::step(PURPOSE))
    })
}

/// Whether this is the failing step's own error.
fn is_on_purpose(error: &PsError) -> bool {
    matches!(error.root_cause(), PsError::Step(_)) && error.to_string().contains(PURPOSE)
}

/// TensorFlow's class of the failing step's error.
const CLASS: &str = "InvalidArgumentError";

/// The failing step's own error, if that is what the case has.
fn wanted(case: &Case, error: Option<PsError>) -> Checked {
    match case.error_class() {
        Some(CLASS) => on_purpose(error),
        other => Err(Failure::schema(format!("an error of the class {other:?}"))),
    }
}

fn on_purpose(error: Option<PsError>) -> Checked {
    match error {
        Some(error) if is_on_purpose(&error) => Ok(Outcome::Passed),
        other => Err(Failure::got(format!("{other:?}"))),
    }
}

/// Waits until a closure has ended, and gives its own error.
fn end_of(value: &RemoteValue) -> Option<PsError> {
    value.fetch::<f32>().err()
}

/// The next call returns the error of a closure.
pub(super) fn surfaces(case: &Case) -> Checked {
    let cluster = Cluster::start(case, register)?;
    let coordinator = &cluster.coordinator;
    let bad = coordinator.schedule("bad", ())?;
    let error = match case.op() {
        "error_surfaces_at_join" => coordinator.join().err(),
        "error_surfaces_at_done" => {
            on_purpose(end_of(&bad))?;
            coordinator.done().err()
        }
        _ => {
            on_purpose(end_of(&bad))?;
            coordinator.schedule("good", ()).err()
        }
    };
    wanted(case, error)
}

/// The error is cleared by the call that returned it.
pub(super) fn afterwards(case: &Case) -> Checked {
    let cluster = Cluster::start(case, register)?;
    let coordinator = &cluster.coordinator;
    coordinator.schedule("bad", ())?;
    on_purpose(coordinator.join().err())?;
    let found = match case.op() {
        "join_after_error_was_raised" => {
            coordinator.join()?;
            return passed(equal(expected(case)?, &Value::Null));
        }
        _ => coordinator.schedule("good", ())?.fetch::<f32>()?,
    };
    let wanted = tensor(expected(case)?)?;
    if wanted == scalar(found) {
        Ok(Outcome::Passed)
    } else {
        Err(Failure::got(found))
    }
}

pub(super) fn fetch(case: &Case) -> Checked {
    let cluster = Cluster::start(case, register)?;
    let bad = cluster.coordinator.schedule("bad", ())?;
    on_purpose(cluster.coordinator.join().err())?;
    wanted(case, end_of(&bad))
}

/// Closures that wait or run are cancelled when an error surfaces. One step waits for each that is
/// cancelled in the file, and the failing one fails when all are scheduled.
pub(super) fn cancelled(case: &Case) -> Checked {
    const CANCELLED: &str = "CancelledError";
    let are_scheduled = Arc::new(AtomicBool::new(false));
    let begin = Arc::clone(&are_scheduled);
    let cluster = Cluster::start(case, move |registry| {
        register(registry)?;
        registry.step("late", move |_: &WorkerContext, (): ()| {
            let until = Instant::now() + LIMIT;
            while !begin.load(Ordering::Acquire) && Instant::now() < until {
                std::thread::yield_now();
            }
            Err::<f32, _>(PsError::step(PURPOSE))
        })
    })?;
    let message = PsError::Cancelled.to_string();
    let (surfaced, outcomes) = match case.value() {
        Some(value) => (
            value["join_error"]["class"].as_str(),
            value.list("fetch_outcomes")?.clone(),
        ),
        None => match (case.error_class(), case.error_message()) {
            (Some(CANCELLED), Some(wanted)) if wanted == message => {
                (Some(CLASS), vec![json!(CLASS), json!(CANCELLED)])
            }
            _ => return Err(Failure::got(message)),
        },
    };
    if surfaced != Some(CLASS) {
        return Err(Failure::got(CLASS));
    }
    let mut values = Vec::new();
    for outcome in &outcomes {
        let step = match outcome.as_str() {
            Some(CLASS) => "late",
            Some(CANCELLED) => "wait",
            _ => return Err(Failure::schema(format!("the outcome {outcome}"))),
        };
        values.push((step, cluster.coordinator.schedule(step, ())?));
    }
    are_scheduled.store(true, Ordering::Release);
    on_purpose(cluster.coordinator.join().err())?;
    for (step, value) in &values {
        match (*step, end_of(value)) {
            ("wait", Some(PsError::Cancelled)) => {}
            ("late", error) => {
                on_purpose(error)?;
            }
            (_, other) => return Err(Failure::got(format!("{other:?}"))),
        }
    }
    Ok(Outcome::Passed)
}

fn add(cluster: &Cluster, value: f32) -> Result<RemoteValue, PsError> {
    cluster
        .coordinator
        .schedule("add", (HostTensor(scalar(value)),))
}

/// All is well before something is lost.
pub(super) fn before(case: &Case, env: &Env<'_>) -> Checked {
    let cluster = Cluster::start(case, register_add)?;
    let wanted = tensor(expected(case)?)?;
    zero(&cluster.strategy, &[])?;
    let value = wanted.iter::<f32>().next().unwrap_or_default();
    let found: HostTensor = add(&cluster, value)?.fetch()?;
    passed(env.tolerance().same(expected(case)?, &found.0))
}

/// A worker goes, and the other one runs everything: once, where TensorFlow's count may exceed.
pub(super) fn lost_worker(case: &Case) -> Checked {
    let mut cluster = Cluster::start(case, |registry| {
        register_add(registry)?;
        registry.step("one", |worker: &WorkerContext, (): ()| {
            let variables = worker.variables()?;
            let variable = variables.variable(&format!("variable/{VARIABLE}"))?;
            variables.assign_add(worker.next_update()?, &variable, scalar(1.0))?;
            Ok(1.0_f32)
        })
    })?;
    let expected = expected(case)?;
    let variable = zero(&cluster.strategy, &[])?;
    let _before: HostTensor = add(&cluster, 1.0)?.fetch()?;
    let times = expected.list("fetched")?.len();
    let values = (0..times).map(|_| cluster.coordinator.schedule("one", ()));
    let values = values.collect::<Result<Vec<_>, _>>()?;
    drop(cluster.workers.pop());
    cluster.coordinator.join()?;
    let fetched: Vec<f32> = cluster.coordinator.fetch(&values)?;
    equal(expected.field("fetched")?, &json!(fetched))?;
    let wanted = scalar(times as f32 + 1.0);
    let found: TensorData = variable.read(&cluster.strategy)?;
    equal(
        expected.field("value_at_least_21")?,
        &json!(found == wanted),
    )?;
    Ok(Outcome::Passed)
}

/// A server goes: whatever needs it says so.
pub(super) fn lost_server(case: &Case) -> Checked {
    let mut cluster = Cluster::start(case, register_add)?;
    let variable = zero(&cluster.strategy, &[])?;
    let _before: HostTensor = add(&cluster, 1.0)?.fetch()?;
    // The first server holds the variable.
    cluster.servers.remove(0).shutdown();
    if case.error_class() != Some("UnavailableError") {
        return Err(Failure::schema("an error of another class"));
    }
    let found: Result<(), Error> = match case.op() {
        "ps_killed_variable_read" => variable.read(&cluster.strategy).map(drop),
        _ => {
            let joined = add(&cluster, 1.0).and_then(|_| cluster.coordinator.join());
            joined.map_err(Error::from)
        }
    };
    let of_server = |error: &Error| {
        let own = error.wrapped()?.downcast_ref::<PsError>()?;
        Some(matches!(own.root_cause(), PsError::Unavailable { .. }))
    };
    match found {
        Err(error) if of_server(&error) == Some(true) => Ok(Outcome::Passed),
        other => Err(Failure::got(format!("{other:?}"))),
    }
}
