//! How all workers stop, or save, after the same step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::WorkerGroup;
use crate::{Configuration, Error, Result};

/// What one worker can wish and all do together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    Stop,
    Save,
}

impl Wish {
    /// All of them, in the order in which they travel.
    pub(crate) const ALL: [Self; 2] = [Self::Stop, Self::Save];
}

/// One flag per wish.
#[derive(Debug, Default)]
pub(super) struct Wishes([AtomicBool; Wish::ALL.len()]);

impl Wishes {
    fn get(&self, wish: Wish) -> bool {
        self.0[wish as usize].load(Ordering::Relaxed)
    }

    fn set(&self, wish: Wish, value: bool) {
        self.0[wish as usize].store(value, Ordering::Relaxed);
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
        let all: Vec<Configuration> = self.hear_all("configuration", configuration)?;
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
    /// The wish travels with the gradients of the next update, so it costs nothing and all workers
    /// learn of it after the same update: [`stop_agreed`](Self::stop_agreed) is true for all of
    /// them from then on. `Fit` looks at it; a loop of one's own can save a
    /// checkpoint and end there.
    pub fn request_stop(&self) {
        self.request(Wish::Stop);
    }

    /// Whether a worker had asked to stop before the last update.
    pub fn stop_agreed(&self) -> bool {
        self.agreed(Wish::Stop)
    }

    /// Begins anew: nobody has asked to stop. For what follows a loop that has stopped.
    pub fn clear_stop(&self) {
        self.forget(Wish::Stop);
    }

    /// Asks all workers to save a checkpoint together, as [`request_stop`](Self::request_stop) asks
    /// them to stop.
    pub fn request_save(&self) {
        self.request(Wish::Save);
    }

    /// Whether a worker had asked to save before the last update.
    pub fn save_agreed(&self) -> bool {
        self.agreed(Wish::Save)
    }

    /// The checkpoint that was asked for is saved, or is not wanted any more.
    pub fn clear_save(&self) {
        self.forget(Wish::Save);
    }

    /// Lets a wish travel with the gradients of the next update.
    fn request(&self, wish: Wish) {
        self.shared.requested.set(wish, true);
    }

    /// Whether a worker had this wish before the last update.
    fn agreed(&self, wish: Wish) -> bool {
        self.shared.agreed.get(wish)
    }

    /// Forgets a wish that was fulfilled.
    fn forget(&self, wish: Wish) {
        self.shared.requested.set(wish, false);
        self.shared.agreed.set(wish, false);
    }

    /// What this worker adds to the signals that travel with the gradients.
    pub(crate) fn signals(&self) -> Vec<f32> {
        let signal = |wish| f32::from(u8::from(self.shared.requested.get(wish)));
        Wish::ALL.map(signal).to_vec()
    }

    /// Takes the reduced signals.
    pub(crate) fn receive(&self, signals: &[f32]) {
        for (wish, signal) in Wish::ALL.into_iter().zip(signals) {
            if *signal > 0.0 {
                self.shared.agreed.set(wish, true);
            }
        }
    }

    /// Tells this group from others.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.shared) as usize
    }
}
