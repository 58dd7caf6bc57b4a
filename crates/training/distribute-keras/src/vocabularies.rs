//! Vocabularies that `adapt` made, which a `.keras` file has beside the layers: they become options
//! of the layers, where Keras writes a vocabulary that was given to a layer.

use serde_json::Value;

use crate::hdf5;
use crate::keras_archive::{WEIGHTS, member};
use crate::names::Names;
use crate::spec::SAVED_LAYERS;

/// The layers with a vocabulary.
const CLASSES: [&str; 3] = ["TextVectorization", "StringLookup", "IntegerLookup"];

/// The text of a model whose layers say their vocabularies, of the archive that they are in.
///
/// # Errors
/// What is wrong with the archive.
pub(crate) fn added(text: String, archive: &[u8]) -> Result<String, String> {
    if !CLASSES.iter().any(|class| text.contains(class)) {
        return Ok(text);
    }
    let Ok(mut model) = serde_json::from_str::<Value>(&text) else {
        return Ok(text);
    };
    add_to(&mut model["config"], "", archive)?;
    Ok(model.to_string())
}

/// Adds vocabularies to the layers of a model, whose group in the archive is `group`.
fn add_to(config: &mut Value, group: &str, archive: &[u8]) -> Result<(), String> {
    let mut names = Names::default();
    let layers = match config {
        Value::Array(layers) => Some(layers),
        config => config.get_mut("layers").and_then(Value::as_array_mut),
    };
    for layer in layers.into_iter().flatten() {
        let class = layer["class_name"].as_str().unwrap_or_default().to_string();
        let is_model = matches!(&*class, "Functional" | "Model");
        let name = names.next(if is_model { "Functional" } else { &class });
        let inner = format!("{group}{SAVED_LAYERS}/{name}");
        match &*class {
            "Sequential" | "Functional" | "Model" => {
                add_to(&mut layer["config"], &format!("{inner}/"), archive)?;
            }
            class if CLASSES.contains(&class) => add(&mut layer["config"], &inner, archive)?,
            _ => {}
        }
    }
    Ok(())
}

/// Adds the vocabulary of a layer, if it does not say it.
fn add(config: &mut Value, group: &str, archive: &[u8]) -> Result<(), String> {
    let name = format!("assets/{group}/vocabulary.txt");
    let there = member(archive, &name).map_err(|error| error.to_string())?;
    let Some(bytes) = there.filter(|_| config["vocabulary"].is_null()) else {
        return Ok(());
    };
    let text = String::from_utf8(bytes).map_err(|_| format!("{name} is no text in UTF-8"))?;
    let mut lines: Vec<&str> = text.split('\n').collect();
    while lines.last().is_some_and(|last| last.is_empty()) {
        lines.pop();
    }
    let is_numbers = config["vocabulary_dtype"] == "int64";
    let tokens = lines.into_iter().map(|line| match line.parse::<i64>() {
        Ok(number) if is_numbers => Value::from(number),
        _ => Value::from(line),
    });
    let tokens: Vec<Value> = tokens.collect();
    if config["output_mode"] == "tf_idf" && config["idf_weights"].is_null() {
        config["idf_weights"] = idf_weights(group, archive, tokens.len())?;
    }
    config["vocabulary"] = Value::from(tokens);
    Ok(())
}

/// The weights of a layer's tokens, which stand among the model's weights.
fn idf_weights(group: &str, archive: &[u8], tokens: usize) -> Result<Value, String> {
    let Some(bytes) = member(archive, WEIGHTS).map_err(|error| error.to_string())? else {
        return Ok(Value::Null);
    };
    let file = hdf5::File::open(&bytes)?;
    let mut address = file.root_address();
    for part in format!("{group}/vars/idf_weights").split('/') {
        let links = file.links(&file.object(address)?)?;
        let Some((_, next)) = links.into_iter().find(|(name, _)| name == part) else {
            return Ok(Value::Null);
        };
        address = next;
    }
    let weights = file.numbers(&file.object(address)?)?;
    // Of the tokens alone, not of what the row is filled up with.
    let weights = weights.values.iter().take(tokens);
    Ok(weights.map(|weight| f64::from(*weight)).collect())
}
