//! Learning rates that change during training.

use std::fmt;

use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use distribute_core::schedule::LearningRateSchedule;
use distribute_core::{Error, Result};
use serde_json::json;

use crate::snapshot::unreadable_state;
use crate::{Callback, CallbackState, Control};

type Schedule<'a> = Box<dyn FnMut(u64, f64) -> f64 + 'a>;

/// Sets the learning rate before every epoch or every step
/// (Keras: `LearningRateScheduler`).
///
/// The schedule is a function of the number of the epoch or step (from 0) and of the current
/// learning rate. A resumed run continues with the rate that was in use.
///
/// ```
/// use distribute_fit::callbacks::LearningRateScheduler;
///
/// let halve_every_ten = LearningRateScheduler::per_epoch(|epoch, rate| {
///     if epoch > 0 && epoch % 10 == 0 { rate / 2.0 } else { rate }
/// });
/// let warm_up = LearningRateScheduler::per_step(|step, _| {
///     1e-3 * ((step + 1) as f64 / 100.0).min(1.0)
/// });
/// ```
#[must_use]
pub struct LearningRateScheduler<'a> {
    schedule: Schedule<'a>,
    per_step: bool,
    /// The epoch or step that the current rate was computed for. The schedule is called once for
    /// each, because it may depend on the current rate.
    made_for: Option<u64>,
}

impl<'a> LearningRateScheduler<'a> {
    /// Sets the rate at the beginning of every epoch.
    pub fn per_epoch(schedule: impl FnMut(u64, f64) -> f64 + 'a) -> Self {
        Self {
            schedule: Box::new(schedule),
            per_step: false,
            made_for: None,
        }
    }

    /// Sets the rate before every optimizer step.
    pub fn per_step(schedule: impl FnMut(u64, f64) -> f64 + 'a) -> Self {
        Self {
            per_step: true,
            ..Self::per_epoch(schedule)
        }
    }

    /// Follows a schedule of Keras: sets the rate before every optimizer step, by the number of the
    /// step (Keras: the schedule is the optimizer's `learning_rate`). It replaces what other
    /// callbacks set.
    ///
    /// ```
    /// use distribute_core::schedule::CosineDecay;
    /// use distribute_fit::callbacks::LearningRateScheduler;
    ///
    /// let cosine = CosineDecay::new(0.0, 900.0)?.warmup(1e-3, 100);
    /// let callback = LearningRateScheduler::of(cosine);
    /// # Ok::<(), distribute_core::Error>(())
    /// ```
    pub fn of(schedule: impl LearningRateSchedule + 'a) -> Self {
        Self::per_step(move |step, _| schedule.rate(step))
    }

    /// Follows a scheduler of burn: sets the rate before every optimizer step to what the scheduler
    /// gives for it, also in a resumed run.
    ///
    /// ```
    /// use burn::lr_scheduler::noam::NoamLrSchedulerConfig;
    /// use distribute_core::Error;
    /// use distribute_fit::callbacks::LearningRateScheduler;
    ///
    /// let noam = NoamLrSchedulerConfig::new(0.1).with_warmup_steps(10).with_model_size(64);
    /// let callback = LearningRateScheduler::of_burn(noam.init().map_err(Error::input)?)?;
    /// # Ok::<(), distribute_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a scheduler with parameter groups: groups have rates of their
    /// own in the optimizer (`BurnOptimizer::rate_factor`).
    pub fn of_burn(scheduler: impl Into<ModuleLrScheduler>) -> Result<Self> {
        let fresh = scheduler.into();
        // burn names parameter groups by their numbers; group 0 is that of all parameters.
        if !fresh.to_record().record("1").is_empty() {
            return Err(Error::invalid(
                "a scheduler of burn with parameter groups: schedule one rate, and give groups \
                 theirs as factors of it with `BurnOptimizer::rate_factor`",
            ));
        }
        let (mut scheduler, mut made, mut rate) = (fresh.clone(), 0, 0.0);
        Ok(Self::per_step(move |step, _| {
            if step < made {
                (scheduler, made) = (fresh.clone(), 0);
            }
            while made <= step {
                rate = scheduler.step().base();
                made += 1;
            }
            rate
        }))
    }

    fn set(&mut self, run: &mut Control<'_>) -> Result<()> {
        let progress = run.progress();
        let number = if self.per_step {
            progress.step
        } else {
            progress.position.epoch as u64
        };
        if self.made_for == Some(number) {
            return Ok(());
        }
        let rate = (self.schedule)(number, run.learning_rate());
        if !(rate.is_finite() && rate >= 0.0) {
            let unit = if self.per_step { "step" } else { "epoch" };
            return Err(Error::invalid(format!(
                "the learning rate schedule gives {rate} for {unit} {number}: it must be a finite \
                 number, 0 or more"
            )));
        }
        run.set_learning_rate(rate);
        self.made_for = Some(number);
        Ok(())
    }
}

impl fmt::Debug for LearningRateScheduler<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LearningRateScheduler")
            .field("per_step", &self.per_step)
            .field("made_for", &self.made_for)
            .finish_non_exhaustive()
    }
}

impl Callback for LearningRateScheduler<'_> {
    fn on_epoch_begin(&mut self, run: &mut Control<'_>) -> Result<()> {
        self.set(run)
    }

    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        self.set(run)
    }

    fn state_name(&self) -> Option<&'static str> {
        Some("learning_rate_scheduler")
    }

    fn state(&self) -> CallbackState {
        CallbackState {
            value: json!(self.made_for),
            ..CallbackState::default()
        }
    }

    fn restore_state(&mut self, state: CallbackState) -> Result<()> {
        self.made_for = serde_json::from_value(state.value).map_err(unreadable_state)?;
        Ok(())
    }
}
