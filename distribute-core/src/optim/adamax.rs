//! Adamax, as in Keras.

use serde::{Deserialize, Serialize};

use super::{KerasOptimizer, Moments, ParameterUpdate, Rule, Updated, ema_adam, power};
use crate::Result;

/// `keras.optimizers.Adamax` (Kingma and Ba, 2014, section 7.1): Adam with the infinity norm.
///
/// `m += (g - m) * (1 - beta_1); u = max(beta_2 * u, |g|);
/// w -= lr / (1 - beta_1^t) * m / (u + epsilon)`.
///
/// Keras' defaults: a learning rate of 0.001, betas 0.9 and 0.999, epsilon 1e-7.
pub type Adamax = KerasOptimizer<Moments<AdamaxRule>>;

/// Adamax has nothing but the betas and epsilon.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct AdamaxRule {}

impl Rule for Moments<AdamaxRule> {
    const NAME: &'static str = "adamax";
    const SLOTS: &'static [&'static str] = &["momentum", "norm"];

    fn coefficients(&self, learning_rate: f64, step: u64) -> Vec<f64> {
        vec![learning_rate / (1.0 - power(self.beta_1, step))]
    }

    fn update(&self, of: ParameterUpdate<'_>) -> Result<Updated> {
        let ([rate], w, g, [m, norm]) = of.parts(Self::NAME)?;
        let m = ema_adam(m, g.clone(), self.beta_1);
        let norm = norm.mul_scalar(self.beta_2).max_pair(g.abs());
        let step = rate.scale(m.clone()) / norm.clone().add_scalar(self.epsilon);
        Ok((w - step, vec![m, norm]))
    }
}
