//! The calls of one layer: `inbound_nodes`.
//!
//! Keras 3 writes the arguments of every call, tensors as objects with a `keras_history` (layer,
//! call, output). Keras 2 writes a list of such triples, each with the other arguments behind it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::entries::{Entries, Entry, Kind, Node, Reference};
use crate::fields::Place;
use crate::{Arguments, LayerSpec, ModelError};

/// The operations on masks that Keras 3 writes beside the layers.
const MASKS: [&str; 5] = [
    "NotEqual",
    "Any",
    "LogicalOr",
    "LogicalAnd",
    "ConvertToTensor",
];

/// Whether an object of the list of layers may be an operation of a mask: `tokens != 0`, any value
/// of a step another one than a `Masking` layer leaves out, or masks joined or handed on.
pub(super) fn is_mask(layer: &Value) -> bool {
    let compared = &layer["inbound_nodes"][0]["args"][1];
    let class = layer["class_name"].as_str().unwrap_or_default();
    MASKS.contains(&class) && (class != "NotEqual" || compared.is_number())
}

/// The calls of an entry, which is this layer or a model. `full` is its name.
pub(super) fn read(
    layer: &Value,
    full: &str,
    entry: &Entry,
    spec: Option<&LayerSpec>,
    entries: &Entries<'_>,
) -> Result<Vec<Node>, ModelError> {
    let reader = Reader {
        by: format!("the layer {full}"),
        place: Place {
            origin: entries.file.origin,
            layer: full,
            class: layer["class_name"].as_str().unwrap_or_default(),
            keras2: entries.file.keras2,
        },
        spec,
        inputs: match (&entry.kind, spec) {
            (Kind::Model(graph), _) => graph.arguments,
            (_, Some(spec)) => spec.layer().inputs(),
            _ => &["inputs"],
        },
        entries,
    };
    let Some(nodes) = layer["inbound_nodes"].as_array() else {
        return Err(reader.malformed());
    };
    nodes
        .iter()
        .map(|node| match node {
            Value::Object(_) => reader.keras3(node),
            Value::Array(list) => reader.keras2(list),
            _ => Err(reader.malformed()),
        })
        .collect()
}

struct Reader<'a> {
    by: String,
    place: Place<'a>,
    spec: Option<&'a LayerSpec>,
    /// The arguments that are tensors, in the order of Keras' signature.
    inputs: &'static [&'static str],
    entries: &'a Entries<'a>,
}

impl Reader<'_> {
    fn malformed(&self) -> ModelError {
        let what = format!("{} does not say what it receives (inbound_nodes)", self.by);
        self.entries.file.not_a_model(what)
    }

    fn refuse(&self, key: &str, value: &Value) -> ModelError {
        let what = format!("the argument `{key}` = {value} of its call");
        self.place.unsupported(what, None, "call it without")
    }

    fn keras3(&self, node: &Value) -> Result<Node, ModelError> {
        let Some(arguments) = node["args"].as_array() else {
            return Err(self.malformed());
        };
        let mut inputs = vec![Vec::new(); self.inputs.len()];
        for (index, argument) in arguments.iter().enumerate() {
            match inputs.get_mut(index) {
                Some(input) => *input = self.tensors(argument)?,
                _ if argument.is_null() => {}
                _ => return Err(self.refuse(&format!("argument {index}"), argument)),
            }
        }
        let mut node_arguments = Arguments::default();
        for (key, value) in node["kwargs"].as_object().into_iter().flatten() {
            let input = self.input_named(key, value);
            match input.and_then(|index| inputs.get_mut(index)) {
                Some(_) if value.is_null() => {}
                Some(input) => *input = self.tensors(value)?,
                None => self.argument(key, value, &mut node_arguments, false)?,
            }
        }
        self.node(inputs, node_arguments, false)
    }

    fn keras2(&self, list: &[Value]) -> Result<Node, ModelError> {
        let mut inputs = vec![Vec::new(); self.inputs.len()];
        let mut arguments = Arguments::default();
        for received in list {
            let Some(received) = received.as_array() else {
                return Err(self.malformed());
            };
            inputs[0].push(self.entries.reference(received, &self.by)?);
            let options = received.get(3).and_then(Value::as_object);
            for (key, value) in options.into_iter().flatten() {
                match (self.input_named(key, value), value) {
                    // In Keras 2 the layers behind it leave the same steps out.
                    (Some(_), Value::Array(_)) if key == "mask" => {
                        return Err(self.refuse(key, value));
                    }
                    (Some(index), Value::Array(list)) => {
                        let value = self.entries.reference(list, &self.by)?;
                        inputs[index] = vec![value];
                    }
                    (Some(_), Value::Null) => {}
                    // In Keras 2 such a layer trains in inference too.
                    _ if key == "training" && *value == true => {
                        return Err(self.refuse(key, value));
                    }
                    _ => self.argument(key, value, &mut arguments, true)?,
                }
            }
        }
        self.node(inputs, arguments, true)
    }

    /// Which input an argument with this name is; a mask of padding goes its own way.
    fn input_named(&self, key: &str, value: &Value) -> Option<usize> {
        let is_padding = key == "mask" && self.entries.is_padding(value);
        let mut names = self.inputs.iter();
        names.position(|name| *name == key && !is_padding)
    }

    fn node(
        &self,
        inputs: Vec<Vec<Reference>>,
        arguments: Arguments,
        keras2: bool,
    ) -> Result<Node, ModelError> {
        if inputs[0].is_empty() {
            return Err(self.malformed());
        }
        let last = self.inputs.last().zip(inputs.last());
        let masked = last.is_some_and(|(name, given)| name.ends_with("mask") && !given.is_empty());
        Ok(Node {
            inputs: inputs.concat(),
            arguments: Arguments {
                with_mask: masked,
                ..arguments
            },
            keras2,
            results: Vec::new(),
        })
    }

    /// A tensor, or a list of tensors.
    fn tensors(&self, value: &Value) -> Result<Vec<Reference>, ModelError> {
        match value {
            Value::Array(list) => {
                let each = list.iter().map(|one| self.tensor(one));
                each.collect()
            }
            // A dictionary, in the order of its keys, as Keras flattens it.
            Value::Object(named) if !named.contains_key("class_name") => {
                let sorted: BTreeMap<_, _> = named.iter().collect();
                sorted.into_values().map(|one| self.tensor(one)).collect()
            }
            Value::Null => Ok(Vec::new()),
            one => self.tensor(one).map(|one| vec![one]),
        }
    }

    fn tensor(&self, value: &Value) -> Result<Reference, ModelError> {
        match value["config"]["keras_history"].as_array() {
            Some(history) if value["class_name"] == "__keras_tensor__" => {
                self.entries.reference(history, &self.by)
            }
            _ => Err(self.refuse("inputs", value)),
        }
    }

    /// An argument that is no input.
    fn argument(
        &self,
        key: &str,
        value: &Value,
        arguments: &mut Arguments,
        keras2: bool,
    ) -> Result<(), ModelError> {
        let unsaid = !keras2 && self.spec.is_some_and(|spec| spec.layer().writes_training());
        match (key, value) {
            (_, Value::Null) | ("use_causal_mask", Value::Bool(false)) => {}
            // Of a model with several inputs, none of which has a mask.
            ("mask", Value::Array(masks)) if masks.iter().all(Value::is_null) => {}
            ("training", Value::Bool(false)) if unsaid => {}
            ("mask", mask) if self.entries.is_padding(mask) => arguments.masked = true,
            ("training", Value::Bool(false)) => arguments.inference = true,
            _ if self
                .spec
                .is_some_and(|spec| spec.layer().argument(key, value, arguments)) => {}
            _ => {
                // Of a tensor its class says enough.
                let value = match &value["class_name"] {
                    Value::Null => value,
                    class => class,
                };
                return Err(self.refuse(key, value));
            }
        }
        Ok(())
    }
}
