//! Finds the call that a reference means.
//!
//! Versions of Keras count the calls of a layer in different ways. In Keras 3 a layer receives
//! outputs of calls that are counted from 0, but the outputs of the model count the calls of a
//! functional model from 1: call 0 is the one that made the model. Keras 2 counts them from 1
//! everywhere. Keras 3.0 to 3.2 number the calls that a layer receives as they were made, those
//! outside of the model included.

use std::collections::{BTreeMap, BTreeSet};

use super::File;
use super::entries::{Entry, Graph, Kind, Reference};
use crate::{ModelError, NamedLayer};

/// Who counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counting {
    Keras2,
    Keras3,
    /// The outputs of a model of Keras 3.
    Keras3Outputs,
}

/// What can be received of an entry.
struct Receivable {
    name: String,
    /// How many calls it has, and how many outputs each, where that is known.
    nodes: usize,
    tensors: Option<usize>,
    /// Whether Keras 2 has one call more, which is not written down.
    own_node: bool,
    /// Whether it is a functional model.
    functional: bool,
    /// Whether it is refused, so that nobody knows its calls.
    refused: bool,
    /// The numbers of its calls as Keras 3.0 made them, in order, if they are others.
    made: Vec<usize>,
}

impl Receivable {
    fn of(entry: &Entry, layers: &[NamedLayer]) -> Self {
        Self {
            name: entry.name.clone(),
            nodes: entry.nodes.len(),
            tensors: match &entry.kind {
                Kind::Model(model) => Some(model.outputs.len()),
                Kind::Operation => None,
                Kind::Layer(layer) => layers.get(*layer).map(|layer| layer.spec.layer().outputs()),
                _ => Some(1),
            },
            own_node: entry.has_own_node(),
            functional: matches!(&entry.kind, Kind::Model(model) if !model.is_chain),
            refused: matches!(entry.kind, Kind::Refused),
            made: Vec::new(),
        }
    }
}

/// Replaces the calls in all references by the positions of the calls.
pub(super) fn resolve(
    graph: &mut Graph,
    layers: &[NamedLayer],
    file: File<'_>,
    prefix: &str,
) -> Result<(), ModelError> {
    let entries = graph.entries.iter();
    let receivable = entries.map(|entry| Receivable::of(entry, layers));
    let mut found = Found {
        entries: receivable.collect(),
        file,
        prefix,
    };
    found.number(&graph.entries);
    let mut keras2 = file.keras2;
    for entry in &mut graph.entries {
        let by = format!("the layer {prefix}{}", entry.name);
        for node in &mut entry.nodes {
            keras2 |= node.keras2;
            let counting = if node.keras2 {
                Counting::Keras2
            } else {
                Counting::Keras3
            };
            for reference in &mut node.inputs {
                *reference = found.resolve(*reference, counting, &by)?;
            }
        }
    }
    let counting = if keras2 {
        Counting::Keras2
    } else {
        Counting::Keras3Outputs
    };
    for (_, reference) in &mut graph.outputs {
        *reference = found.resolve(*reference, counting, "the model's output")?;
    }
    Ok(())
}

struct Found<'a> {
    entries: Vec<Receivable>,
    file: File<'a>,
    prefix: &'a str,
}

impl Found<'_> {
    /// Finds the entries whose calls have the numbers with which Keras 3.0 made them: some number
    /// is too large, and there are as many numbers as calls.
    fn number(&mut self, entries: &[Entry]) {
        let mut numbers: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        let nodes = entries.iter().flat_map(|entry| &entry.nodes);
        for node in nodes.filter(|node| !node.keras2) {
            for input in &node.inputs {
                numbers.entry(input.entry).or_default().insert(input.node);
            }
        }
        for (index, numbers) in numbers {
            let is_input = matches!(entries[index].kind, Kind::Input(_));
            let entry = &mut self.entries[index];
            let too_large = numbers.last().is_some_and(|last| *last >= entry.nodes);
            if !is_input && too_large && numbers.len() == entry.nodes {
                entry.made = numbers.into_iter().collect();
            }
        }
    }

    /// The reference with its call counted from 0.
    fn resolve(
        &self,
        reference: Reference,
        counting: Counting,
        by: &str,
    ) -> Result<Reference, ModelError> {
        let entry = &self.entries[reference.entry];
        if entry.refused {
            return Ok(reference);
        }
        let made = entry.made.iter().position(|made| *made == reference.node);
        let node = match counting {
            Counting::Keras2 if entry.own_node => reference.node.checked_sub(1),
            Counting::Keras3Outputs if entry.functional => reference.node.checked_sub(1),
            Counting::Keras3 if made.is_some() => made,
            _ => Some(reference.node),
        };
        let is_there = |node: &usize| {
            let tensors = entry.tensors;
            *node < entry.nodes && tensors.is_none_or(|tensors| reference.tensor < tensors)
        };
        match node.filter(is_there) {
            Some(node) => Ok(Reference { node, ..reference }),
            None => Err(ModelError::MissingLayer {
                origin: self.file.origin.to_string(),
                by: by.to_string(),
                layer: format!("{}{}", self.prefix, entry.name),
                node: reference.node,
                tensor: reference.tensor,
            }),
        }
    }
}
