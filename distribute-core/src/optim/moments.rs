//! The numbers of Adam and of the optimizers that came of it.

use serde::{Deserialize, Serialize};

use super::KerasOptimizer;

/// The decay rates of two moments, and the number that keeps a division from zero. `own` tells the
/// optimizers apart, and is what one of them has for itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Moments<R> {
    pub(super) beta_1: f64,
    pub(super) beta_2: f64,
    pub(super) epsilon: f64,
    #[serde(flatten)]
    pub(super) own: R,
}

impl<R: Default> Default for Moments<R> {
    fn default() -> Self {
        Self {
            beta_1: 0.9,
            beta_2: 0.999,
            epsilon: 1e-7,
            own: R::default(),
        }
    }
}

impl<R> KerasOptimizer<Moments<R>> {
    /// Sets the decay rates of the two moments, each below 1.
    pub fn betas(mut self, beta_1: f64, beta_2: f64) -> Self {
        (self.rule.beta_1, self.rule.beta_2) = (beta_1, beta_2);
        self
    }

    /// Sets the number that keeps the division from zero.
    pub fn epsilon(mut self, epsilon: f64) -> Self {
        self.rule.epsilon = epsilon;
        self
    }
}
