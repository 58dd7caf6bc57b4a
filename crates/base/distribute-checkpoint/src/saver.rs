//! Saving in the background, so that training goes on while the disk is busy.

use std::thread::JoinHandle;

use distribute_error::panic_text;

use super::Checkpoint;
use super::error::{CheckpointError, Result};
use super::manager::{CheckpointManager, Saved};

/// Saves checkpoints on a thread of its own, at most one at a time.
///
/// The caller takes the snapshot (a [`Checkpoint`] owns its tensors) and hands it over; a second
/// [`save`](Self::save) waits for the first. Memory therefore holds at most two snapshots. An
/// error of a save is returned by the next `save` or by [`finish`](Self::finish). Dropping the
/// handle waits for the save in flight and logs its error.
#[derive(Debug)]
pub struct SaveHandle {
    manager: CheckpointManager,
    in_flight: Option<JoinHandle<Result<Saved>>>,
}

impl SaveHandle {
    /// A handle that saves through `manager`.
    pub fn new(manager: CheckpointManager) -> Self {
        Self {
            manager,
            in_flight: None,
        }
    }

    /// Starts saving `checkpoint` and returns what the previous save wrote, if there was one since
    /// the last call. Blocks until the previous save has ended.
    ///
    /// # Errors
    ///
    /// The error of the previous save; `checkpoint` is then NOT saved, so the caller may stop or
    /// call again.
    pub fn save(&mut self, checkpoint: Checkpoint) -> Result<Option<Saved>> {
        let previous = self.wait()?;
        let manager = self.manager.clone();
        let thread = std::thread::Builder::new()
            .name("checkpoint-saver".to_string())
            .spawn(move || {
                let step = checkpoint.metadata.step;
                let span = tracing::trace_span!(target: "distribute::phase", "write", step);
                span.in_scope(|| manager.save(&checkpoint))
            })
            .map_err(|source| CheckpointError::Io {
                path: self.manager.path().to_path_buf(),
                operation: "start a thread saving into",
                source,
            })?;
        self.in_flight = Some(thread);
        Ok(previous)
    }

    /// Blocks until the save in flight has ended and returns what it wrote.
    ///
    /// # Errors
    ///
    /// The error of that save.
    pub fn finish(mut self) -> Result<Option<Saved>> {
        self.wait()
    }

    fn wait(&mut self) -> Result<Option<Saved>> {
        let Some(thread) = self.in_flight.take() else {
            return Ok(None);
        };
        match thread.join() {
            Ok(result) => result.map(Some),
            Err(panic) => Err(CheckpointError::SaverPanicked {
                path: self.manager.path().to_path_buf(),
                what: panic_text(&*panic).unwrap_or("no message").to_string(),
            }),
        }
    }
}

impl Drop for SaveHandle {
    fn drop(&mut self) {
        if let Err(error) = self.wait() {
            tracing::error!(%error, "the last checkpoint was not saved");
        }
    }
}
