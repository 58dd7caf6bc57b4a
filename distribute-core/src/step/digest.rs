//! What a program computes, as one number.

use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::burn_internals::hash_renumbered;
use crate::burn_internals::ir::OperationIr;

use crate::trace::{CapturedStep, Counters, StepProgram};

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
        // The number of updates goes on; what a step adds to it does not.
        let updates =
            |(before, after): &(Counters, Counters)| after.updates.wrapping_sub(before.updates);
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
    hash_renumbered(&text, &mut hash);
    hash.finish()
}

/// The operations that compute something, with their places.
pub(super) fn computing(step: &CapturedStep) -> impl Iterator<Item = (usize, &OperationIr)> {
    let operations = step.graph.graph.operations.iter().enumerate();
    operations.filter(|(_, operation)| !matches!(operation, OperationIr::Drop(_)))
}
