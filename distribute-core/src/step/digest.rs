//! What a program computes, as one number.

use std::collections::HashMap;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};

use burn_ir::OperationIr;

use crate::trace::{CapturedStep, StepProgram};

/// A number that is the same for two captures of one step, whatever numbers their tensors have.
pub(crate) fn digest(step: &CapturedStep, program: &StepProgram) -> u64 {
    let mut text = String::new();
    // Writing to a string does not fail.
    for (_, operation) in computing(step) {
        let _ = writeln!(text, "{operation:?}");
    }
    for input in &step.inputs {
        let _ = writeln!(text, "in {:?} {:?} {:?}", input.id, input.spec, input.role);
    }
    for output in &step.outputs {
        let from = output.donated_from;
        let _ = writeln!(text, "out {:?} {:?} {from:?}", output.id, output.spec);
    }
    let _ = writeln!(text, "{:?} {:?}", step.random_key, program.arguments);
    for state in &program.states {
        // The numbers of a state go on; what a step adds to the first, its updates, does not.
        let updates = |(before, after): &(Vec<u64>, Vec<u64>)| {
            let (before, after) = (before.first()?, after.first()?);
            Some(after.wrapping_sub(*before))
        };
        let updates: Vec<_> = state.numbers.iter().map(updates).collect();
        let _ = writeln!(text, "{updates:?} {:?} {:?}", state.tensors, state.applies);
    }
    let _ = writeln!(text, "{:?}", program.seed);
    let host = program.host_side();
    let leaves = host.effects.iter().map(|effect| &effect.leaves);
    let _ = writeln!(text, "{:?}", leaves.collect::<Vec<_>>());
    let mut hash = DefaultHasher::new();
    for value in step.graph.values.values() {
        value.as_bytes().hash(&mut hash);
    }
    renumber(&text, &mut hash);
    hash.finish()
}

/// Hashes a text in which tensors have numbers by their first appearance.
fn renumber(text: &str, hash: &mut DefaultHasher) {
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    for (id, rest) in at_tensors(text) {
        let next = numbers.len();
        numbers.entry(id).or_insert(next).hash(hash);
        // Which use of a tensor is its last is not what the step computes.
        rest.replace("ReadWrite", "ReadOnly").hash(hash);
    }
}

/// The operations that compute something, with their places.
pub(super) fn computing(step: &CapturedStep) -> impl Iterator<Item = (usize, &OperationIr)> {
    let operations = step.graph.graph.operations.iter().enumerate();
    operations.filter(|(_, operation)| !matches!(operation, OperationIr::Drop(_)))
}

/// The numbers of tensors in a text, each with what follows it; none for the beginning.
pub(super) fn at_tensors(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let parts = text.split("TensorId { value: ").enumerate();
    parts.map(|(index, part)| match index {
        0 => ("", part),
        _ => part.split_at(part.find(' ').unwrap_or(part.len())),
    })
}
