//! In which order a model calls its layers, and what its outputs are made of.

use crate::plan::{Plan, PlannedCall};
use crate::{Arguments, Head, Shape};

/// One call of a layer.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) layer: usize,
    pub(super) inputs: Vec<usize>,
    /// The values that no later call reads.
    pub(super) last: Vec<usize>,
    pub(super) arguments: Arguments,
    pub(super) output: Shape,
    pub(super) reordered: bool,
    pub(super) without_activation: bool,
}

/// What a model returns: a value, before the head.
#[derive(Debug, Clone)]
pub(super) struct Output {
    pub(super) name: String,
    pub(super) value: usize,
    pub(super) head: Head,
}

/// The calls, each with the values that are read for the last time, and the outputs.
pub(super) fn of(plan: &Plan) -> (Vec<Step>, Vec<Output>) {
    let mut steps: Vec<Step> = plan.calls.iter().map(step).collect();
    let outputs = plan.outputs.iter().map(|output| {
        // Without a loss the activations stay where they are: the model gives what Keras gives.
        let ending = plan.ending(output.value);
        let (head, path) = ending.unwrap_or((Head::Linear, Vec::new()));
        Output {
            name: output.name.clone(),
            value: take_head(plan, &mut steps, &path).unwrap_or(output.value),
            head,
        }
    });
    let outputs: Vec<Output> = outputs.collect();
    let mut read_later = vec![false; plan.inputs.len() + steps.len()];
    for output in &outputs {
        read_later[output.value] = true;
    }
    for step in steps.iter_mut().rev() {
        for value in &step.inputs {
            if !std::mem::replace(&mut read_later[*value], true) {
                step.last.push(*value);
            }
        }
    }
    (steps, outputs)
}

fn step(call: &PlannedCall) -> Step {
    Step {
        layer: call.layer,
        inputs: call.inputs.clone(),
        last: Vec::new(),
        arguments: call.arguments,
        output: call.output,
        reordered: call.reordered,
        without_activation: false,
    }
}

/// Takes the head out of the first call of a path that leads to an output. If another call reads
/// one of its values, with the head, the calls of the path are made once more without, and the
/// new value is returned.
fn take_head(plan: &Plan, steps: &mut Vec<Step>, path: &[usize]) -> Option<usize> {
    let (first, inputs) = (*path.first()?, plan.inputs.len());
    let readers = |value: usize| {
        let calls = plan.calls.iter().flat_map(|call| &call.inputs);
        let outputs = plan.outputs.iter().map(|output| &output.value);
        calls.chain(outputs).filter(|read| **read == value).count()
    };
    if path.iter().all(|call| readers(inputs + call) == 1) {
        steps[first].without_activation = true;
        return None;
    }
    for call in path {
        let mut again = steps[*call].clone();
        if *call == first {
            again.without_activation = true;
        } else {
            again.inputs = vec![inputs + steps.len() - 1];
        }
        steps.push(again);
    }
    Some(inputs + steps.len() - 1)
}
