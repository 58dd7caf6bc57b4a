//! In which order a model calls its layers, and what its outputs are made of.

use burn::tensor::Tensor;

use crate::layers::{Flow, Value};
use crate::plan::{Plan, PlannedCall};
use crate::{Arguments, Head, Regularizer, Shape};

/// One call of a layer, or one of several values that a call gives.
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
    /// Whether the padding of its value is left out behind it.
    pub(super) masked: bool,
    /// Whether numbers of words or classes are among its values, which keep their type.
    pub(super) takes_numbers: bool,
    /// The loss on what the call gives.
    pub(super) activity: Option<Regularizer>,
}

/// The values that the last call of a layer gave beside its first one, for the steps behind it that
/// are the same call and ask for them.
#[derive(Default)]
pub(super) struct Parts {
    of: Option<Step>,
    states: Vec<Tensor<2>>,
}

impl Parts {
    /// The value of a step that the last call has given already.
    pub(super) fn of(&self, step: &Step) -> Option<Value> {
        let part = step.arguments.part.checked_sub(1)?;
        let last = self.of.as_ref()?;
        let arguments = Arguments {
            part: last.arguments.part,
            ..step.arguments
        };
        let same =
            last.layer == step.layer && last.inputs == step.inputs && last.arguments == arguments;
        let state = self.states.get(part).filter(|_| same)?;
        Some(Value::of(Flow::Flat(state.clone())))
    }

    /// Takes note of what a call gave, and chooses the value of the step that made it.
    pub(super) fn made(
        &mut self,
        step: &Step,
        value: Option<Value>,
        states: Vec<Tensor<2>>,
    ) -> Option<Value> {
        self.of = (!states.is_empty()).then(|| step.clone());
        self.states = states;
        let value = value.map(|Value { flow, mask }| Value {
            flow,
            mask: mask.filter(|_| step.masked),
        });
        match step.arguments.part {
            0 => value,
            _ => self.of(step),
        }
    }
}

/// What a model returns: a value, before the head.
#[derive(Debug, Clone)]
pub(super) struct Output {
    pub(super) name: String,
    pub(super) value: usize,
    pub(super) head: Head,
    /// The extent of its last axis, over which a softmax is.
    pub(super) features: usize,
}

/// The calls, each with the values that are read for the last time, and the outputs.
pub(super) fn of(plan: &Plan) -> (Vec<Step>, Vec<Output>) {
    let mut steps: Vec<Step> = plan.calls.iter().map(|call| step(plan, call)).collect();
    let outputs = plan.outputs.iter().map(|output| {
        // Without a loss the activations stay where they are: the model gives what Keras gives.
        let ending = plan.ending(output.value);
        let (head, path) = ending.unwrap_or((Head::Linear, Vec::new()));
        Output {
            name: output.name.clone(),
            value: take_head(plan, &mut steps, &path).unwrap_or(output.value),
            head,
            features: output.shape.features(),
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
    find_numbers(plan, &mut steps);
    (steps, outputs)
}

/// Finds the calls that take numbers of words or classes: a layer reads them, or has no weights and
/// gives them to one that does.
fn find_numbers(plan: &Plan, steps: &mut [Step]) {
    let inputs = plan.inputs.len();
    let mut are_numbers = vec![false; inputs + steps.len()];
    for (index, step) in steps.iter_mut().enumerate().rev() {
        let layer = &plan.layers[step.layer];
        let hands_on = layer.weights.is_empty() && are_numbers[inputs + index];
        step.takes_numbers = hands_on || layer.spec.layer().reads_numbers();
        if step.takes_numbers {
            step.inputs
                .iter()
                .for_each(|value| are_numbers[*value] = true);
        }
    }
}

fn step(plan: &Plan, call: &PlannedCall) -> Step {
    let layer = &plan.layers[call.layer];
    let own = layer.spec.layer().activity_regularizer();
    Step {
        layer: call.layer,
        inputs: call.inputs.clone(),
        last: Vec::new(),
        arguments: call.arguments,
        output: call.output,
        reordered: call.reordered,
        masked: call.masked_by.is_some(),
        without_activation: false,
        takes_numbers: false,
        activity: layer.rules.activity.or(own),
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
    // A loss on what a call gives is a loss on it with the head.
    let is_free = |call: &usize| readers(inputs + call) == 1 && steps[*call].activity.is_none();
    if path.iter().all(is_free) {
        steps[first].without_activation = true;
        return None;
    }
    for call in path {
        let mut again = steps[*call].clone();
        again.activity = None;
        if *call == first {
            again.without_activation = true;
        } else {
            again.inputs[0] = inputs + steps.len() - 1;
        }
        steps.push(again);
    }
    Some(inputs + steps.len() - 1)
}
