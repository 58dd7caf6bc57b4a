//! The cases whose numbers travel between ranks, run on a communicator alone: no strategy, no
//! burn, only buffers.

use std::panic::resume_unwind;

use burn::tensor::{DType, TensorData, bf16, f16};
use distribute_collectives::{Buffer, Communicator, CommunicatorExt, Gathered, ReduceOp};
use serde_json::Value;

use super::support::{expected, lists, reduce_op, same_lists};
use crate::case::{Case, StrategyKind};
use crate::compare::show;
use crate::golden::{FamilyName, GoldenFile};
use crate::group::CommunicatorFactory;
use crate::json::{Fields, counts};
use crate::outcome::{Checked, Failure, Outcome, passed};
use crate::tensors::{reshaped, tensor};

/// Whether a case's values go through the communicator of its `MirroredStrategy`.
pub(crate) fn under_strategy(family: FamilyName, case: &Case) -> bool {
    if case.strategy.kind != StrategyKind::Mirrored || case.strategy.replicas < 2 {
        return false;
    }
    match family {
        FamilyName::Training => true,
        FamilyName::Reduce => case.op().contains("all_reduce"),
        FamilyName::CrossDevice => case.op() == "all_reduce" && !names_ops(case),
        FamilyName::Variables => case.inputs["context"] == "replica",
        _ => false,
    }
}

fn names_ops(case: &Case) -> bool {
    case.inputs["cross_device_ops"]
        .as_str()
        .is_some_and(|name| name != "default")
}

/// Checks a case on a group; `None` if the case is about something else.
pub(crate) fn check(
    family: FamilyName,
    case: &Case,
    file: &GoldenFile,
    factory: &dyn CommunicatorFactory,
) -> Option<Checked> {
    let is_about = matches!(family, FamilyName::Reduce | FamilyName::CrossDevice);
    let is_several = case.strategy.kind == StrategyKind::Mirrored && case.strategy.replicas > 1;
    let has_inputs = case.inputs["values"].is_array() || case.op() == "broadcast";
    if !is_about || !is_several || !has_inputs || is_other_ops(case) {
        return None;
    }
    let expected = case.value()?;
    Some(match case.op() {
        "reduce" if case.inputs["axis"].is_null() => reduce(case, file, factory, Call::Reduce),
        "all_reduce" | "batch_reduce_to" | "reduce_to" => {
            reduce(case, file, factory, Call::AllReduce)
        }
        op if op.starts_with("all_reduce list") => reduce(case, file, factory, Call::AllReduce),
        "gather" | "all_gather" if case.inputs["axis"] == 0 => gather(case, file, factory),
        "broadcast" => broadcast(case, file, expected, factory),
        _ => return None,
    })
}

/// Cases that record NCCL's absence, a destination, or HierarchicalCopy's dropped device.
fn is_other_ops(case: &Case) -> bool {
    let name = case.inputs["cross_device_ops"]
        .as_str()
        .unwrap_or("default");
    let is_odd_hierarchical = name.starts_with("Hierarchical") && case.strategy.replicas % 2 == 1;
    let is_about_ops = name == "NcclAllReduce" || name.contains('(') || is_odd_hierarchical;
    is_about_ops || case.inputs.get("destination").is_some()
}

#[derive(Clone, Copy)]
enum Call {
    AllReduce,
    Reduce,
}

/// Runs a closure on the thread of every rank.
fn on_ranks<T: Send>(
    factory: &dyn CommunicatorFactory,
    inputs: Vec<Vec<TensorData>>,
    call: impl Fn(&mut dyn Communicator, Vec<TensorData>) -> Result<T, Failure> + Sync,
) -> Result<Vec<T>, Failure> {
    let group = factory.group(inputs.len())?;
    if group.len() != inputs.len() {
        let wanted = format!("a group of {} ranks", inputs.len());
        return Err(Failure::new(wanted, format!("{} ranks", group.len())));
    }
    let call = &call;
    std::thread::scope(|threads| {
        let ranks = group.into_iter().zip(inputs).enumerate();
        let running: Vec<_> = ranks
            .map(|(rank, (mut endpoint, input))| {
                threads.spawn(move || {
                    call(&mut *endpoint, input)
                        .map_err(|failure| failure.at(format!("rank {rank} ")))
                })
            })
            .collect();
        let ended = running.into_iter().map(|thread| thread.join());
        let ended: Vec<_> = ended.collect();
        ended
            .into_iter()
            .map(|result| result.unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    })
}

/// The mean of integers is a float, which the caller of the communicator converts.
fn mean_input(op: ReduceOp, data: TensorData) -> TensorData {
    match data.dtype() {
        DType::U8 if op == ReduceOp::Mean => data.convert_dtype(DType::F32),
        dtype if op == ReduceOp::Mean && !dtype.is_float() => data.convert_dtype(DType::F64),
        _ => data,
    }
}

fn reduce(
    case: &Case,
    file: &GoldenFile,
    factory: &dyn CommunicatorFactory,
    call: Call,
) -> Checked {
    let op = reduce_op(&case.inputs["reduce_op"]).unwrap_or(ReduceOp::Sum);
    let lists = lists(case)?.into_iter();
    let inputs = lists.map(|list| list.into_iter().map(|data| mean_input(op, data)).collect());
    let found = on_ranks(factory, inputs.collect(), |group, mut tensors| {
        let mut buffers = tensors
            .iter_mut()
            .map(buffer)
            .collect::<Result<Vec<_>, _>>()?;
        match call {
            Call::AllReduce => group.all_reduce_by_type(op, &mut buffers)?,
            Call::Reduce => {
                group.reduce(op, 0, &mut buffers)?;
                group.broadcast(0, &mut buffers)?;
            }
        }
        drop(buffers);
        Ok(tensors)
    })?;
    let expected = expected(case)?;
    if matches!(call, Call::Reduce) {
        for list in &found {
            file.tolerance.same(expected, &list[0])?;
        }
        return Ok(Outcome::Passed);
    }
    passed(same_lists(file.tolerance, expected, &found))
}

/// Concatenating along the first axis is what `all_gather` does with the elements.
fn gather(case: &Case, file: &GoldenFile, factory: &dyn CommunicatorFactory) -> Checked {
    let expected = expected(case)?;
    let found = on_ranks(factory, lists(case)?, |group, tensors| {
        macro_rules! gathered {
            ($($variant:ident $type:ty),*) => {
                match tensors[0].dtype() {
                    $(DType::$variant => {
                        let mine = tensors[0].as_slice::<$type>().map_err(unreadable)?;
                        let all: Gathered<$type> = group.all_gather(mine)?;
                        let count = all.values().len();
                        Ok(TensorData::new(all.into_values(), [count]))
                    })*
                    other => Err(unreadable(format!("{other:?}"))),
                }
            };
        }
        gathered!(F32 f32, F64 f64, F16 f16, BF16 bf16, I32 i32, I64 i64, U8 u8)
    })?;
    let all = expected.get("per_replica");
    for (rank, flat) in found.iter().enumerate() {
        let wanted = all.map_or(expected, |list| &list[rank]);
        let shape = counts(&wanted["shape"]).ok_or_else(|| Failure::schema("shape"))?;
        if shape.iter().product::<usize>() != flat.num_elements() {
            return Err(Failure::got(show(flat)));
        }
        file.tolerance.same(wanted, &reshaped(flat, &shape))?;
    }
    Ok(Outcome::Passed)
}

fn broadcast(
    case: &Case,
    file: &GoldenFile,
    expected: &Value,
    factory: &dyn CommunicatorFactory,
) -> Checked {
    let value = tensor(case.inputs.field("value")?)?;
    let zeros = TensorData::full_dtype(value.shape().clone(), 0.0, value.dtype());
    let mut inputs = vec![vec![zeros]; case.strategy.replicas];
    inputs[0] = vec![value];
    let found = on_ranks(factory, inputs, |group, mut tensors| {
        group.broadcast(0, &mut [buffer(&mut tensors[0])?])?;
        Ok(tensors.swap_remove(0))
    })?;
    passed(file.tolerance.same_list(expected, &found))
}

fn unreadable(error: impl std::fmt::Debug) -> Failure {
    Failure::schema(format!(
        "elements of a type that no communicator has: {error:?}"
    ))
}

/// A view that communicators work on.
fn buffer(data: &mut TensorData) -> Result<Buffer<'_>, Failure> {
    match data.dtype() {
        DType::F32 => data.as_mut_slice::<f32>().map(Buffer::F32),
        DType::F64 => data.as_mut_slice::<f64>().map(Buffer::F64),
        DType::F16 => data.as_mut_slice::<f16>().map(Buffer::F16),
        DType::BF16 => data.as_mut_slice::<bf16>().map(Buffer::BF16),
        DType::I32 => data.as_mut_slice::<i32>().map(Buffer::I32),
        DType::I64 => data.as_mut_slice::<i64>().map(Buffer::I64),
        DType::U8 => data.as_mut_slice::<u8>().map(Buffer::U8),
        other => return Err(unreadable(other)),
    }
    .map_err(unreadable)
}
