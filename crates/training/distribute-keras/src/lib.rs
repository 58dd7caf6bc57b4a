//! Models as graphs of Keras layers: built in, or read from a Keras model file.
//!
//! A [`ModelSpec`] says what the layers are and how they feed each other, [`Model`] is the burn
//! module made of it. A `Sequential` model is the simplest graph, a chain. The vocabulary, the
//! shapes and the arithmetic are Keras': images are `(height, width, channels)`, a kernel starts as
//! `glorot_uniform`, "same" padding puts the odd row at the end.
//!
//! Inside, images are `[batch, channels, height, width]`, which is what burn's kernels want. The
//! difference never shows: [`Model::new`] takes Keras' weights and turns them. In particular
//! `Flatten` does not move data; instead the rows of the next `Dense` kernel are stored in the
//! order in which the features arrive, so a Keras kernel fits and no step pays for it.
#![forbid(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

mod activation;
mod builtin;
mod builtin_json;
mod bytes;
mod compiled;
mod error;
mod fields;
mod freeze;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod hdf5;
mod head;
mod init;
mod keras_archive;
mod keras_json;
pub mod layers;
mod model;
mod names;
mod plan;
mod saved_file;
mod shape;
mod spec;
mod text_input;
mod texts;
mod unsupported;
mod vocabularies;
mod weight_file;

pub use activation::Activation;
pub use builtin::{BUILT_IN, built_in};
pub use compiled::{Compiled, CompiledLoss, CompiledMetric, OfOutput, compiled};
pub use error::{ModelError, Unsupported};
pub use head::{Head, Loss};
pub use init::{Initializer, Weight};
pub use keras_json::{parse_keras_json, read_keras_json};
pub use layers::constraint::Constraint;
pub use layers::pass::{Arguments, Mode};
pub use layers::regularizer::Regularizer;
pub use layers::weights::PlannedWeight;
pub use layers::windows::{Padding, Windows};
pub use layers::{LayerSpec, Merge};
pub use model::{Model, Outputs};
pub use plan::{Plan, PlannedCall, PlannedInput, PlannedLayer, PlannedOutput};
pub use saved_file::{ModelFile, check_format, model_file, model_text};
pub use shape::Shape;
pub use spec::{Call, LayerRules, ModelInput, ModelOutput, ModelSpec, NamedLayer};
pub use text_input::TextInput;
pub use texts::lookup::{Lookup, LookupMode};
pub use weight_file::{
    FoundWeights, SkippedLayer, WeightFormat, parse_safetensors_weights, parse_weights,
    read_fitting_weights, read_weights, written_weights,
};
