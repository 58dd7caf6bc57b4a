//! The layers of a model and who receives what, as the file has them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::entries::{Entries, Entry, Graph, INPUTS, Kind, Node, Reference};
use super::operations::Parts;
use super::{File, input_layer, nodes, operations, references, rules};
use crate::fields::{Fields, Named, Object, Place};
use crate::layers::Operation;
use crate::names::Names;
use crate::spec::SAVED_LAYERS;
use crate::{LayerRules, LayerSpec, ModelError, NamedLayer, Unsupported};

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
                texts: Vec::new(),
                own: Vec::new(),
                arguments: INPUTS,
                is_chain,
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
            "TimeDistributed" | "Bidirectional" => {
                let file = self.file;
                let read = file
                    .refused
                    .layer(outer, |outer| self.wrapper(class, &full, layer, outer));
                read?.unwrap_or(Kind::Refused)
            }
            // A chain of layers has no calls with arguments, which an operation consists of.
            _ if operations::is_operation(class, layer) && !self.graph.is_chain => Kind::Operation,
            _ => self.layer(class, &full, outer)?,
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
        let file = self.file;
        let turned = channels_last(outer);
        let outer = turned.as_ref().unwrap_or(outer);
        let mut is_text = false;
        let read = file.refused.layer(outer, |outer| {
            let Some(Named { mut fields, .. }) = Fields::named(place, String::new(), outer)? else {
                let what = format!("layer {name} has no class_name or config");
                return Err(file.not_a_model(what));
            };
            let shape = input_layer::shape(&mut fields)?;
            if class == "InputLayer" {
                is_text = input_layer::read(fields)?;
                return Ok((shape, None));
            }
            let rules = rules::read(class, &mut fields)?;
            let (spec, trainable) = LayerSpec::read(class, fields)?;
            Ok((shape, Some((spec, trainable, rules))))
        })?;
        let Some((shape, layer)) = read else {
            return Ok(Kind::Refused);
        };
        // The first layer's counts: Keras 2 repeats the key in an Embedding, without sizes.
        if self.graph.input_shape.is_none() {
            self.graph.input_shape.clone_from(&shape);
        }
        let Some((spec, trainable, rules)) = layer else {
            // The entry is added behind the others.
            let entry = self.graph.entries.len();
            self.graph.texts.extend(is_text.then_some(entry));
            return Ok(Kind::Input(shape));
        };
        let saved_as = self.saved_as(spec.class());
        self.all.push(NamedLayer {
            name: name.to_string(),
            spec,
            trainable: trainable && self.trainable,
            saved_as,
            rules,
        });
        let layer = self.all.len() - 1;
        if turned.is_none() {
            return Ok(Kind::Layer(layer));
        }
        let (from, to) = axes_of_channels(class, outer);
        let mut moved = |name: String, from, to| {
            self.all.push(NamedLayer {
                name,
                spec: Operation::move_axis(from, to).into(),
                trainable: true,
                saved_as: String::new(),
                rules: LayerRules::default(),
            });
            self.all.len() - 1
        };
        Ok(Kind::Turned {
            before: moved(format!("{name}[channels last]"), from, -1),
            layer,
            after: to.map(|to| moved(format!("{name}[channels first]"), -1, to)),
        })
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
                kind: Kind::Input(None),
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
        let found = Entries {
            names,
            masks: masks(list),
            file: self.file,
            prefix: self.prefix,
        };
        let mut all = Vec::with_capacity(list.len());
        let mut operations = Vec::new();
        for (index, (entry, layer)) in self.graph.entries.iter().zip(list).enumerate() {
            let full = format!("{}{}", self.prefix, entry.name);
            let read = match entry.kind {
                Kind::Input(_) => Ok(vec![Node::default()]),
                Kind::Refused => Ok(Vec::new()),
                Kind::Model(_) => nodes::read(layer, &full, entry, None, &found),
                Kind::Layer(index) | Kind::Turned { layer: index, .. } => {
                    let spec = self.all.get(index).map(|layer| &layer.spec);
                    nodes::read(layer, &full, entry, spec, &found)
                }
                Kind::Operation => operations::read(layer, &full, &found).map(|calls| {
                    let calls = calls.into_iter().enumerate();
                    let call = |(number, call): (usize, operations::Read)| {
                        operations.push((index, number, call.parts));
                        call.node
                    };
                    calls.map(call).collect()
                }),
            };
            all.push(self.file.refused.collect(read)?);
        }
        for (entry, nodes) in self.graph.entries.iter_mut().zip(all) {
            match nodes {
                Some(nodes) => entry.nodes = nodes,
                None => entry.kind = Kind::Refused,
            }
        }
        self.graph.inputs = found.ends(&config["input_layers"], "the model's input")?;
        self.graph.outputs = found.references(&config["output_layers"], "the model's output")?;
        references::resolve(&mut self.graph, self.all, self.file, self.prefix)?;
        self.results(operations)
    }

    /// The layers that give the results of operations: for each call those that something
    /// receives.
    fn results(&mut self, mut calls: Vec<(usize, usize, Parts)>) -> Result<(), ModelError> {
        let entries = &self.graph.entries;
        let nodes = entries.iter().flat_map(|entry| &entry.nodes);
        let inputs = nodes.flat_map(|node| &node.inputs);
        let outputs = self.graph.outputs.iter().map(|(_, output)| output);
        let mut wanted: BTreeMap<(usize, usize), BTreeSet<usize>> = BTreeMap::new();
        for reference in inputs.chain(outputs) {
            let call = (reference.entry, reference.node);
            wanted.entry(call).or_default().insert(reference.tensor);
        }
        for (entry, node, parts) in calls.drain(..) {
            let name = format!("{}{}", self.prefix, self.graph.entries[entry].name);
            let results = wanted.remove(&(entry, node)).unwrap_or_default();
            for result in results {
                let Some(operation) = parts(result).filter(|_| result < MAX_RESULTS) else {
                    return Err(ModelError::MissingLayer {
                        origin: self.file.origin.to_string(),
                        by: "a layer".to_string(),
                        layer: name,
                        node,
                        tensor: result,
                    });
                };
                let own = match (node, result) {
                    (0, 0) => name.clone(),
                    _ => format!("{name}[{node}, {result}]"),
                };
                self.all.push(NamedLayer {
                    name: own,
                    spec: operation,
                    trainable: self.trainable,
                    saved_as: String::new(),
                    rules: LayerRules::default(),
                });
                let results = &mut self.graph.entries[entry].nodes[node].results;
                results.resize(results.len().max(result + 1), None);
                results[result] = Some(self.all.len() - 1);
            }
        }
        Ok(())
    }
}

/// Which of the layers may be operations of masks: none, if no layer makes a mask.
fn masks(list: &[Value]) -> Vec<bool> {
    let makes = |layer: &Value| match layer["class_name"].as_str() {
        Some("Masking" | "Sequential" | "Functional" | "Model") => true,
        _ => layer["config"]["mask_zero"] == true,
    };
    let any = list.iter().any(makes);
    list.iter()
        .map(|layer| any && nodes::is_mask(layer))
        .collect()
}

/// The object of a layer of `channels_first` images as one of `channels_last`, whose weights are
/// the same.
fn channels_last(outer: &Object) -> Option<Object> {
    let first = outer.get("config")?.get("data_format")? == "channels_first";
    let mut outer = outer.clone();
    let format = outer.get_mut("config")?.get_mut("data_format")?;
    *format = Value::from("channels_last");
    first.then_some(outer)
}

/// An operation may not have more results.
const MAX_RESULTS: usize = 1 << 12;

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
        ModelError::Unsupported { found, .. } => {
            let each = found.iter();
            let each = each.map(|one| {
                let Unsupported { what, remedy, .. } = one;
                format!("{what} of the {class} is not supported ({remedy})")
            });
            file.not_a_model(each.collect::<Vec<_>>().join("; "))
        }
        other => other,
    })
}

/// Where a layer with `channels_first` has the channels of its input, and of its output; none there
/// if that has no axes beside them.
fn axes_of_channels(class: &str, outer: &Object) -> (i64, Option<i64>) {
    let option = |name: &str| outer.get("config").is_some_and(|it| it[name] == true);
    let ends = class == "Flatten" || class.starts_with("Global") && !option("keepdims");
    // Of a sequence of images the steps stand before the channels.
    let of_steps = class.starts_with("ConvLSTM");
    let axis = |has_steps| if has_steps { 2 } else { 1 };
    let to = axis(of_steps && option("return_sequences"));
    (axis(of_steps), (!ends).then_some(to))
}
