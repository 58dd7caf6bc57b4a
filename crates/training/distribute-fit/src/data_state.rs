//! Where a stream of training data is, in a checkpoint.

use std::sync::Arc;

use burn::tensor::TensorData;
use distribute_core::checkpoint::{Checkpoint, Section};
use distribute_core::{Result, SourceState};

use super::{Position, snapshot};

/// Where a source is.
type Data = Arc<dyn SourceState>;

/// The name of its bytes among the tensors: of no callback, whose keys are not empty.
fn name() -> String {
    Section::Callback.name_in("", "data")
}

/// Whether a tensor is such a state. Workers that are at the same place may have read ahead by
/// different numbers of elements: their states are not compared.
pub(super) fn is_state(of: &str) -> bool {
    of == name()
}

/// Adds it, where epoch and batch do not say all.
pub(super) fn store(data: Option<&Data>, at: Position, checkpoint: &mut Checkpoint) -> Result<()> {
    let Some(data) = data else {
        return Ok(());
    };
    if let Some(state) = data.save(at.epoch, at.batches)? {
        let length = state.len();
        let state = TensorData::new(state, [length]);
        checkpoint.tensors.insert(name(), state);
    }
    Ok(())
}

/// Puts it into the data. Without it the data finds its place by epoch and batch.
pub(super) fn restore(data: Option<&Data>, at: Position, checkpoint: &Checkpoint) -> Result<()> {
    let (Some(data), Some(state)) = (data, checkpoint.tensors.get(&name())) else {
        return Ok(());
    };
    let restored = data.restore(at.epoch, at.batches, state.as_bytes());
    restored.map_err(|error| snapshot::refuse(format!("the state of its data: {error}")))
}
