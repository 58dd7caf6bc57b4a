//! Closures that succeed: `schedule`, `join`, `done`, `fetch`, datasets of workers.

use distribute_core::{
    DistributedVariable, PerReplica, ReduceOp, StrategyExt, TensorData, VariableOptions,
};
use distribute_ps::{HostTensor, ParameterServerStrategy, PsError, StepRegistry, WorkerContext};
use serde_json::{Value, json};

use super::cluster::Cluster;
use crate::case::Case;
use crate::compare::equal;
use crate::env::Env;
use crate::families::support::expected;
use crate::json::{Fields, count};
use crate::outcome::{Checked, Failure, Outcome, passed};
use crate::tensors::tensor;

/// The variable that steps add to.
pub(super) const VARIABLE: &str = "sum";

/// Registers `add`: adds to the variable, and returns what it is then.
pub(super) fn register_add(registry: &mut StepRegistry) -> Result<(), PsError> {
    registry.step("add", |worker: &WorkerContext, (value,): (HostTensor,)| {
        let variables = worker.variables()?;
        let variable = variables.variable(&format!("variable/{VARIABLE}"))?;
        variables.assign_add(worker.next_update()?, &variable, value.0)?;
        Ok(HostTensor(variables.read(variable.name())?))
    })
}

/// The variable, zero, of this shape.
pub(super) fn zero(
    strategy: &ParameterServerStrategy,
    shape: &[usize],
) -> Result<DistributedVariable, Failure> {
    let zeros = TensorData::zeros::<f32, _>(shape.to_vec());
    let named = strategy.named(VARIABLE);
    Ok(named.variable(zeros, VariableOptions::default())?)
}

/// Every scheduled closure has been applied once.
pub(super) fn applied(case: &Case, env: &Env<'_>) -> Checked {
    let expected = expected(case)?;
    let wanted = tensor(expected.field("value")?)?;
    let times = expected.get("scheduled").and_then(count).unwrap_or(1);
    let cluster = Cluster::start(case, register_add)?;
    let variable = zero(&cluster.strategy, wanted.shape())?;
    let share = wanted.iter::<f32>().map(|value| value / times as f32);
    let share = TensorData::new(share.collect::<Vec<_>>(), wanted.shape().clone());
    let mut results = Vec::new();
    for _ in 0..times {
        let share = (HostTensor(share.clone()),);
        results.push(cluster.coordinator.schedule("add", share)?);
    }
    cluster.coordinator.join()?;
    equal(&json!(true), &json!(cluster.coordinator.done()?))?;
    let fetched: Vec<HostTensor> = cluster.coordinator.fetch(&results)?;
    let same = |wanted: &Value, found: &TensorData| env.tolerance().same(wanted, found);
    same(expected.field("value")?, &variable.read(&cluster.strategy)?)?;
    if let (Some(wanted), [only]) = (expected.get("fetch"), &fetched[..]) {
        same(wanted, &only.0)?;
    }
    if let Some(most) = expected.get("max_fetched_first") {
        let first = fetched
            .iter()
            .filter_map(|value| value.0.iter::<f64>().next());
        equal(most, &json!(first.fold(f64::MIN, f64::max)))?;
    }
    Ok(Outcome::Passed)
}

/// A structure comes back with its numbers and their types.
pub(super) fn structure(case: &Case) -> Checked {
    let expected = expected(case)?;
    let (a, b) = (
        tensor(expected.field("a")?)?,
        tensor(&expected.list("b")?[0])?,
    );
    let (sent_a, sent_b) = (a.clone(), b.clone());
    let cluster = Cluster::start(case, |registry| {
        registry.step("structure", move |_: &WorkerContext, (): ()| {
            Ok((HostTensor(sent_a.clone()), vec![HostTensor(sent_b.clone())]))
        })
    })?;
    let value = cluster.coordinator.schedule("structure", ())?;
    let found: (HostTensor, Vec<HostTensor>) = value.fetch()?;
    if found == (HostTensor(a), vec![HostTensor(b)]) {
        Ok(Outcome::Passed)
    } else {
        Err(Failure::got(format!("{found:?}")))
    }
}

/// Arguments by name: the fields of a struct.
pub(super) fn named_arguments(case: &Case, env: &Env<'_>) -> Checked {
    let wanted = tensor(expected(case)?)?;
    let total = wanted.iter::<i32>().next().unwrap_or_default();
    let cluster = Cluster::start(case, |registry| {
        registry.step("sum", |_: &WorkerContext, (fields,): (Value,)| {
            let field = |name: &str| fields[name].as_i64().unwrap_or_default();
            Ok(field("a") + field("b"))
        })
    })?;
    let arguments = (json!({"b": total - 3, "a": 3}),);
    let found: i64 = cluster.coordinator.schedule("sum", arguments)?.fetch()?;
    let found = TensorData::new(vec![found], [0_usize; 0]).convert_dtype(wanted.dtype());
    passed(env.tolerance().same(expected(case)?, &found))
}

/// Arguments that a step cannot have.
pub(super) fn refused(case: &Case) -> Checked {
    let cluster = Cluster::start(case, |registry| {
        registry.step("one", |_: &WorkerContext, (value,): (i64,)| Ok(value))
    })?;
    let coordinator = &cluster.coordinator;
    let error = match case.op() {
        "schedule_args_not_tuple" => coordinator.schedule("one", 3_i64).err(),
        _ => {
            let value = coordinator.schedule("one", (1_i64,))?;
            coordinator.schedule("one", (value,)).err()
        }
    };
    match (case.error_class(), error) {
        (Some("TypeError"), Some(PsError::WrongArguments { .. }))
        | (Some("ValueError"), Some(PsError::RemoteValueArgument { .. })) => Ok(Outcome::Passed),
        (_, other) => Err(Failure::got(format!("{other:?}"))),
    }
}

pub(super) fn idle(case: &Case) -> Checked {
    let cluster = Cluster::start(case, |_| Ok(()))?;
    let found = match case.op() {
        "done_when_idle" => json!(cluster.coordinator.done()?),
        _ => {
            cluster.coordinator.join()?;
            Value::Null
        }
    };
    passed(equal(expected(case)?, &found))
}

/// A strategy inside of a closure: `run` and `reduce` of one replica.
pub(super) fn within(case: &Case, env: &Env<'_>) -> Checked {
    let wanted = tensor(expected(case)?)?;
    let is_run = case.op().starts_with("run");
    let cluster = Cluster::start(case, |registry| {
        registry.step(
            "within",
            move |worker: &WorkerContext, (value,): (HostTensor,)| {
                let strategy = worker.strategy()?;
                let value = PerReplica::new(vec![value.0]);
                let found = if is_run {
                    strategy
                        .run(value, |_, value| Ok(value))?
                        .into_values()
                        .remove(0)
                } else {
                    strategy.reduce(ReduceOp::Sum, value)?
                };
                Ok(HostTensor(found))
            },
        )
    })?;
    let value = cluster
        .coordinator
        .schedule("within", (HostTensor(wanted),))?;
    let found: HostTensor = value.fetch()?;
    passed(env.tolerance().same(expected(case)?, &found.0))
}

/// A dataset of some elements on each worker, and the step `next`.
fn register_dataset(
    registry: &mut StepRegistry,
    elements: usize,
    shape: &[usize],
) -> Result<(), PsError> {
    let shape = shape.to_vec();
    let dataset = registry.dataset("numbers", move |_| {
        let shape = shape.clone();
        let element = move |_| Ok(TensorData::zeros::<f32, _>(shape.clone()));
        Ok((0..elements).map(element))
    })?;
    registry.step("next", move |worker: &WorkerContext, (): ()| {
        Ok(HostTensor(worker.next(&dataset)?))
    })
}

pub(super) fn next(case: &Case) -> Checked {
    let expected = expected(case)?;
    let shape = crate::json::counts(expected.field("shape")?);
    let shape = shape.ok_or_else(|| Failure::schema("`shape` is not a list"))?;
    let times = expected.count("n_fetched")?;
    let cluster = Cluster::start(case, |registry| register_dataset(registry, times, &shape))?;
    let values = (0..times).map(|_| cluster.coordinator.schedule("next", ()));
    let values = values.collect::<Result<Vec<_>, _>>()?;
    cluster.coordinator.join()?;
    let fetched: Vec<HostTensor> = cluster.coordinator.fetch(&values)?;
    for value in fetched {
        equal(expected.field("shape")?, &json!(value.0.shape().to_vec()))?;
    }
    Ok(Outcome::Passed)
}

pub(super) fn exhausted(case: &Case) -> Checked {
    let cluster = Cluster::start(case, |registry| register_dataset(registry, 1, &[2]))?;
    // More than all workers have together. The next call after the failure has its error.
    let mut times = 0..=case.tasks("worker")?;
    let scheduled = times.try_for_each(|_| cluster.coordinator.schedule("next", ()).map(drop));
    let error = scheduled.and_then(|()| cluster.coordinator.join()).err();
    match (case.error_class(), error.as_ref().map(PsError::root_cause)) {
        (Some("OutOfRangeError"), Some(PsError::OutOfRange { .. })) => Ok(Outcome::Passed),
        _ => Err(Failure::got(format!("{error:?}"))),
    }
}
