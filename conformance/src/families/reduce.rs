//! `reduce.json`: `reduce`, `gather`, `all_reduce`, `all_gather`, `merge_call` and `run`.

use std::collections::BTreeMap;

use burn::module::{Module, Param};
use burn::tensor::{DType, Shape, Tensor, TensorData};
use distribute_core::{
    Error, IndexedSlices, PerReplica, ReduceOp, Replicated, Strategy, StrategyExt,
    VariableAggregation, VariableOptions, in_step,
};
use serde_json::Value;

use super::support::{compiled, expected, per_replica, reduce_op};
use crate::case::Case;
use crate::compare::equal;
use crate::env::Env;
use crate::error_kind::{ErrorKind, same_error};
use crate::expression::{evaluate, evaluate_list};
use crate::json::{Fields, counts, numbers_in};
use crate::outcome::{Checked, Deviation, Failure, Outcome, Rule, passed};
use crate::tensors::{number, scalar, tensor};

type CoreResult<T> = distribute_core::Result<T>;

pub(super) fn check(case: &Case, env: &Env<'_>) -> Checked {
    let strategy = &*env.strategy(case)?;
    match case.op() {
        "reduce" => reduce(case, env, strategy),
        "reduce_non_distributed" => reduce_plain(case, env, strategy),
        "reduce_variable" => reduce_variable(case, env, strategy),
        "reduce_indexed_slices" => reduce_slices(case, env, strategy),
        "reduce inside run" => inside_run(case, strategy, |strategy| {
            strategy
                .reduce(ReduceOp::Sum, Replicated(1.0_f32))
                .map(|_| ())
        }),
        "gather inside run" => inside_run(case, strategy, |strategy| {
            let value = TensorData::new(vec![1.0_f32], [1]);
            strategy.gather(Replicated(value), 0).map(|_| ())
        }),
        "all_reduce" => all_reduce(case, env, strategy),
        "all_reduce_nested" => all_reduce_nested(case, env, strategy),
        "gather" => gather(case, env, strategy),
        "all_gather" => all_gather(case, env, strategy),
        "merge_call reached by replica 0 only" => merge_of_one(case, strategy),
        op if op.starts_with("merge_call") => merge_call(case, env, strategy),
        op if op.starts_with("run") => run(case, env, strategy),
        "experimental_local_results" => local_results(case, env, strategy),
        "experimental_distribute_values_from_function" => values_from(case, env, strategy),
        op if op.contains("all_reduce(x)^2") => gradient(case, env, strategy),
        op if op.contains("reduce_to(SUM, x, v)") => reduce_to(case, env, strategy),
        other => Err(Failure::schema(format!("unknown operation `{other}`"))),
    }
}

/// Passed if the result is what TensorFlow returned, or the same kind of error.
fn same_result(case: &Case, env: &Env<'_>, result: CoreResult<TensorData>) -> Checked {
    match result {
        Err(error) => same_error(case, &error),
        Ok(found) => match case.value() {
            Some(expected) => passed(env.tolerance().same(expected, &found)),
            None => Err(Failure::got(crate::compare::show(&found))),
        },
    }
}

/// The same for a list under `per_replica`.
fn same_replicas(
    case: &Case,
    env: &Env<'_>,
    result: CoreResult<PerReplica<TensorData>>,
) -> Checked {
    match result {
        Err(error) => same_error(case, &error),
        Ok(found) => {
            let expected = expected(case)?.field("per_replica")?;
            passed(env.tolerance().same_list(expected, found.values()))
        }
    }
}

/// An axis or several: numbers, also booleans, as in Python. Anything else is a wrong type.
fn axes(axis: &Value) -> Option<Vec<i64>> {
    match axis {
        Value::Array(list) => list.iter().map(Value::as_i64).collect(),
        Value::Bool(flag) => Some(vec![i64::from(*flag)]),
        other => Some(vec![other.as_i64()?]),
    }
}

fn reduce(case: &Case, env: &Env<'_>, strategy: &dyn Strategy) -> Checked {
    let Some(op) = reduce_op(&case.inputs["reduce_op"]) else {
        // An enum has no other values.
        return Ok(Outcome::NotApplicable(Rule::PythonType));
    };
    let Some(values) = per_replica(&case.inputs["values"])? else {
        return Ok(Outcome::NotApplicable(Rule::NoInputs));
    };
    let axis = &case.inputs["axis"];
    if axis.is_null() {
        return same_result(case, env, strategy.reduce(op, values));
    }
    let is_unhashable = |message: &str| message.contains("unhashable type");
    match axes(axis) {
        // Python refuses a list where it takes a tuple.
        Some(axes) if !case.error_message().is_some_and(is_unhashable) => {
            same_result(case, env, strategy.reduce_axis(op, values, &axes))
        }
        _ => Ok(Outcome::NotApplicable(Rule::PythonType)),
    }
}

/// A plain value given to `reduce`.
fn reduce_plain(case: &Case, env: &Env<'_>, strategy: &dyn Strategy) -> Checked {
    let Some(op) = reduce_op(&case.inputs["reduce_op"]) else {
        return Ok(Outcome::NotApplicable(Rule::PythonType));
    };
    let value = &case.inputs["value"];
    let data = tensor(value)?;
    let data = if value.is_i64() {
        data.convert_dtype(DType::I32)
    } else {
        data
    };
    let axis = &case.inputs["axis"];
    let result = match axis {
        Value::Null => strategy.reduce(op, Replicated(data)),
        axis => match axes(axis) {
            Some(axes) => strategy.reduce_axis(op, Replicated(data), &axes),
            None => return Ok(Outcome::NotApplicable(Rule::PythonType)),
        },
    };
    let is_plain_zero = value.is_number() && number(value)? == 0.0;
    if is_plain_zero && case.error_class() == Some("AttributeError") {
        env.tolerance().same(value, &result?)?;
        return Ok(Outcome::Deviation(Deviation::PlainZero));
    }
    same_result(case, env, result)
}

fn reduce_variable(case: &Case, env: &Env<'_>, strategy: &dyn Strategy) -> Checked {
    let initial = tensor(&case.inputs["variable"])?;
    let variable = strategy.variable(initial, VariableOptions::default())?;
    let op = reduce_op(&case.inputs["reduce_op"]).ok_or_else(|| Failure::schema("reduce_op"))?;
    let result = strategy.reduce(op, Replicated(variable.read(strategy)?));
    match case.value().and_then(|expected| expected.get("values")) {
        Some(values) => passed(env.tolerance().same_list(values, &[result?])),
        None => same_result(case, env, result),
    }
}

/// `[rows, indices]`; the dense shape has five rows, as the schema says.
fn slices(value: &Value) -> Result<IndexedSlices, Failure> {
    const DENSE_ROWS: usize = 5;
    let malformed = || Failure::schema(format!("not indexed slices: {value}"));
    let rows = value[0].as_array().ok_or_else(malformed)?;
    let mut data = Vec::new();
    for row in rows {
        for element in row.as_array().ok_or_else(malformed)? {
            data.push(number(element)?);
        }
    }
    let indices = counts(&value[1]).ok_or_else(malformed)?;
    let width = data.len() / rows.len().max(1);
    let data = TensorData::new(data, [rows.len(), width]).convert_dtype(DType::F32);
    let dense_rows = indices
        .iter()
        .map(|index| index + 1)
        .max()
        .unwrap_or(0)
        .max(DENSE_ROWS);
    Ok(IndexedSlices::new(data, indices, [dense_rows, width])?)
}

fn reduce_slices(case: &Case, env: &Env<'_>, strategy: &dyn Strategy) -> Checked {
    let per_replica = case.inputs.list("slices")?.iter().map(slices);
    let value = PerReplica::new(per_replica.collect::<Result<_, _>>()?);
    let op = reduce_op(&case.inputs["reduce_op"]).ok_or_else(|| Failure::schema("reduce_op"))?;
    let found = match strategy.reduce_slices(op, value) {
        Ok(found) => found,
        Err(error) => return same_error(case, &error),
    };
    let expected = expected(case)?.field("indexed_slices")?;
    env.tolerance()
        .same(expected.field("values")?, found.values())?;
    let list = |key: &str| -> Result<Vec<usize>, Failure> {
        counts(&expected.field(key)?["data"]).ok_or_else(|| Failure::schema(key))
    };
    equal(&list("indices")?.into(), &found.indices().to_vec().into())?;
    passed(equal(
        &list("dense_shape")?.into(),
        &found.dense_shape().to_vec().into(),
    ))
}

/// A call that belongs outside of a step.
fn inside_run(
    case: &Case,
    strategy: &dyn Strategy,
    call: impl Fn(&dyn Strategy) -> CoreResult<()> + Sync,
) -> Checked {
    match strategy.run((), |_, ()| call(strategy)) {
        Err(error) => same_error(case, &error),
        Ok(_) => Err(Failure::got("a value")),
    }
}

fn all_reduce(case: &Case, env: &Env<'_>, strategy: &dyn Strategy) -> Checked {
    let Some(op) = reduce_op(&case.inputs["reduce_op"]) else {
        return Ok(Outcome::NotApplicable(Rule::PythonType));
    };
    if let Some(values) = per_replica(&case.inputs["values"])? {
        return same_replicas(case, env, compiled::all_reduce(strategy, op, values));
    }
    let text = case.inputs.text("values")?;
    if let Some(constant) = text.strip_prefix("constant ") {
        let constant: f32 = constant.parse().map_err(|_| Failure::schema(text))?;
        let sum = op == ReduceOp::Sum;
        let result = strategy.run((sum, constant), |ctx, (sum, constant)| {
            let op = if sum { ReduceOp::Sum } else { ReduceOp::Mean };
            ctx.all_reduce(op, constant)
        });
        if case.expects_value() {
            return same_replicas(case, env, result.map(|values| values.map(scalar)));
        }
        let replicas = strategy.num_replicas_in_sync() as f64;
        let factor = if op == ReduceOp::Sum { replicas } else { 1.0 };
        for value in result?.into_values() {
            let wanted = Value::from(f64::from(constant) * factor);
            env.tolerance().same_number(&wanted, f64::from(value))?;
        }
        return match case.error_class() {
            Some("AttributeError" | "ValueError") => Ok(Outcome::Deviation(Deviation::PlainNumber)),
            _ => Err(Failure::got(constant * factor as f32)),
        };
    }
    let formula = text.trim_end_matches("as float").trim();
    let values = (0..strategy.num_replicas_in_sync()).map(|id| {
        let value = evaluate(formula, &|name| (name == "replica_id").then_some(id as f64));
        let value = value.ok_or_else(|| Error::invalid(format!("values `{text}`")))?;
        Ok(TensorData::new(vec![value], Shape::new([])).convert_dtype(DType::F32))
    });
    let values = PerReplica::new(values.collect::<CoreResult<Vec<_>>>()?);
    let result = compiled::all_reduce(strategy, op, values);
    same_replicas(case, env, result)
}

/// A structure of tensors, flattened: lists by index, dictionaries by key.
fn leaves(value: &Value, path: &str, found: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(map) if !map.contains_key("dtype") => {
            for (key, value) in map {
                leaves(value, &format!("{path}/{key}"), found);
            }
        }
        Value::Array(list) => {
            for (index, value) in list.iter().enumerate() {
                leaves(value, &format!("{path}/{index}"), found);
            }
        }
        leaf => {
            found.insert(path.to_string(), leaf.clone());
        }
    }
}

/// `expect` has the structure of one replica's value, with a list of per-replica results at every
/// leaf.
fn all_reduce_nested(case: &Case, env: &Env<'_>, strategy: &dyn Strategy) -> Checked {
    let op = reduce_op(&case.inputs["reduce_op"]).ok_or_else(|| Failure::schema("reduce_op"))?;
    let mut per_replica = Vec::new();
    for value in case.inputs.list("values")? {
        let mut found = BTreeMap::new();
        leaves(value, "", &mut found);
        let tensors = found
            .into_iter()
            .map(|(path, leaf)| Ok((path, tensor(&leaf)?)));
        per_replica.push(tensors.collect::<Result<BTreeMap<_, _>, Failure>>()?);
    }
    let found = compiled::all_reduce_maps(strategy, op, PerReplica::new(per_replica))?;
    let mut expected_leaves = BTreeMap::new();
    leaves(expected(case)?, "", &mut expected_leaves);
    let wanted = expected_leaves.len();
    let count: usize = found.values().iter().map(BTreeMap::len).sum();
    equal(&wanted.into(), &count.into())?;
    for (replica, map) in found.values().iter().enumerate() {
        for (path, data) in map {
            let path = format!("{path}/{replica}");
            let wanted = expected_leaves.get(&path);
            let wanted = wanted.ok_or_else(|| Failure::got(format!("no leaf {path}")))?;
            env.tolerance().same(wanted, data)?;
        }
    }
    Ok(Outcome::Passed)
}

fn gather(case: &Case, env: &Env<'_>, strategy: &dyn Strategy) -> Checked {
    let Some(axis) = case.inputs["axis"].as_i64() else {
        return Ok(Outcome::NotApplicable(Rule::PythonType));
    };
    if let Some(values) = per_replica(&case.inputs["values"])? {
        return same_result(case, env, strategy.gather(values, axis));
    }
    let text = case.inputs.text("values")?;
    let Some(plain) = text.strip_prefix("plain tensor ") else {
        return Ok(Outcome::NotApplicable(Rule::NoInputs));
    };
    let plain = numbers_in(plain);
    let count = plain.len();
    let plain = TensorData::new(plain, [count]).convert_dtype(DType::F32);
    same_result(case, env, strategy.gather(Replicated(plain), axis))
}

fn all_gather(case: &Case, env: &Env<'_>, strategy: &dyn Strategy) -> Checked {
    let Some(axis) = case.inputs["axis"].as_i64() else {
        return Ok(Outcome::NotApplicable(Rule::PythonType));
    };
    let values = per_replica(&case.inputs["values"])?.ok_or_else(|| Failure::schema("values"))?;
    match compiled::all_gather(strategy, values, axis) {
        Err(error) if compiled::is_uneven(&error) => Ok(Outcome::NotApplicable(Rule::UnevenShapes)),
        result => same_replicas(case, env, result),
    }
}

fn merge_of_one(case: &Case, strategy: &dyn Strategy) -> Checked {
    let replicas = strategy.replicas().len();
    let result = strategy.run((), |ctx, ()| {
        if ctx.replica_id() > 0 {
            return Ok(0.0);
        }
        ctx.merge_call(1.0_f32, |values| {
            Ok(PerReplica::new(vec![values.values()[0]; replicas]))
        })
    });
    match result {
        Err(error) => same_error(case, &error),
        Ok(found) => passed(equal(expected(case)?, &found.values().to_vec().into())),
    }
}

fn merge_call(case: &Case, env: &Env<'_>, strategy: &dyn Strategy) -> Checked {
    let replicas = strategy.replicas().len();
    let values = per_replica(&case.inputs["values"])?.ok_or_else(|| Failure::schema("values"))?;
    let found = strategy.run(values, |ctx, value| {
        let (sum, seen) = ctx.merge_call(value, |values| {
            let seen = (u8::from(!in_step()), values.values().len());
            let sum = strategy.reduce(ReduceOp::Sum, values)?;
            Ok(PerReplica::new(vec![(sum, seen); replicas]))
        })?;
        Ok((sum, seen))
    })?;
    // TensorFlow hands back one value where all are the same.
    let wanted = expected(case)?.list("per_replica")?.first();
    let wanted = wanted.ok_or_else(|| Failure::schema("`per_replica` is empty"))?;
    let wanted_seen = expected(case)?.field("merge_saw")?;
    for (sum, (outside, count)) in found.values() {
        env.tolerance().same(wanted, sum)?;
        equal(
            wanted_seen.field("in_cross_replica")?,
            &(*outside == 1).into(),
        )?;
        equal(wanted_seen.field("n_values")?, &(*count).into())?;
    }
    Ok(Outcome::Passed)
}

fn run(case: &Case, env: &Env<'_>, strategy: &dyn Strategy) -> Checked {
    let op = case.op();
    if let Some(values) = per_replica(&case.inputs["values"])? {
        return run_dictionary(case, env, strategy, values);
    }
    if op.contains("raising") {
        let message = case.error_message().unwrap_or_default().to_string();
        let raise = || Err::<(), _>(Error::step(message.clone()));
        return match strategy.run((), |_, ()| raise()) {
            Err(error) if ErrorKind::of(&error) == ErrorKind::Step => {
                let found = error.root_cause().to_string();
                passed(equal(&message.as_str().into(), &found.into()))
            }
            other => Err(Failure::got(format!("{other:?}"))),
        };
    }
    if let Some(constant) = op.strip_prefix("run returning ") {
        let Ok(constant) = constant.parse::<i64>() else {
            strategy.run((), |_, ()| Ok(()))?; // None
            return Ok(Outcome::Passed);
        };
        let found = strategy.run((), |_, ()| Ok(constant))?.into_values();
        // One value in TensorFlow, since all are the same.
        let wanted = &expected(case)?[0];
        let differing = found.iter().find(|value| *wanted != **value);
        return passed(differing.map_or(Ok(()), |value| Err(Failure::new(wanted, value))));
    }
    let Some((body, arguments)) = op.split_once("lambda x:").and_then(|(_, rest)| {
        let (body, arguments) = rest.split_once(", args=(")?;
        Some((body, numbers_in(arguments)))
    }) else {
        // Arguments that are no tuple.
        return Ok(Outcome::NotApplicable(Rule::PythonType));
    };
    let found = strategy.run(arguments[0], |_, x| {
        let value = evaluate(body, &|name| (name == "x").then_some(x));
        value.ok_or_else(|| Error::invalid(format!("the function `{body}`")))
    })?;
    let found: Vec<_> = found.into_values().into_iter().map(scalar_f32).collect();
    passed(env.tolerance().same_list(expected(case)?, &found))
}

fn scalar_f32(value: f64) -> TensorData {
    TensorData::new(vec![value], Shape::new([])).convert_dtype(DType::F32)
}

/// Every replica returns its id, the number of replicas, and twice its value.
fn run_dictionary(
    case: &Case,
    env: &Env<'_>,
    strategy: &dyn Strategy,
    values: PerReplica<TensorData>,
) -> Checked {
    let found = strategy.run(values, |ctx, value| {
        let doubled: Vec<f64> = value.iter::<f64>().map(|x| 2.0 * x).collect();
        let doubled = TensorData::new(doubled, value.shape().clone()).convert_dtype(value.dtype());
        Ok((ctx.replica_id(), (ctx.num_replicas_in_sync(), doubled)))
    })?;
    let (ids, rest) = found.unzip();
    let (replicas, doubled) = rest.unzip();
    let expected = expected(case)?;
    for (replica, id) in ids.values().iter().enumerate() {
        equal(&expected["id"][replica]["data"][0], &(*id).into())?;
    }
    for found in replicas.values() {
        equal(&expected["n"][0], &(*found).into())?;
    }
    passed(env.tolerance().same_list(&expected["x2"], doubled.values()))
}

fn local_results(case: &Case, env: &Env<'_>, strategy: &dyn Strategy) -> Checked {
    let found = match per_replica(&case.inputs["values"])? {
        Some(values) => strategy.local_results(values),
        None => vec![tensor(case.inputs.field("value")?)?],
    };
    passed(env.tolerance().same_list(expected(case)?, &found))
}

fn values_from(case: &Case, env: &Env<'_>, strategy: &dyn Strategy) -> Checked {
    let replicas = strategy.num_replicas_in_sync();
    let formula = case.inputs.text("fn")?;
    let values = strategy.values_from(|id| {
        let names = |name: &str| match name {
            "replica_id" => Some(id as f64),
            "num_replicas" => Some(replicas as f64),
            _ => None,
        };
        let list = evaluate_list(formula, &names);
        let one = evaluate(formula, &names).map(|value| vec![value]);
        let list = list.map(|list| (vec![list.len()], list));
        list.or(one.map(|one| (Vec::new(), one)))
    });
    let mut found = Vec::new();
    for value in strategy.local_results(values) {
        let (shape, list) = value.ok_or_else(|| Failure::schema(formula))?;
        found.push(TensorData::new(list, Shape::from(shape)).convert_dtype(DType::I32));
    }
    // Python's numbers have no type.
    passed(env.tolerance().same_list(expected(case)?, &found))
}

/// `v = constants; update(v, assign_add, reduce_to(SUM, x, v))`.
fn reduce_to(case: &Case, env: &Env<'_>, strategy: &dyn Strategy) -> Checked {
    let (initial, _) = case.op().split_once(';').unwrap_or(("", ""));
    let initial = numbers_in(initial);
    let width = initial.len();
    let initial = TensorData::new(initial, [width]).convert_dtype(DType::F32);
    let options = VariableOptions::default().aggregation(VariableAggregation::Sum);
    let variable = strategy.variable(initial, options)?;
    let values = per_replica(&case.inputs["values"])?.ok_or_else(|| Failure::schema("values"))?;
    variable.assign_add(strategy, strategy.reduce(ReduceOp::Sum, values)?)?;
    let expected = expected(case)?.field("locals")?;
    passed(
        env.tolerance()
            .same_list(expected, &variable.local_values()?),
    )
}

#[derive(Module, Debug)]
struct Input {
    x: Param<Tensor<1>>,
}

/// d(sum(all_reduce(x)^2))/dx on every replica.
fn gradient(case: &Case, env: &Env<'_>, strategy: &dyn Strategy) -> Checked {
    let op = reduce_op(&case.inputs["reduce_op"]).ok_or_else(|| Failure::schema("reduce_op"))?;
    let values = per_replica(&case.inputs["values"])?.ok_or_else(|| Failure::schema("values"))?;
    let result = strategy.run(values, |ctx, value| {
        let shape = value.shape().to_vec();
        let elements: usize = shape.iter().product();
        let flat = crate::tensors::reshaped(&value, &[elements]);
        let model = Input {
            x: Param::from_tensor(Tensor::<1>::from_data(flat, ctx.device()).require_grad()),
        };
        let reduced = ctx.all_reduce_tensor(op, model.x.val())?;
        let loss = (reduced.clone() * reduced).sum();
        let gradients = ctx.gradient(&loss, &model)?;
        let found = gradients
            .get(0)?
            .ok_or_else(|| Error::invalid("no gradient"))?;
        Ok(crate::tensors::reshaped(found, &shape))
    });
    same_replicas(case, env, result)
}
