//! Lion, as in Keras.

use serde::{Deserialize, Serialize};

use super::{KerasOptimizer, ParameterUpdate, Rule, Updated, ema_rmsprop};
use crate::Result;

/// `keras.optimizers.Lion` (Chen et al., 2023): every weight moves by the learning rate.
///
/// `w -= lr * sign(beta_1 * m + (1 - beta_1) * g); m = beta_2 * m + (1 - beta_2) * g`.
///
/// Keras' defaults: a learning rate of 0.001, betas 0.9 and 0.99.
pub type Lion = KerasOptimizer<LionRule>;

/// The numbers of Lion.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LionRule {
    beta_1: f64,
    beta_2: f64,
}

impl Default for LionRule {
    fn default() -> Self {
        let (beta_1, beta_2) = (0.9, 0.99);
        Self { beta_1, beta_2 }
    }
}

impl Lion {
    /// Sets the share of the momentum in a step, and its decay rate; each below 1.
    pub fn betas(mut self, beta_1: f64, beta_2: f64) -> Self {
        self.rule = LionRule { beta_1, beta_2 };
        self
    }
}

impl Rule for LionRule {
    const NAME: &'static str = "lion";
    const SLOTS: &'static [&'static str] = &["momentum"];

    fn update(&self, of: ParameterUpdate<'_>) -> Result<Updated> {
        let ([rate], w, g, [m]) = of.parts(Self::NAME)?;
        let step = ema_rmsprop(m.clone(), g.clone(), self.beta_1).sign();
        Ok((w - rate.scale(step), vec![ema_rmsprop(m, g, self.beta_2)]))
    }
}
