//! Learning rate schedules, with Keras' arithmetic in `f64`.
//!
//! A schedule is a function of the number of updates so far. `Fit` follows one by its callback
//! `LearningRateScheduler::of`; a loop of its own calls
//! [`Mirrored::set_learning_rate`](crate::Mirrored::set_learning_rate) before each step. Steps are
//! compiled once whatever the rate: it enters as a number.

mod cosine;
mod decay;
mod piecewise;
mod warmup;

use std::fmt::Debug;
use std::sync::Arc;

pub use cosine::{CosineDecay, CosineDecayRestarts};
pub use decay::{ExponentialDecay, InverseTimeDecay, PolynomialDecay};
pub use piecewise::PiecewiseConstantDecay;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
pub use warmup::Warmup;

use crate::error::check_positive;
use crate::macros::forward;
use crate::{Error, Result};

/// A learning rate that depends on the number of updates
/// (Keras: `keras.optimizers.schedules.LearningRateSchedule`).
pub trait LearningRateSchedule: Send + Sync + Debug {
    /// The name of Keras' class: `CosineDecay`.
    fn name(&self) -> &'static str;

    /// The learning rate of the update after `step` others.
    fn rate(&self, step: u64) -> f64;

    /// All numbers, by Keras' names of them (Keras: `get_config`).
    fn config(&self) -> Value;
}

/// A shared schedule is one.
impl<T: LearningRateSchedule + ?Sized> LearningRateSchedule for Arc<T> {
    forward! { self => **self;
        fn name() -> &'static str;
        fn rate(step: u64) -> f64;
        fn config() -> Value;
    }
}

/// A schedule that Keras knows, read from its configuration.
trait Known: Debug + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The name of Keras' class.
    const NAME: &'static str;

    /// Refuses numbers that give no schedule.
    fn check(&self) -> Result<()>;

    /// The schedule, if its numbers give one.
    fn checked(self) -> Result<Self> {
        self.check().map(|()| self)
    }

    /// As [`LearningRateSchedule::rate`].
    fn after(&self, step: u64) -> f64;
}

impl<S: Known> LearningRateSchedule for S {
    fn name(&self) -> &'static str {
        S::NAME
    }

    fn rate(&self, step: u64) -> f64 {
        self.after(step)
    }

    fn config(&self) -> Value {
        // Numbers, flags and lists can always be written.
        serde_json::to_value(self).unwrap_or_default()
    }
}

type Build = fn(Value) -> serde_json::Result<Result<Arc<dyn LearningRateSchedule>>>;

const ALL: [(&str, Build); 6] = [
    ("CosineDecay", build::<CosineDecay>),
    ("CosineDecayRestarts", build::<CosineDecayRestarts>),
    ("ExponentialDecay", build::<ExponentialDecay>),
    ("InverseTimeDecay", build::<InverseTimeDecay>),
    ("PiecewiseConstantDecay", build::<PiecewiseConstantDecay>),
    ("PolynomialDecay", build::<PolynomialDecay>),
];

fn build<S: Known>(config: Value) -> serde_json::Result<Result<Arc<dyn LearningRateSchedule>>> {
    let schedule: S = serde_json::from_value(config)?;
    Ok(schedule
        .checked()
        .map(|schedule| Arc::new(schedule) as Arc<dyn LearningRateSchedule>))
}

/// The names of Keras' schedules, in alphabetical order.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(name, _)| *name)
}

/// Keras' schedule of this name with these numbers, as [`LearningRateSchedule::config`] gives them;
/// what may be left out has Keras' default.
///
/// ```
/// use distribute_core::schedule::from_config;
/// use serde_json::json;
///
/// let config = json!({"initial_learning_rate": 0.1, "decay_steps": 100});
/// let cosine = from_config("CosineDecay", &config)?;
/// assert!((cosine.rate(50) - 0.05).abs() < 1e-12);
/// # Ok::<(), distribute_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`] for another name, which says the nearest one, and for numbers that
/// are missing, unknown or give no schedule.
pub fn from_config(name: &str, config: &Value) -> Result<Arc<dyn LearningRateSchedule>> {
    let Some((name, build)) = ALL.iter().find(|(known, _)| *known == name) else {
        let unknown = distribute_error::unknown("learning rate schedule", name, names());
        return Err(Error::invalid(unknown));
    };
    build(config.clone()).map_err(|error| {
        Error::invalid(format!(
            "the configuration {config} of the schedule `{name}`: {error}"
        ))
    })?
}

/// The default of some numbers.
fn one() -> f64 {
    1.0
}

/// Refuses what is not above zero.
fn positive(schedule: &str, name: &str, number: f64) -> Result<()> {
    check_positive(format_args!("{schedule}: `{name}`"), number)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::from_config;

    #[test]
    fn unknown_names_and_numbers_are_refused() {
        let error = |name, config| from_config(name, &config).unwrap_err().to_string();
        let unknown = error("CosinDecay", json!({}));
        assert!(unknown.contains("did you mean `CosineDecay`?"), "{unknown}");
        let missing = error("CosineDecay", json!({"decay_steps": 3}));
        assert!(missing.contains("initial_learning_rate"), "{missing}");
        let config = json!({"initial_learning_rate": 1, "decay_steps": 3, "beta": 1});
        let extra = error("PolynomialDecay", config);
        assert!(extra.contains("unknown field `beta`"), "{extra}");
        let config = json!({"initial_learning_rate": 1, "first_decay_steps": 3, "t_mul": 0.5});
        let shrinking = error("CosineDecayRestarts", config);
        assert!(
            shrinking.contains("`t_mul` must be at least 1"),
            "{shrinking}"
        );
    }

    /// A period ends where the next one begins, whatever the logarithm of its number is.
    #[test]
    fn restarts_are_where_the_periods_end() {
        for (first, factor) in [(13.0, 3.0), (7.0, 1.0), (5.0, 2.0), (8.0, 1.5)] {
            let config = json!({
                "initial_learning_rate": 1.0, "first_decay_steps": first, "t_mul": factor,
            });
            let schedule = from_config("CosineDecayRestarts", &config).unwrap();
            let (mut begin, mut length) = (0.0_f64, first);
            while begin < 100_000.0 && begin.fract() == 0.0 {
                let step = begin as u64;
                assert_eq!(schedule.rate(step), 1.0, "{factor}: {step}");
                assert!(
                    step == 0 || schedule.rate(step - 1) < 0.2,
                    "{factor}: {step}"
                );
                begin += length;
                length *= factor;
            }
        }
    }
}
