//! The source of a model: its name, its file, or a checkpoint.

use std::path::{Path, PathBuf};

use distribute_core::Configuration;
use distribute_keras::{
    BUILT_IN, Head, ModelError, ModelFile, ModelSpec, built_in, check_format, compiled, model_file,
    parse_keras_json,
};
use distribute_readers::Examples;
use serde_json::Value;

use crate::error::TaskError;
use crate::loss;
use crate::loss_name::LossName;
use crate::several;

/// A length of texts that models take.
const USUAL_WORDS: usize = 256;

/// The source of a model.
#[derive(Debug, Clone)]
pub struct Source {
    /// The name or the path.
    pub name: String,
    /// The text of its file; `None` for a built-in model.
    pub file: Option<String>,
    /// The file, if it also holds weights.
    pub weights: Option<PathBuf>,
}

impl Source {
    /// The model, for this number of classes and tokens.
    pub fn spec(&self, classes: usize, tokens: usize) -> Result<ModelSpec, TaskError> {
        let name = &self.name;
        match &self.file {
            None => built_in(name, classes, tokens).ok_or_else(|| unknown(name)),
            Some(text) => Ok(parse_keras_json(text, name)?),
        }
    }

    /// Whether its input is texts.
    pub fn reads_texts(&self) -> Result<bool, TaskError> {
        if self.file.is_none() {
            return Ok(self.name == "text");
        }
        let spec = self.spec(1, 1)?;
        Ok(spec.inputs.first().is_some_and(|input| input.is_text))
    }

    /// What the model of a file ends with, and its number of outputs, for such examples; nothing
    /// for a built-in model, and if they do not fit, which is an error later.
    pub fn ending(&self, spec: &ModelSpec, examples: &Examples) -> Option<(Head, usize)> {
        self.file.as_ref()?;
        let plan = match spec.text_input(0).ok()? {
            // Of texts that become as many numbers as they have words.
            Some(input) => spec.plan(&[input.width().unwrap_or(USUAL_WORDS)]),
            None => spec.plan(examples.feature_shape()),
        };
        let plan = plan.ok()?;
        Some((plan.head(), plan.output().elements()))
    }

    /// Whether the model of a file returns an image or a sequence for such examples.
    pub(crate) fn needs_several(&self, spec: &ModelSpec, examples: &Examples) -> bool {
        let plan = self
            .file
            .as_ref()
            .and_then(|_| spec.plan(examples.feature_shape()).ok());
        !examples.is_text() && plan.is_some_and(|plan| several::is_needed(&plan))
    }

    /// The loss that the model of a file was compiled with.
    ///
    /// # Errors
    /// If it is not here.
    pub fn compiled_loss(&self, outputs: usize) -> Result<Option<LossName>, TaskError> {
        let compiled = self.file.as_deref().and_then(compiled);
        loss::compiled_loss(compiled.as_ref(), &self.name, outputs)
    }
}

/// The model of a checkpoint, by its name or the text of its file.
pub fn stored_model(extra: &Value) -> Option<Source> {
    Some(Source {
        name: extra["model"].as_str()?.to_string(),
        file: extra["model_file"].as_str().map(str::to_string),
        weights: None,
    })
}

/// The model of this name or file.
pub fn named_model(model: &str) -> Result<Source, TaskError> {
    let name = model.to_string();
    Ok(match read(model)? {
        None => Source {
            name,
            file: None,
            weights: None,
        },
        Some(file) => Source {
            name,
            file: Some(file.text),
            weights: file.has_weights.then(|| model.into()),
        },
    })
}

/// Every number and text of a model file with its path, independent of formatting.
pub fn model_file_settings(text: &str) -> Configuration {
    let mut settings = Configuration::new();
    match serde_json::from_str(text) {
        Ok(value) => add_leaves("", &value, &mut settings),
        // The text was valid before, so the checkpoint is damaged.
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

/// What a model file holds; `None` for the name of a built-in model.
fn read(model: &str) -> Result<Option<ModelFile>, TaskError> {
    if BUILT_IN.iter().any(|(name, _)| *name == model) {
        return Ok(None);
    }
    check_format(model)?;
    if !Path::new(model).exists() {
        return Err(if is_path(model) {
            TaskError::NoModelFile {
                path: model.to_string(),
            }
        } else {
            unknown(model)
        });
    }
    match std::fs::read(model) {
        Ok(bytes) => Ok(Some(model_file(bytes, model)?)),
        Err(source) => Err(ModelError::Io {
            path: model.into(),
            source,
        }
        .into()),
    }
}

/// Whether the text looks like the path of a missing file, not like a name.
fn is_path(model: &str) -> bool {
    let path = Path::new(model);
    path.extension().is_some() || path.components().count() > 1 || path.is_symlink()
}

fn unknown(model: &str) -> TaskError {
    TaskError::UnknownModel {
        model: model.to_string(),
    }
}
