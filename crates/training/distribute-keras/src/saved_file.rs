//! Files in which Keras saves a whole model: `.keras`, a zip archive, and `.h5`, in HDF5.
//!
//! A file is recognized by its content, not by its name.

use std::path::Path;

use serde_json::Value;

use crate::keras_archive::{CONFIG, METADATA, WEIGHTS, damaged, has_member, member};
use crate::{ModelError, hdf5, vocabularies};

/// A file that holds a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFile {
    /// The layers, as `model.to_json()` writes them.
    pub text: String,
    /// Whether the file also holds the weights, which
    /// [`read_weights`](crate::read_weights) reads.
    pub has_weights: bool,
}

/// The model in the bytes of a file: the text of `model.to_json()`, or what `model.save` writes as
/// `.keras` or `.h5`; `origin` names the file in messages.
///
/// # Errors
/// [`ModelError::NotAModel`] if there is none, which says what the file is.
pub fn model_file(mut bytes: Vec<u8>, origin: &str) -> Result<ModelFile, ModelError> {
    let not_a_model = |what: &str| ModelError::NotAModel {
        origin: origin.to_string(),
        what: what.to_string(),
    };
    if bytes.starts_with(b"\xef\xbb\xbf") {
        bytes.drain(..3);
    }
    let what = match &bytes[..] {
        [] => "the file is empty (0 bytes)",
        _ if is_hdf5(&bytes) => {
            let text = text_of_hdf5(&bytes).map_err(|what| not_a_model(&what))?;
            let has_weights = true;
            return Ok(ModelFile { text, has_weights });
        }
        [b'P', b'K', ..] => return of_archive(&bytes, origin),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "text in UTF-16; save it as UTF-8",
        _ => "bytes that are no text in UTF-8, so no JSON",
    };
    if bytes.is_empty() || bytes.contains(&0) {
        return Err(not_a_model(what));
    }
    let text = String::from_utf8(bytes).map_err(|_| not_a_model(what))?;
    Ok(ModelFile {
        text,
        has_weights: false,
    })
}

/// The text of [`model_file`].
///
/// # Errors
/// As [`model_file`].
pub fn model_text(bytes: Vec<u8>, origin: &str) -> Result<String, ModelError> {
    model_file(bytes, origin).map(|file| file.text)
}

pub(crate) fn is_hdf5(bytes: &[u8]) -> bool {
    bytes.starts_with(hdf5::SIGNATURE)
}

/// The model in a `.keras` file.
fn of_archive(bytes: &[u8], origin: &str) -> Result<ModelFile, ModelError> {
    let wrong = |what: String| ModelError::NotAModel {
        origin: origin.to_string(),
        what,
    };
    let config = member(bytes, CONFIG).map_err(|error| wrong(damaged(&error)))?;
    let Some(config) = config else {
        return Err(wrong(
            "a zip archive without config.json, such as an archive of arrays (.npz), and no model"
                .to_string(),
        ));
    };
    let text = String::from_utf8(config);
    let text = text.map_err(|_| wrong("its config.json is no text in UTF-8".to_string()))?;
    let text = vocabularies::added(text, bytes)
        .map_err(|what| wrong(format!("its vocabularies cannot be read ({what})")))?;
    let metadata = member(bytes, METADATA).map_err(|error| wrong(damaged(&error)))?;
    Ok(ModelFile {
        text: with_version(text, metadata.as_deref().unwrap_or_default()),
        has_weights: has_member(bytes, WEIGHTS),
    })
}

/// The text of a model with the version of Keras that stands beside it, if that is Keras 2, where
/// some functions are others (`hard_sigmoid`).
fn with_version(text: String, metadata: &[u8]) -> String {
    let metadata: Value = serde_json::from_slice(metadata).unwrap_or_default();
    let version = metadata["keras_version"].as_str();
    let Some(version) = version.filter(|version| version.starts_with('2')) else {
        return text;
    };
    match serde_json::from_str(&text) {
        Ok(Value::Object(mut model)) if !model.contains_key("keras_version") => {
            model.insert("keras_version".to_string(), version.into());
            Value::Object(model).to_string()
        }
        _ => text,
    }
}

/// The text of the model in an `.h5` file, in the form of `model.to_json()`.
fn text_of_hdf5(bytes: &[u8]) -> Result<String, String> {
    let damaged = |what: String| format!("a damaged HDF5 file ({what})");
    let read = |name: &str| -> hdf5::Text {
        let file = hdf5::File::open(bytes)?;
        file.text(&file.root()?, name)
    };
    let Some(config) = read("model_config").map_err(damaged)? else {
        return Err(
            "an HDF5 file with weights and no layers (`save_weights`); name the model by --model \
             and give the file as --weights, or use a file of `model.save`"
                .to_string(),
        );
    };
    // What belongs to the model stands beside it.
    let Ok(Value::Object(mut model)) = serde_json::from_str(&config) else {
        return Ok(config);
    };
    for key in ["keras_version", "backend"] {
        if let Some(text) = read(key).map_err(damaged)? {
            model.insert(key.to_string(), text.into());
        }
    }
    let training = read("training_config").map_err(damaged)?;
    if let Some(Ok(Value::Object(mut training))) = training.map(|text| serde_json::from_str(&text))
    {
        if let Some(optimizer) = training.remove("optimizer_config") {
            training.insert("optimizer".to_string(), optimizer);
        }
        model.insert("compile_config".to_string(), training.into());
    }
    Ok(Value::Object(model).to_string())
}

/// Refuses what has to be converted first: a `SavedModel`, and a checkpoint of TensorFlow.
///
/// # Errors
/// [`ModelError::Convert`] with the line of Python that does it.
pub fn check_format(path: impl AsRef<Path>) -> Result<(), ModelError> {
    let path = path.as_ref();
    let convert = |what, line| {
        Err(ModelError::Convert {
            path: path.to_path_buf(),
            what,
            line,
        })
    };
    let name = path.display();
    if path.join("saved_model.pb").exists() || path.join("saved_model.pbtxt").exists() {
        // Keras 2 writes the layers beside it; `model.export` of Keras 3 does not.
        let line = if path.join("keras_metadata.pb").exists() {
            format!("`import tf_keras; tf_keras.models.load_model('{name}').save('model.h5')`")
        } else {
            format!(
                "`import numpy, tensorflow as tf; numpy.savez('weights.npz', *[v.numpy() for v in \
                 tf.saved_model.load('{name}').variables])` gives its weights, for --weights; its \
                 layers are in what `model.save('model.keras')` or `model.to_json()` writes"
            )
        };
        return convert("a SavedModel of TensorFlow", line);
    }
    let text = path.to_string_lossy();
    let prefix = ["index", "data-00000-of-00001"]
        .iter()
        .find_map(|ending| text.strip_suffix(&format!(".{ending}")))
        .unwrap_or(&text);
    let newest = path.join("checkpoint");
    if Path::new(&format!("{prefix}.index")).exists() && !text.ends_with(".h5") {
        return convert(
            "a checkpoint of TensorFlow",
            format!(
                "`model.load_weights('{prefix}'); model.save_weights('model.weights.h5')`, where \
                 `model` is the tf_keras model that wrote it"
            ),
        );
    }
    if newest.is_file() {
        return convert(
            "a folder of TensorFlow's checkpoints",
            format!(
                "`model.load_weights(tf.train.latest_checkpoint('{name}')); \
                 model.save_weights('model.weights.h5')`, where `model` is the tf_keras model that \
                 wrote it"
            ),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_of_keras_2_says_its_version() {
        let text = r#"{"class_name":"Sequential"}"#;
        let version = |metadata: &[u8]| with_version(text.to_string(), metadata);
        let old = version(br#"{"keras_version":"2.15.0"}"#);
        let old: Value = serde_json::from_str(&old).unwrap();
        assert_eq!(old["keras_version"], "2.15.0");
        assert_eq!(old["class_name"], "Sequential");
        for other in [&br#"{"keras_version":"3.6.0"}"#[..], b"{}", b""] {
            assert_eq!(version(other), text);
        }
    }
}
