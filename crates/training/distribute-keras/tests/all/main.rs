//! All tests of this crate's interface in one program, because linking takes longer than compiling.

mod bad_graphs;
mod frozen;
mod graphs;
mod keras_files;
mod layers;
mod mixed;
mod models;
mod options;
mod random_images;
mod recurrent;
mod several;
mod texts;
mod weight_files;

/// Where the files of real Keras are.
fn folder() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/keras")
}
