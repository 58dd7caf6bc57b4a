//! Which server holds which rows, and operations on variables that are cut.

use distribute_core::{StrategyExt, TensorData, VariableOptions};
use distribute_ps::{PsError, UpdateId, VariableRef};
use serde_json::Value;

use super::cluster::Servers;
use crate::case::Case;
use crate::compare::equal;
use crate::env::Env;
use crate::families::support::expected;
use crate::json::Fields;
use crate::outcome::{Checked, Failure, Outcome, passed};
use crate::tensors::{rank, tensor};

/// The variables that a case creates: their shapes. The file says no sizes where they must not
/// matter, so they differ here.
fn created(case: &Case) -> Result<Vec<Vec<usize>>, Failure> {
    if let Some(shape) = case.op().strip_prefix("shards_") {
        let sizes = shape.split('x').filter(|size| !size.is_empty());
        let sizes = sizes.map(|size| size.parse().map_err(|_| Failure::schema(shape)));
        return Ok(vec![sizes.collect::<Result<_, _>>()?]);
    }
    let devices = expected(case)?.as_array().map_or(0, Vec::len);
    Ok(match case.op() {
        "round_robin_placement" => (0..devices).map(|_| Vec::new()).collect(),
        "round_robin_ignores_size" => (0..devices).map(|i| vec![1000 >> (3 * i) | 1]).collect(),
        "variable_class" => vec![vec![2]],
        _ => Vec::new(),
    })
}

/// Creates what this case and those before it in its scenario create; returns its own variables.
fn create(case: &Case, env: &Env<'_>, servers: &Servers) -> Result<Vec<VariableRef>, Failure> {
    let scenario = case.inputs.text("scenario")?;
    let mut own = Vec::new();
    for other in &env.file.cases {
        if other.inputs.text("scenario")? != scenario {
            continue;
        }
        let is_last = other.name == case.name;
        for (index, shape) in created(other)?.into_iter().enumerate() {
            let name = format!("{} {index}", other.name);
            let variable = make(servers, &name, &shape)?;
            if is_last {
                own.push(variable);
            }
        }
        if is_last {
            return Ok(own);
        }
    }
    Err(Failure::schema("the case is not in its file"))
}

/// A variable of 0, 1, 2, ... in the strategy's scope, as the servers have it.
fn make(servers: &Servers, name: &str, shape: &[usize]) -> Result<VariableRef, Failure> {
    let strategy = servers.strategy.named(name);
    strategy.variable(counting(shape), VariableOptions::default())?;
    Ok(strategy.variables().variable(&format!("variable/{name}"))?)
}

fn counting(shape: &[usize]) -> TensorData {
    let values: Vec<f32> = (0..shape.iter().product())
        .map(|i: usize| i as f32)
        .collect();
    TensorData::new(values, shape.to_vec())
}

/// `/job:ps/replica:0/task:1/device:CPU:0` for each shard.
fn devices(variable: &VariableRef) -> Vec<String> {
    let shards = variable.placement().shards.iter();
    let device = |server| format!("/job:ps/replica:0/task:{server}/device:CPU:0");
    shards.map(|shard| device(shard.server)).collect()
}

fn class(variable: &VariableRef) -> &'static str {
    if variable.placement().is_sharded() {
        "ShardedVariable"
    } else {
        "CachingVariable"
    }
}

pub(super) fn in_turn(case: &Case, env: &Env<'_>) -> Checked {
    let servers = Servers::start(case)?;
    let variables = create(case, env, &servers)?;
    let found = match &variables[..] {
        [one] if case.op() == "variable_class" => Value::from(class(one)),
        all => all.iter().flat_map(devices).collect(),
    };
    passed(equal(expected(case)?, &found))
}

/// The shapes and servers of a variable's shards, and what is in them.
pub(super) fn shards(case: &Case, env: &Env<'_>) -> Checked {
    let servers = Servers::start(case)?;
    let expected = expected(case)?;
    let variables = create(case, env, &servers)?;
    let [variable] = &variables[..] else {
        return Err(Failure::schema("not one variable"));
    };
    equal(expected.field("class")?, &Value::from(class(variable)))?;
    equal(expected.field("devices")?, &devices(variable).into())?;
    let shards = &variable.placement().shards;
    let shapes: Value = shards
        .iter()
        .map(|shard| Value::from(shard.shape.clone()))
        .collect();
    equal(expected.field("shards")?, &shapes)?;
    if let Some(first) = expected.get("first_value_of_each") {
        let offsets: Vec<u64> = shards.iter().map(|shard| shard.offset as u64).collect();
        let rows = servers.strategy.variables().pull_rows(variable, &offsets)?;
        let width = variable.shape().iter().skip(1).product::<usize>().max(1);
        let found: Value = rows.iter::<f64>().step_by(width).map(Value::from).collect();
        equal(first, &found)?;
    }
    let read = servers.strategy.variables().read(variable.name())?;
    if read == counting(variable.shape()) {
        Ok(Outcome::Passed)
    } else {
        Err(Failure::got("another value").at("the whole"))
    }
}

/// A table that counts: rows by id, the whole, adding to it, and ranges of it.
pub(super) fn operations(case: &Case, env: &Env<'_>) -> Checked {
    let servers = Servers::start(case)?;
    let expected = expected(case)?;
    let whole = expected.field("as_tensor")?;
    let shape = tensor(whole)?.shape().to_vec();
    let table = make(&servers, "table", &shape)?;
    equal(
        expected.field("is_sharded")?,
        &table.placement().is_sharded().into(),
    )?;
    let client = servers.strategy.variables();
    // The rows count, so that their first elements say which ones were looked up.
    let wanted = tensor(expected.field("lookup")?)?;
    let width = wanted.shape()[1];
    let id = |first: f64| first as u64 / width as u64;
    let ids: Vec<u64> = wanted.iter::<f64>().step_by(width).map(id).collect();
    let same = |key: &str, found: &TensorData| {
        let wanted = expected.field(key)?;
        env.tolerance()
            .same(wanted, found)
            .map_err(|failure| failure.at(key))
    };
    same("lookup", &client.pull_rows(&table, &ids)?)?;
    same("as_tensor", &client.read(table.name())?)?;
    let after = tensor(expected.field("after_assign_add")?)?;
    let before = tensor(whole)?;
    let difference = after.iter::<f32>().zip(before.iter::<f32>());
    let difference: Vec<f32> = difference.map(|(after, before)| after - before).collect();
    let strategy = servers.strategy.named("another");
    let another = strategy.variable(counting(&shape), VariableOptions::default())?;
    let difference = TensorData::new(difference, shape);
    another.assign_add(&strategy, difference)?;
    same("after_assign_add", &another.read(&strategy)?)?;
    let another = client.variable("variable/another")?;
    let fields = expected.as_object().into_iter().flatten();
    for (key, value) in fields {
        // `slice_1_4` and `row_5`.
        let numbers = crate::json::counts_in(&key.replace('_', " "));
        let rows: Vec<u64> = match (key.split('_').next(), &numbers[..]) {
            (Some("slice"), [from, to]) => (*from as u64..*to as u64).collect(),
            (Some("row"), [row]) => vec![*row as u64],
            _ => continue,
        };
        let rows = client.pull_rows(&another, &rows)?;
        let found = match rank(value) {
            1 => crate::tensors::reshaped(&rows, &rows.shape()[1..]),
            _ => rows,
        };
        same(key, &found)?;
    }
    Ok(Outcome::Passed)
}

/// A value of another shape is refused whole: in TensorFlow some shards may have changed by then.
/// A variable that the partitioner leaves in one piece is no sharded one there, so its own `assign`
/// looks at the shape; of several shards each one fails to cut its part.
pub(super) fn wrong_shape(case: &Case) -> Checked {
    let servers = Servers::start(case)?;
    let table = make(&servers, "table", &[6, 2])?;
    let class = match table.placement().shards.len() {
        1 => "ValueError",
        _ => "InvalidArgumentError",
    };
    if case.error_class() != Some(class) {
        return Err(Failure::schema(format!("TensorFlow's error is {class}")));
    }
    let client = servers.strategy.variables();
    let id = UpdateId {
        run: client.run().ok_or_else(|| Failure::got("no run"))?,
        closure: 1,
        sequence: 0,
    };
    match client.assign(id, &table, counting(&[7, 2])) {
        Err(PsError::Shape { .. }) => Ok(Outcome::Passed),
        other => Err(Failure::got(format!("{other:?}"))),
    }
}
