//! What the strategy does on the coordinator. The file does not hold the inputs of these calls:
//! with one replica they return what they are given, so the expected values are the inputs.

use distribute_core::{
    PerReplica, ReduceOp, Strategy, StrategyExt, TensorData, VariableAggregation, VariableOptions,
};
use serde_json::{Value, json};

use super::cluster::Servers;
use crate::case::Case;
use crate::compare::equal;
use crate::env::Env;
use crate::families::support::expected;
use crate::json::Fields;
use crate::outcome::{Checked, Failure, Outcome, passed};
use crate::tensors::{scalar, tensor};

pub(super) fn properties(case: &Case) -> Checked {
    let servers = Servers::start(case)?;
    let expected = expected(case)?;
    let strategy = &servers.strategy;
    equal(
        expected.field("num_replicas_in_sync")?,
        &json!(strategy.num_replicas_in_sync()),
    )?;
    equal(
        expected.field("num_ps")?,
        &json!(strategy.variables().num_servers()),
    )?;
    let workers = expected.list("worker_devices")?.len();
    passed(equal(&json!(workers), &json!(strategy.replicas().len())))
}

/// The one value of a list, or the value itself.
fn one(expected: &Value) -> Result<TensorData, Failure> {
    let number = expected.get(0).unwrap_or(expected);
    let value = tensor(number)?;
    Ok(value)
}

pub(super) fn run(case: &Case, env: &Env<'_>) -> Checked {
    let servers = Servers::start(case)?;
    let wanted = one(expected(case)?)?;
    let results = servers.strategy.run((), |_, ()| Ok(wanted.clone()))?;
    let found = servers.strategy.local_results(results);
    let [found] = &found[..] else {
        return Err(Failure::got(format!("{} results", found.len())));
    };
    let wanted = expected(case)?.get(0).unwrap_or(expected(case)?);
    passed(env.tolerance().same(wanted, found))
}

pub(super) fn reduce(case: &Case, env: &Env<'_>) -> Checked {
    let servers = Servers::start(case)?;
    let wanted = one(expected(case)?)?;
    for op in [ReduceOp::Sum, ReduceOp::Mean] {
        let value = PerReplica::new(vec![wanted.clone()]);
        let found = servers.strategy.reduce(op, value)?;
        env.tolerance().same(expected(case)?, &found)?;
    }
    Ok(Outcome::Passed)
}

pub(super) fn gather(case: &Case, env: &Env<'_>) -> Checked {
    let servers = Servers::start(case)?;
    let wanted = tensor(expected(case)?)?;
    let found = servers.strategy.gather(PerReplica::new(vec![wanted]), 0)?;
    passed(env.tolerance().same(expected(case)?, &found))
}

pub(super) fn assign_add(case: &Case, env: &Env<'_>, aggregation: &str) -> Checked {
    let aggregation = match aggregation {
        "NONE" => VariableAggregation::None,
        "SUM" => VariableAggregation::Sum,
        "MEAN" => VariableAggregation::Mean,
        "ONLY_FIRST_REPLICA" => VariableAggregation::OnlyFirstReplica,
        other => return Err(Failure::schema(format!("unknown aggregation `{other}`"))),
    };
    let servers = Servers::start(case)?;
    let strategy = &servers.strategy;
    let added = one(expected(case)?)?;
    let options = VariableOptions::default().aggregation(aggregation);
    let variable = strategy.variable(scalar(0.0), options)?;
    strategy.run((), |ctx, ()| variable.assign_add(ctx, added.clone()))?;
    passed(
        env.tolerance()
            .same(expected(case)?, &variable.read(strategy)?),
    )
}
