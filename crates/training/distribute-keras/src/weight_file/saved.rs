//! The layout of Keras 3 (`.weights.h5`, and `model.weights.h5` in `.keras`): groups that are
//! called as the layers' classes and counted, with the weights of a layer by number in `vars`.

use std::collections::{BTreeMap, BTreeSet};

use super::VARS;
use super::found::Found;
use crate::hdf5::{File, Object};
use crate::spec::SAVED_LAYERS;
use crate::{Plan, PlannedLayer, Weight};

/// What the first files of this layout called the group of the layers.
const OLD_LAYERS: &str = "_layer_checkpoint_dependencies";
/// A layer of random numbers keeps them in a group of its own, which is no weight.
const SEEDS: &str = "seed_generator";

/// The weights of a layer, by their group below that of the layer (empty for its own).
type Parts = BTreeMap<String, Vec<u64>>;

/// What is in a file.
struct Layers {
    /// Below the path of each layer.
    parts: BTreeMap<String, Parts>,
    /// The names that newer versions write beside the weights, by path.
    names: BTreeMap<String, String>,
}

/// What the file has for a model.
pub(super) fn found(file: &File<'_>, plan: &Plan) -> Result<Found, String> {
    let mut layers = Layers::read(file)?;
    if layers.parts.is_empty() {
        return Err("it has no weights of layers".to_string());
    }
    let renamed = layers.renamed(plan);
    let mut found = Found::default();
    for layer in plan.layers.iter().filter(|layer| !layer.weights.is_empty()) {
        layers.divide(&at(layer, &renamed));
    }
    for (index, layer) in plan.layers.iter().enumerate() {
        if layer.weights.is_empty() {
            continue;
        }
        let path = at(layer, &renamed);
        let name = layers.names.get(&path).cloned();
        let addresses = match layers.parts.remove(&path) {
            None => Err(format!(
                "the file has no weights of {} ({path})",
                layer.name
            )),
            Some(parts) => assigned(layer, parts).map_err(|what| {
                let there = name.filter(|name| *name != layer.name);
                let there = there.map_or(String::new(), |name| format!(", there {name}"));
                format!("{} ({path}{there}): {what}", layer.name)
            }),
        };
        match addresses {
            Ok(addresses) => {
                for (address, planned) in addresses.into_iter().zip(&layer.weights) {
                    let weight = numbers(file, address)
                        .map_err(|what| format!("{}/{}: {what}", layer.name, planned.name))?;
                    found.weights.push(Some(weight));
                }
            }
            Err(what) => {
                found.missing.push((index, what));
                found.weights.extend(layer.weights.iter().map(|_| None));
            }
        }
    }
    let unused = layers.parts.into_keys();
    let unused = unused.map(|path| match layers.names.get(&path) {
        Some(name) => format!("weights of {path} ({name})"),
        None => format!("weights of {path}"),
    });
    found.unused = unused.collect();
    Ok(found)
}

/// A layer's place in its model: the group of the model's layers, that of the layer or of the layer
/// around it below, and the path from there.
struct Place<'a> {
    model: &'a str,
    group: &'a str,
    inner: &'a str,
}

fn place(saved_as: &str) -> Place<'_> {
    let between = format!("{SAVED_LAYERS}/");
    let start = saved_as.rfind(&between).map_or(0, |at| at + between.len());
    let end = saved_as[start..].find('/').map(|length| start + length);
    let end = end.unwrap_or(saved_as.len());
    Place {
        model: saved_as[..start].trim_end_matches('/'),
        group: &saved_as[start..end],
        inner: &saved_as[end..],
    }
}

/// The group of a layer in the file, where groups have other names.
fn at(layer: &PlannedLayer, renamed: &BTreeMap<String, String>) -> String {
    let saved = &layer.saved_as;
    let inner = place(saved).inner;
    let outer = renamed.get(&saved[..saved.len() - inner.len()]);
    outer.map_or_else(|| saved.clone(), |outer| format!("{outer}{inner}"))
}

fn numbers(file: &File<'_>, address: u64) -> Result<Weight, String> {
    file.numbers(&file.object(address)?)
}

/// The addresses of a layer's weights, in the order of the plan.
fn assigned(layer: &PlannedLayer, mut parts: Parts) -> Result<Vec<u64>, String> {
    let count: usize = parts.values().map(Vec::len).sum();
    if count != layer.weights.len() {
        return Err(format!(
            "{count} weights in the file, {} in the model",
            layer.weights.len()
        ));
    }
    let mut addresses = Vec::with_capacity(count);
    for (position, weight) in layer.weights.iter().enumerate() {
        let wanted = layer.spec.layer().sublayer(position, &weight.name);
        let part = best(&parts, wanted, &weight.name)
            .ok_or_else(|| format!("it is unclear which of its layers has {}", weight.name))?;
        // A part whose weights are all taken is gone.
        let left = parts.get_mut(&part).filter(|left| !left.is_empty());
        let left = left.ok_or_else(|| format!("there is no {}", weight.name))?;
        addresses.push(left.remove(0));
        if left.is_empty() {
            parts.remove(&part);
        }
    }
    Ok(addresses)
}

/// The part in which a weight is: the one of this name, or else the only one with the most words
/// of the weight's name (`_query_dense` for `query/kernel`).
fn best(parts: &Parts, wanted: &str, weight: &str) -> Option<String> {
    if parts.contains_key(wanted) {
        return Some(wanted.to_string());
    }
    if let [(only, _)] = parts.iter().collect::<Vec<_>>()[..] {
        return Some(only.clone());
    }
    let words = |name: &str| -> BTreeSet<String> {
        let words = name.split(['/', '_']).filter(|word| !word.is_empty());
        words.map(str::to_string).collect()
    };
    let of_weight: BTreeSet<String> = &words(wanted) | &words(weight);
    let common = |part: &str| words(part).intersection(&of_weight).count();
    let most = parts.keys().map(|part| common(part)).max()?;
    let mut candidates = parts.keys().filter(|part| common(part) == most);
    match (candidates.next(), candidates.next()) {
        (Some(one), None) => Some(one.clone()),
        _ => None,
    }
}

impl Layers {
    fn read(file: &File<'_>) -> Result<Self, String> {
        let mut layers = Self {
            parts: BTreeMap::new(),
            names: BTreeMap::new(),
        };
        let mut seen = BTreeSet::from([file.root_address()]);
        // Groups to look at, each with its path and the length of its layer's path in it.
        let mut open = vec![(String::new(), None, file.root()?)];
        while let Some((path, layer, group)) = open.pop() {
            for (name, address) in file.links(&group)? {
                let is_layers = name == SAVED_LAYERS || name == OLD_LAYERS;
                // What the optimizer and the model itself keep is none of a layer.
                if (layer.is_none() && !is_layers && !path.ends_with(SAVED_LAYERS))
                    || name == SEEDS
                    || !seen.insert(address)
                {
                    continue;
                }
                let object = file.object(address)?;
                if object.is_dataset() {
                    continue;
                }
                if name == VARS {
                    layers.add(file, &path, layer.unwrap_or(path.len()), &object)?;
                    continue;
                }
                let inner = match path.as_str() {
                    "" => SAVED_LAYERS.to_string(),
                    path if is_layers => format!("{path}/{SAVED_LAYERS}"),
                    path => format!("{path}/{name}"),
                };
                // Below the group of the layers each group is a layer; deeper ones are its parts.
                let of_layer = match layer {
                    _ if is_layers => None,
                    None => Some(inner.len()),
                    known => known,
                };
                open.push((inner, of_layer, object));
            }
        }
        Ok(layers)
    }

    /// Takes what is in a layer below another one (`layers/bidirectional/forward_layer`) out of the
    /// parts of the other.
    fn divide(&mut self, path: &str) {
        let Place {
            model,
            group,
            inner,
        } = place(path);
        let inner = inner.trim_start_matches('/');
        if inner.is_empty() {
            return;
        }
        let around = format!("{model}/{group}");
        let Some(parts) = self.parts.get_mut(&around) else {
            return;
        };
        let mut own = Parts::new();
        parts.retain(|part, weights| {
            let below = part.strip_prefix(inner);
            let below = below.filter(|rest| rest.is_empty() || rest.starts_with('/'));
            if let Some(below) = below {
                own.insert(
                    below.trim_start_matches('/').to_string(),
                    std::mem::take(weights),
                );
            }
            below.is_none()
        });
        if parts.is_empty() {
            self.parts.remove(&around);
        }
        if !own.is_empty() {
            self.parts.insert(path.to_string(), own);
        }
    }

    /// The weights in a group `vars`.
    fn add(
        &mut self,
        file: &File<'_>,
        path: &str,
        layer: usize,
        vars: &Object<'_>,
    ) -> Result<(), String> {
        let (layer, part) = path.split_at(layer);
        let part = part.trim_start_matches('/').to_string();
        if part.is_empty()
            && let Some(name) = file.text(vars, "name")?
        {
            self.names.insert(layer.to_string(), name);
        }
        let links = file.links(vars)?;
        let numbered = links
            .into_iter()
            .filter_map(|(name, address)| Some((name.parse::<usize>().ok()?, address)));
        let numbered: BTreeMap<usize, u64> = numbered.collect();
        if !numbered.is_empty() {
            let parts = self.parts.entry(layer.to_string()).or_default();
            parts.insert(part, numbered.into_values().collect());
        }
        Ok(())
    }

    /// Where layers stand by their names, for models of which the file has every name: such a model
    /// may have its layers in another order.
    fn renamed(&self, plan: &Plan) -> BTreeMap<String, String> {
        let container = |path: &str| path.rsplit_once('/').map(|(start, _)| start.to_string());
        let class = |path: &str| -> Option<String> {
            let last = path.rsplit('/').next()?;
            let stem = last.trim_end_matches(|letter: char| letter.is_ascii_digit());
            Some(stem.strip_suffix('_').unwrap_or(last).to_string())
        };
        let mut named: BTreeMap<(Option<String>, String), Vec<&String>> = BTreeMap::new();
        for (path, name) in &self.names {
            let key = (container(path), name.clone());
            named.entry(key).or_default().push(path);
        }
        let mut places: BTreeMap<Option<String>, Option<Vec<(String, String)>>> = BTreeMap::new();
        for layer in plan.layers.iter().filter(|layer| !layer.weights.is_empty()) {
            let Place { inner, .. } = place(&layer.saved_as);
            let outer = &layer.saved_as[..layer.saved_as.len() - inner.len()];
            // A layer below another one has the other's name before its own.
            let above = layer.name.rsplit('/').nth(inner.matches('/').count());
            let name = above.unwrap_or(&layer.name).to_string();
            let model = container(outer);
            let found = named.get(&(model.clone(), name));
            let place = match found.map(Vec::as_slice) {
                Some([one]) if class(one) == class(outer) => Some((*one).clone()),
                _ => None,
            };
            let known = places.entry(model).or_insert_with(|| Some(Vec::new()));
            match (place, known.as_mut()) {
                (Some(place), Some(known)) => known.push((outer.to_string(), place)),
                _ => *known = None,
            }
        }
        places.into_values().flatten().flatten().collect()
    }
}
