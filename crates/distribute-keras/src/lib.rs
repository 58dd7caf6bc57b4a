//! Models as lists of Keras layers: built in, or read from a Keras model file.
//!
//! A [`ModelSpec`] says what the layers are, [`Sequential`] is the burn module made of it. The
//! vocabulary, the shapes and the arithmetic are Keras': images are `(height, width, channels)`,
//! a kernel starts as `glorot_uniform`, "same" padding puts the odd row at the end.
//!
//! Inside, images are `[batch, channels, height, width]`, which is what burn's kernels want. The
//! difference never shows: [`Sequential::new`] takes Keras' weights and turns them. In particular
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
mod error;
mod fields;
mod head;
mod init;
mod keras_json;
mod layers;
mod plan;
mod sequential;
mod spec;

pub use activation::Activation;
pub use builtin::{BUILT_IN, built_in};
pub use error::ModelError;
pub use head::{Head, Loss};
pub use init::{Initializer, Weight};
pub use keras_json::{parse_keras_json, read_keras_json};
pub use layers::Mode;
pub use plan::{Plan, PlannedLayer, Shape};
pub use sequential::Sequential;
pub use spec::{LayerSpec, ModelSpec, Padding, Regularizer};
