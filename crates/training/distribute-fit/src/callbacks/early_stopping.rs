//! Stops when a value does not improve any more.

use std::collections::BTreeMap;

use burn::tensor::TensorData;
use distribute_core::{Result, setters};
use serde::{Deserialize, Serialize};

use super::monitor::{Direction, Monitor};
use crate::exact::Exact;
use crate::snapshot::{EARLY_STOPPING, unreadable_state};
use crate::{Callback, CallbackState, Control, EpochRecord, Outcome};

/// Ends training when the watched value has not improved for some epochs (Keras: `EarlyStopping`).
/// A resumed run knows the best value, its parameters and the epochs since then. If the run had
/// been stopped by this callback, it ends again before its first step.
///
/// ```
/// use distribute_fit::callbacks::EarlyStopping;
///
/// let callback = EarlyStopping::new("val_loss").patience(3).restore_best(true);
/// ```
#[derive(Debug)]
#[must_use]
pub struct EarlyStopping {
    monitor: Monitor,
    patience: usize,
    start_from_epoch: usize,
    baseline: Option<f64>,
    restore_best: bool,
    progress: Watched,
    best_parameters: Option<BTreeMap<String, TensorData>>,
}

/// What a checkpoint keeps.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Watched {
    best: Option<Exact>,
    best_epoch: usize,
    epochs_without_improvement: usize,
    /// Whether this callback has ended the training.
    #[serde(default)]
    stopped: bool,
}

impl EarlyStopping {
    /// Watches a value of the logs, for example `val_loss`; stops at the first epoch that is not
    /// better than the best so far.
    pub fn new(monitor: impl Into<String>) -> Self {
        Self {
            monitor: Monitor::new(monitor),
            patience: 0,
            start_from_epoch: 0,
            baseline: None,
            restore_best: false,
            progress: Watched::default(),
            best_parameters: None,
        }
    }

    setters! { self;
        /// Which values are better; by default it follows from the name, and a name that says
        /// nothing is refused before training.
        direction(direction: Direction) => monitor.direction = direction;

        /// How much better a value must be to count, 0 by default. In the unit of the value.
        min_delta(min_delta: f64) => monitor.min_delta = min_delta.abs();

        /// After how many epochs without improvement to stop; 0 counts as 1, as in Keras.
        patience(epochs: usize) => patience = epochs;

        /// Ignores the epochs before this one, counted from 0: for a warm-up whose values mean
        /// nothing.
        start_from_epoch(epoch: usize) => start_from_epoch = epoch;

        /// A value to beat: an epoch that is the best so far, but not better than
        /// the baseline, counts as one without improvement. It does not itself end training.
        baseline(value: f64) => baseline = Some(value);

        /// Puts the parameters of the best epoch back when training ends, unless it was interrupted
        /// and is to be resumed. Holds a copy of the parameters in host memory.
        restore_best(restore: bool) => restore_best = restore;
    }

    /// The best value and its epoch (from 0), if there was one.
    pub fn best(&self) -> Option<(f64, usize)> {
        let Exact(best) = self.progress.best?;
        Some((best, self.progress.best_epoch))
    }

    /// The epochs since the last improvement (Keras: `wait`).
    pub fn epochs_without_improvement(&self) -> usize {
        self.progress.epochs_without_improvement
    }

    fn patience_is_over(&self) -> bool {
        self.progress.epochs_without_improvement >= self.patience.max(1)
    }

    fn stop(&mut self, run: &mut Control<'_>) {
        self.progress.stopped = true;
        let best = self.progress.best.map_or(f64::NAN, |best| best.0);
        run.stop(Outcome::EarlyStopped {
            monitor: self.monitor.name.clone(),
            best_epoch: self.progress.best_epoch,
            best,
        });
    }
}

impl Callback for EarlyStopping {
    /// A resumed run that had been stopped ends at once, unless it has more patience now.
    fn on_train_begin(&mut self, run: &mut Control<'_>) -> Result<()> {
        self.monitor.check("EarlyStopping")?;
        if self.progress.stopped && self.patience_is_over() {
            self.stop(run)
        } else {
            self.progress.stopped = false
        }
        Ok(())
    }

    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        self.monitor.check_name("EarlyStopping", run)
    }

    fn on_epoch_end(&mut self, record: &EpochRecord, run: &mut Control<'_>) -> Result<()> {
        let value = self.monitor.value("EarlyStopping", &record.logs)?;
        // An epoch that was interrupted counts once, when a resumed run has completed it.
        if !record.complete || record.epoch < self.start_from_epoch {
            return Ok(());
        }
        let progress = &mut self.progress;
        let best = progress.best.map(|best| best.0);
        progress.epochs_without_improvement += 1;
        if self.monitor.improves(value, best) {
            progress.best = Some(Exact(value));
            progress.best_epoch = record.epoch;
            let baseline = self.baseline;
            if baseline.is_none() || self.monitor.improves(value, baseline) {
                progress.epochs_without_improvement = 0;
            }
            if self.restore_best {
                self.best_parameters = Some(run.model()?);
            }
            return Ok(());
        }
        if self.patience_is_over() {
            self.stop(run);
        }
        Ok(())
    }

    fn on_train_end(&mut self, outcome: &Outcome, run: &mut Control<'_>) -> Result<()> {
        match &self.best_parameters {
            Some(best) if *outcome != Outcome::Interrupted => run.set_parameters(best),
            _ => Ok(()),
        }
    }

    fn state_name(&self) -> Option<&'static str> {
        Some(EARLY_STOPPING)
    }

    fn state(&self) -> CallbackState {
        CallbackState {
            value: serde_json::to_value(&self.progress).unwrap_or_default(),
            tensors: self.best_parameters.clone().unwrap_or_default(),
        }
    }

    fn restore_state(&mut self, state: CallbackState) -> Result<()> {
        self.progress = serde_json::from_value(state.value).map_err(unreadable_state)?;
        self.best_parameters = (!state.tensors.is_empty()).then_some(state.tensors);
        Ok(())
    }
}
