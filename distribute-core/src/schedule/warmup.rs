//! A warm-up before any schedule.

use std::sync::Arc;

use serde_json::{Value, json};

use super::LearningRateSchedule;

/// A schedule that begins with a straight line from 0 to its first rate, as Keras' `CosineDecay`
/// does with `initial_learning_rate` 0 and a `warmup_target`; here before any of them. The schedule
/// itself begins when the warm-up ends.
///
/// ```
/// use std::sync::Arc;
///
/// use distribute_core::schedule::{ExponentialDecay, LearningRateSchedule, Warmup};
///
/// let schedule = Warmup::new(4, Arc::new(ExponentialDecay::new(0.1, 10.0, 0.5)?));
/// assert_eq!([0, 2, 4, 14].map(|step| schedule.rate(step)), [0.0, 0.05, 0.1, 0.05]);
/// # Ok::<(), distribute_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Warmup {
    steps: u64,
    then: Arc<dyn LearningRateSchedule>,
}

impl Warmup {
    /// This many updates of warm-up, then this schedule.
    pub fn new(steps: u64, then: Arc<dyn LearningRateSchedule>) -> Self {
        Self { steps, then }
    }
}

impl LearningRateSchedule for Warmup {
    fn name(&self) -> &'static str {
        "Warmup"
    }

    fn rate(&self, step: u64) -> f64 {
        match step.checked_sub(self.steps) {
            Some(step) => self.then.rate(step),
            None => self.then.rate(0) * (step as f64 / self.steps as f64),
        }
    }

    fn config(&self) -> Value {
        let (name, config) = (self.then.name(), self.then.config());
        json!({"warmup_steps": self.steps, "then": {"class_name": name, "config": config}})
    }
}
