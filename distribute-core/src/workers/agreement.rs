//! How all workers stop, or save, after the same step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::WorkerGroup;
use crate::{Configuration, Error, Result};

/// The places of the signals among all, which is the order in which they travel.
const STOP: usize = 0;
const SAVE: usize = 1;

/// What one worker can signal and all do together.
#[derive(Debug, Default)]
pub(super) struct Signal {
    requested: AtomicBool,
    agreed: AtomicBool,
}

impl Signal {
    /// Lets the signal travel with the gradients of the next update.
    fn request(&self) {
        self.requested.store(true, Ordering::Relaxed);
    }

    /// Whether a worker had this signal before the last update.
    fn is_agreed(&self) -> bool {
        self.agreed.load(Ordering::Relaxed)
    }

    /// Forgets a signal that was fulfilled.
    fn clear(&self) {
        self.requested.store(false, Ordering::Relaxed);
        self.agreed.store(false, Ordering::Relaxed);
    }
}

impl WorkerGroup {
    /// Compares the configuration of all workers with the chief's, by name: before they train, a
    /// program hands in everything that decides the result or that all must do together.
    ///
    /// Blocks until all workers have called it.
    ///
    /// # Errors
    /// [`Error::DifferentConfigurations`] on all workers, of the first one that differs. A worker
    /// that was lost, ended the group or does not come before the deadline.
    pub fn agree_on(&self, configuration: &Configuration) -> Result<()> {
        let all: Vec<Configuration> = self.all_gather_json("configuration", configuration)?;
        for (worker, found) in all.iter().enumerate().skip(1) {
            if let Some(difference) = found.difference(&all[0]) {
                return Err(Error::DifferentConfigurations {
                    worker,
                    difference: Box::new(difference),
                });
            }
        }
        Ok(())
    }

    /// Asks all workers to stop, from any thread: because this one was told to end, for example
    /// (TensorFlow: `PreemptionCheckpointHandler`).
    ///
    /// The signal travels with the gradients of the next update, so it costs nothing and all
    /// workers learn of it after the same update: [`stop_agreed`](Self::stop_agreed) is true for
    /// all of them from then on. `Fit` looks at it; a loop of one's own can save a checkpoint and
    /// end there.
    pub fn request_stop(&self) {
        self.shared.signals[STOP].request();
    }

    /// Whether a worker had asked to stop before the last update.
    pub fn stop_agreed(&self) -> bool {
        self.shared.signals[STOP].is_agreed()
    }

    /// Starts over: clears requests to stop. For code after a loop that has stopped.
    pub fn clear_stop(&self) {
        self.shared.signals[STOP].clear();
    }

    /// Asks all workers to save a checkpoint together, as [`request_stop`](Self::request_stop) asks
    /// them to stop.
    pub fn request_save(&self) {
        self.shared.signals[SAVE].request();
    }

    /// Whether a worker had asked to save before the last update.
    pub fn save_agreed(&self) -> bool {
        self.shared.signals[SAVE].is_agreed()
    }

    /// The checkpoint that was asked for is saved, or is not wanted any more.
    pub fn clear_save(&self) {
        self.shared.signals[SAVE].clear();
    }

    /// What this worker adds to the signals that travel with the gradients.
    pub(crate) fn signals(&self) -> Vec<f32> {
        let requested = |signal: &Signal| signal.requested.load(Ordering::Relaxed);
        let all = self.shared.signals.iter();
        all.map(|signal| f32::from(u8::from(requested(signal))))
            .collect()
    }

    /// Takes the reduced signals.
    pub(crate) fn receive(&self, signals: &[f32]) {
        for (signal, sum) in self.shared.signals.iter().zip(signals) {
            signal.agreed.fetch_or(*sum > 0.0, Ordering::Relaxed);
        }
    }

    /// Tells this group from others.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.shared) as usize
    }
}
