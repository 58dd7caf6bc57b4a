//! `properties.json`: strategies' properties, contexts, scopes, placement and partitioners.
//!
//! The properties that a strategy of this library has are compared: the number of replicas, their
//! devices, the placement of variables, and their owner. `experimental_between_graph` and the like
//! are about TensorFlow's graphs.

use std::sync::Arc;

use distribute_core::{
    CentralStorageStrategy, DefaultStrategy, LogicalDevice, MirroredStrategy, OneDeviceStrategy,
    PerReplica, ReduceOp, Strategy, StrategyExt, VariableKind, VariableOptions, VariablePlacement,
    current_strategy, has_strategy, in_step,
};
use distribute_ps::partitioners::{
    FixedShardsPartitioner, MaxSizePartitioner, MinSizePartitioner, Partitioner,
};
use serde_json::{Value, json};

use super::support::{class, expected};
use crate::case::{Case, StrategyKind, StrategySpec};
use crate::compare::equal;
use crate::env::Env;
use crate::error_kind::same_error;
use crate::json::{Fields, count, counts};
use crate::outcome::{Checked, Deviation, Failure, Outcome, Rule, passed};
use crate::tensors::{element_bytes, scalar};

type CoreResult<T> = distribute_core::Result<T>;

pub(super) fn check(case: &Case, env: &Env<'_>) -> Checked {
    match case.op() {
        "MirroredStrategy(devices)" | "OneDeviceStrategy(device)" => construct(case),
        op if op.starts_with("CentralStorageStrategy(") => central(case),
        // A strategy is current in its scope only.
        op if op.starts_with("experimental_set_strategy") => {
            Ok(Outcome::NotApplicable(Rule::Internals))
        }
        "constructing another default strategy" | "deepcopy" => default_handles(case),
        "get_strategy() twice" => default_singleton(case),
        op if op.starts_with("partitioner ") => constructed_partitioner(case),
        op if op.ends_with("Partitioner") => partitions(case),
        _ => of_strategy(case, env),
    }
}

fn of_strategy(case: &Case, env: &Env<'_>) -> Checked {
    let strategy = &*env.strategy(case)?;
    match case.op() {
        "properties" => properties(case, strategy),
        "contexts" => contexts(case, strategy),
        "tf.Variable" => placement(case, strategy),
        "scope in own scope" => {
            let nested = strategy.within(|| strategy.within(|| current_strategy().id()));
            let same = nested.and_then(|inner| inner).map(|id| id == strategy.id());
            same_json(case, same.map(|same| json!(same)))
        }
        op if op.starts_with("scope of another strategy") => {
            let other = one_device(env)?;
            let inner = strategy.within(|| other.within(|| json!("entered")));
            same_json(case, inner.and_then(|inner| inner))
        }
        "run of another strategy inside the scope" => {
            let other = one_device(env)?;
            let inner = strategy.within(|| other.run((), |_, ()| Ok(1.0_f32)));
            same_scalars(case, env, inner.and_then(|inner| inner))
        }
        op if op.starts_with("saved default strategy's scope") => {
            let inner = strategy.within(|| DefaultStrategy::new().within(|| json!("entered")));
            same_json(case, inner.and_then(|inner| inner))
        }
        "scope inside run" => {
            let run = strategy.run((), |_, ()| strategy.within(|| 1.0_f32));
            same_scalars(case, env, run)
        }
        "run inside run" => {
            let run = strategy.run((), |_, ()| {
                strategy.run((), |_, ()| Ok(1.0_f32)).map(|_| ())
            });
            same_json(case, run.map(|_| json!("ran")))
        }
        "get_replica_context() is None inside merge_call" => merge_context(case, strategy),
        "reduce of run output without entering scope" => {
            let run = strategy.run((), |_, ()| Ok(2.0_f32));
            let sum = run.and_then(|values| strategy.reduce(ReduceOp::Sum, values));
            same_scalars(case, env, sum.map(|sum| PerReplica::new(vec![sum])))
        }
        other => Err(Failure::schema(format!("unknown operation `{other}`"))),
    }
}

fn one_device(env: &Env<'_>) -> Result<Arc<dyn Strategy>, Failure> {
    env.strategy_of(StrategySpec {
        kind: StrategyKind::OneDevice,
        replicas: 1,
    })
}

fn same_json(case: &Case, result: CoreResult<Value>) -> Checked {
    match result {
        Ok(found) => passed(equal(expected(case)?, &found)),
        Err(error) => same_error(case, &error),
    }
}

/// One number, or a list with one per replica.
fn same_scalars(case: &Case, env: &Env<'_>, result: CoreResult<PerReplica<f32>>) -> Checked {
    let found = match result {
        Ok(found) => found,
        Err(error) => return same_error(case, &error),
    };
    let expected = expected(case)?;
    for (replica, value) in found.values().iter().enumerate() {
        let wanted = expected
            .get(replica)
            .or_else(|| expected.get(0))
            .unwrap_or(expected);
        env.tolerance().same(wanted, &scalar(*value))?;
    }
    Ok(Outcome::Passed)
}

fn merge_context(case: &Case, strategy: &dyn Strategy) -> Checked {
    let replicas = strategy.replicas().len();
    let seen = strategy.run((), |ctx, ()| {
        ctx.merge_call((), |_| {
            Ok(PerReplica::new(vec![u8::from(!in_step()); replicas]))
        })
    })?;
    let wanted = &expected(case)?[0];
    let outside = seen.values().iter().all(|outside| *outside == 1);
    passed(equal(wanted, &json!(outside)))
}

/// `.../device:CPU:1` or `CPU:1` is `cpu:1` here; no name is the first device.
fn device(name: &Value) -> CoreResult<LogicalDevice> {
    let name = name.as_str().unwrap_or_default().to_ascii_lowercase();
    if name.is_empty() {
        return Ok(LogicalDevice::cpu(0));
    }
    let short = name.rsplit("device:").next().unwrap_or_default();
    short.trim_start_matches('/').parse()
}

fn devices(list: &Value) -> Option<Vec<LogicalDevice>> {
    let list = list.as_array()?.iter();
    list.map(|name| device(name).ok()).collect()
}

fn names(devices: &[LogicalDevice]) -> Value {
    let names = devices.iter().map(ToString::to_string);
    json!(names.collect::<Vec<_>>())
}

fn devices_of(strategy: &dyn Strategy) -> Vec<LogicalDevice> {
    let replicas = strategy.replicas().iter();
    replicas.map(|replica| replica.logical).collect()
}

/// Compares lists of devices; where TensorFlow has an error, nothing.
fn same_devices(wanted: &Value, found: &[LogicalDevice]) -> Result<(), Failure> {
    if wanted.get("error").is_some() {
        return Ok(());
    }
    let wanted = devices(wanted).ok_or_else(|| Failure::new(wanted, names(found)))?;
    equal(&names(&wanted), &names(found))
}

/// All devices of the machine that made the file, numbered from 0: this machine has other ones.
fn all_devices(wanted: &Value, n: &Value) -> Result<(), Failure> {
    let count = count(n).ok_or_else(|| Failure::schema("n"))?;
    let all: Vec<_> = (0..count).map(LogicalDevice::cpu).collect();
    same_devices(wanted, &all)
}

fn properties(case: &Case, strategy: &dyn Strategy) -> Checked {
    let expected = expected(case)?;
    let replicas = json!(strategy.num_replicas_in_sync());
    equal(expected.field("num_replicas_in_sync")?, &replicas)?;
    same_devices(expected.field("worker_devices")?, &devices_of(strategy))?;
    // Variables live on one device, or on all of them.
    let found = match strategy.variable_placement() {
        VariablePlacement::Central => vec![LogicalDevice::cpu(0)],
        _ => devices_of(strategy),
    };
    passed(same_devices(expected.field("parameter_devices")?, &found))
}

fn contexts(case: &Case, strategy: &dyn Strategy) -> Checked {
    let expected = expected(case)?;
    let id = strategy.id();
    let scope = strategy.within(|| {
        json!({
            "has_strategy": has_strategy(),
            "in_cross_replica": has_strategy() && !in_step(),
            "replica_context_is_none": has_strategy() && !in_step(),
            "same": current_strategy().id() == id,
        })
    })?;
    equal(expected.field("scope")?, &scope)?;
    let (flags, numbers) = strategy
        .run((), |ctx, ()| {
            let same = current_strategy().id() == id;
            let flags = [has_strategy(), has_strategy() && !in_step(), same].map(u8::from);
            Ok((flags, (ctx.replica_id(), ctx.num_replicas_in_sync())))
        })?
        .unzip();
    let column = |index: usize| -> Value {
        let flags = flags.values().iter();
        flags.map(|flags| flags[index] == 1).collect()
    };
    let ids: Value = numbers.values().iter().map(|(id, _)| json!(id)).collect();
    let wanted = expected.field("replica")?;
    let found = [
        ("has_strategy", column(0)),
        ("in_cross", column(1)),
        ("same", column(2)),
        ("id", ids),
    ];
    for (key, found) in found {
        equal(wanted.field(key)?, &found).map_err(|failure| failure.at(key))?;
    }
    for (_, replicas) in numbers.values() {
        equal(&wanted.field("n")?[0], &json!(replicas))?;
    }
    passed(same_devices(
        expected.field("devices")?,
        &devices_of(strategy),
    ))
}

fn placement(case: &Case, strategy: &dyn Strategy) -> Checked {
    let expected = expected(case)?;
    let inside = strategy.variable(1.0_f32, VariableOptions::default())?;
    let outside = DefaultStrategy::new().variable(1.0_f32, VariableOptions::default())?;
    let copies = inside.local_values()?.len();
    let wanted_copies = expected.list("inside_devices")?.len();
    let created = json!([
        inside.was_created_by(strategy),
        outside.was_created_by(strategy)
    ]);
    equal(
        expected.field("inside_class")?,
        &json!(class(inside.kind())),
    )?;
    equal(&json!(wanted_copies), &json!(copies))?;
    equal(expected.field("created_in_scope")?, &created)?;
    passed(equal(
        expected.field("outside_class")?,
        &json!(class(VariableKind::Plain)),
    ))
}

fn default_handles(case: &Case) -> Checked {
    let same = DefaultStrategy::new().id() == DefaultStrategy::new().id();
    if case.error_class() == Some("RuntimeError") && same {
        return Ok(Outcome::Deviation(Deviation::DefaultHandles));
    }
    Err(Failure::got(format!("handles of one strategy: {same}")))
}

fn default_singleton(case: &Case) -> Checked {
    let expected = expected(case)?;
    let same = current_strategy().id() == current_strategy().id();
    equal(expected.field("same")?, &json!(same))?;
    equal(expected.field("has_strategy")?, &json!(has_strategy()))?;
    let id = current_strategy().run((), |ctx, ()| Ok(ctx.replica_id()))?;
    passed(equal(expected.field("replica_id")?, &json!(id.values()[0])))
}

fn construct(case: &Case) -> Checked {
    let inputs = &case.inputs;
    let is_one = case.op().starts_with("OneDevice");
    let list = inputs.get("devices").or_else(|| inputs.get("device"));
    let list = list.unwrap_or(&Value::Null);
    if list.is_string() && !is_one {
        return Ok(Outcome::NotApplicable(Rule::PythonType));
    }
    let wanted: CoreResult<Vec<_>> = match list {
        Value::Array(list) => list.iter().map(device).collect(),
        Value::Null => Ok(Vec::new()),
        single => device(single).map(|device| vec![device]),
    };
    let wanted = match wanted {
        Ok(wanted) => wanted,
        // An invalid name, or a device that this build cannot use.
        Err(error) if !case.expects_value() => return same_error(case, &error),
        Err(_) => return Ok(Outcome::Deviation(Deviation::UnknownDevice)),
    };
    let strategy = if is_one {
        let one = wanted
            .first()
            .ok_or_else(|| Failure::schema("no `device`"))?;
        OneDeviceStrategy::new(*one).map(|strategy| strategy.handle())
    } else {
        let builder = MirroredStrategy::builder().devices(wanted.clone());
        builder.build().map(|strategy| strategy.handle())
    };
    match strategy {
        Err(error) => same_error(case, &error),
        Ok(strategy) if wanted.is_empty() => {
            let count = json!(strategy.num_replicas_in_sync());
            all_devices(&names(&devices_of(&*strategy)), &count)?;
            let expected = expected(case)?;
            passed(all_devices(
                expected.field("devices")?,
                expected.field("n")?,
            ))
        }
        Ok(strategy) => {
            let expected = expected(case)?;
            let lists = ["devices", "worker", "params"].map(|key| expected.get(key));
            let lists: Vec<_> = lists.into_iter().flatten().collect();
            if lists.is_empty() {
                return Err(Failure::schema("no list of devices"));
            }
            let found = devices_of(&*strategy);
            let mut lists = lists.into_iter();
            passed(lists.try_for_each(|list| same_devices(list, &found)))
        }
    }
}

/// `CentralStorageStrategy(compute_devices=[CPU:0, ...])`, or without devices.
fn central(case: &Case) -> Checked {
    let named = case.op().matches("CPU:").count();
    let strategy = CentralStorageStrategy::new((0..named).map(LogicalDevice::cpu))?;
    let found = json!(strategy.num_replicas_in_sync());
    let expected = expected(case)?;
    if named == 0 {
        // One replica per core, where TensorFlow has one on a machine without accelerators.
        all_devices(&names(&devices_of(&strategy)), &found)?;
        all_devices(expected.field("worker")?, expected.field("n")?)?;
    } else {
        equal(expected.field("n")?, &found)?;
    }
    let host = [LogicalDevice::cpu(0)];
    passed(same_devices(expected.field("params")?, &host))
}

fn partitioner(name: &str, args: &Value) -> CoreResult<Box<dyn Partitioner>> {
    let argument = |name: &str| count(&args[name]).unwrap_or(0);
    Ok(match name {
        "FixedShardsPartitioner" => Box::new(FixedShardsPartitioner {
            num_shards: argument("num_shards"),
        }),
        "MinSizePartitioner" => Box::new(MinSizePartitioner::new(
            argument("min_shard_bytes"),
            argument("max_shards"),
        )?),
        "MaxSizePartitioner" => Box::new(MaxSizePartitioner::new(
            argument("max_shard_bytes"),
            count(&args["max_shards"]),
        )?),
        other => return Err(Failure::schema(format!("unknown partitioner {other}")).into()),
    })
}

fn partitions(case: &Case) -> Checked {
    /// What TensorFlow counts for a string.
    const STRING_BYTES: usize = 16;
    let inputs = &case.inputs;
    let shape = counts(&inputs["shape"]).ok_or_else(|| Failure::schema("shape"))?;
    let bytes = match inputs.text("dtype")? {
        "string" => STRING_BYTES,
        dtype => element_bytes(dtype)?,
    };
    let partitioner = partitioner(case.op(), &inputs["args"])?;
    match partitioner.partitions(&shape, bytes) {
        Ok(found) => passed(equal(expected(case)?.field("partitions")?, &json!(found))),
        Err(error) => same_error(case, &error),
    }
}

/// Special arguments, which the file names in words.
fn constructed_partitioner(case: &Case) -> Checked {
    let (_, what) = case.op().split_once(' ').unwrap_or_default();
    let made = match what {
        "min_zero" => MinSizePartitioner::new(0, 1).map(|_| json!("constructed")),
        "min_shards_zero" => MinSizePartitioner::new(1, 0).map(|_| json!("constructed")),
        "max_zero" => MaxSizePartitioner::new(0, None).map(|_| json!("constructed")),
        "max_shards_zero" => MaxSizePartitioner::new(1, Some(0)).map(|_| json!("constructed")),
        "fixed_zero" => FixedShardsPartitioner { num_shards: 0 }
            .partitions(&[4, 2], 4)
            .map(|found| json!(found)),
        "fixed_scalar" => FixedShardsPartitioner { num_shards: 2 }
            .partitions(&[], 4)
            .map(|found| json!(found)),
        "min_defaults" => MinSizePartitioner::default()
            .partitions(&[4], 4)
            .map(|found| json!([found])),
        // Bytes per string are an argument of no type here; shapes are always known.
        "min_string" | "unknown_shape" => return Ok(Outcome::NotApplicable(Rule::PythonType)),
        other => return Err(Failure::schema(format!("unknown partitioner `{other}`"))),
    };
    same_json(case, made)
}
