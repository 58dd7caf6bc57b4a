//! Ends training when the loss is NaN or infinite.

use distribute_core::Result;

use crate::{Callback, Control, EpochRecord, Outcome};

/// Ends training with [`Outcome::NotFinite`] when the epoch's loss so far is NaN or infinite
/// (Keras: `TerminateOnNaN`), at the latest at the end of an epoch. Nothing is saved then.
///
/// Reading the loss waits for the step; on a GPU read it less often.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct TerminateOnNan {
    every_batches: usize,
}

impl TerminateOnNan {
    /// Reads the loss after every `batches`-th batch; 0 counts as 1.
    pub fn every_batches(batches: usize) -> Self {
        Self {
            every_batches: batches,
        }
    }
}

impl Callback for TerminateOnNan {
    fn on_epoch_end(&mut self, record: &EpochRecord, run: &mut Control<'_>) -> Result<()> {
        if !record.logs.loss().is_finite() {
            let step = run.progress().step;
            run.stop(Outcome::NotFinite { step });
        }
        Ok(())
    }

    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        let progress = run.progress();
        let every = self.every_batches.max(1);
        let due = progress.position.batches.is_multiple_of(every);
        // Without examples (an empty batch at the start) there is no loss yet.
        let loss = if due { run.loss_so_far()? } else { None };
        if loss.is_some_and(|loss| !loss.is_finite()) {
            let step = progress.step;
            run.stop(Outcome::NotFinite { step });
        }
        Ok(())
    }
}
