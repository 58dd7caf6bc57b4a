//! The layout of Keras 2, which Keras 3 still writes as `.h5`: a group per layer, with the names of
//! its weights in an attribute.

use std::collections::BTreeMap;

use super::found::Found;
use crate::hdf5::{File, Object};
use crate::{Plan, PlannedLayer};

/// The weights of a layer of the file: their names and addresses.
type Saved = Vec<(String, u64)>;
/// A weight of a plan: the position of the layer, and of the weight in it.
type Place = (usize, usize);

/// The group of the layers, if the file has this layout.
pub(super) fn group<'a>(file: &File<'a>) -> Result<Option<Object<'a>>, String> {
    let root = file.root()?;
    let links = file.links(&root)?;
    let whole = links.into_iter().find(|(name, _)| name == "model_weights");
    if let Some((_, address)) = whole {
        return file.object(address).map(Some);
    }
    let names = file.texts(&root, "layer_names")?;
    Ok(names.map(|_| root))
}

/// What the file has for a model.
pub(super) fn found(file: &File<'_>, group: &Object<'_>, plan: &Plan) -> Result<Found, String> {
    let saved = saved(file, group)?;
    let wanted = entries(plan);
    let mut found = Found {
        weights: plan.weights().map(|_| None).collect(),
        ..Found::default()
    };
    let starts: Vec<usize> = plan
        .layers
        .iter()
        .scan(0, |next, layer| {
            let start = *next;
            *next += layer.weights.len();
            Some(start)
        })
        .collect();
    let mut taken = vec![false; saved.len()];
    let chosen = chosen(&saved, &wanted);
    for ((name, layers), at) in wanted.iter().zip(chosen) {
        let Some((saved_name, weights)) = at.and_then(|at| saved.get(at)) else {
            let what = format!("the file has no layer {name}");
            found.missing.push((layers[0], what));
            continue;
        };
        if let Some(taken) = at.and_then(|at| taken.get_mut(at)) {
            *taken = true;
        }
        let places = assigned(plan, layers, weights);
        let Some(places) = places else {
            let there = if saved_name == name {
                String::new()
            } else {
                format!(" (there {saved_name})")
            };
            let count: usize = layers.iter().map(|at| plan.layers[*at].weights.len()).sum();
            let what = format!(
                "{name}{there} has {} weights in the file and {count} in the model",
                weights.len()
            );
            found
                .missing
                .extend(layers.iter().map(|at| (*at, what.clone())));
            continue;
        };
        for ((layer, weight), (name, address)) in places.into_iter().zip(weights) {
            let object = file.object(*address)?;
            let numbers = file.numbers(&object);
            let numbers = numbers.map_err(|what| format!("{saved_name}/{name}: {what}"))?;
            found.weights[starts[layer] + weight] = Some(numbers);
        }
    }
    let unused = saved.iter().zip(taken).filter(|(_, taken)| !taken);
    found.unused = unused
        .map(|((name, _), _)| format!("a layer {name}"))
        .collect();
    found.missing.dedup();
    Ok(found)
}

/// The layers of the file that have weights, in order.
fn saved(file: &File<'_>, group: &Object<'_>) -> Result<Vec<(String, Saved)>, String> {
    let groups: BTreeMap<String, u64> = file.links(group)?.into_iter().collect();
    let names = file.texts(group, "layer_names")?.unwrap_or_default();
    let mut saved = Vec::new();
    for name in names {
        let missing = || format!("the layer {name} is not in it");
        // A name may itself be a path.
        let address = match groups.get(&name) {
            Some(address) => *address,
            None => at_path(file, group, &name)?.ok_or_else(missing)?,
        };
        let layer = file.object(address)?;
        let mut weights = Vec::new();
        for weight in file.texts(&layer, "weight_names")?.unwrap_or_default() {
            let address = at_path(file, &layer, &weight)?;
            let address = address.ok_or_else(|| format!("the weight {weight} is not in it"))?;
            weights.push((
                weight.strip_suffix(":0").unwrap_or(&weight).to_string(),
                address,
            ));
        }
        if !weights.is_empty() {
            saved.push((name, weights));
        }
    }
    if saved.is_empty() {
        return Err("it has no weights of layers".to_string());
    }
    Ok(saved)
}

fn at_path(file: &File<'_>, group: &Object<'_>, path: &str) -> Result<Option<u64>, String> {
    let mut at = None;
    for name in path.split('/') {
        let links = match at {
            None => file.links(group)?,
            Some(address) => file.links(&file.object(address)?)?,
        };
        let found = links.into_iter().find(|(link, _)| link == name);
        let Some((_, address)) = found else {
            return Ok(None);
        };
        at = Some(address);
    }
    Ok(at)
}

/// The layers of the model itself that have weights, in order; a model inside and a
/// layer around others are one of them, with all of their layers.
fn entries(plan: &Plan) -> Vec<(String, Vec<usize>)> {
    let mut entries: Vec<(String, Vec<usize>)> = Vec::new();
    for (index, layer) in plan.layers.iter().enumerate() {
        if layer.weights.is_empty() {
            continue;
        }
        // `layers/dense` is a layer of the model itself.
        let nested = layer.saved_as.matches('/').count() > 1;
        let name = match layer.name.split_once('/') {
            Some((model, _)) if nested => model,
            _ => &layer.name,
        };
        match entries
            .last_mut()
            .filter(|(last, _)| nested && last == name)
        {
            Some((_, layers)) => layers.push(index),
            None => entries.push((name.to_string(), vec![index])),
        }
    }
    entries
}

/// For each of the model's layers one of the file's: of the same name, if every layer of the model
/// has one or the numbers differ; else in order, as Keras does it.
fn chosen(saved: &[(String, Saved)], wanted: &[(String, Vec<usize>)]) -> Vec<Option<usize>> {
    let named: BTreeMap<&str, usize> = saved
        .iter()
        .enumerate()
        .map(|(at, (name, _))| (name.as_str(), at))
        .collect();
    let by_name: Vec<Option<usize>> = wanted
        .iter()
        .map(|(name, _)| named.get(name.as_str()).copied())
        .collect();
    if saved.len() == wanted.len() && by_name.iter().any(Option::is_none) {
        return (0..saved.len()).map(Some).collect();
    }
    by_name
}

/// The places of the weights of one of the file's layers.
fn assigned(plan: &Plan, layers: &[usize], weights: &Saved) -> Option<Vec<Place>> {
    let count: usize = layers.iter().map(|at| plan.layers[*at].weights.len()).sum();
    if count != weights.len() {
        return None;
    }
    by_layer(plan, layers, weights).or_else(|| Some(in_order(plan, layers)))
}

/// What Keras writes first: the weights that are trained.
fn in_order(plan: &Plan, layers: &[usize]) -> Vec<Place> {
    let mut places: Vec<Place> = layers
        .iter()
        .flat_map(|at| (0..plan.layers[*at].weights.len()).map(|weight| (*at, weight)))
        .collect();
    places.sort_by_key(|(at, weight)| {
        let layer = &plan.layers[*at];
        !(layer.trainable && layer.weights[*weight].trained)
    });
    places
}

/// By the names of the layers of a model inside, whichever of them are frozen; `None` if a name is
/// of no layer.
fn by_layer(plan: &Plan, layers: &[usize], weights: &Saved) -> Option<Vec<Place>> {
    let [_, _, ..] = layers else {
        return None;
    };
    // The weights of each layer, trained ones first.
    let mut left: BTreeMap<usize, Vec<Place>> = layers
        .iter()
        .map(|at| {
            let layer = &plan.layers[*at];
            let mut weights: Vec<Place> = (0..layer.weights.len()).map(|it| (*at, it)).collect();
            weights.sort_by_key(|(_, weight)| !layer.weights[*weight].trained);
            (*at, weights)
        })
        .collect();
    let places = weights.iter().map(|(name, _)| {
        let lengths = layers.iter().filter_map(|at| {
            let length = matched(&plan.layers[*at], name)?;
            Some((length, *at))
        });
        let (_, at) = lengths.max()?;
        let left = left.get_mut(&at)?;
        (!left.is_empty()).then(|| left.remove(0))
    });
    places.collect()
}

/// How much of a weight's name is the path of a layer, or the end of the path.
fn matched(layer: &PlannedLayer, weight: &str) -> Option<usize> {
    let mut path = layer.name.as_str();
    loop {
        let rest = weight.strip_prefix(path);
        if rest.is_some_and(|rest| rest.starts_with('/')) {
            return Some(path.len());
        }
        path = path.split_once('/')?.1;
    }
}
