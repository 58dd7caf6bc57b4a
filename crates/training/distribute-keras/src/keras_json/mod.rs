//! Reading what `to_json()` of a Keras model writes, in the forms of Keras 3 and Keras 2:
//! `Sequential` and functional models, and models inside of models.
//!
//! The two differ in the input layer's key (`batch_shape`, `batch_input_shape`), in how a dtype and
//! the inputs of a layer are written, and in `module`/`registered_name`, which older files lack.
//! Every option of a layer, and of what stands inside it, is honoured or refused by name, since a
//! model that silently computes something else is worse than none; how,
//! [`fields`](crate::fields) says. `build_config` changes nothing; what `compile_config` says of
//! loss and optimizer, [`compiled`](crate::compiled) reads for the program that trains.

mod entries;
mod graph;
mod inline;
mod input_layer;
mod nodes;
mod operations;
mod references;
mod refused;
mod rules;
mod wrappers;

use std::path::Path;

use serde_json::Value;

use crate::saved_file::{check_format, model_text};
use crate::{ModelError, ModelSpec};
use entries::Graph;
use refused::Refused;

/// Reads a model file: the text of `model.to_json()`, `.keras` or `.h5`. The model is named after
/// the file.
///
/// # Errors
/// [`ModelError::Io`], [`ModelError::Convert`] for formats of TensorFlow, and the errors of
/// [`parse_keras_json`].
pub fn read_keras_json(path: impl AsRef<Path>) -> Result<ModelSpec, ModelError> {
    let path = path.as_ref();
    check_format(path)?;
    let bytes = std::fs::read(path).map_err(|source| ModelError::Io {
        path: path.to_path_buf(),
        source,
    })?;
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy())
        .unwrap_or_else(|| path.to_string_lossy());
    parse_keras_json(&model_text(bytes, &name)?, &name)
}

/// A text without the mark with which some editors begin UTF-8.
pub(crate) fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Reads a model from the text of a model file; `origin` names it in messages.
///
/// # Errors
/// [`ModelError::NotAModel`] if it is not such a file, [`ModelError::Unsupported`] with all layers
/// and options that this program does not have, [`ModelError::SameName`],
/// [`ModelError::MissingLayer`] and [`ModelError::Cycle`] for layers that do not make a graph.
pub fn parse_keras_json(text: &str, origin: &str) -> Result<ModelSpec, ModelError> {
    let not_a_model = |what: String| ModelError::NotAModel {
        origin: origin.to_string(),
        what,
    };
    let text = without_mark(text);
    let root: Value = serde_json::from_str(text).map_err(|error| {
        not_a_model(if text.trim_start().starts_with('<') {
            "HTML or XML, as a server sends it in place of a file".to_string()
        } else {
            format!("not JSON: {error}")
        })
    })?;
    if root.is_string() {
        return Err(not_a_model(
            "one JSON text that holds the JSON, as `json.dump(model.to_json(), file)` writes it; \
             write the text itself, `file.write(model.to_json())`"
                .to_string(),
        ));
    }
    // Keras 3 does not write its version into the file.
    let version = root["keras_version"].as_str();
    let refused = Refused::default();
    let file = File {
        origin,
        keras2: version.is_some_and(|version| version.starts_with('2')),
        refused: &refused,
    };
    let mut layers = Vec::new();
    let graph = Graph::read(&root, "", "", true, file, &mut layers)?;
    refused.check(origin)?;
    inline::model(graph, layers, file)
}

/// The file that is read.
#[derive(Debug, Clone, Copy)]
struct File<'a> {
    origin: &'a str,
    /// Whether it says that Keras 2 wrote it.
    keras2: bool,
    /// What it has that this program does not have.
    refused: &'a Refused,
}

impl File<'_> {
    fn not_a_model(self, what: impl Into<String>) -> ModelError {
        ModelError::NotAModel {
            origin: self.origin.to_string(),
            what: what.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_json() {
        let json = r#"{"class_name":"Sequential","config":{"name":"m","layers":[
            {"class_name":"InputLayer","config":{"batch_shape":[null,2],"name":"in"}},
            {"class_name":"Dense","config":{"name":"d","units":2,"activation":"linear"}}]},
            "compile_config":{"loss":"mse"}}"#;
        let marked = [b"\xef\xbb\xbf", json.as_bytes()].concat();
        assert_eq!(model_text(marked, "m").unwrap(), json);
        let text = format!("\u{feff}{json}");
        let read = parse_keras_json(&text, "m").unwrap();
        assert_eq!(read, parse_keras_json(json, "m").unwrap());
        assert!(crate::compiled(&text).is_some_and(|found| found.loss.is_some()));
        let error = parse_keras_json("\u{feff}<html>", "m").unwrap_err();
        assert!(error.to_string().contains("HTML"), "{error}");
    }

    #[test]
    fn an_operation_without_a_module_is_known_by_its_options() {
        let tensor = |name: &str| {
            serde_json::json!({"class_name": "__keras_tensor__",
                "config": {"shape": [null, 2], "keras_history": [name, 0, 0]}})
        };
        let entry = |class: &str, name: &str, options: &Value, inputs: Value| {
            let mut config = serde_json::json!({"name": name});
            for (key, value) in options.as_object().unwrap() {
                config[key] = value.clone();
            }
            let calls = serde_json::json!([{"args": inputs, "kwargs": {}}]);
            serde_json::json!({"class_name": class, "name": name, "config": config,
                "inbound_nodes": calls})
        };
        let none = serde_json::json!({});
        let trainable = serde_json::json!({"trainable": true});
        let options = serde_json::json!({"trainable": true, "units": 2});
        let model = serde_json::json!({"class_name": "Functional", "config": {"name": "m",
        "trainable": true, "input_layers": ["x", 0, 0], "output_layers": ["sum", 0, 0],
        "layers": [
            {"class_name": "InputLayer", "name": "x", "inbound_nodes": [],
                "config": {"name": "x", "batch_shape": [null, 2]}},
            entry("Dense", "d", &options, serde_json::json!([tensor("x")])),
            // The layer receives a list, the operation a value and a number.
            entry("Add", "layer", &trainable, serde_json::json!([[tensor("d"), tensor("x")]])),
            entry("Add", "sum", &none, serde_json::json!([tensor("layer"), 2.0])),
        ]}});
        let read = parse_keras_json(&model.to_string(), "m").unwrap();
        let classes: Vec<&str> = read.layers.iter().map(|layer| layer.spec.class()).collect();
        assert_eq!(classes, ["Dense", "Add", "Add"]);
        assert!(matches!(read.layers[1].spec, crate::LayerSpec::Merge(_)));
        assert!(matches!(
            read.layers[2].spec,
            crate::LayerSpec::Operation(_)
        ));
    }

    #[test]
    fn what_is_no_model_file_is_named() {
        for (bytes, part) in [
            (b"\x89HDF\r\n\x1a\n\0".to_vec(), "HDF5"),
            (b"PK\x03\x04 arr_0.npy\xff".to_vec(), "zip"),
            (Vec::new(), "empty"),
            (b"\xff\xfe{\0".to_vec(), "UTF-16"),
        ] {
            let error = model_text(bytes, "m").unwrap_err().to_string();
            assert!(
                error.contains(part) && error.contains("model.to_json()"),
                "{error}"
            );
        }
        for (text, part) in [
            (
                r#""{\"class_name\": \"Sequential\"}""#,
                "file.write(model.to_json())",
            ),
            ("<html>", "HTML"),
        ] {
            let error = parse_keras_json(text, "m").unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
