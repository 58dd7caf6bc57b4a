//! Operations between replicas: this project's own, by their names, and burn's all-reduce.

use burn::tensor::DType;
use distribute_core::burn_internals::backend::distributed::ReduceOperation;
use distribute_core::burn_internals::ir::{AllReduceOpIr, CustomOpIr, TensorIr};
use distribute_core::collectives::{OperationKind, ReduceOp};

use crate::stablehlo::{Binary, Comparison, ElementType, Value};

use super::collective_call::CollectiveCall;
use super::context::Context;
use super::error::{Result, unsupported};
use super::options::Target;
use super::types::element_type;

/// The custom operations that have a lowering: any number of tensors, each combined over all
/// replicas, and the number of the replica.
pub(super) const CUSTOM: [(&str, &str); 7] = [
    (
        ALL_REDUCE_SUM,
        "the sum over all replicas, of several tensors at once",
    ),
    (
        ALL_REDUCE_MEAN,
        "the mean over all replicas, of several tensors at once",
    ),
    (
        ALL_REDUCE_MAX,
        "the largest over all replicas, of several tensors at once",
    ),
    (
        ALL_REDUCE_MIN,
        "the smallest over all replicas, of several tensors at once",
    ),
    (
        ALL_REDUCE_PROD,
        "the product over all replicas, of several tensors at once",
    ),
    (
        ALL_GATHER,
        "a tensor of all replicas, concatenated along one dimension",
    ),
    (REPLICA_ID, "the number of this replica"),
];

/// Id of the custom operation whose outputs are its inputs summed over all replicas.
pub const ALL_REDUCE_SUM: &str = "distribute.all_reduce_sum";
/// Id of the custom operation whose outputs are the means of its inputs over all replicas.
pub const ALL_REDUCE_MEAN: &str = "distribute.all_reduce_mean";
/// Id of the custom operation whose outputs are the largest of its inputs over all replicas.
pub const ALL_REDUCE_MAX: &str = "distribute.all_reduce_max";
/// Id of the custom operation whose outputs are the smallest of its inputs over all replicas.
pub const ALL_REDUCE_MIN: &str = "distribute.all_reduce_min";
/// Id of the custom operation whose output holds its input of all replicas, one after the other
/// along the one dimension in which the shapes differ.
pub const ALL_GATHER: &str = "distribute.all_gather";
/// Id of the custom operation whose outputs are the products of its inputs over all replicas.
pub const ALL_REDUCE_PROD: &str = "distribute.all_reduce_prod";
/// Id of the custom operation without inputs whose output is the number of the replica, an integer
/// of one element.
pub const REPLICA_ID: &str = "distribute.replica_id";

pub(super) fn custom(cx: &mut Context, op: &CustomOpIr) -> Result<()> {
    match op.id.as_str() {
        ALL_REDUCE_SUM => all_reduce(cx, &op.inputs, &op.outputs, Binary::Add, false),
        ALL_REDUCE_MEAN => all_reduce(cx, &op.inputs, &op.outputs, Binary::Add, true),
        ALL_REDUCE_MAX => all_reduce(cx, &op.inputs, &op.outputs, Binary::Maximum, false),
        ALL_REDUCE_MIN => all_reduce(cx, &op.inputs, &op.outputs, Binary::Minimum, false),
        ALL_GATHER => all_gather(cx, &op.inputs, &op.outputs),
        ALL_REDUCE_PROD => all_reduce(cx, &op.inputs, &op.outputs, Binary::Multiply, false),
        REPLICA_ID => replica_id(cx, &op.outputs),
        _ => unsupported("it is a custom operation of another crate"),
    }
}

/// burn's own all-reduce, over all replicas whatever devices it names.
pub(super) fn distributed(cx: &mut Context, op: &AllReduceOpIr) -> Result<()> {
    let mean = op.op == ReduceOperation::Mean;
    let inputs = std::slice::from_ref(&op.tensor);
    all_reduce(cx, inputs, std::slice::from_ref(&op.out), Binary::Add, mean)
}

/// One all-reduce per element type; on a TPU one per tensor.
fn all_reduce(
    cx: &mut Context,
    inputs: &[TensorIr],
    outputs: &[TensorIr],
    op: Binary,
    mean: bool,
) -> Result<()> {
    if inputs.len() != outputs.len() {
        return unsupported("an all-reduce needs as many outputs as inputs");
    }
    let reduction = match op {
        Binary::Maximum => ReduceOp::Max,
        Binary::Minimum => ReduceOp::Min,
        Binary::Multiply => ReduceOp::Prod,
        _ if mean => ReduceOp::Mean,
        _ => ReduceOp::Sum,
    };
    let number = cx.collectives.len();
    let call = CollectiveCall::new(number, OperationKind::AllReduce, Some(reduction), inputs);
    cx.collectives.push(call);
    let mut left: Vec<usize> = (0..inputs.len()).collect();
    while let Some(first) = left.first() {
        let dtype = inputs[*first].dtype;
        let (group, rest) = left.into_iter().partition(|i| inputs[*i].dtype == dtype);
        left = rest;
        all_reduce_group(cx, inputs, outputs, &group, dtype, op, mean)?;
    }
    Ok(())
}

fn all_reduce_group(
    cx: &mut Context,
    inputs: &[TensorIr],
    outputs: &[TensorIr],
    group: &[usize],
    dtype: DType,
    op: Binary,
    mean: bool,
) -> Result<()> {
    if element_type(dtype)? == ElementType::I1 {
        return unsupported("truth values cannot be reduced: convert them to numbers first");
    }
    let mut values: Vec<Value> = Vec::with_capacity(group.len());
    for i in group {
        values.push(cx.get(&inputs[*i])?);
    }
    let replicas = cx.builder.num_replicas();
    // The TPU's compiler joins several into one. It gives the operands of one that is joined
    // already the layout of what computes them, and copies them and the whole state into other
    // layouts.
    let at_once = match cx.target {
        Target::Tpu => 1,
        Target::Any => values.len(),
    };
    let mut reduced = Vec::with_capacity(values.len());
    for values in values.chunks(at_once) {
        reduced.extend(match op {
            Binary::Maximum | Binary::Minimum => with_nans(cx, op, values)?,
            _ => cx.builder.all_reduce(op, values)?,
        });
        cx.all_reduces += 1;
    }
    for (i, mut value) in group.iter().zip(reduced) {
        if mean && replicas > 1 {
            value = cx.with_number(Binary::Divide, &value, replicas as f64)?;
        }
        cx.set(&outputs[*i], value)?;
    }
    Ok(())
}

fn all_gather(cx: &mut Context, inputs: &[TensorIr], outputs: &[TensorIr]) -> Result<()> {
    let ([input], [output]) = (inputs, outputs) else {
        return unsupported("an all-gather has one input and one output");
    };
    let number = cx.collectives.len();
    let call = CollectiveCall::new(number, OperationKind::AllGather, None, inputs);
    cx.collectives.push(call);
    let value = cx.get(input)?;
    let (from, to) = (value.dims().to_vec(), output.shape.to_vec());
    let mut differing = (0..from.len()).filter(|axis| from.get(*axis) != to.get(*axis));
    let Some(axis) = differing.next() else {
        return cx.set(output, value);
    };
    let gathered = cx.builder.all_gather(&value, axis)?;
    cx.set(output, gathered)
}

/// The extremes over all replicas, NaN where one of them has it: XLA's CPU client leaves NaN out,
/// so where there is one is reduced with the numbers.
fn with_nans(cx: &mut Context, op: Binary, values: &[Value]) -> Result<Vec<Value>> {
    if !values.iter().all(|value| value.element().is_float()) {
        return Ok(cx.builder.all_reduce(op, values)?);
    }
    let mark = if op == Binary::Maximum { 1.0 } else { -1.0 };
    let mut operands = values.to_vec();
    for value in values {
        let nan = cx.is_nan(value)?;
        let (mark, none) = (cx.number_like(mark, value), cx.number_like(0.0, value));
        operands.push(cx.builder.select(&nan, &mark, &none)?);
    }
    let mut reduced = cx.builder.all_reduce(op, &operands)?;
    let marks = reduced.split_off(values.len());
    let mut results = Vec::with_capacity(values.len());
    for (value, mark) in reduced.iter().zip(&marks) {
        let (nan, zero) = (cx.number_like(f64::NAN, value), cx.number_like(0.0, mark));
        let marked = cx.builder.compare(Comparison::Ne, mark, &zero)?;
        results.push(cx.builder.select(&marked, &nan, value)?);
    }
    Ok(results)
}

fn replica_id(cx: &mut Context, outputs: &[TensorIr]) -> Result<()> {
    let [out] = outputs else {
        return unsupported("the number of the replica is one output");
    };
    let id = cx.builder.replica_id();
    let id = cx.builder.convert(&id, element_type(out.dtype)?);
    cx.set_reshaped(out, &id)
}
