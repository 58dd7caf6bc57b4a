//! The layers of a model and who receives what, as the file has them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::entries::{Entries, Entry, Graph, INPUTS, Input, Kind, Node, Reference};
use super::{File, input_layer, nodes};
use crate::fields::{Fields, Named, Object, Place};
use crate::names::Names;
use crate::spec::SAVED_LAYERS;
use crate::{LayerSpec, ModelError, NamedLayer};

/// The operations on masks that Keras 3 writes beside the layers.
const MASKS: [&str; 4] = ["NotEqual", "Any", "LogicalOr", "LogicalAnd"];

/// The class of an operation of a mask: `tokens != 0`, any value of a step another one than a
/// `Masking` layer leaves out, or masks joined.
fn mask_operation(class: &str, layer: &Value) -> Option<&'static str> {
    let compared = &layer["inbound_nodes"][0]["args"][1];
    let class = MASKS.into_iter().find(|known| *known == class);
    class.filter(|class| *class != "NotEqual" || compared.is_number())
}

impl Graph {
    /// Reads a model. `prefix` stands before the names of its layers, which are added to `all`;
    /// layers of a model that is not `trainable` are not trainable either. `saved` is the group of
    /// the model in a file of weights, with a `/` behind it.
    pub(super) fn read(
        model: &Value,
        prefix: &str,
        saved: &str,
        trainable: bool,
        file: File<'_>,
        all: &mut Vec<NamedLayer>,
    ) -> Result<Self, ModelError> {
        let class = model["class_name"].as_str().unwrap_or("no class_name");
        let is_chain = match class {
            "Sequential" => true,
            "Functional" | "Model" => false,
            _ => {
                return Err(file.not_a_model(format!(
                    "a Keras Sequential or functional model is needed, this is `{class}`"
                )));
            }
        };
        let config = &model["config"];
        // Keras 2.2 and older wrote the list of layers in place of the configuration.
        let list = match config {
            Value::Array(layers) => Some(layers),
            config => config["layers"].as_array(),
        };
        let list = list.ok_or_else(|| file.not_a_model("the configuration has no layers"))?;
        let trainable = check_model(class, config, file)? && trainable;
        let mut reader = Reader {
            file,
            prefix,
            saved: format!("{saved}{SAVED_LAYERS}/"),
            saved_names: Some(Names::default()),
            trainable,
            all,
            graph: Self {
                entries: Vec::with_capacity(list.len()),
                outputs: Vec::new(),
                inputs: Vec::new(),
                input_shape: None,
                own: Vec::new(),
                arguments: INPUTS,
            },
            unnamed: Names::default(),
        };
        for (index, layer) in list.iter().enumerate() {
            reader.entry(index, layer)?;
        }
        let entries = &reader.graph.entries;
        if !entries
            .iter()
            .any(|entry| !matches!(entry.kind, Kind::Input(_)))
        {
            return Err(file.not_a_model("the model has no layers"));
        }
        let names = reader.names()?;
        if is_chain {
            reader.chain()
        } else {
            reader.functional(config, list, &names)?
        }
        Ok(reader.graph)
    }
}

pub(super) struct Reader<'a> {
    pub(super) file: File<'a>,
    pub(super) prefix: &'a str,
    /// What stands before the groups of the layers in a file of weights.
    pub(super) saved: String,
    /// Their names there, which count the layers of a class; `None` if the only layer has `saved`
    /// as its group.
    pub(super) saved_names: Option<Names>,
    pub(super) trainable: bool,
    pub(super) all: &'a mut Vec<NamedLayer>,
    pub(super) graph: Graph,
    pub(super) unnamed: Names,
}

impl Reader<'_> {
    /// One object of the list of layers.
    pub(super) fn entry(&mut self, index: usize, layer: &Value) -> Result<(), ModelError> {
        let parts = (layer.as_object(), layer["class_name"].as_str());
        let is_layer = layer["config"].is_object() || layer["config"].is_array();
        let (Some(outer), Some(class), true) = (parts.0, parts.1, is_layer) else {
            let what = format!("layer {index} has no class_name or config");
            return Err(self.file.not_a_model(what));
        };
        let written = layer["name"].as_str().or(layer["config"]["name"].as_str());
        let name = written.map_or_else(|| self.unnamed.next(class), str::to_string);
        let full = format!("{}{name}", self.prefix);
        let kind = match class {
            "Sequential" | "Functional" | "Model" => {
                let inner = format!("{full}/");
                let saved = self.saved_as(match class {
                    "Sequential" => class,
                    _ => "Functional",
                });
                let saved = format!("{saved}/");
                let graph =
                    Graph::read(layer, &inner, &saved, self.trainable, self.file, self.all)?;
                // The first layer of a chain may be a model that says the shape.
                if self.graph.input_shape.is_none() {
                    self.graph.input_shape.clone_from(&graph.input_shape);
                }
                Kind::Model(Box::new(graph))
            }
            "TimeDistributed" | "Bidirectional" => self.wrapper(class, &full, layer, outer)?,
            _ => match mask_operation(class, layer) {
                Some(class) => Kind::Mask(class),
                None => self.layer(class, &full, outer)?,
            },
        };
        if matches!(kind, Kind::Input(_)) {
            self.graph.inputs.push(self.graph.entries.len());
        }
        self.graph.entries.push(Entry {
            name,
            kind,
            nodes: Vec::new(),
        });
        Ok(())
    }

    /// A layer, or an input.
    fn layer(&mut self, class: &str, name: &str, outer: &Object) -> Result<Kind, ModelError> {
        let place = Place {
            origin: self.file.origin,
            layer: name,
            class,
            keras2: self.file.keras2,
        };
        let Some(Named { mut fields, .. }) = Fields::named(place, String::new(), outer)? else {
            let what = format!("layer {name} has no class_name or config");
            return Err(self.file.not_a_model(what));
        };
        let shape = input_layer::shape(&mut fields)?;
        // The first layer's counts: Keras 2 repeats the key in an Embedding, without sizes.
        if self.graph.input_shape.is_none() {
            self.graph.input_shape.clone_from(&shape);
        }
        if class == "InputLayer" {
            let integers = input_layer::read(fields)?.err();
            return Ok(Kind::Input(Input { shape, integers }));
        }
        let (spec, trainable) = LayerSpec::read(class, fields)?;
        let saved_as = self.saved_as(spec.class());
        self.all.push(NamedLayer {
            name: name.to_string(),
            spec,
            trainable: trainable && self.trainable,
            saved_as,
        });
        Ok(Kind::Layer(self.all.len() - 1))
    }

    /// The group of the next layer of a class in a file of weights.
    pub(super) fn saved_as(&mut self, class: &str) -> String {
        let number = self.saved_names.as_mut().map(|names| names.next(class));
        format!("{}{}", self.saved, number.unwrap_or_default())
    }

    /// What the model consists of, by name.
    fn names(&self) -> Result<BTreeMap<String, usize>, ModelError> {
        let mut names = BTreeMap::new();
        for (index, entry) in self.graph.entries.iter().enumerate() {
            if names.insert(entry.name.clone(), index).is_some() {
                return Err(ModelError::SameName {
                    origin: self.file.origin.to_string(),
                    layer: format!("{}{}", self.prefix, entry.name),
                });
            }
        }
        Ok(names)
    }

    /// Every layer receives the output of the previous one.
    fn chain(&mut self) {
        let mut before = None;
        if !matches!(self.graph.entries[0].kind, Kind::Input(_)) {
            let input = Entry {
                name: String::new(),
                kind: Kind::Input(Input::default()),
                nodes: Vec::new(),
            };
            self.graph.entries.push(input);
            self.graph.inputs = vec![self.graph.entries.len() - 1];
            before = self.graph.inputs.first().copied();
        }
        // A second input layer of a chain says nothing new.
        self.graph.inputs.truncate(1);
        for (index, entry) in self.graph.entries.iter_mut().enumerate() {
            match entry.kind {
                Kind::Input(_) => {
                    entry.nodes = vec![Node::default()];
                    before = before.or(Some(index));
                }
                _ => {
                    let reference = |entry| Reference {
                        entry,
                        node: 0,
                        tensor: 0,
                    };
                    let inputs = before.into_iter().map(reference).collect();
                    entry.nodes = vec![Node {
                        inputs,
                        ..Node::default()
                    }];
                    before = Some(index);
                }
            }
        }
        let reference = |entry| Reference {
            entry,
            node: 0,
            tensor: 0,
        };
        let output = before.map(|entry| (None, reference(entry)));
        self.graph.outputs.extend(output);
    }

    /// Every layer receives what its `inbound_nodes` say.
    fn functional(
        &mut self,
        config: &Value,
        list: &[Value],
        names: &BTreeMap<String, usize>,
    ) -> Result<(), ModelError> {
        let is_mask = |entry: &Entry| matches!(entry.kind, Kind::Mask(_));
        let found = Entries {
            names,
            masks: self.graph.entries.iter().map(is_mask).collect(),
            file: self.file,
            prefix: self.prefix,
        };
        let mut all = Vec::with_capacity(list.len());
        for (entry, layer) in self.graph.entries.iter().zip(list) {
            all.push(match entry.kind {
                Kind::Input(_) => vec![Node::default()],
                Kind::Mask(_) => Vec::new(),
                Kind::Model(_) => nodes::read(layer, entry, None, &found)?,
                Kind::Layer(index) => {
                    let spec = self.all.get(index).map(|layer| &layer.spec);
                    nodes::read(layer, entry, spec, &found)?
                }
            });
        }
        for (entry, nodes) in self.graph.entries.iter_mut().zip(all) {
            entry.nodes = nodes;
        }
        self.graph.inputs = found.ends(&config["input_layers"], "the model's input")?;
        self.graph.outputs = found.references(&config["output_layers"], "the model's output")?;
        self.check_references()
    }

    /// Finds the referenced value among the existing calls.
    fn check_references(&mut self) -> Result<(), ModelError> {
        let entries = self.graph.entries.iter();
        let receivable = entries.map(|entry| Receivable::of(entry, self.all));
        let found = Found {
            entries: receivable.collect(),
            file: self.file,
            prefix: self.prefix,
        };
        let mut keras2 = self.file.keras2;
        for entry in &mut self.graph.entries {
            let by = format!("the layer {}{}", self.prefix, entry.name);
            for node in &mut entry.nodes {
                keras2 |= node.keras2;
                for reference in &mut node.inputs {
                    *reference = found.resolve(*reference, node.keras2, &by)?;
                }
            }
        }
        for (_, reference) in &mut self.graph.outputs {
            *reference = found.resolve(*reference, keras2, "the model's output")?;
        }
        Ok(())
    }
}

/// What can be received of an entry.
struct Receivable {
    name: String,
    /// How many calls it has, and how many outputs each.
    nodes: usize,
    tensors: usize,
    /// Whether Keras 2 has one call more, which is not written down.
    own_node: bool,
    /// The class of an operation on masks.
    mask: Option<&'static str>,
}

impl Receivable {
    fn of(entry: &Entry, layers: &[NamedLayer]) -> Self {
        Self {
            name: entry.name.clone(),
            nodes: entry.nodes.len(),
            tensors: match &entry.kind {
                Kind::Model(model) => model.outputs.len(),
                Kind::Layer(layer) => layers
                    .get(*layer)
                    .map_or(1, |layer| layer.spec.layer().outputs()),
                _ => 1,
            },
            own_node: entry.has_own_node(),
            mask: match entry.kind {
                Kind::Mask(class) => Some(class),
                _ => None,
            },
        }
    }
}

struct Found<'a> {
    entries: Vec<Receivable>,
    file: File<'a>,
    prefix: &'a str,
}

impl Found<'_> {
    /// The reference with its call counted from 0: Keras 2 counts the calls of a model from 1.
    fn resolve(
        &self,
        reference: Reference,
        keras2: bool,
        by: &str,
    ) -> Result<Reference, ModelError> {
        let entry = &self.entries[reference.entry];
        let node = if keras2 && entry.own_node {
            reference.node.checked_sub(1)
        } else {
            Some(reference.node)
        };
        let there = node.filter(|node| *node < entry.nodes && reference.tensor < entry.tensors);
        if let Some(node) = there {
            return Ok(Reference { node, ..reference });
        }
        let origin = self.file.origin.to_string();
        let layer = format!("{}{}", self.prefix, entry.name);
        Err(match entry.mask {
            Some(class) => ModelError::Unsupported {
                origin,
                layer,
                class: class.to_string(),
                what: "this operation on anything but masks".to_string(),
                remedy: "use layers of Keras in its place",
            },
            None => ModelError::MissingLayer {
                origin,
                by: by.to_string(),
                layer,
                node: reference.node,
                tensor: reference.tensor,
            },
        })
    }
}

/// The options of the model itself: whether it is trainable.
fn check_model(class: &str, config: &Value, file: File<'_>) -> Result<bool, ModelError> {
    let place = Place {
        origin: file.origin,
        layer: "",
        class,
        keras2: file.keras2,
    };
    let mut fields = Fields::new(place, String::new(), config.as_object());
    fields.neutral(&["name", "layers", "build_input_shape"]);
    fields.neutral(&["input_layers", "output_layers"]);
    let trainable = fields.flag("trainable", true);
    let checked = trainable.and_then(|trainable| {
        fields.float32()?;
        fields.finish()?;
        Ok(trainable)
    });
    checked.map_err(|error| match error {
        ModelError::Unsupported { what, remedy, .. } => {
            file.not_a_model(format!("{what} of the {class} is not supported ({remedy})"))
        }
        other => other,
    })
}
