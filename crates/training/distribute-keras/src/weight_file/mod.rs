//! Weights of Keras from files: `.keras`, `.weights.h5`, `.h5`, `.npz` and safetensors.
//!
//! `numpy.savez(path, *model.get_weights())` writes them in the model's order. With names, as
//! `{w.path: w.numpy() for w in model.weights}` gives them, the order does not matter: Keras 3's
//! paths and Keras 2's names (`conv1/kernel`, `conv1/kernel:0`) are both understood. Files of
//! HDF5 have the layers by their classes (`saved`) or by their names (`legacy`).

mod arrays;
mod found;
mod legacy;
mod saved;
mod write;

use std::path::Path;

use crate::keras_archive::{WEIGHTS, damaged, member};
use crate::saved_file::{check_format, is_hdf5};
use crate::{ModelError, Plan, Weight, hdf5};
use arrays::{named, of_npz, of_safetensors};
use found::Found;
pub use found::{FoundWeights, SkippedLayer};
pub use write::{WeightFormat, written_weights};

/// The group with the weights of a layer, in the layout of Keras 3.
const VARS: &str = "vars";
const SAVE: &str = "`model.save_weights(\"model.weights.h5\")`";
const SAVE_FILE: &str =
    "`safetensors.numpy.save_file({w.path: w.numpy() for w in model.weights}, NAME)`";

/// Reads the weights of a model, in the order that [`Model::new`](crate::Model::new) wants.
///
/// The file is recognized by its content; only that of safetensors must have its name. Weights of
/// other types become 32-bit floats.
///
/// # Errors
/// [`ModelError::Io`] and [`ModelError::Npz`] for a file that cannot be read,
/// [`ModelError::Convert`] for a format of TensorFlow, [`ModelError::WeightFile`] for one of
/// another kind or a damaged one, [`ModelError::Weights`] for weights of another model, which names
/// the layers that do not fit, and for numbers that are not finite or a variance below 0.
pub fn read_weights(path: impl AsRef<Path>, plan: &Plan) -> Result<Vec<Weight>, ModelError> {
    read(path.as_ref(), plan)?.all(plan)
}

/// Reads the weights of those layers of a model that a file has in the same shapes (Keras:
/// `load_weights(skip_mismatch=True)`), to train another head on them.
///
/// # Errors
/// As [`read_weights`], but layers that do not fit are [skipped](FoundWeights::skipped);
/// [`ModelError::Weights`] if none fits.
pub fn read_fitting_weights(
    path: impl AsRef<Path>,
    plan: &Plan,
) -> Result<FoundWeights, ModelError> {
    read(path.as_ref(), plan)?.fitting(plan)
}

fn read(path: &Path, plan: &Plan) -> Result<Found, ModelError> {
    check_format(path)?;
    let bytes = std::fs::read(path).map_err(|source| ModelError::Io {
        path: path.to_path_buf(),
        source,
    })?;
    parse(&bytes, path, plan)
}

fn parse(bytes: &[u8], path: &Path, plan: &Plan) -> Result<Found, ModelError> {
    let wrong = |what: String, remedy| ModelError::WeightFile {
        path: path.to_path_buf(),
        what,
        remedy,
    };
    if is_hdf5(bytes) {
        return of_hdf5(bytes, plan).map_err(|what| wrong(what, SAVE));
    }
    let ends = path.extension().and_then(|extension| extension.to_str());
    if bytes.starts_with(b"PK") && ends != Some("npz") {
        match member(bytes, WEIGHTS) {
            Ok(Some(weights)) => {
                return of_hdf5(&weights, plan).map_err(|what| wrong(what, SAVE));
            }
            Ok(None) if ends == Some("keras") => {
                return Err(wrong(format!("it has no {WEIGHTS}"), SAVE));
            }
            Ok(None) => {}
            Err(error) => return Err(wrong(damaged(&error), SAVE)),
        }
    }
    if ends == Some("npz") || bytes.starts_with(b"PK") {
        return Ok(named(plan, of_npz(bytes, path)?));
    }
    if ends == Some("safetensors") {
        let arrays = of_safetensors(bytes).map_err(|what| wrong(what, SAVE_FILE))?;
        return Ok(named(plan, arrays));
    }
    let what = "it is no file of weights: neither HDF5 (.keras, .h5) nor .npz nor .safetensors";
    Err(wrong(what.to_string(), SAVE))
}

/// The weights in a file of HDF5, by the layout that it has.
fn of_hdf5(bytes: &[u8], plan: &Plan) -> Result<Found, String> {
    let file = hdf5::File::open(bytes)?;
    match legacy::group(&file)? {
        Some(group) => legacy::found(&file, &group, plan),
        None => saved::found(&file, plan),
    }
}

/// Reads the weights of a model from the bytes of a safetensors file; `origin` names it in errors.
///
/// # Errors
/// As [`read_weights`].
pub fn parse_safetensors_weights(
    bytes: &[u8],
    origin: impl AsRef<Path>,
    plan: &Plan,
) -> Result<Vec<Weight>, ModelError> {
    let arrays = of_safetensors(bytes).map_err(|what| ModelError::WeightFile {
        path: origin.as_ref().to_path_buf(),
        what,
        remedy: SAVE_FILE,
    })?;
    named(plan, arrays).all(plan)
}

/// Reads the weights of a model from the bytes of a file of HDF5, `.keras` or `.npz`; `origin`
/// names it in errors.
///
/// # Errors
/// As [`read_weights`].
pub fn parse_weights(
    bytes: &[u8],
    origin: impl AsRef<Path>,
    plan: &Plan,
) -> Result<Vec<Weight>, ModelError> {
    parse(bytes, origin.as_ref(), plan)?.all(plan)
}
