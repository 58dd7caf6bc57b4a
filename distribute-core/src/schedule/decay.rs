//! Rates that fall exponentially, inversely or along a power of the updates.

use std::fmt::Debug;
use std::marker::PhantomData;

use serde::{Deserialize, Serialize};

use super::{Known, one, positive};
use crate::Result;
use crate::macros::setters;

/// What becomes of the rate after some times `decay_steps` updates.
pub trait Curve: Debug + Clone + Send + Sync + 'static {
    /// The name of Keras' class.
    const NAME: &'static str;

    /// The rate after this multiple of `decay_steps`.
    fn fallen(rate: f64, decay_rate: f64, times: f64) -> f64;
}

/// A rate that falls in every `decay_steps` updates: a bit in each of them, or with a staircase
/// all at once after the last one.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[must_use]
pub struct RateDecay<C> {
    initial_learning_rate: f64,
    decay_steps: f64,
    decay_rate: f64,
    #[serde(default)]
    staircase: bool,
    #[serde(skip)]
    curve: PhantomData<C>,
}

/// `keras.optimizers.schedules.ExponentialDecay`: multiplies the rate by `decay_rate` in every
/// `decay_steps` updates.
///
/// `initial_learning_rate * decay_rate ^ (step / decay_steps)`; with a staircase the exponent is
/// rounded down.
pub type ExponentialDecay = RateDecay<Exponential>;

/// `keras.optimizers.schedules.InverseTimeDecay`: adds `decay_rate` to the divisor of the rate in
/// every `decay_steps` updates.
///
/// `initial_learning_rate / (1 + decay_rate * step / decay_steps)`; with a staircase the quotient
/// of the steps is rounded down.
pub type InverseTimeDecay = RateDecay<InverseTime>;

/// The curve of [`ExponentialDecay`].
#[derive(Debug, Clone)]
pub struct Exponential;

impl Curve for Exponential {
    const NAME: &'static str = "ExponentialDecay";

    fn fallen(rate: f64, decay_rate: f64, times: f64) -> f64 {
        rate * decay_rate.powf(times)
    }
}

/// The curve of [`InverseTimeDecay`].
#[derive(Debug, Clone)]
pub struct InverseTime;

impl Curve for InverseTime {
    const NAME: &'static str = "InverseTimeDecay";

    fn fallen(rate: f64, decay_rate: f64, times: f64) -> f64 {
        rate / (1.0 + decay_rate * times)
    }
}

impl<C: Curve> RateDecay<C> {
    /// Falls by `decay_rate` in every `decay_steps` updates, without a staircase.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if `decay_steps` is not above 0.
    pub fn new(initial_learning_rate: f64, decay_steps: f64, decay_rate: f64) -> Result<Self> {
        Self {
            initial_learning_rate,
            decay_steps,
            decay_rate,
            staircase: false,
            curve: PhantomData,
        }
        .checked()
    }

    setters! { self;
        /// Falls at once after `decay_steps` updates, not a bit in each.
        staircase(staircase: bool) => staircase = staircase;
    }
}

impl<C: Curve> Known for RateDecay<C> {
    const NAME: &'static str = C::NAME;

    fn check(&self) -> Result<()> {
        positive(Self::NAME, "decay_steps", self.decay_steps)
    }

    fn after(&self, step: u64) -> f64 {
        let times = step as f64 / self.decay_steps;
        let times = if self.staircase { times.floor() } else { times };
        C::fallen(self.initial_learning_rate, self.decay_rate, times)
    }
}

/// `keras.optimizers.schedules.PolynomialDecay`.
///
/// `(initial_learning_rate - end_learning_rate) * (1 - step / decay_steps) ^ power
/// + end_learning_rate`, and `end_learning_rate` after `decay_steps` updates. With `cycle` the
/// rate rises again there: `decay_steps` is then the next multiple of it that is not below `step`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[must_use]
pub struct PolynomialDecay {
    initial_learning_rate: f64,
    decay_steps: f64,
    #[serde(default = "end")]
    end_learning_rate: f64,
    #[serde(default = "one")]
    power: f64,
    #[serde(default)]
    cycle: bool,
}

fn end() -> f64 {
    0.0001
}

impl PolynomialDecay {
    /// In a straight line to Keras' end, 0.0001.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if `decay_steps` is not above 0.
    pub fn new(initial_learning_rate: f64, decay_steps: f64) -> Result<Self> {
        Self {
            initial_learning_rate,
            decay_steps,
            end_learning_rate: end(),
            power: one(),
            cycle: false,
        }
        .checked()
    }

    setters! { self;
        /// Sets the rate at the end.
        end_learning_rate(rate: f64) => end_learning_rate = rate;

        /// Sets the power of the polynomial, 1 for a straight line.
        power(power: f64) => power = power;

        /// Rises again after `decay_steps` updates, to less each time.
        cycle(cycle: bool) => cycle = cycle;
    }
}

impl Known for PolynomialDecay {
    const NAME: &'static str = "PolynomialDecay";

    fn check(&self) -> Result<()> {
        positive(Self::NAME, "decay_steps", self.decay_steps)
    }

    fn after(&self, step: u64) -> f64 {
        let step = step as f64;
        let (step, decay_steps) = if self.cycle {
            let cycles = (step / self.decay_steps).ceil().max(1.0);
            (step, self.decay_steps * cycles)
        } else {
            (step.min(self.decay_steps), self.decay_steps)
        };
        let height = self.initial_learning_rate - self.end_learning_rate;
        height * (1.0 - step / decay_steps).powf(self.power) + self.end_learning_rate
    }
}
