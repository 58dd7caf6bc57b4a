//! Why a model cannot be built.

use std::io;
use std::path::PathBuf;

use distribute_readers::ReadError;

pub use crate::unsupported::Unsupported;
use crate::unsupported::list;

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
    /// The file is not what `to_json()` of a Keras model writes.
    #[error("{origin}: {what}; write the file with `model.to_json()` of a Keras model")]
    NotAModel {
        /// The file.
        origin: String,
        /// What is wrong with it.
        what: String,
    },
    /// Layers, options and arguments that this program does not have: all of the file.
    #[error("{origin}: {}", list(.found))]
    Unsupported {
        /// The file or the model's name.
        origin: String,
        /// Each of them, in the order of the file; one at least.
        found: Vec<Unsupported>,
    },
    /// A model with several inputs or outputs, where one of each is needed.
    #[error(
        "{origin}: the model has {count} {what}, which only a program of your own can run \
         (`ModelSpec::plan_all`); make a model of one input and one output of it (keras.Model), \
         inside of which there may be as many as you like"
    )]
    SeveralTensors {
        /// The model's name.
        origin: String,
        /// How many there are.
        count: usize,
        /// `inputs` or `outputs`.
        what: &'static str,
    },
    /// Two layers of one model have the same name.
    #[error(
        "{origin}: two layers have the name {layer}, so it is unclear which one an input or a \
         weight is of; give one of them another name and write the file again"
    )]
    SameName {
        /// The file.
        origin: String,
        /// The name.
        layer: String,
    },
    /// A layer receives what another layer, or an output of it, gives, which is not there.
    #[error(
        "{origin}: {by} receives output {tensor} of call {node} of the layer {layer}, which is \
         not there; the file is damaged or was edited: write it again with `model.to_json()`"
    )]
    MissingLayer {
        /// The file.
        origin: String,
        /// The receiver: a layer, or the model's output.
        by: String,
        /// The layer's name.
        layer: String,
        /// The call, counted from 0.
        node: usize,
        /// The output of the call, counted from 0.
        tensor: usize,
    },
    /// Layers wait for each other's outputs.
    #[error(
        "{origin}: the layers feed each other in a circle ({circle}), so none can begin; take \
         one of these inputs away"
    )]
    Cycle {
        /// The file.
        origin: String,
        /// The layers on the circle, in order.
        circle: String,
    },
    /// The calls of the layers do not form a model.
    #[error("{origin}: layer {layer}: {what}")]
    Graph {
        /// The file or the model's name.
        origin: String,
        /// The layer's name.
        layer: String,
        /// What is wrong, and what to do.
        what: String,
    },
    /// The layers do not fit together, or do not fit the data.
    #[error("{model}: layer {layer} ({class}): {what}")]
    Shape {
        /// The model's name.
        model: String,
        /// The layer's name.
        layer: String,
        /// Keras' name of the layer.
        class: &'static str,
        /// What does not fit, and what to change.
        what: String,
    },
    /// No loss fits the end of the model.
    #[error("{model}: layer {layer} ({class}): {what}")]
    Head {
        /// The model's name.
        model: String,
        /// The layer's name.
        layer: String,
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
    /// Another number of inputs than the model has.
    #[error("{model}: {found} inputs were given, the model has these: {inputs}; give one of each")]
    Inputs {
        /// The model's name.
        model: String,
        /// The names of the model's inputs, in order.
        inputs: String,
        /// How many were given.
        found: usize,
    },
    /// A pattern of names that is no layer's.
    #[error("{model}: no layer is called {pattern}; the model has these: {layers}")]
    NoLayer {
        /// The model's name.
        model: String,
        /// The pattern.
        pattern: String,
        /// The names of the layers.
        layers: String,
    },
    /// Weights that do not belong to this model.
    #[error("{model}: {what}; use the weights of the same model (`model.get_weights()`)")]
    Weights {
        /// The model's name.
        model: String,
        /// What differs.
        what: String,
    },
    /// A file or a folder of a format that Python has to convert.
    #[error("{} is {what}, which is not read here; convert it in Python: {line}", .path.display())]
    Convert {
        /// The file or folder.
        path: PathBuf,
        /// What it is.
        what: &'static str,
        /// The line of Python that converts it.
        line: String,
    },
    /// A file of weights that is damaged, or of another kind than its name says.
    #[error("{}: {what}; write it with {remedy}", .path.display())]
    WeightFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
        /// A call of Python that writes such a file.
        remedy: &'static str,
    },
    /// A `.npz` file of weights that cannot be read.
    #[error(transparent)]
    Npz(#[from] ReadError),
}

distribute_error::debug_as_message!(ModelError);

distribute_core::wrap_errors!(Input: ModelError);

impl ModelError {
    /// Whether the same model, with the same files, would be refused again.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Io { source, .. } => distribute_error::lasts(source),
            Self::Npz(error) => error.is_permanent(),
            Self::NotAModel { .. }
            | Self::Unsupported { .. }
            | Self::SeveralTensors { .. }
            | Self::SameName { .. }
            | Self::MissingLayer { .. }
            | Self::Cycle { .. }
            | Self::Graph { .. }
            | Self::Shape { .. }
            | Self::Head { .. }
            | Self::Input { .. }
            | Self::Inputs { .. }
            | Self::NoLayer { .. }
            | Self::Weights { .. }
            | Self::Convert { .. }
            | Self::WeightFile { .. } => true,
        }
    }
}
