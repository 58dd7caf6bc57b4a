//! Walking the graph: which operations are needed, in which order, and what went wrong where.

use std::collections::{BTreeMap, HashMap, HashSet};

use burn::tensor::CapturedGraph;
use distribute_core::burn_internals::ir::{BaseOperationIr, OperationIr, TensorId};

use crate::stablehlo::{Binary, Builder, ElementType, Program, StableHloError, TensorType, Value};

use super::collective_call::CollectiveCall;
use super::context::Context;
use super::error::{Failure, LowerError};
use super::options::{GraphInput, LowerOptions, RandomKey, Target};
use super::table::{lower_operation, operation_name};
use super::types::{data_type, tensor_type};

/// A lowered graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lowered {
    /// The program. Its inputs are the declared ones in their order, then the key, if it is a
    /// parameter; its outputs are the declared ones in their order.
    pub program: Program,
    /// Position of the input that is the key of random operations, if it is a parameter.
    pub random_key_input: Option<usize>,
    /// How many operations of the graph are in the program. Operations that no output needs are
    /// left out.
    pub operations: usize,
    /// Bytes of recorded values that are constants of the program.
    pub constant_bytes: usize,
    /// How many all-reduce operations the program has.
    pub all_reduces: usize,
    /// The operations between the replicas, in their order.
    pub collectives: Vec<CollectiveCall>,
}

/// Lowers the part of a captured graph that computes `outputs` from `inputs`. Tensors that were
/// recorded with a value and are no inputs become constants.
///
/// # Errors
/// [`LowerError`]: an operation is not covered, a tensor is unknown, or a donation does not fit.
pub fn lower(
    graph: &CapturedGraph,
    inputs: &[GraphInput],
    outputs: &[TensorId],
    options: &LowerOptions,
) -> Result<Lowered, LowerError> {
    let operations = &graph.graph.operations;
    check_inputs(operations, inputs)?;
    let mut builder = Builder::new(&options.name, options.num_replicas);
    builder.set_precision(options.precision);
    let mut cx = Context::new(builder, &graph.values, options.target);
    let types = input_types(graph, inputs)?;
    let needed = needed(operations, inputs, outputs);
    for (input, ty) in inputs.iter().zip(types) {
        let donated_to = donation(input, outputs)?;
        let is_sent = options.target == Target::Tpu && options.host_inputs.contains(&input.tensor);
        if is_sent && donated_to.is_none() {
            let read = || needed.iter().map(|position| &operations[*position]);
            let dims = read_dims(&read, input.tensor, ty.dims());
            let value = cx.builder.input(TensorType::new(dims, ty.element()), None);
            cx.define_in_other_dims(input.tensor, value, ty.dims());
            continue;
        }
        let value = cx.builder.input(ty, donated_to);
        match donated_to {
            Some(_) => cx.define_donated(input.tensor, value),
            None => cx.define(input.tensor, value),
        }
    }
    let random = |position: &&usize| is_random(&operations[**position]);
    cx.random_positions = needed.iter().filter(random).copied().collect();
    let random_key_input = random_key(&mut cx, inputs, options.random_key)?;
    let number = options.checks_program_identity.then(|| {
        let ty = TensorType::new([1, 2], ElementType::U32);
        cx.builder.input(ty, None)
    });
    for position in &needed {
        let op = &operations[*position];
        cx.position = *position;
        lower_operation(&mut cx, op)
            .map_err(|failure| located(failure, operations, *position, &options.names))?;
    }
    let mut results = Vec::with_capacity(outputs.len());
    for output in outputs {
        let value = cx.by_id(*output).map_err(|_| LowerError::UnknownBoundary {
            boundary: "output",
            tensor: *output,
        })?;
        results.push(value);
    }
    if let Some(number) = number {
        results.push(cx.builder.all_gather(&number, 0)?);
    }
    Ok(Lowered {
        operations: needed.len(),
        collectives: cx.collectives,
        constant_bytes: cx.constant_bytes,
        all_reduces: cx.all_reduces,
        random_key_input,
        program: cx.builder.finish(&results)?,
    })
}

fn check_inputs(operations: &[OperationIr], inputs: &[GraphInput]) -> Result<(), LowerError> {
    let mut seen = HashSet::new();
    let computed: HashSet<TensorId> = operations
        .iter()
        .filter(|op| !matches!(op, OperationIr::Init(_)))
        .flat_map(|op| op.outputs().map(|tensor| tensor.id))
        .collect();
    for input in inputs {
        let problem = match (seen.insert(input.tensor), computed.contains(&input.tensor)) {
            (false, _) => "is declared twice",
            (_, true) => "is computed by the step itself",
            _ => continue,
        };
        return Err(LowerError::InvalidInput {
            tensor: input.tensor,
            problem: problem.into(),
        });
    }
    Ok(())
}

fn donation(input: &GraphInput, outputs: &[TensorId]) -> Result<Option<usize>, LowerError> {
    let Some(wanted) = input.donated_to else {
        return Ok(None);
    };
    match outputs.iter().position(|output| *output == wanted) {
        Some(position) => Ok(Some(position)),
        None => Err(LowerError::InvalidInput {
            tensor: input.tensor,
            problem: format!("is donated to {wanted}, which is no output"),
        }),
    }
}

/// The types of the inputs, from their recorded values or from the operations that read them.
fn input_types(
    graph: &CapturedGraph,
    inputs: &[GraphInput],
) -> Result<Vec<TensorType>, LowerError> {
    let mut types = HashMap::new();
    for tensor in graph.graph.operations.iter().flat_map(OperationIr::nodes) {
        types.entry(tensor.id).or_insert(tensor);
    }
    let find = |id: TensorId| match (graph.values.get(&id), types.get(&id)) {
        (Some(data), _) => data_type(data).ok(),
        (None, Some(tensor)) => tensor_type(tensor).ok(),
        (None, None) => None,
    };
    inputs
        .iter()
        .map(|input| {
            find(input.tensor).ok_or(LowerError::UnknownBoundary {
                boundary: "input",
                tensor: input.tensor,
            })
        })
        .collect()
}

/// The dimensions in which a step reads a tensor: those to which all operations that read it
/// reshape it, in one step or several, or else its own.
fn read_dims<'a, I: Iterator<Item = &'a OperationIr>>(
    operations: &dyn Fn() -> I,
    tensor: TensorId,
    dims: &[usize],
) -> Vec<usize> {
    let readers = operations().filter(|op| op.inputs().any(|input| input.id == tensor));
    let mut found: Option<Vec<usize>> = None;
    for reader in readers {
        let (OperationIr::BaseFloat(BaseOperationIr::Reshape(reshape))
        | OperationIr::BaseInt(BaseOperationIr::Reshape(reshape))
        | OperationIr::BaseBool(BaseOperationIr::Reshape(reshape))) = reader
        else {
            return dims.to_vec();
        };
        let read = read_dims(operations, reshape.out.id, &reshape.out.shape);
        if found.get_or_insert_with(|| read.clone()) != &read {
            return dims.to_vec();
        }
    }
    found.unwrap_or_else(|| dims.to_vec())
}

/// Positions of the operations that an output needs, in order.
fn needed(operations: &[OperationIr], inputs: &[GraphInput], outputs: &[TensorId]) -> Vec<usize> {
    let given: HashSet<TensorId> = inputs.iter().map(|input| input.tensor).collect();
    let mut wanted: HashSet<TensorId> = outputs.iter().copied().collect();
    let mut positions = Vec::new();
    for (position, op) in operations.iter().enumerate().rev() {
        if matches!(op, OperationIr::Init(_) | OperationIr::Drop(_)) {
            continue;
        }
        if op.outputs().any(|out| wanted.contains(&out.id)) {
            let read = op.inputs().map(|tensor| tensor.id);
            wanted.extend(read.filter(|id| !given.contains(id)));
            positions.push(position);
        }
    }
    positions.reverse();
    positions
}

fn is_random(op: &OperationIr) -> bool {
    use distribute_core::burn_internals::ir::{FloatOperationIr, NumericOperationIr};
    matches!(
        op,
        OperationIr::Float(_, FloatOperationIr::Random(_))
            | OperationIr::NumericInt(_, NumericOperationIr::IntRandom(_))
    )
}

/// Makes the key of random operations two scalars. A parameter is there even if no operation is
/// random, so that the caller need not know.
fn random_key(
    cx: &mut Context,
    inputs: &[GraphInput],
    key: RandomKey,
) -> Result<Option<usize>, LowerError> {
    let (value, position) = match key {
        RandomKey::None => return Ok(None),
        RandomKey::Parameter => {
            let ty = TensorType::new([2], ElementType::U32);
            (cx.builder.input(ty, None), Some(inputs.len()))
        }
        RandomKey::Input(tensor) => {
            let unknown = |_| LowerError::UnknownBoundary {
                boundary: "input",
                tensor,
            };
            (cx.by_id(tensor).map_err(unknown)?, None)
        }
    };
    if !cx.random_positions.is_empty() {
        cx.key = Some(
            key_words(cx, &value).map_err(|failure| match (failure, key) {
                (Failure::Hlo(error), _) => error.into(),
                (_, RandomKey::Input(tensor)) => LowerError::InvalidInput {
                    tensor,
                    problem: "is the key of random operations and needs one or two integers".into(),
                },
                (Failure::Undefined(tensor), _) => LowerError::UnknownBoundary {
                    boundary: "input",
                    tensor,
                },
                (Failure::Unsupported(problem), _) => LowerError::from(StableHloError::Operands {
                    op: "threefry2x32",
                    problem,
                    operands: vec![value.ty().clone()],
                }),
            })?,
        );
    }
    Ok(position)
}

/// Two words from one or two integers.
fn key_words(cx: &mut Context, value: &Value) -> super::error::Result<[Value; 2]> {
    let count = value.ty().num_elements();
    if !value.element().is_integer() || !(1..=2).contains(&count) {
        return super::error::unsupported("a key is one or two integers");
    }
    let flat = cx.builder.reshape(value, &[count])?;
    if count == 2 {
        let words = cx.builder.convert(&flat, ElementType::U32);
        let first = cx.builder.slice(&words, &[0], &[1], &[1])?;
        let second = cx.builder.slice(&words, &[1], &[2], &[1])?;
        return Ok([
            cx.builder.reshape(&first, &[])?,
            cx.builder.reshape(&second, &[])?,
        ]);
    }
    let word = cx.builder.reshape(&flat, &[])?;
    let wide = cx.builder.convert(&word, ElementType::U64);
    let high = cx.with_number(Binary::ShiftRightLogical, &wide, 32.0)?;
    let low = cx.builder.convert(&wide, ElementType::U32);
    Ok([low, cx.builder.convert(&high, ElementType::U32)])
}

/// Says at which operation a failure happened.
fn located(
    failure: Failure,
    operations: &[OperationIr],
    position: usize,
    names: &HashMap<TensorId, String>,
) -> LowerError {
    let operation = operation_name(&operations[position]);
    match failure {
        Failure::Undefined(tensor) => LowerError::Undefined {
            operation,
            position,
            tensor,
        },
        Failure::Unsupported(reason) => LowerError::Unsupported {
            operation,
            position,
            origin: origin(operations, position, names),
            reason,
        },
        Failure::Hlo(source) => LowerError::Invalid {
            operation,
            position,
            origin: origin(operations, position, names),
            source: Box::new(source),
        },
    }
}

/// The name of the operation's result, or the nearest named tensors that it was computed from.
fn origin(
    operations: &[OperationIr],
    position: usize,
    names: &HashMap<TensorId, String>,
) -> Option<String> {
    const AT_MOST: usize = 3;
    let op = &operations[position];
    if let Some(name) = op.outputs().find_map(|out| names.get(&out.id)) {
        return Some(name.clone());
    }
    let producers: BTreeMap<TensorId, usize> = operations
        .iter()
        .enumerate()
        .flat_map(|(position, op)| op.outputs().map(move |out| (out.id, position)))
        .collect();
    let mut level: Vec<TensorId> = op.inputs().map(|tensor| tensor.id).collect();
    let mut seen: HashSet<TensorId> = level.iter().copied().collect();
    while !level.is_empty() {
        let mut found: Vec<&str> = level
            .iter()
            .filter_map(|id| names.get(id).map(String::as_str))
            .collect();
        if !found.is_empty() {
            found.truncate(AT_MOST);
            return Some(format!("what is computed from {}", found.join(", ")));
        }
        let before = level.iter().filter_map(|id| producers.get(id));
        let read = before.flat_map(|position| operations[*position].inputs());
        level = read
            .map(|tensor| tensor.id)
            .filter(|id| seen.insert(*id))
            .collect();
    }
    None
}
