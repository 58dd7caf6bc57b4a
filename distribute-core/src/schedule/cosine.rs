//! Rates that fall along a cosine.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

use super::{Known, one, positive};
use crate::{Error, Result};

/// `1` at the beginning of a decay and `alpha` at its end.
fn falling(fraction: f64, height: f64, alpha: f64) -> f64 {
    let cosine = 0.5 * height * (1.0 + (PI * fraction).cos());
    (1.0 - alpha) * cosine + alpha
}

/// `keras.optimizers.schedules.CosineDecay` (Loshchilov and Hutter, 2016), with Keras' linear
/// warm-up.
///
/// The rate falls from `initial_learning_rate` to `alpha` times it in `decay_steps` updates. With a
/// `warmup_target` it first goes from `initial_learning_rate` to the target in a straight line, in
/// `warmup_steps` updates, and falls from there; without, `warmup_steps` is ignored.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CosineDecay {
    initial_learning_rate: f64,
    decay_steps: f64,
    #[serde(default)]
    alpha: f64,
    #[serde(default)]
    warmup_target: Option<f64>,
    #[serde(default)]
    warmup_steps: f64,
}

impl CosineDecay {
    /// From `initial_learning_rate` to 0 in this many updates.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `decay_steps` is not above 0.
    pub fn new(initial_learning_rate: f64, decay_steps: f64) -> Result<Self> {
        Self {
            initial_learning_rate,
            decay_steps,
            alpha: 0.0,
            warmup_target: None,
            warmup_steps: 0.0,
        }
        .checked()
    }

    /// Sets what is left of the rate at the end, as a share of it.
    #[must_use]
    pub fn alpha(mut self, alpha: f64) -> Self {
        self.alpha = alpha;
        self
    }

    /// Begins with this many updates in which the rate goes to `target`.
    #[must_use]
    pub fn warmup(mut self, target: f64, steps: u32) -> Self {
        self.warmup_target = Some(target);
        self.warmup_steps = f64::from(steps);
        self
    }
}

impl Known for CosineDecay {
    const NAME: &'static str = "CosineDecay";

    fn check(&self) -> Result<()> {
        positive(Self::NAME, "decay_steps", self.decay_steps)
    }

    fn after(&self, step: u64) -> f64 {
        let (step, initial) = (step as f64, self.initial_learning_rate);
        let decayed = |from: f64, step: f64| {
            let fraction = step.min(self.decay_steps) / self.decay_steps;
            from * falling(fraction, 1.0, self.alpha)
        };
        match self.warmup_target {
            None => decayed(initial, step),
            Some(target) if step < self.warmup_steps => {
                initial + (target - initial) * (step / self.warmup_steps)
            }
            Some(target) => decayed(target, step - self.warmup_steps),
        }
    }
}

/// `keras.optimizers.schedules.CosineDecayRestarts` (Loshchilov and Hutter, 2016).
///
/// The rate falls along a cosine and starts again: the first period has `first_decay_steps`
/// updates, each further one `t_mul` times as many, and begins at `m_mul` times the rate. `alpha`
/// is the least share of `initial_learning_rate`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CosineDecayRestarts {
    initial_learning_rate: f64,
    first_decay_steps: f64,
    #[serde(default = "two")]
    t_mul: f64,
    #[serde(default = "one")]
    m_mul: f64,
    #[serde(default)]
    alpha: f64,
}

fn two() -> f64 {
    2.0
}

impl CosineDecayRestarts {
    /// With Keras' defaults: each period is twice as long, and begins at the same rate.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `first_decay_steps` is not above 0.
    pub fn new(initial_learning_rate: f64, first_decay_steps: f64) -> Result<Self> {
        Self {
            initial_learning_rate,
            first_decay_steps,
            t_mul: two(),
            m_mul: one(),
            alpha: 0.0,
        }
        .checked()
    }

    /// Sets how many times longer each period is than the one before, and its share of the rate.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if periods become shorter.
    pub fn factors(mut self, t_mul: f64, m_mul: f64) -> Result<Self> {
        (self.t_mul, self.m_mul) = (t_mul, m_mul);
        self.checked()
    }

    /// Sets the least share of the initial rate.
    #[must_use]
    pub fn alpha(mut self, alpha: f64) -> Self {
        self.alpha = alpha;
        self
    }

    /// The number of periods before this step, and the part of the running one that is over.
    /// Counted, not computed by a logarithm, whose rounding would move a restart by a step.
    fn period(&self, step: f64) -> (f64, f64) {
        let completed = step / self.first_decay_steps;
        if self.t_mul == 1.0 {
            return (completed.floor(), completed.fract());
        }
        let (mut periods, mut begin, mut length) = (0.0, 0.0, self.first_decay_steps);
        while step >= begin + length {
            begin += length;
            length *= self.t_mul;
            periods += 1.0;
        }
        (periods, (step - begin) / length)
    }
}

impl Known for CosineDecayRestarts {
    const NAME: &'static str = "CosineDecayRestarts";

    fn check(&self) -> Result<()> {
        positive(Self::NAME, "first_decay_steps", self.first_decay_steps)?;
        // Periods that are hardly longer are as many as there are steps.
        let grows = self.t_mul == 1.0 || self.t_mul >= 1.000_001;
        if grows && self.t_mul.is_finite() {
            Ok(())
        } else {
            Err(Error::invalid(format!(
                "CosineDecayRestarts: `t_mul` must be at least 1, got {}: shorter and shorter \
                 periods come to an end",
                self.t_mul
            )))
        }
    }

    fn after(&self, step: u64) -> f64 {
        let (periods, fraction) = self.period(step as f64);
        let height = self.m_mul.powf(periods);
        self.initial_learning_rate * falling(fraction, height, self.alpha)
    }
}
