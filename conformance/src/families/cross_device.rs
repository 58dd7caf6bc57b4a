//! `cross_device.json`: cross-device ops, packing and communication options.

use std::sync::Arc;
use std::time::Duration;

use distribute_collectives::{Buffer, CollectiveError, Communicator};
use distribute_core::communication::pack::{concat_and_split, group_by_size};
use distribute_core::{
    CommunicationImplementation, CommunicationOptions, CrossDeviceOps, DirectAllReduce,
    HierarchicalCopy, PerReplica, ReduceOp, ReductionToOneDevice, StrategyExt, TensorData,
};
use serde_json::{Value, json};

use super::support::compiled::{all_reduce_lists, broadcast as broadcast_first};
use super::support::{expected, lists, per_replica, reduce_op, same_lists};
use crate::case::Case;
use crate::compare::equal;
use crate::env::Env;
use crate::error_kind::same_error;
use crate::json::{Fields, count, counts};
use crate::outcome::{Checked, Deviation, Failure, Outcome, Rule, passed};
use crate::tensors::{element_bytes, tensor};

pub(super) fn check(case: &Case, env: &Env<'_>) -> Checked {
    match case.op() {
        "batch_reduce_to" | "reduce_to" | "all_reduce" => reduce(case, env),
        op if op.starts_with("all_reduce list") => reduce(case, env),
        "gather" => gather(case, env),
        "broadcast" => broadcast(case, env),
        "concat_and_split" => split(case),
        "group_by_size" => group(case),
        "CommunicationOptions" => match options(&case.inputs["args"]) {
            Some(options) => same_options(case, options),
            None => Ok(Outcome::NotApplicable(Rule::PythonType)),
        },
        "merge" => merge(case),
        "packer_zero" => match concat_and_split(1, 0) {
            Err(error) => same_text(case, &error),
            Ok(found) => Err(Failure::got(format!("{found:?}"))),
        },
        // Counts are unsigned, groups hold all replicas, ops are of a type.
        "nccl_negative" | "hier_negative" | "collective_group_size" => {
            Ok(Outcome::NotApplicable(Rule::CompileError))
        }
        op if op.starts_with("MirroredStrategy(cross_device_ops=") => {
            Ok(Outcome::NotApplicable(Rule::PythonType))
        }
        other => Err(Failure::schema(format!("unknown operation `{other}`"))),
    }
}

/// The cross-device ops that a case names, or why it does not apply.
fn ops(case: &Case) -> Result<Result<Arc<dyn CrossDeviceOps>, Rule>, Failure> {
    let name = case.inputs["cross_device_ops"]
        .as_str()
        .unwrap_or("default");
    if case.inputs.get("destination").is_some() || name.contains('(') {
        return Ok(Err(Rule::NoDestination));
    }
    Ok(Ok(match name {
        "default" => match options(&case.inputs["options"]) {
            Some(options) if case.inputs.get("options").is_some() => Arc::new(Batched(options?)),
            _ => Arc::new(DirectAllReduce),
        },
        "ReductionToOneDevice" => Arc::new(ReductionToOneDevice::default()),
        "HierarchicalCopyAllReduce" => Arc::new(HierarchicalCopy {
            num_packs: count(&case.inputs["num_packs"]).unwrap_or(1),
        }),
        // Where TensorFlow fell back to something else, the result must be the same.
        "NcclAllReduce" if case.expects_value() => Arc::new(DirectAllReduce),
        "NcclAllReduce" => return Ok(Err(Rule::Nccl)),
        other => return Err(Failure::schema(format!("cross-device ops {other}"))),
    }))
}

/// The group's all-reduce in packs, as `CommunicationOptions` ask for.
#[derive(Debug)]
struct Batched(CommunicationOptions);

impl CrossDeviceOps for Batched {
    fn name(&self) -> &str {
        "direct, in packs"
    }

    fn all_reduce(
        &self,
        communicator: &mut dyn Communicator,
        op: ReduceOp,
        buffers: &mut [Buffer<'_>],
    ) -> distribute_core::Result<()> {
        Ok(self.0.batch_all_reduce(communicator, op, buffers)?)
    }
}

fn reduce(case: &Case, env: &Env<'_>) -> Checked {
    let ops = match ops(case)? {
        Ok(ops) => ops,
        Err(rule) => return Ok(Outcome::NotApplicable(rule)),
    };
    let is_hierarchical = ops.name() == HierarchicalCopy::default().name();
    let op = reduce_op(&case.inputs["reduce_op"]).unwrap_or(ReduceOp::Sum);
    let strategy = env.strategy_with(case, ops)?;
    let lists = PerReplica::new(lists(case)?);
    let found = match all_reduce_lists(&*strategy, op, lists.clone()) {
        Ok(found) => found.into_values(),
        Err(error) => return same_error(case, &error),
    };
    let is_odd = found.len() % 2 == 1 && found.len() > 1;
    match same_lists(env.tolerance(), expected(case)?, &found) {
        Err(failure) if is_hierarchical && is_odd => {
            // TensorFlow must have returned the result without the last replica, ...
            let incomplete = strategy.reduce(op, without_last(&lists))?;
            let incomplete = vec![incomplete; found.len()];
            same_lists(env.tolerance(), expected(case)?, &incomplete).map_err(|_| failure)?;
            // ... and this library the result of all replicas.
            let complete = strategy.reduce(op, lists)?;
            for (wanted, found) in found.iter().flat_map(|list| complete.iter().zip(list)) {
                env.tolerance().same_data(wanted, found)?;
            }
            Ok(Outcome::Deviation(Deviation::OddHierarchical))
        }
        result => passed(result),
    }
}

/// The same with zeros on the last replica.
fn without_last(lists: &PerReplica<Vec<TensorData>>) -> PerReplica<Vec<TensorData>> {
    let mut lists = lists.values().to_vec();
    for data in lists.last_mut().into_iter().flatten() {
        *data = TensorData::zeros::<f32, _>(data.shape().clone()).convert_dtype(data.dtype());
    }
    PerReplica::new(lists)
}

fn gather(case: &Case, env: &Env<'_>) -> Checked {
    let ops = match ops(case)? {
        Ok(ops) => ops,
        Err(rule) => return Ok(Outcome::NotApplicable(rule)),
    };
    let axis = case.inputs["axis"]
        .as_i64()
        .ok_or_else(|| Failure::schema("axis"))?;
    let values = per_replica(&case.inputs["values"])?.ok_or_else(|| Failure::schema("values"))?;
    let strategy = env.strategy_with(case, ops)?;
    match strategy.gather(values, axis) {
        Ok(found) => passed(env.tolerance().same(expected(case)?, &found)),
        Err(error) => same_error(case, &error),
    }
}

fn broadcast(case: &Case, env: &Env<'_>) -> Checked {
    let ops = match ops(case)? {
        Ok(ops) => ops,
        Err(rule) => return Ok(Outcome::NotApplicable(rule)),
    };
    let strategy = env.strategy_with(case, ops)?;
    let value = tensor(case.inputs.field("value")?)?;
    // Only replica 0 has the value.
    let own = (0..strategy.num_replicas_in_sync()).map(|id| match id {
        0 => value.clone(),
        _ => TensorData::full_dtype(value.shape().clone(), 0.0, value.dtype()),
    });
    let found = broadcast_first(&*strategy, PerReplica::new(own.collect()))?;
    passed(env.tolerance().same_list(expected(case)?, found.values()))
}

/// Packs of the concatenation of tensors whose elements are `100 * tensor + index`.
fn split(case: &Case) -> Checked {
    let sizes = counts(&case.inputs["element_counts"]);
    let sizes = sizes.ok_or_else(|| Failure::schema("element_counts"))?;
    let elements = sizes
        .iter()
        .enumerate()
        .flat_map(|(tensor, size)| (0..*size).map(move |index| (100 * tensor + index) as f64));
    let elements: Vec<f64> = elements.collect();
    let packs = match concat_and_split(elements.len(), case.inputs.count("num_packs")?) {
        Ok(packs) => packs,
        Err(error) => return same_text(case, &error),
    };
    let mut start = 0;
    let mut firsts = Vec::new();
    for size in &packs {
        firsts.push((*size > 0).then(|| elements[start]));
        start += size;
    }
    let expected = expected(case)?;
    equal(expected.field("pack_sizes")?, &json!(packs))?;
    passed(equal(expected.field("first_of_each")?, &json!(firsts)))
}

fn group(case: &Case) -> Checked {
    let mut sizes_bytes = Vec::new();
    for tensor in case.inputs.list("tensors")? {
        let shape = counts(&tensor["shape"]).ok_or_else(|| Failure::schema("shape"))?;
        let elements: usize = shape.iter().product();
        sizes_bytes.push(elements * element_bytes(tensor.text("dtype")?)?);
    }
    let packs = group_by_size(&sizes_bytes, case.inputs.count("bytes_per_pack")?);
    passed(equal(expected(case)?.field("packs")?, &json!(packs)))
}

/// The options that arguments make, or the library's error.
type Options = Result<CommunicationOptions, CollectiveError>;

/// The options that a case's arguments make; `None` for an argument of a wrong Python type.
fn options(args: &Value) -> Option<Options> {
    let implementation = match &args["implementation"] {
        Value::Null => Ok(CommunicationImplementation::Auto),
        Value::String(name) => name.parse(),
        _ => return None,
    };
    let timeout = args["timeout_seconds"]
        .as_f64()
        .map(Duration::from_secs_f64);
    let bytes = args["bytes_per_pack"].as_i64().unwrap_or(0);
    Some(implementation.and_then(|chosen| CommunicationOptions::new(bytes, timeout, chosen)))
}

fn same_options(case: &Case, options: Options) -> Checked {
    let options = match options {
        Ok(options) => options,
        Err(error) => return same_text(case, &error),
    };
    let expected = expected(case)?;
    let found = [
        ("bytes_per_pack", json!(options.bytes_per_pack)),
        ("implementation", json!(options.implementation.to_string())),
    ];
    for (key, found) in found {
        equal(expected.field(key)?, &found).map_err(|failure| failure.at(key))?;
    }
    // Python writes a whole number of seconds as 3 or 3.0, depending on its type.
    let printed = |text: &str| text.replace(".0,", ",");
    let (wanted, found) = (
        printed(expected.text("str")?),
        printed(&options.to_string()),
    );
    equal(&wanted.into(), &found.into())?;
    let timeout = options.timeout.map(|timeout| timeout.as_secs_f64());
    let wanted = expected.field("timeout_seconds")?.as_f64();
    passed(equal(&json!(wanted), &json!(timeout)))
}

fn merge(case: &Case) -> Checked {
    let base = options(&case.inputs["base"]);
    // Without other options nothing changes.
    let other = options(&case.inputs["other"]);
    match (base, other) {
        (Some(base), Some(other)) => same_options(
            case,
            base.and_then(|base| other.map(|other| base.merge(&other))),
        ),
        _ => Ok(Outcome::NotApplicable(Rule::PythonType)),
    }
}

/// The collectives' errors about options begin with TensorFlow's words.
fn same_text(case: &Case, error: &CollectiveError) -> Checked {
    let CollectiveError::InvalidOption { what } = error else {
        return Err(error.clone().into());
    };
    match case.error_message() {
        Some(message) if !message.is_empty() && what.starts_with(message.trim_end_matches('.')) => {
            Ok(Outcome::Passed)
        }
        _ => Err(Failure::got(what)),
    }
}
