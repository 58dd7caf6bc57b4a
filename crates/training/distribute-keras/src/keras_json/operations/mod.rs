//! The calls of an operation: Keras 3's objects of `keras.src.ops`, and Keras 2's `TFOpLambda` and
//! `SlicingOpLambda`.
//!
//! Both become a list of arguments with the names of Keras 3, of which [`build`] makes the
//! operation. What a call has beyond it is refused by name.

mod build;
mod given;
mod layer;
mod ordered;
mod table;

use serde_json::Value;

use super::entries::{Entries, Node};
use crate::LayerSpec;
use crate::ModelError;
use crate::fields::Place;
use given::{Argument, Given, Item};
use table::{OPERATIONS, Row, What};

/// The classes of Keras 2 that stand for a function of TensorFlow.
const KERAS2: [&str; 2] = ["TFOpLambda", "SlicingOpLambda"];

/// Whether an object of the list of layers is an operation.
pub(super) fn is_operation(class: &str, layer: &Value) -> bool {
    let module = layer["module"].as_str().unwrap_or_default();
    let is_keras3 = ["keras.src.ops", "keras.ops"]
        .iter()
        .any(|ops| module.starts_with(ops));
    // Keras 3 writes no modules into `.h5`. There a layer always says whether it is trainable, and
    // one of several values receives a list of them; an operation does neither. (A list of values
    // is joined alike by the operation and the layer.)
    let says = |key: &str| layer["config"].get(key).is_some();
    let call = &layer["inbound_nodes"][0];
    let is_call = call["args"][0].is_object() || call["args"][0].is_number();
    let is_bare = is_call && !says("trainable") && !says("target_shape");
    let named = call["kwargs"].as_object().map_or(0, |named| named.len());
    let count = call["args"].as_array().map_or(0, Vec::len) + named;
    let fits = |row: &Row| count > 1 || !matches!(row.what, What::Binary(_));
    let is_known = row(class).is_some_and(|row| !row.is_layer || is_bare && fits(row));
    is_keras3 || module.is_empty() && is_known || KERAS2.contains(&class)
}

fn row(class: &str) -> Option<&'static Row> {
    OPERATIONS.iter().find(|row| row.class == class)
}

/// One call of an operation: what it does and what it receives. An operation of several results
/// is read for each of them.
pub(super) struct Read {
    pub(super) node: Node,
    /// The operation for each result, as far as they are known, or as many as are asked for.
    pub(super) parts: Parts,
}

/// The operation of a result of a call, or a layer that does the same.
pub(super) type Parts = Box<dyn Fn(usize) -> Option<LayerSpec>>;

/// The calls of an entry, which is an operation.
pub(super) fn read(
    layer: &Value,
    full: &str,
    entries: &Entries<'_>,
) -> Result<Vec<Read>, ModelError> {
    let reader = Reader {
        layer,
        by: format!("the layer {full}"),
        place: Place {
            origin: entries.file.origin,
            layer: full,
            class: layer["class_name"].as_str().unwrap_or_default(),
            keras2: entries.file.keras2,
        },
        entries,
    };
    let Some(nodes) = layer["inbound_nodes"].as_array() else {
        return Err(reader.malformed());
    };
    nodes.iter().map(|node| reader.node(node)).collect()
}

struct Reader<'a> {
    layer: &'a Value,
    by: String,
    place: Place<'a>,
    entries: &'a Entries<'a>,
}

impl Reader<'_> {
    fn malformed(&self) -> ModelError {
        let what = format!("{} does not say what it receives (inbound_nodes)", self.by);
        self.entries.file.not_a_model(what)
    }

    fn unknown(&self, what: String) -> ModelError {
        let remedy = "use another operation or a layer that does the same; the README of \
                      distribute-keras lists them";
        self.place.unsupported(what, None, remedy)
    }

    fn node(&self, node: &Value) -> Result<Read, ModelError> {
        let class = self.place.class;
        let is_keras2 = KERAS2.contains(&class);
        let function = self.layer["config"]["function"].as_str();
        let row = if is_keras2 {
            let known = |row: &&Row| function.is_some_and(|name| row.functions.contains(&name));
            OPERATIONS.iter().find(known)
        } else {
            row(class)
        };
        let Some(row) = row else {
            return Err(self.unknown(match function {
                Some(function) if is_keras2 => format!("the operation tf.{function}"),
                _ => "this operation".to_string(),
            }));
        };
        let mut given = Given::default();
        if is_keras2 {
            given.set("tensorflow", Argument::Constant(Value::Bool(true)));
            self.keras2(node, row, &mut given)?;
        } else {
            self.keras3(node, row, &mut given)?;
        }
        let built = build::build(row, &mut given).map_err(|what| self.unknown(what))?;
        if let Some((key, argument)) = given.left() {
            return Err(self.unknown(format!("`{key}` = {argument} of this operation")));
        }
        if built.inputs.is_empty() {
            return Err(self.malformed());
        }
        let node = Node {
            inputs: built.inputs,
            keras2: is_keras2,
            ..Node::default()
        };
        Ok(Read {
            node,
            parts: built.parts,
        })
    }

    /// The configuration has the options, the call the tensors and what stands beside them.
    fn keras3(&self, node: &Value, row: &Row, given: &mut Given) -> Result<(), ModelError> {
        let options = self.layer["config"].as_object();
        for (key, value) in options.into_iter().flatten() {
            given.set(key, Argument::Constant(value.clone()));
        }
        let Some(arguments) = node["args"].as_array() else {
            return Err(self.malformed());
        };
        for value in arguments {
            let shape = value["config"]["shape"].as_array();
            if let (Some(shape), Argument::Tensor(tensor)) = (shape, self.keras3_argument(value)?) {
                given.set_axes(tensor, shape.len());
            }
        }
        for (index, value) in arguments.iter().enumerate() {
            match row.signature.get(index) {
                Some(key) => given.set(key, self.keras3_argument(value)?),
                None if value.is_null() => {}
                None => {
                    return Err(self.unknown(format!("argument {index} of this operation")));
                }
            }
        }
        for (key, value) in node["kwargs"].as_object().into_iter().flatten() {
            given.set(key, self.keras3_argument(value)?);
        }
        Ok(())
    }

    fn keras3_argument(&self, value: &Value) -> Result<Argument, ModelError> {
        let tensor = |value: &Value| match value["config"]["keras_history"].as_array() {
            Some(history) if value["class_name"] == "__keras_tensor__" => {
                self.entries.reference(history, &self.by).map(Some)
            }
            _ => Ok(None),
        };
        let item = |value: &Value| {
            let found = tensor(value)?;
            Ok(found.map_or_else(|| Item::Constant(value.clone()), Item::Tensor))
        };
        match value {
            Value::Array(list) => {
                let items = list.iter().map(item);
                let items = items.collect::<Result<Vec<_>, ModelError>>()?;
                Ok(Argument::of_list(items, value))
            }
            one => Ok(match item(one)? {
                Item::Tensor(tensor) => Argument::Tensor(tensor),
                Item::Constant(_) => Argument::Constant(value.clone()),
            }),
        }
    }

    /// A tensor, or a list of tensors, each with the other arguments behind it.
    fn keras2(&self, node: &Value, row: &Row, given: &mut Given) -> Result<(), ModelError> {
        let Some(list) = node.as_array() else {
            return Err(self.malformed());
        };
        let first = row.signature.first().copied().unwrap_or("x");
        let single = list.first().is_some_and(Value::is_string);
        let received = if single {
            vec![node]
        } else {
            list.iter().collect::<Vec<_>>()
        };
        let mut items = Vec::with_capacity(received.len());
        for one in received {
            let Some(one) = one.as_array() else {
                return Err(self.malformed());
            };
            items.push(match one.first().and_then(Value::as_str) {
                Some("_CONSTANT_VALUE") => Item::Constant(one.get(2).cloned().unwrap_or_default()),
                _ => Item::Tensor(self.entries.reference(one, &self.by)?),
            });
            for (key, value) in one.get(3).and_then(Value::as_object).into_iter().flatten() {
                given.set(row.renamed(key), self.keras2_argument(value)?);
            }
        }
        let argument = match (single, items.pop()) {
            (true, Some(Item::Tensor(tensor))) => Argument::Tensor(tensor),
            (true, Some(Item::Constant(value))) => Argument::Constant(value),
            (_, last) => {
                items.extend(last);
                Argument::List(items)
            }
        };
        given.set(first, argument);
        Ok(())
    }

    /// A reference is a list of a name and two numbers.
    fn keras2_argument(&self, value: &Value) -> Result<Argument, ModelError> {
        let reference = |value: &Value| match value.as_array().map(Vec::as_slice) {
            Some([Value::String(name), node, tensor])
                if node.is_u64() && tensor.is_u64() && self.entries.names.contains_key(name) =>
            {
                let list = value.as_array().map_or(&[][..], Vec::as_slice);
                self.entries.reference(list, &self.by).map(Some)
            }
            _ => Ok(None),
        };
        if let Some(tensor) = reference(value)? {
            return Ok(Argument::Tensor(tensor));
        }
        let Value::Array(list) = value else {
            return Ok(Argument::Constant(value.clone()));
        };
        let items = list.iter().map(|one| {
            let found = reference(one)?;
            Ok(found.map_or_else(|| Item::Constant(one.clone()), Item::Tensor))
        });
        let items = items.collect::<Result<Vec<_>, ModelError>>()?;
        Ok(Argument::of_list(items, value))
    }
}
