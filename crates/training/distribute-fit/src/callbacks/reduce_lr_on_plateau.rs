//! Reduces the learning rate when a value does not improve any more.

use distribute_core::{Error, Result, setters};
use serde::{Deserialize, Serialize};

use super::monitor::{Direction, Monitor};
use crate::exact::Exact;
use crate::snapshot::unreadable_state;
use crate::{Callback, CallbackState, Control, EpochRecord};

/// Multiplies the learning rate by a factor when the watched value has not improved for some epochs
/// (Keras: `ReduceLROnPlateau`). A resumed run goes on counting where the interrupted run had
/// ended.
///
/// With several workers every worker has the callback, and all of them see the same averages.
///
/// ```
/// use distribute_fit::callbacks::ReduceLrOnPlateau;
///
/// let callback = ReduceLrOnPlateau::new("val_loss").factor(0.5).patience(3).min_lr(1e-5);
/// ```
#[derive(Debug)]
#[must_use]
pub struct ReduceLrOnPlateau {
    monitor: Monitor,
    factor: f64,
    patience: usize,
    cooldown: usize,
    min_lr: f64,
    progress: Watched,
}

/// What a checkpoint keeps.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Watched {
    best: Option<Exact>,
    wait: usize,
    cooldown: usize,
}

impl ReduceLrOnPlateau {
    /// Watches a value of the logs, for example `val_loss`, with Keras' defaults: a factor of 0.1,
    /// a patience of 10 epochs, a least improvement of 1e-4, no cooldown.
    pub fn new(monitor: impl Into<String>) -> Self {
        let mut monitor = Monitor::new(monitor);
        monitor.min_delta = 1e-4;
        Self {
            monitor,
            factor: 0.1,
            patience: 10,
            cooldown: 0,
            min_lr: 0.0,
            progress: Watched::default(),
        }
    }

    setters! { self;
        /// What the learning rate is multiplied by: from 0 to less than 1, else training does not
        /// begin.
        factor(factor: f64) => factor = factor;

        /// After how many epochs without improvement; 0 counts as 1, as in Keras.
        patience(epochs: usize) => patience = epochs;

        /// How much better a value must be to count, in the unit of the value.
        min_delta(min_delta: f64) => monitor.min_delta = min_delta.abs();

        /// How many epochs after a reduction do not count.
        cooldown(epochs: usize) => cooldown = epochs;

        /// The least learning rate.
        min_lr(learning_rate: f64) => min_lr = learning_rate;

        /// Which values are better; by default it follows from the name, and a name that says
        /// nothing is refused before training.
        direction(direction: Direction) => monitor.direction = direction;
    }

    /// The best value, if there was one.
    pub fn best(&self) -> Option<f64> {
        self.progress.best.map(|Exact(best)| best)
    }

    /// The epochs without improvement that count (Keras: `wait`).
    pub fn wait(&self) -> usize {
        self.progress.wait
    }

    /// How many epochs of the cooldown are left (Keras: `cooldown_counter`).
    pub fn cooldown_left(&self) -> usize {
        self.progress.cooldown
    }
}

impl Callback for ReduceLrOnPlateau {
    fn on_train_begin(&mut self, _: &mut Control<'_>) -> Result<()> {
        if (0.0..1.0).contains(&self.factor) {
            self.monitor.check("ReduceLrOnPlateau")
        } else {
            Err(Error::invalid(format!(
                "ReduceLrOnPlateau: the factor must be from 0 to less than 1, got {}",
                self.factor
            )))
        }
    }

    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        self.monitor.check_name("ReduceLrOnPlateau", run)
    }

    fn on_epoch_end(&mut self, record: &EpochRecord, run: &mut Control<'_>) -> Result<()> {
        let value = self.monitor.value("ReduceLrOnPlateau", &record.logs)?;
        // An epoch that was interrupted counts once, when a resumed run has completed it.
        if !record.complete {
            return Ok(());
        }
        let best = self.best();
        let progress = &mut self.progress;
        if progress.cooldown > 0 {
            progress.cooldown -= 1;
            progress.wait = 0;
        }
        if self.monitor.improves(value, best) {
            progress.best = Some(Exact(value));
            progress.wait = 0;
            return Ok(());
        }
        if progress.cooldown > 0 {
            return Ok(());
        }
        progress.wait += 1;
        let rate = run.learning_rate();
        if progress.wait >= self.patience && rate > self.min_lr {
            run.set_learning_rate((rate * self.factor).max(self.min_lr));
            progress.cooldown = self.cooldown;
            progress.wait = 0;
        }
        Ok(())
    }

    fn state_name(&self) -> Option<&'static str> {
        Some("reduce_lr_on_plateau")
    }

    fn state(&self) -> CallbackState {
        CallbackState {
            value: serde_json::to_value(&self.progress).unwrap_or_default(),
            ..CallbackState::default()
        }
    }

    fn restore_state(&mut self, state: CallbackState) -> Result<()> {
        self.progress = serde_json::from_value(state.value).map_err(unreadable_state)?;
        Ok(())
    }
}
