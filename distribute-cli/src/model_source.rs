//! Where a model comes from: its name, its file, or the checkpoint that has it.

use std::path::Path;

use distribute_core::Configuration;
use distribute_keras::{BUILT_IN, ModelError, ModelSpec, built_in, model_text, parse_keras_json};
use serde_json::Value;

use crate::failure::Failure;

/// Where the model comes from.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    BuiltIn,
    /// The text of a model file.
    Keras(String),
}

impl Source {
    /// The model of this name, for so many classes and tokens.
    pub(crate) fn spec(
        &self,
        model: &str,
        (classes, tokens): (usize, usize),
    ) -> Result<ModelSpec, Failure> {
        match self {
            Self::BuiltIn => built_in(model, classes, tokens).ok_or_else(|| unknown(model)),
            Self::Keras(text) => Ok(parse_keras_json(text, model)?),
        }
    }
}

/// The model that a checkpoint has, by its name or as its file's text.
pub(crate) fn stored_model(extra: &Value) -> Option<(String, Source)> {
    let name = extra["model"].as_str()?.to_string();
    let file = extra["model_file"].as_str();
    let source = file.map_or(Source::BuiltIn, |text| Source::Keras(text.to_string()));
    Some((name, source))
}

/// The model of this name or file.
pub(crate) fn named_model(model: &str) -> Result<(String, Source), Failure> {
    let source = model_file(model)?.map_or(Source::BuiltIn, Source::Keras);
    Ok((model.to_string(), source))
}

/// Every number and text of a model file with its place in it, however it is laid out.
pub(crate) fn model_file_settings(text: &str) -> Configuration {
    let mut settings = Configuration::new();
    match serde_json::from_str(text) {
        Ok(value) => add_leaves("", &value, &mut settings),
        // It has been read before, so this is what a checkpoint was damaged to.
        Err(_) => settings.set("the model file", Some(text)),
    }
    settings
}

fn add_leaves(place: &str, value: &Value, settings: &mut Configuration) {
    let named = |key: &str| match place {
        "" => format!("the model file's {key}"),
        place => format!("{place}.{key}"),
    };
    match value {
        Value::Object(entries) if !entries.is_empty() => {
            for (key, value) in entries {
                add_leaves(&named(key), value, settings);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, value) in items.iter().enumerate() {
                add_leaves(&format!("{place}[{index}]"), value, settings);
            }
        }
        Value::String(text) => settings.set(place, Some(text)),
        other => settings.set(place, Some(other)),
    }
}

/// The text of a model file; nothing for the name of a built-in model.
fn model_file(model: &str) -> Result<Option<String>, Failure> {
    if BUILT_IN.iter().any(|(name, _)| *name == model) {
        return Ok(None);
    }
    if !Path::new(model).exists() {
        return Err(match is_path(model) {
            true => Failure::usage(format!(
                "there is no model file {model}; check the path, or name a built-in model: {}",
                names().join(", ")
            )),
            false => unknown(model),
        });
    }
    match std::fs::read(model) {
        Ok(bytes) => Ok(Some(model_text(bytes, model)?)),
        Err(source) => Err(ModelError::Io {
            path: model.into(),
            source,
        }
        .into()),
    }
}

/// Whether a file was meant, that is not there, and not one of the names.
fn is_path(model: &str) -> bool {
    let path = Path::new(model);
    path.extension().is_some() || path.components().count() > 1 || path.is_symlink()
}

fn names() -> Vec<&'static str> {
    BUILT_IN.iter().map(|(name, _)| *name).collect()
}

fn unknown(model: &str) -> Failure {
    let names = names();
    let nearest = distribute_error::nearest(model, names.iter().copied());
    let nearest = nearest.map_or_else(String::new, |name| format!("did you mean `{name}`? "));
    Failure::usage(format!(
        "unknown model `{model}`: {nearest}Use {} or a file that Keras' `model.to_json()` wrote",
        names.join(", ")
    ))
}
