//! Reading what `to_json()` of a Keras model writes, in the forms of Keras 3 and Keras 2:
//! `Sequential` and functional models, and models inside of models.
//!
//! The two differ in the input layer's key (`batch_shape`, `batch_input_shape`), in how a dtype and
//! the inputs of a layer are written, and in `module`/`registered_name`, which older files lack.
//! Every option of a layer, and of what stands inside it, is honoured or refused by name, since a
//! model that silently computes something else is worse than none; how,
//! [`fields`](crate::fields) says. `build_config` and the model's `compile_config` change nothing
//! here: optimizer and loss are the program's.

mod entries;
mod graph;
mod inline;
mod layers;
mod nodes;
mod options;

use std::path::Path;

use serde_json::Value;

use crate::{ModelError, ModelSpec};
use entries::Graph;

/// Reads a model file; the model is named after the file.
///
/// # Errors
/// [`ModelError::Io`], and those of [`parse_keras_json`].
pub fn read_keras_json(path: impl AsRef<Path>) -> Result<ModelSpec, ModelError> {
    let path = path.as_ref();
    let text = std::fs::read_to_string(path).map_err(|source| ModelError::Io {
        path: path.to_path_buf(),
        source,
    })?;
    let name = path.file_name().map(|name| name.to_string_lossy());
    parse_keras_json(&text, &name.unwrap_or_else(|| path.to_string_lossy()))
}

/// Reads a model from the text of a model file; `origin` names it in messages.
///
/// # Errors
/// [`ModelError::NotAModel`] if it is not such a file, [`ModelError::Unsupported`] with the layer
/// and the option that this program does not have, [`ModelError::SameName`],
/// [`ModelError::MissingLayer`] and [`ModelError::Cycle`] for layers that do not make a graph.
pub fn parse_keras_json(text: &str, origin: &str) -> Result<ModelSpec, ModelError> {
    let root: Value = serde_json::from_str(text).map_err(|error| ModelError::NotAModel {
        origin: origin.to_string(),
        what: format!("not JSON: {error}"),
    })?;
    // Keras 3 does not write its version into the file.
    let version = root["keras_version"].as_str();
    let file = File {
        origin,
        keras2: version.is_some_and(|version| version.starts_with('2')),
    };
    let mut layers = Vec::new();
    let graph = Graph::read(&root, ("", true), file, &mut layers)?;
    inline::model(graph, layers, file)
}

/// The file that is read.
#[derive(Debug, Clone, Copy)]
struct File<'a> {
    origin: &'a str,
    /// Whether it says that Keras 2 wrote it.
    keras2: bool,
}

impl File<'_> {
    fn not_a_model(self, what: impl Into<String>) -> ModelError {
        ModelError::NotAModel {
            origin: self.origin.to_string(),
            what: what.into(),
        }
    }
}
