//! Why a model cannot be built.

use std::io;
use std::path::PathBuf;

/// Why a model file could not be read, or a model not be built for some input.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The operating system refused to read the file.
    #[error("cannot read the model file {} ({source}); check the path", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The file is not what `Sequential.to_json()` writes.
    #[error("{origin}: {what}; write the file with `model.to_json()` of a Keras `Sequential`")]
    NotAModel {
        /// The file.
        origin: String,
        /// What is wrong with it.
        what: String,
    },
    /// A layer, or one of its options, that this program does not have.
    #[error("{origin}: layer {index} ({class}): {what} is not supported; {remedy}")]
    Unsupported {
        /// The file or the model's name.
        origin: String,
        /// The layer's position, counted from 0 without the input layer.
        index: usize,
        /// Keras' name of the layer.
        class: String,
        /// The option and its value.
        what: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The layers do not fit together, or do not fit the data.
    #[error("{model}: layer {index} ({class}): {what}")]
    Shape {
        /// The model's name.
        model: String,
        /// The layer's position, counted from 0.
        index: usize,
        /// Keras' name of the layer.
        class: &'static str,
        /// What does not fit, and what to change.
        what: String,
    },
    /// No loss belongs to what the model ends with.
    #[error("{model}: layer {index} ({class}): {what}")]
    Head {
        /// The model's name.
        model: String,
        /// The layer's position, counted from 0.
        index: usize,
        /// Keras' name of the layer.
        class: &'static str,
        /// Why there is none, and what to change.
        what: String,
    },
    /// The data has another shape than the model was made for.
    #[error(
        "{model} is made for inputs of shape {expected}, the data has {found}; \
         choose another model or data set"
    )]
    Input {
        /// The model's name.
        model: String,
        /// The shape in the model.
        expected: String,
        /// The shape of the data.
        found: String,
    },
    /// Weights that do not belong to this model.
    #[error("{model}: {what}; pass `model.get_weights()` of the same model")]
    Weights {
        /// The model's name.
        model: String,
        /// What differs.
        what: String,
    },
}

distribute_error::debug_as_message!(ModelError);

distribute_core::wrap_errors!(Input: ModelError);
