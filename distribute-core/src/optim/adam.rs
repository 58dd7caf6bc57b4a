//! Adam, as in Keras.

use serde::{Deserialize, Serialize};

use super::{KerasOptimizer, Moments, ParameterUpdate, Rule, Updated, ema_adam, power};
use crate::Result;

/// `keras.optimizers.Adam` (Kingma and Ba, 2014, in the form before section 2.1 of the paper):
/// epsilon is outside of the bias correction.
///
/// `m += (g - m) * (1 - beta_1); v += (g * g - v) * (1 - beta_2);
/// w -= lr * sqrt(1 - beta_2^t) / (1 - beta_1^t) * m / (sqrt(v) + epsilon)`; with AMSGrad (Reddi et
/// al., 2018) the largest `v` so far stands in the place of `v` in the last line.
///
/// Keras' defaults: a learning rate of 0.001, betas 0.9 and 0.999, epsilon 1e-7, no AMSGrad.
pub type Adam = KerasOptimizer<Moments<AdamRule>>;

/// What only Adam has.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct AdamRule {
    amsgrad: bool,
}

impl Adam {
    /// Divides by the largest second moment so far.
    pub fn amsgrad(mut self, amsgrad: bool) -> Self {
        self.rule.own.amsgrad = amsgrad;
        self
    }
}

impl Rule for Moments<AdamRule> {
    const NAME: &'static str = "adam";
    const LATER_FLAGS: &'static [&'static str] = &["amsgrad"];
    const SLOTS: &'static [&'static str] = &["momentum", "velocity", "velocity_hat"];

    fn slots(&self) -> &[&'static str] {
        if self.own.amsgrad {
            Self::SLOTS
        } else {
            &["momentum", "velocity"]
        }
    }

    fn coefficients(&self, learning_rate: f64, step: u64) -> Vec<f64> {
        let second = (1.0 - power(self.beta_2, step)).sqrt();
        vec![learning_rate * second / (1.0 - power(self.beta_1, step))]
    }

    fn update(&self, mut of: ParameterUpdate<'_>) -> Result<Updated> {
        let largest = self.own.amsgrad.then(|| of.slots.pop()).flatten();
        let ([rate], w, g, [m, v]) = of.parts(Self::NAME)?;
        let v = ema_adam(v, g.clone() * g.clone(), self.beta_2);
        let m = ema_adam(m, g, self.beta_1);
        let largest = largest.map(|largest| largest.max_pair(v.clone()));
        let divisor = largest.clone().unwrap_or_else(|| v.clone());
        let step = rate.scale(m.clone()) / divisor.sqrt().add_scalar(self.epsilon);
        Ok((w - step, [m, v].into_iter().chain(largest).collect()))
    }
}
