//! What stands in a model file, in the terms of this crate: entries with names, their calls, and
//! references to outputs of calls.

use std::collections::BTreeMap;

use serde_json::Value;

use super::File;
use crate::{Arguments, ModelError};

/// A model, or a model inside of one.
pub(super) struct Graph {
    /// What stands in its list of layers, in order.
    pub(super) entries: Vec<Entry>,
    /// Which outputs of which calls the model returns, each with its key in a dictionary.
    pub(super) outputs: Vec<(Option<String>, Reference)>,
    /// The entries that are inputs, in the order of the model's arguments.
    pub(super) inputs: Vec<usize>,
    /// The shape of one example, if a layer says it: the first that does.
    pub(super) input_shape: Option<Vec<Option<usize>>>,
    /// The entries that are inputs of texts.
    pub(super) texts: Vec<usize>,
    /// The layers that the file does not have, which this program makes of a layer around others. A
    /// model may need them or not.
    pub(super) own: Vec<usize>,
    /// The names of the arguments with which it is called.
    pub(super) arguments: &'static [&'static str],
    /// Whether it is a chain of layers or a layer around others, and no functional model.
    pub(super) is_chain: bool,
}

/// The arguments with which a model is called.
pub(super) const INPUTS: &[&str] = &["inputs"];

/// A named entry of a model.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Its calls. An input has one, which receives nothing.
    pub(super) nodes: Vec<Node>,
}

/// The kind of an entry.
pub(super) enum Kind {
    /// An input of the model, with the shape of one example.
    Input(Option<Vec<Option<usize>>>),
    /// A layer, by its position among all layers.
    Layer(usize),
    /// A layer of images whose channels are first, by its position; the layers before and behind it
    /// move the channels.
    Turned {
        before: usize,
        layer: usize,
        after: Option<usize>,
    },
    /// A model inside of the model.
    Model(Box<Graph>),
    /// An operation; each of its calls is a layer.
    Operation,
    /// What is not supported, and has been noted.
    Refused,
}

/// An output of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Reference {
    pub(super) entry: usize,
    pub(super) node: usize,
    pub(super) tensor: usize,
}

/// One call of a layer.
#[derive(Default)]
pub(super) struct Node {
    pub(super) inputs: Vec<Reference>,
    pub(super) arguments: Arguments,
    /// Whether it is written as Keras 2 does, which counts the calls of models in another way.
    pub(super) keras2: bool,
    /// Of an operation the layers that give its results, by the positions among all layers.
    pub(super) results: Vec<Option<usize>>,
}

impl Entry {
    /// Whether it has a call that Keras 2 does not write down: a model with inputs of its own has.
    pub(super) fn has_own_node(&self) -> bool {
        match &self.kind {
            Kind::Model(graph) => graph.inputs.iter().any(|input| {
                let input = graph.entries.get(*input);
                input.is_some_and(|input| !input.name.is_empty())
            }),
            _ => false,
        }
    }
}

/// The entries of a model by their names.
pub(super) struct Entries<'a> {
    pub(super) names: &'a BTreeMap<String, usize>,
    /// Whether an entry is an operation of a mask.
    pub(super) masks: Vec<bool>,
    pub(super) file: File<'a>,
    pub(super) prefix: &'a str,
}

impl Entries<'_> {
    /// Whether an argument is a mask of padding, or a list of masks.
    pub(super) fn is_padding(&self, argument: &Value) -> bool {
        match argument {
            Value::Array(masks) => masks.iter().all(|mask| self.is_padding(mask)),
            mask => {
                let name = mask["config"]["keras_history"][0].as_str();
                let entry = name.and_then(|name| self.names.get(name));
                entry.is_some_and(|entry| self.masks.get(*entry) == Some(&true))
            }
        }
    }

    /// An output of a call, of a list that begins with name, call and output.
    pub(super) fn reference(&self, list: &[Value], by: &str) -> Result<Reference, ModelError> {
        let number = |index: usize| {
            let number = list.get(index)?.as_u64()?;
            usize::try_from(number).ok()
        };
        let (Some(name), Some(node), Some(tensor)) =
            (list.first().and_then(Value::as_str), number(1), number(2))
        else {
            let what =
                format!("{by} does not say what it receives as a layer, a call and an output");
            return Err(self.file.not_a_model(what));
        };
        let missing = || ModelError::MissingLayer {
            origin: self.file.origin.to_string(),
            by: by.to_string(),
            layer: format!("{}{name}", self.prefix),
            node,
            tensor,
        };
        Ok(Reference {
            entry: *self.names.get(name).ok_or_else(missing)?,
            node,
            tensor,
        })
    }

    /// One output of a call, or a list of them, or an object of them, by which they get names.
    /// References in an object are in the order of its keys, as Keras flattens it.
    pub(super) fn references(
        &self,
        value: &Value,
        by: &str,
    ) -> Result<Vec<(Option<String>, Reference)>, ModelError> {
        match value {
            Value::Array(list) if list.first().is_some_and(Value::is_string) => {
                self.reference(list, by).map(|one| vec![(None, one)])
            }
            Value::Array(list) if !list.is_empty() => {
                let each = list.iter().map(|one| self.references(one, by));
                each.collect::<Result<Vec<_>, _>>().map(|all| all.concat())
            }
            Value::Object(named) if !named.is_empty() => {
                let sorted: BTreeMap<_, _> = named.iter().collect();
                let mut all = Vec::new();
                for (name, one) in sorted {
                    let found = self.references(one, by)?;
                    all.extend(found.into_iter().map(|(_, one)| (Some(name.clone()), one)));
                }
                Ok(all)
            }
            _ => {
                let what = format!("the configuration does not say which layer is {by}");
                Err(self.file.not_a_model(what))
            }
        }
    }

    /// The entries of [`references`](Self::references).
    pub(super) fn ends(&self, value: &Value, by: &str) -> Result<Vec<usize>, ModelError> {
        let references = self.references(value, by)?;
        let entries = references.iter().map(|(_, reference)| reference.entry);
        Ok(entries.collect())
    }
}
