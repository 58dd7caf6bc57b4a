//! Values that the files of several families write in the same way.

use burn::tensor::{Shape, TensorData};
use distribute_core::{
    PerReplica, ReduceOp, VariableAggregation, VariableKind, VariableSynchronization,
};
use serde_json::Value;

use crate::case::Case;
use crate::compare::Tolerance;
use crate::json::Fields;
use crate::outcome::Failure;
use crate::tensors::tensor;

/// The case's reduction; `None` if it is not one that TensorFlow knows either.
pub(crate) fn reduce_op(value: &Value) -> Option<ReduceOp> {
    let text = value.as_str()?.to_ascii_lowercase();
    match text.trim_start_matches("reduceop.") {
        "sum" => Some(ReduceOp::Sum),
        "mean" => Some(ReduceOp::Mean),
        _ => None,
    }
}

/// One tensor per replica; `None` where the file describes the values in words.
pub(crate) fn per_replica(value: &Value) -> Result<Option<PerReplica<TensorData>>, Failure> {
    let Some(list) = value.as_array() else {
        return Ok(None);
    };
    let tensors = list.iter().map(tensor).collect::<Result<_, _>>()?;
    Ok(Some(PerReplica::new(tensors)))
}

/// The value that TensorFlow returned.
pub(crate) fn expected(case: &Case) -> Result<&Value, Failure> {
    case.value().ok_or_else(|| Failure::got("a value"))
}

/// A list of tensors per replica; single tensors are lists of one.
pub(crate) fn lists(case: &Case) -> Result<Vec<Vec<TensorData>>, Failure> {
    let list = |value: &Value| match value {
        Value::Array(list) => list.iter().map(tensor).collect(),
        single => Ok(vec![tensor(single)?]),
    };
    case.inputs.list("values")?.iter().map(list).collect()
}

/// `expect` is `[tensor][device]`, or per device where there is one tensor, or `per_replica`.
pub(crate) fn same_lists(
    tolerance: Tolerance,
    expected: &Value,
    found: &[Vec<TensorData>],
) -> Result<(), Failure> {
    let expected = expected.get("per_replica").unwrap_or(expected);
    let is_nested = expected[0].is_array();
    let tensors = found.first().map_or(0, Vec::len);
    if is_nested && expected.as_array().map(Vec::len) != Some(tensors) {
        return Err(Failure::got(format!("{tensors} tensors")));
    }
    for index in 0..tensors {
        let column: Vec<_> = found.iter().map(|list| list[index].clone()).collect();
        let wanted = if is_nested {
            &expected[index]
        } else {
            expected
        };
        tolerance
            .same_list(wanted, &column)
            .map_err(|failure| failure.at(format!("tensor {index}")))?;
    }
    Ok(())
}

/// Some rows of a tensor.
pub(crate) fn take_rows(data: &TensorData, indices: &[usize]) -> Result<TensorData, Failure> {
    let mut shape = data.shape().to_vec();
    let bytes = data.as_bytes();
    let rows = shape.first().copied().unwrap_or(0);
    let row = bytes.len() / rows.max(1);
    let mut taken = Vec::with_capacity(indices.len() * row);
    for index in indices {
        let bytes = bytes.get(index * row..(index + 1) * row);
        let bytes = bytes.filter(|_| *index < rows);
        taken.extend_from_slice(bytes.ok_or_else(|| Failure::schema(format!("no row {index}")))?);
    }
    match shape.first_mut() {
        Some(first) => *first = indices.len(),
        None => return Err(Failure::schema("a tensor without rows")),
    }
    Ok(TensorData::from_bytes_vec(
        taken,
        Shape::from(shape),
        data.dtype(),
    ))
}

/// When copies of a variable are brought together, by TensorFlow's name.
pub(crate) fn synchronization(name: &str) -> Result<VariableSynchronization, Failure> {
    use VariableSynchronization::{Auto, None, OnRead, OnWrite};
    let mut all = [Auto, OnWrite, OnRead, None].into_iter();
    let found = all.find(|one| one.to_string() == name);
    found.ok_or_else(|| Failure::schema(format!("synchronization {name}")))
}

/// How values of several replicas become one, by TensorFlow's name.
pub(crate) fn aggregation(name: &str) -> Result<VariableAggregation, Failure> {
    use VariableAggregation::{Mean, None, OnlyFirstReplica, Sum};
    let mut all = [None, Sum, Mean, OnlyFirstReplica].into_iter();
    let found = all.find(|one| one.to_string() == name);
    found.ok_or_else(|| Failure::schema(format!("aggregation {name}")))
}

/// TensorFlow's class of a variable.
pub(crate) fn class(kind: VariableKind) -> &'static str {
    match kind {
        VariableKind::Plain => "ResourceVariable",
        VariableKind::Mirrored => "MirroredVariable",
        VariableKind::SyncOnRead => "SyncOnReadVariable",
        VariableKind::Aggregating => "AggregatingVariable",
        _ => "unknown",
    }
}
