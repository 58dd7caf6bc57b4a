//! `TimeDistributed` and `Bidirectional`: layers around other layers, which are read as models
//! inside of the model.

use serde_json::Value;

use super::entries::{Entry, Graph, INPUTS, Kind, Node, Reference};
use super::graph::Reader;
use super::{input_layer, rules};
use crate::fields::{Fields, Named, Object, Place};
use crate::layers::{LayerSpec, Merge, Recurrent, TimeAxis, common};
use crate::names::Names;
use crate::{LayerRules, ModelError, NamedLayer};

const ONLY_RECURRENT: &str = "use SimpleRNN, LSTM, GRU or RNN in it";

impl Reader<'_> {
    /// A layer around others. `layer` is all that the file says of it.
    pub(super) fn wrapper(
        &mut self,
        class: &str,
        name: &str,
        layer: &Value,
        outer: &Object,
    ) -> Result<Kind, ModelError> {
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
        if self.graph.input_shape.is_none() {
            self.graph.input_shape = shape;
        }
        let trainable = common(&mut fields)? && self.trainable;
        let inner = format!("{name}/");
        let group = self.saved_as(class);
        let mut inside = Inside {
            reader: Reader {
                file: self.file,
                prefix: &inner,
                saved: format!("{group}/layer"),
                saved_names: None,
                trainable,
                all: &mut *self.all,
                graph: Graph {
                    entries: Vec::new(),
                    outputs: Vec::new(),
                    inputs: Vec::new(),
                    input_shape: None,
                    texts: Vec::new(),
                    own: Vec::new(),
                    arguments: INPUTS,
                    is_chain: true,
                },
                unnamed: Names::default(),
            },
            name,
            group,
        };
        match class {
            "TimeDistributed" => inside.time_distributed(&mut fields)?,
            _ => inside.bidirectional(&mut fields, initial_states(layer))?,
        }
        fields.finish()?;
        Ok(Kind::Model(Box::new(inside.reader.graph)))
    }
}

/// How many initial states the first call is given.
fn initial_states(layer: &Value) -> usize {
    let node = &layer["inbound_nodes"][0];
    let given = match node {
        Value::Array(received) => return received.len().saturating_sub(1),
        node => [&node["kwargs"]["initial_state"], &node["args"][1]],
    };
    let counts = given.map(|states| states.as_array().map_or(0, Vec::len));
    counts.into_iter().max().unwrap_or(0)
}

/// The graph that a wrapper becomes.
struct Inside<'a> {
    reader: Reader<'a>,
    name: &'a str,
    /// The wrapper's group in a file of weights.
    group: String,
}

/// The first value of an entry.
fn value(entry: usize) -> Reference {
    Reference {
        entry,
        node: 0,
        tensor: 0,
    }
}

impl Inside<'_> {
    /// Adds an entry that receives these values.
    fn add(&mut self, kind: Kind, inputs: Vec<Reference>) -> usize {
        let graph = &mut self.reader.graph;
        if matches!(kind, Kind::Input(_)) {
            graph.inputs.push(graph.entries.len());
        }
        graph.entries.push(Entry {
            name: String::new(),
            kind,
            nodes: vec![Node {
                inputs,
                ..Node::default()
            }],
        });
        graph.entries.len() - 1
    }

    /// Adds a layer that the file does not have.
    fn own(&mut self, name: String, spec: LayerSpec, inputs: Vec<Reference>) -> usize {
        self.reader.graph.own.push(self.reader.all.len());
        let group = self.group.clone();
        self.layer(name, group, (spec, LayerRules::default()), inputs)
    }

    /// Adds a layer with this group in a file of weights.
    fn layer(
        &mut self,
        name: String,
        saved_as: String,
        (spec, rules): (LayerSpec, LayerRules),
        inputs: Vec<Reference>,
    ) -> usize {
        self.reader.all.push(NamedLayer {
            name,
            spec,
            trainable: self.reader.trainable,
            saved_as,
            rules,
        });
        self.add(Kind::Layer(self.reader.all.len() - 1), inputs)
    }

    /// Every step becomes an example, goes through the layer or model, and becomes a step again.
    fn time_distributed(&mut self, fields: &mut Fields<'_>) -> Result<(), ModelError> {
        let Some(inner) = fields.get("layer").filter(|inner| inner.is_object()) else {
            return Err(fields.refuse("layer", "use a layer or a model"));
        };
        let all = self.add(Kind::Input(None), Vec::new());
        let split = format!("{}/steps", self.name);
        let split = self.own(split, TimeAxis::Split.into(), vec![value(all)]);
        self.reader.entry(0, inner)?;
        let each = self.reader.graph.entries.len() - 1;
        self.without_activity(each, fields)?;
        self.reader.graph.entries[each].nodes = vec![Node {
            inputs: vec![value(split)],
            ..Node::default()
        }];
        let name = self.name.to_string();
        let inputs = vec![value(each), value(all)];
        let joined = self.own(name, TimeAxis::Join.into(), inputs);
        self.reader.graph.outputs.push((None, value(joined)));
        Ok(())
    }

    /// Keras 3 calls the layer in a `TimeDistributed` without the loss on its outputs.
    fn without_activity(&mut self, entry: usize, fields: &Fields<'_>) -> Result<(), ModelError> {
        let Kind::Layer(layer) = self.reader.graph.entries[entry].kind else {
            return Ok(());
        };
        let layer = &mut self.reader.all[layer];
        let own = match &mut layer.spec {
            LayerSpec::ActivityRegularization(own) => Some(std::mem::take(&mut own.regularizer)),
            _ => None,
        };
        match layer.rules.activity.take().or(own) {
            Some(_) if self.reader.file.keras2 => Err(fields.refuse(
                "layer",
                "take the activity_regularizer away from the layer in it",
            )),
            _ => Ok(()),
        }
    }

    /// A layer reads the steps forwards, another one backwards, and what they give is merged.
    fn bidirectional(&mut self, fields: &mut Fields<'_>, states: usize) -> Result<(), ModelError> {
        // Keras 2 may say how many weights there are.
        fields.neutral(&["num_constants"]);
        let merge = merge_mode(fields)?;
        let Some((name, forward, rules)) = self.recurrent(fields, "layer", "forward_")? else {
            return Err(fields.refuse("layer", ONLY_RECURRENT));
        };
        let backward = match self.recurrent(fields, "backward_layer", "")? {
            Some(backward) => backward,
            None => {
                let own = name.strip_prefix("forward_").unwrap_or(&name);
                let go_backwards = !forward.go_backwards;
                let backward = Recurrent {
                    go_backwards,
                    ..forward.clone()
                };
                (format!("backward_{own}"), backward, rules.clone())
            }
        };
        let same = |r: &Recurrent| (r.return_sequences, r.return_state, !r.go_backwards);
        let (sequences, with_states, backwards) = same(&forward);
        if same(&backward.1) != (sequences, with_states, !backwards) {
            let remedy = "use the same return_sequences and return_state as in the layer, and \
                          another go_backwards";
            return Err(fields.refuse("backward_layer", remedy));
        }
        self.reader.graph.arguments = &["sequences", "initial_state"];
        let all = self.add(Kind::Input(None), Vec::new());
        let given = 0..states;
        let given: Vec<usize> = given
            .map(|_| self.add(Kind::Input(None), Vec::new()))
            .collect();
        let (of_forward, of_backward) = given.split_at(states / 2);
        let mut both = Vec::new();
        for (attribute, (name, layer, rules), states) in [
            ("forward_layer", (name, forward, rules), of_forward),
            ("backward_layer", backward, of_backward),
        ] {
            let received = std::iter::once(&all).chain(states);
            let received = received.map(|entry| value(*entry)).collect();
            let layer = Recurrent {
                // As Keras sets it in both.
                zero_output_for_mask: sequences,
                ..layer
            };
            let states = layer.states().len();
            let name = format!("{}/{name}", self.name);
            let saved_as = format!("{}/{attribute}", self.group);
            let layer = (layer.into(), rules);
            both.push((self.layer(name, saved_as, layer, received), states));
        }
        self.merged(&both, merge, sequences, with_states);
        Ok(())
    }

    /// What the two layers give, each with the number of its states.
    fn merged(
        &mut self,
        both: &[(usize, usize)],
        merge: Option<Merge>,
        sequences: bool,
        with_states: bool,
    ) {
        let (mut given, name) = (Vec::new(), self.name);
        for (index, (entry, _)) in both.iter().enumerate() {
            given.push(if sequences && index > 0 {
                let name = format!("{name}/reversed");
                value(self.own(name, TimeAxis::Reverse.into(), vec![value(*entry)]))
            } else {
                value(*entry)
            });
        }
        if let Some(merge) = merge {
            given = vec![value(self.own(name.to_string(), merge.into(), given))];
        }
        for (entry, states) in both.iter().filter(|_| with_states) {
            given.extend((1..=*states).map(|tensor| Reference {
                tensor,
                ..value(*entry)
            }));
        }
        let outputs = given.into_iter().map(|value| (None, value));
        self.reader.graph.outputs.extend(outputs);
    }

    /// A recurrent layer in an option, and its name.
    fn recurrent(
        &self,
        fields: &mut Fields<'_>,
        key: &'static str,
        prefix: &str,
    ) -> Result<Option<(String, Recurrent, LayerRules)>, ModelError> {
        if fields.get(key).is_none() {
            return Ok(None);
        }
        let refuse = |fields: &Fields<'_>| fields.refuse(key, ONLY_RECURRENT);
        let named = fields.object(key)?.ok_or_else(|| refuse(fields))?;
        let mut options = named.fields;
        let name = options.get("name").and_then(Value::as_str);
        let name = name.map_or_else(|| Names::default().next(named.class), str::to_string);
        // The names of Keras' weights have the prefix, its files may not.
        let name = format!("{prefix}{}", name.strip_prefix(prefix).unwrap_or(&name));
        input_layer::shape(&mut options)?;
        let rules = rules::read(named.class, &mut options)?;
        match LayerSpec::read(named.class, options)? {
            (LayerSpec::Recurrent(layer), true) => Ok(Some((name, layer, rules))),
            (LayerSpec::Recurrent(_), false) => {
                Err(fields.refuse(key, "set trainable=False in the Bidirectional layer"))
            }
            _ => Err(refuse(fields)),
        }
    }
}

/// How the values of both directions become one; `None` if they do not.
fn merge_mode(fields: &mut Fields<'_>) -> Result<Option<Merge>, ModelError> {
    Ok(match fields.get("merge_mode").map(Value::as_str) {
        None => None,
        Some(Some("concat")) => Some(Merge::Concatenate { axis: -1 }),
        Some(Some("sum")) => Some(Merge::Add),
        Some(Some("ave")) => Some(Merge::Average),
        Some(Some("mul")) => Some(Merge::Multiply),
        Some(_) => return Err(fields.refuse("merge_mode", "use concat, sum, ave, mul or None")),
    })
}
