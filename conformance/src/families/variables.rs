//! `variables.json`: synchronization x aggregation x update x context.

use std::sync::{Mutex, PoisonError};

use burn::tensor::{DType, Device, Shape, Tensor, TensorData};
use distribute_core::{
    DefaultStrategy, DistributedVariable, Error, IndexedSlices, Leaf, PerReplica, Strategy,
    StrategyExt, VariableAggregation, VariableContext, VariableKind, VariableOptions,
};
use serde_json::Value;

use super::support::{DynamicTensor, aggregation, class, expected, synchronization, with_tensor};
use crate::case::Case;
use crate::compare::equal;
use crate::env::Env;
use crate::error_kind::{ErrorKind, same_error};
use crate::expression::{evaluate, evaluate_list};
use crate::json::{Fields, numbers_in};
use crate::outcome::{Checked, Deviation, Failure, Outcome, Rule, passed};
use crate::tensors::tensor;

pub(super) fn check(case: &Case, env: &Env<'_>) -> Checked {
    let strategy = &*env.strategy(case)?;
    match case.op() {
        "create" | "assign" | "assign_add" | "assign_sub" => update_case(case, env, strategy),
        op if op.starts_with("scatter_add") => scatter_add(case, env, strategy),
        op if op.starts_with("plain variable created outside") => outside(case, env, strategy),
        op if op.starts_with("create a variable inside run") => create_inside(case, env, strategy),
        "assign in the scope of another strategy" => other_scope(case, env, strategy),
        // In a step, updates are `assign`, `assign_add` and `assign_sub`; `update` needs the
        // strategy.
        "extended.update called inside run" => Ok(Outcome::NotApplicable(Rule::CompileError)),
        "extended.variable_created_in_scope" => created_in_scope(case, env, strategy),
        op if op.starts_with('v') => arithmetic(case, env, strategy),
        other => Err(Failure::schema(format!("unknown operation `{other}`"))),
    }
}

fn options(inputs: &Value) -> Result<VariableOptions, Failure> {
    let on_read = inputs["synchronization"] == "ON_READ";
    Ok(VariableOptions {
        synchronization: synchronization(inputs["synchronization"].as_str().unwrap_or("AUTO"))?,
        // On-read variables are summed if the file names no aggregation.
        aggregation: match inputs["aggregation"].as_str() {
            None if on_read => VariableAggregation::Sum,
            name => aggregation(name.unwrap_or("NONE"))?,
        },
        trainable: inputs["trainable_arg"].as_bool(),
    })
}

/// A list or tensor of the inputs, in the case's type.
fn values(inputs: &Value, key: &str) -> Result<TensorData, Failure> {
    typed(inputs, tensor(inputs.field(key)?)?)
}

fn typed(inputs: &Value, data: TensorData) -> Result<TensorData, Failure> {
    Ok(match inputs["dtype"].as_str() {
        None => data,
        Some("int32") => data.convert_dtype(DType::I32),
        Some("int64") => data.convert_dtype(DType::I64),
        Some("float32") => data.convert_dtype(DType::F32),
        Some("float64") => data.convert_dtype(DType::F64),
        Some(other) => return Err(Failure::schema(format!("dtype {other}"))),
    })
}

/// The initial value; where a case does not record it, what a replica reads from a variable that
/// nothing has changed.
fn initial(case: &Case) -> Result<TensorData, Failure> {
    if case.inputs.get("initial").is_some() {
        return values(&case.inputs, "initial");
    }
    tensor(&expected(case)?.field("read_in_replica")?[0])
}

/// The value that replica `id` assigns.
fn value(inputs: &Value, id: usize) -> Result<TensorData, Failure> {
    let Some(text) = inputs["value"].as_str() else {
        return values(inputs, "value");
    };
    let id = id as f64;
    if let Some(list) = evaluate_list(text, &|name| (name == "replica_id").then_some(id)) {
        let width = list.len();
        return typed(
            inputs,
            TensorData::new(list, [width]).convert_dtype(DType::F32),
        );
    }
    let base = values(inputs, "base")?;
    let element = |base: f64| {
        let names = |name: &str| match name {
            "base" => Some(base),
            "replica_id" => Some(id),
            _ => None,
        };
        evaluate(text, &names).ok_or_else(|| Failure::schema(format!("value `{text}`")))
    };
    let list = base
        .iter::<f64>()
        .map(element)
        .collect::<Result<Vec<_>, _>>()?;
    Ok(TensorData::new(list, base.shape().clone()).convert_dtype(base.dtype()))
}

fn apply<C>(
    variable: &DistributedVariable,
    op: &str,
    context: &C,
    value: impl Leaf,
) -> distribute_core::Result<()>
where
    C: VariableContext + ?Sized,
{
    match op {
        "assign" => variable.assign(context, value),
        "assign_add" => variable.assign_add(context, value),
        "assign_sub" => variable.assign_sub(context, value),
        other => Err(Error::invalid(format!("unknown update `{other}`"))),
    }
}

fn update_case(case: &Case, env: &Env<'_>, strategy: &dyn Strategy) -> Checked {
    let inputs = &case.inputs;
    let variable = match strategy.variable(initial(case)?, options(inputs)?) {
        Ok(variable) => variable,
        Err(error) => return same_error(case, &error),
    };
    let result = match inputs["context"].as_str() {
        None => Ok(()),
        Some("replica") => apply_in_step(case, strategy, &variable),
        Some("cross_replica") => {
            if inputs["value"]
                .as_str()
                .is_some_and(|text| text.starts_with("PerReplica"))
            {
                // A value per replica is no tensor: the compiler refuses it.
                return Ok(if case.expects_value() {
                    Outcome::Deviation(Deviation::NoDriftOutside)
                } else {
                    Outcome::NotApplicable(Rule::CompileError)
                });
            }
            apply(&variable, case.op(), strategy, value(inputs, 0)?)
        }
        Some("merge_call+extended.update") => merge_update(case, strategy, &variable),
        Some(other) => return Err(Failure::schema(format!("context `{other}`"))),
    };
    match result {
        Ok(()) => state(case, env, strategy, &variable),
        Err(error) => refused(case, &variable, &error),
    }
}

/// Every replica's own value, in a step.
fn apply_in_step(
    case: &Case,
    strategy: &dyn Strategy,
    variable: &DistributedVariable,
) -> distribute_core::Result<()> {
    let replicas = strategy.replicas().iter();
    let values = replicas.map(|replica| value(&case.inputs, replica.id));
    let values = PerReplica::new(values.collect::<Result<Vec<_>, _>>()?);
    if strategy.tracer().is_none() {
        let run = strategy.run(values, |ctx, value| apply(variable, case.op(), ctx, value));
        return run.map(drop);
    }
    let given = values.map(|value| {
        (
            DynamicTensor::of(&value, &Device::flex()),
            case.op().to_string(),
        )
    });
    let run = strategy.run(
        given,
        |ctx, (given, op)| with_tensor!(given, value => apply(variable, &op, ctx, value)),
    );
    run.map(drop)
}

/// What every replica reads in a step.
fn read_in_step(
    strategy: &dyn Strategy,
    variable: &DistributedVariable,
) -> distribute_core::Result<Vec<TensorData>> {
    macro_rules! read_of_rank {
        ($($rank:literal)*) => {
            match variable.shape().len().max(1) {
                $($rank => {
                    let read = strategy.run((), |ctx, ()| variable.read_tensor::<$rank>(ctx))?;
                    read.map(Tensor::into_data)
                })*
                rank => return Err(Error::invalid(format!("a variable of rank {rank}"))),
            }
        };
    }
    let found = match strategy.tracer() {
        None => strategy.run((), |ctx, ()| variable.read(ctx))?,
        Some(_) => read_of_rank!(1 2 3 4 5 6),
    };
    Ok(found.into_values())
}

/// An error of the same kind, or the error that the copies would differ.
fn refused(case: &Case, variable: &DistributedVariable, error: &Error) -> Checked {
    let may_drift = variable.kind() == VariableKind::Mirrored && case.strategy.replicas > 1;
    let is_refusal = ErrorKind::of(error) == ErrorKind::NoAggregation;
    if case.expects_value() && may_drift && is_refusal {
        return Ok(Outcome::Deviation(Deviation::NoDrift));
    }
    same_error(case, error)
}

fn merge_update(
    case: &Case,
    strategy: &dyn Strategy,
    variable: &DistributedVariable,
) -> distribute_core::Result<()> {
    let base = values(&case.inputs, "base")?;
    let sign = match case.op() {
        "assign_add" => 1.0,
        "assign_sub" => -1.0,
        _ => 0.0,
    };
    let update = strategy.run((), |ctx, ()| {
        ctx.merge_call((), |values| {
            variable.update(strategy, |copy| {
                if sign == 0.0 {
                    return Ok(base.clone());
                }
                let sums = copy.iter::<f64>().zip(base.iter::<f64>());
                let sums: Vec<f64> = sums.map(|(copy, base)| copy + sign * base).collect();
                Ok(TensorData::new(sums, copy.shape().clone()).convert_dtype(copy.dtype()))
            })?;
            Ok(values)
        })
    });
    update.map(|_| ())
}

/// Compares everything the golden file says about a variable.
fn state(
    case: &Case,
    env: &Env<'_>,
    strategy: &dyn Strategy,
    variable: &DistributedVariable,
) -> Checked {
    let expected = expected(case)?;
    let tolerance = env.tolerance();
    let class = class(variable.kind());
    let texts = [
        ("class", class.to_string()),
        ("aggregation", variable.aggregation().to_string()),
        ("synchronization", variable.synchronization().to_string()),
    ];
    for (key, found) in texts {
        if let Some(wanted) = expected.get(key) {
            equal(wanted, &found.into()).map_err(|failure| failure.at(key))?;
        }
    }
    if let Some(wanted) = expected.get("trainable") {
        equal(wanted, &variable.is_trainable().into())
            .map_err(|failure| failure.at("trainable"))?;
    }
    let locals = tolerance.same_list(expected.field("locals")?, &variable.local_values()?);
    locals.map_err(|failure| failure.at("locals"))?;
    let read = variable.read(strategy);
    match (expected.get("read_cross_replica"), read) {
        (Some(expected), read) => tolerance.same(expected, &read?)?,
        (None, Err(Error::NoCommonValue { .. })) => {}
        (None, other) => {
            return Err(Failure::new(
                "no common value to read",
                format!("{other:?}"),
            ));
        }
    }
    if strategy.tracer().is_some() && !variable.dtype().is_float() {
        // A compiled step reads variables of floats.
        return Ok(Outcome::NotApplicable(Rule::HostInStep));
    }
    let in_replica = read_in_step(strategy, variable)?;
    tolerance.same_list(expected.field("read_in_replica")?, &in_replica)?;
    // What an update returns is what reading in the same context gives afterwards.
    match expected.get("returned") {
        Some(returned @ Value::Array(_)) => tolerance.same_list(returned, &in_replica)?,
        Some(returned) => tolerance.same(returned, &variable.read(strategy)?)?,
        None => {}
    }
    Ok(Outcome::Passed)
}

/// `scatter_add index I += X`.
fn scatter_add(case: &Case, env: &Env<'_>, strategy: &dyn Strategy) -> Checked {
    let numbers = numbers_in(case.op());
    let [index, amount] = numbers[..] else {
        return Err(Failure::schema(case.op()));
    };
    let initial = initial(case)?;
    let rows = initial.shape().first().copied();
    let rows = rows.ok_or_else(|| Failure::schema("`initial` has no rows"))?;
    let index = (0..rows).find(|row| *row as f64 == index);
    let index = index.ok_or_else(|| Failure::schema("the index is out of range"))?;
    let variable = strategy.variable(initial, options(&case.inputs)?)?;
    let amount = TensorData::new(vec![amount], [1]).convert_dtype(variable.dtype());
    let slices = IndexedSlices::new(amount, vec![index], [rows])?;
    match strategy.run((), |ctx, ()| variable.assign_add(ctx, slices.to_dense()?)) {
        Ok(_) => state(case, env, strategy, &variable),
        Err(error) => refused(case, &variable, &error),
    }
}

/// A formula of the variable `v`, in a step and outside.
fn arithmetic(case: &Case, env: &Env<'_>, strategy: &dyn Strategy) -> Checked {
    let variable = strategy.variable(initial(case)?, VariableOptions::default())?;
    let formula = |data: TensorData| -> Result<TensorData, Failure> {
        let element = |v: f64| {
            let value = evaluate(case.op(), &|name| (name == "v").then_some(v));
            value.ok_or_else(|| Failure::schema(case.op()))
        };
        let list = data
            .iter::<f64>()
            .map(element)
            .collect::<Result<Vec<_>, _>>()?;
        Ok(TensorData::new(list, data.shape().clone()).convert_dtype(data.dtype()))
    };
    let found = strategy.run((), |ctx, ()| Ok(formula(variable.read(ctx)?)?))?;
    let expected = expected(case)?;
    env.tolerance()
        .same_list(expected.field("replica")?, found.values())?;
    let outside = formula(variable.read(strategy)?)?;
    passed(
        env.tolerance()
            .same(expected.field("cross_replica")?, &outside),
    )
}

/// A variable without a strategy, changed by every replica in turn.
fn outside(case: &Case, env: &Env<'_>, strategy: &dyn Strategy) -> Checked {
    let initial = initial(case)?;
    let amount = numbers_in(case.op()).first().copied();
    let amount = amount.ok_or_else(|| Failure::schema(case.op()))?;
    let amounts = vec![amount; initial.num_elements()];
    let amount = TensorData::new(amounts, initial.shape().clone()).convert_dtype(initial.dtype());
    let default = DefaultStrategy::new();
    let variable = default.variable(initial, VariableOptions::default())?;
    strategy.run((), |ctx, ()| variable.assign_add(ctx, amount.clone()))?;
    let expected = expected(case)?.field("value_after")?;
    passed(env.tolerance().same(expected, &variable.read(strategy)?))
}

/// Every replica asks for a variable with its id as the initial value.
fn create_inside(case: &Case, env: &Env<'_>, strategy: &dyn Strategy) -> Checked {
    let variable = Mutex::new(None);
    strategy.run((), |ctx, ()| {
        let id = TensorData::new(vec![ctx.replica_id() as f64], Shape::new([]));
        let created = ctx.variable(id.convert_dtype(DType::F32), VariableOptions::default())?;
        *variable.lock().unwrap_or_else(PoisonError::into_inner) = Some(created);
        Ok(())
    })?;
    let variable = variable
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    let variable = variable.ok_or_else(|| Failure::got("no variable"))?;
    let expected = expected(case)?;
    equal(expected.field("class")?, &class(variable.kind()).into())?;
    passed(
        env.tolerance()
            .same_list(expected.field("locals")?, &variable.local_values()?),
    )
}

fn other_scope(case: &Case, env: &Env<'_>, strategy: &dyn Strategy) -> Checked {
    let other = &*env.other_mirrored()?;
    let variable = strategy.variable(initial(case)?, VariableOptions::default())?;
    match variable.assign(other, initial(case)?) {
        Err(error) => same_error(case, &error),
        Ok(()) => Err(Failure::got("the assignment went through")),
    }
}

fn created_in_scope(case: &Case, env: &Env<'_>, strategy: &dyn Strategy) -> Checked {
    let expected = expected(case)?;
    let create = |strategy: &dyn Strategy| strategy.variable(0.0_f32, VariableOptions::default());
    let made = [
        ("mirrored", create(strategy)?),
        ("other_strategy", create(&*env.other_mirrored()?)?),
        ("outside", create(&DefaultStrategy::new())?),
    ];
    for (name, variable) in made {
        let found = variable.was_created_by(strategy);
        equal(expected.field(name)?, &found.into()).map_err(|failure| failure.at(name))?;
    }
    Ok(Outcome::Passed)
}
