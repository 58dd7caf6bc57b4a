//! Checkpoints that are saved under any strategy and restored under any other strategy, or without
//! one.
//!
//! A [`Checkpoint`] is a set of named tensors and a [`Metadata`]; it knows nothing of replicas.
//! On disk it is a directory:
//!
//! ```text
//! checkpoints/
//!   step-00000100/
//!   step-00000200/
//!     tensors.safetensors   plain safetensors, readable by other tools
//!     metadata.json         step, epoch, position in the data, optimizer, ...
//!     COMPLETE              written last: sizes and SHA-256 of the other files
//! ```
//!
//! A save writes a temporary directory, makes every file and the directory durable (fsync), and
//! renames it. A process that is killed at any byte therefore leaves the previous checkpoint as it
//! was; the remains of its temporary directory are removed by the next
//! [`CheckpointManager::open`] or save. A step that is saved again gets a new directory
//! (`step-00000200-r1`) before the old one is removed.
//!
//! ```
//! use burn::tensor::TensorData;
//! use distribute_checkpoint::{Checkpoint, CheckpointManager, Metadata, load_latest};
//!
//! let parent = tempfile::tempdir()?;
//! let directory = parent.path().join("checkpoints");
//!
//! let mut checkpoint = Checkpoint::new(Metadata::new(200));
//! let bias = TensorData::from([0.5_f32, -0.5]);
//! checkpoint.tensors.insert("model/fc/bias".to_string(), bias);
//! CheckpointManager::open(&directory)?.save(&checkpoint)?;
//!
//! let latest = load_latest(&directory)?;
//! assert!(latest.skipped.is_empty());
//! let (entry, restored) = latest.found.ok_or("nothing to resume from")?;
//! assert_eq!(entry.step, 200);
//! assert_eq!(restored, checkpoint);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

mod claimed;
mod error;
mod filesystem;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod hold;
mod lease;
mod manager;
mod marker;
mod owner;
mod parts;
mod reader;
mod recorded;
mod restore;
mod saver;
mod section;
mod tensor_file;

#[cfg(test)]
mod corruption_tests;
#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod faulty_file_system;
#[cfg(test)]
mod hold_tests;

use std::collections::BTreeMap;

use burn::tensor::TensorData;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use claimed::claimed;
pub use error::{CheckpointError, Result};
pub use hold::DirectoryHold;
pub use manager::{CheckpointManager, Saved};
pub use owner::Holder;
pub use parts::{PartInfo, name_in_part};
pub use reader::{
    Entry, Newest, Skipped, check_not_inside, enclosing, latest, list, load, load_latest,
    read_safetensors, verify,
};
pub use restore::{
    OptimizerSlots, TensorSpec, check_slot_names, check_slots, model_signature, saved_kinds,
    weights_sha256,
};
pub use saver::SaveHandle;
pub use section::Section;

/// The version of the format that this library writes, and the newest that it reads.
pub const FORMAT_VERSION: u32 = 1;

/// The file with the tensors.
const TENSORS_FILE: &str = "tensors.safetensors";
/// The file with the [`Metadata`].
const METADATA_FILE: &str = "metadata.json";
/// The file that makes a checkpoint complete.
const MARKER_FILE: &str = "COMPLETE";

/// The state of a training run at one step: named tensors and metadata.
///
/// Each name begins with a [`Section`]: `model/<path>` for parameters,
/// `optimizer/<slot>/<path>` for optimizer state, and so on. In a checkpoint of several models and
/// states the path of its part stands before that: `encoder/model/<path>`.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// The tensors by name.
    pub tensors: BTreeMap<String, TensorData>,
    /// Everything that is not a tensor.
    pub metadata: Metadata,
}

impl Checkpoint {
    /// A checkpoint without tensors.
    pub fn new(metadata: Metadata) -> Self {
        Self {
            tensors: BTreeMap::new(),
            metadata,
        }
    }
}

/// Information about the run that wrote a checkpoint. Stored as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Metadata {
    /// Version of the format, [`FORMAT_VERSION`] for what this library writes.
    pub format_version: u32,
    /// Name and version of the library that wrote the checkpoint; filled in when saving.
    pub created_by: String,
    /// Optimizer steps taken so far.
    pub step: u64,
    /// The epoch to continue with, from 0.
    pub epoch: u64,
    /// Global batches of that epoch that were already used.
    pub batches_into_epoch: u64,
    /// The seed of the run: shuffling and random streams follow from it and the step.
    pub seed: u64,
    /// The model.
    pub model: ModelInfo,
    /// The optimizer.
    pub optimizer: OptimizerInfo,
    /// The parts by their paths, if the checkpoint is of several models and states
    /// ([`Checkpoint::of_parts`]); empty for one state.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parts: BTreeMap<String, PartInfo>,
    /// Anything else the caller wants to keep.
    #[serde(default)]
    pub extra: Map<String, Value>,
}

impl Metadata {
    /// The metadata of step `step`, everything else zero or empty.
    pub fn new(step: u64) -> Self {
        Self {
            format_version: FORMAT_VERSION,
            created_by: created_by(),
            step,
            epoch: 0,
            batches_into_epoch: 0,
            seed: 0,
            model: ModelInfo::default(),
            optimizer: OptimizerInfo::default(),
            parts: BTreeMap::new(),
            extra: Map::new(),
        }
    }
}

/// Which model a checkpoint belongs to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// A name for people, for example `digits-cnn`.
    pub name: String,
    /// The structure, see [`model_signature`].
    pub signature: String,
}

/// Which optimizer a checkpoint belongs to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OptimizerInfo {
    /// A name for people, for example `adam`.
    pub name: String,
    /// Learning rate, momentum and the like.
    pub hyper_parameters: Value,
}

/// The name in checkpoints since the first version of the format.
fn created_by() -> String {
    concat!("distribute-core ", env!("CARGO_PKG_VERSION")).to_string()
}
