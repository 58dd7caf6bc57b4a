//! From what a file says to calls in an order in which they can be made, models inside of the
//! model written out.

use std::collections::{BTreeMap, BTreeSet};

use super::File;
use super::entries::{Graph, Kind, Reference};
use crate::{
    Arguments, Call, LayerSpec, ModelError, ModelInput, ModelOutput, ModelSpec, NamedLayer,
};

/// The calls of a model may not be more: models inside of models that are called several times
/// would let a small file be a model without end.
const MAX_CALLS: usize = 1 << 16;

/// The model of a graph whose layers are `layers`.
pub(super) fn model(
    graph: Graph,
    layers: Vec<NamedLayer>,
    file: File<'_>,
) -> Result<ModelSpec, ModelError> {
    let inputs = graph.inputs.len();
    let mut inliner = Inliner {
        file,
        inputs,
        layers: &layers,
        own: BTreeSet::new(),
        calls: Vec::new(),
        left: MAX_CALLS,
    };
    let received: Vec<usize> = (0..inputs).collect();
    let found = inliner.inline(&graph, &received, Arguments::default())?;
    let (calls, own) = (inliner.calls, inliner.own);
    let (outputs, calls) = leading_to(found, inputs, calls);
    let (layers, calls) = without_unused(layers, calls, &own);
    let named = graph.outputs.iter().zip(outputs);
    let model = ModelSpec {
        name: file.origin.to_string(),
        inputs: graph
            .inputs
            .iter()
            .map(|entry| input(&graph, *entry))
            .collect(),
        layers,
        calls,
        outputs: named
            .map(|((key, reference), value)| ModelOutput {
                name: key
                    .as_ref()
                    .unwrap_or(&graph.entries[reference.entry].name)
                    .clone(),
                value,
            })
            .collect(),
    };
    model.check_calls()?;
    Ok(model)
}

/// An input of the model. The only input of a model may be described by another layer.
fn input(graph: &Graph, index: usize) -> ModelInput {
    let entry = &graph.entries[index];
    let shape = match (&entry.kind, graph.inputs.len()) {
        (_, 1) => &graph.input_shape,
        (Kind::Input(shape), _) => shape,
        _ => &None,
    };
    ModelInput {
        name: match entry.name.as_str() {
            "" => "input".to_string(),
            name => name.to_string(),
        },
        shape: shape.clone(),
        is_text: graph.texts.contains(&index),
    }
}

/// A call of a graph: the number of the entry, and of the node in it.
type CallPlace = (usize, usize);

struct Inliner<'a> {
    file: File<'a>,
    /// How many inputs the whole model has, whose values are the first.
    inputs: usize,
    layers: &'a [NamedLayer],
    /// See [`Graph::own`].
    own: BTreeSet<usize>,
    calls: Vec<Call>,
    /// How many calls more there may be.
    left: usize,
}

impl Inliner<'_> {
    /// Appends the calls of a graph that receives these values, and says which ones it returns.
    fn inline(
        &mut self,
        graph: &Graph,
        inputs: &[usize],
        outer: Arguments,
    ) -> Result<Vec<usize>, ModelError> {
        if inputs.len() != graph.inputs.len() {
            return Err(self.file.not_a_model(format!(
                "a model inside of the model receives {} values and has {} inputs",
                inputs.len(),
                graph.inputs.len()
            )));
        }
        self.own.extend(&graph.own);
        let mut values: BTreeMap<CallPlace, Vec<usize>> = BTreeMap::new();
        for (entry, value) in graph.inputs.iter().zip(inputs) {
            values.insert((*entry, 0), vec![*value]);
        }
        let find = |values: &BTreeMap<CallPlace, Vec<usize>>, reference: &Reference| {
            let outputs = values.get(&(reference.entry, reference.node));
            outputs.and_then(|outputs| outputs.get(reference.tensor).copied())
        };
        for (entry, index) in self.order(graph)? {
            let (kind, node) = (
                &graph.entries[entry].kind,
                &graph.entries[entry].nodes[index],
            );
            let received: Vec<usize> = node
                .inputs
                .iter()
                .filter_map(|input| find(&values, input))
                .collect();
            let arguments = Arguments {
                inference: outer.inference || node.arguments.inference,
                ..node.arguments
            };
            self.left = self.left.checked_sub(1).ok_or_else(|| {
                let what = format!("the model has more than {MAX_CALLS} calls of layers");
                self.file.not_a_model(what)
            })?;
            let outputs = match kind {
                Kind::Model(inner) => self.inline(inner, &received, arguments)?,
                Kind::Layer(layer) => self.call(*layer, &received, arguments),
                Kind::Turned {
                    before,
                    layer,
                    after,
                } => {
                    let inputs = received.iter();
                    let turned = inputs.flat_map(|value| self.call(*before, &[*value], arguments));
                    let turned: Vec<usize> = turned.collect();
                    let results = self.call(*layer, &turned, arguments);
                    match after {
                        Some(after) => self.call(*after, &results, arguments),
                        None => results,
                    }
                }
                Kind::Operation => self.results(&node.results, &received, arguments),
                Kind::Input(_) | Kind::Refused => continue,
            };
            values.insert((entry, index), outputs);
        }
        let outputs = graph
            .outputs
            .iter()
            .filter_map(|(_, output)| find(&values, output));
        Ok(outputs.collect())
    }

    /// Appends a call of a layer, once for each value that it gives; says which they are.
    fn call(&mut self, layer: usize, inputs: &[usize], arguments: Arguments) -> Vec<usize> {
        let named = self.layers.get(layer);
        let parts = named.map_or(1, |layer| layer.spec.layer().outputs());
        let first = self.inputs + self.calls.len();
        let calls = (0..parts).map(|part| Call {
            layer,
            inputs: inputs.to_vec(),
            arguments: Arguments { part, ..arguments },
        });
        self.calls.extend(calls);
        (first..first + parts).collect()
    }

    /// The calls of one operation, one for each of its results.
    fn results(
        &mut self,
        layers: &[Option<usize>],
        inputs: &[usize],
        arguments: Arguments,
    ) -> Vec<usize> {
        let values = layers.iter().flat_map(|layer| match layer {
            Some(layer) => self.call(*layer, inputs, arguments),
            // A result that nothing receives.
            None => vec![usize::MAX],
        });
        values.collect()
    }

    /// The calls of a graph, each after the calls whose outputs it receives; otherwise in the
    /// file's order.
    fn order(&self, graph: &Graph) -> Result<Vec<CallPlace>, ModelError> {
        let mut readers: BTreeMap<CallPlace, Vec<CallPlace>> = BTreeMap::new();
        let mut waits_for: BTreeMap<CallPlace, usize> = BTreeMap::new();
        let mut ready = BTreeSet::new();
        for (index, entry) in graph.entries.iter().enumerate() {
            for (number, node) in entry.nodes.iter().enumerate() {
                let call = (index, number);
                for input in &node.inputs {
                    let input = (input.entry, input.node);
                    readers.entry(input).or_default().push(call);
                }
                match node.inputs.len() {
                    0 => {
                        ready.insert(call);
                    }
                    count => {
                        waits_for.insert(call, count);
                    }
                }
            }
        }
        let mut order = Vec::new();
        while let Some(call) = ready.pop_first() {
            for reader in readers.remove(&call).unwrap_or_default() {
                if let Some(count) = waits_for.get_mut(&reader) {
                    *count -= 1;
                    if *count == 0 {
                        waits_for.remove(&reader);
                        ready.insert(reader);
                    }
                }
            }
            order.push(call);
        }
        match waits_for.keys().next() {
            None => Ok(order),
            Some(waiting) => Err(self.cycle(graph, *waiting, &waits_for)),
        }
    }

    /// Names the layers on a circle, which is found by going from a waiting call to one that it
    /// waits for, until one comes again.
    fn cycle(
        &self,
        graph: &Graph,
        start: CallPlace,
        waiting: &BTreeMap<CallPlace, usize>,
    ) -> ModelError {
        let mut path = vec![start];
        let circle = loop {
            let (entry, node) = path[path.len() - 1];
            let inputs = graph.entries[entry].nodes[node].inputs.iter();
            let mut inputs = inputs.map(|input| (input.entry, input.node));
            let Some(next) = inputs.find(|input| waiting.contains_key(input)) else {
                break &path[..];
            };
            if let Some(begin) = path.iter().position(|call| *call == next) {
                break &path[begin..];
            }
            path.push(next);
        };
        let names = circle
            .iter()
            .rev()
            .chain(circle.last())
            .map(|(entry, _)| graph.entries[*entry].name.as_str());
        ModelError::Cycle {
            origin: self.file.origin.to_string(),
            circle: names.collect::<Vec<_>>().join(" -> "),
        }
    }
}

/// The calls without which these values are not there, and the values, numbered anew.
fn leading_to(values: Vec<usize>, inputs: usize, calls: Vec<Call>) -> (Vec<usize>, Vec<Call>) {
    let mut needed = vec![false; inputs + calls.len()];
    for value in &values {
        needed[*value] = true;
    }
    for (index, call) in calls.iter().enumerate().rev() {
        if needed[inputs + index] {
            for input in &call.inputs {
                needed[*input] = true;
            }
        }
    }
    let mut numbers: Vec<usize> = (0..inputs).collect();
    let mut kept: Vec<Call> = Vec::new();
    for (index, mut call) in calls.into_iter().enumerate() {
        numbers.push(inputs + kept.len());
        if !needed[inputs + index] {
            continue;
        }
        for input in &mut call.inputs {
            *input = numbers[*input];
        }
        kept.push(call);
    }
    let values = values.into_iter().map(|value| numbers[value]);
    (values.collect(), kept)
}

/// The layers without those that no call is of and that are operations (what Keras 3 writes down of
/// masks) or stand in `own`, and the calls with the layers' new numbers.
fn without_unused(
    layers: Vec<NamedLayer>,
    mut calls: Vec<Call>,
    own: &BTreeSet<usize>,
) -> (Vec<NamedLayer>, Vec<Call>) {
    let called: BTreeSet<usize> = calls.iter().map(|call| call.layer).collect();
    let mut numbers = Vec::with_capacity(layers.len());
    let mut kept = Vec::with_capacity(layers.len());
    for (index, layer) in layers.into_iter().enumerate() {
        numbers.push(kept.len());
        let is_needless = own.contains(&index) || matches!(layer.spec, LayerSpec::Operation(_));
        if called.contains(&index) || !is_needless {
            kept.push(layer);
        }
    }
    for call in &mut calls {
        call.layer = numbers[call.layer];
    }
    (kept, calls)
}
