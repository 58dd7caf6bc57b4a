//! RMSprop, as in Keras.

use serde::{Deserialize, Serialize};

use super::{KerasOptimizer, ParameterUpdate, Rule, Updated, mixed};
use crate::Result;

/// `keras.optimizers.RMSprop` (Tieleman and Hinton, 2012).
///
/// `v = rho * v + (1 - rho) * g * g; w -= lr * g / sqrt(v + epsilon)`. Centered, the square of the
/// mean gradient `a = rho * a + (1 - rho) * g` is subtracted from `v` in the root. With momentum
/// `m = momentum * m + step; w -= m`.
///
/// Keras' defaults: a learning rate of 0.001, rho 0.9, epsilon 1e-7, no momentum, not centered.
pub type RmsProp = KerasOptimizer<RmsPropRule>;

/// The numbers of RMSprop.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RmsPropRule {
    rho: f64,
    momentum: f64,
    epsilon: f64,
    centered: bool,
}

impl Default for RmsPropRule {
    fn default() -> Self {
        Self {
            rho: 0.9,
            momentum: 0.0,
            epsilon: 1e-7,
            centered: false,
        }
    }
}

impl RmsProp {
    /// Sets the decay rate of the averages, below 1.
    pub fn rho(mut self, rho: f64) -> Self {
        self.rule.rho = rho;
        self
    }

    /// Sets the momentum, between 0 and 1.
    pub fn momentum(mut self, momentum: f64) -> Self {
        self.rule.momentum = momentum;
        self
    }

    /// Sets the number that keeps the division from zero.
    pub fn epsilon(mut self, epsilon: f64) -> Self {
        self.rule.epsilon = epsilon;
        self
    }

    /// Divides by the variance of the gradients instead of the mean of their squares.
    pub fn centered(mut self, centered: bool) -> Self {
        self.rule.centered = centered;
        self
    }
}

impl Rule for RmsPropRule {
    const NAME: &'static str = "rmsprop";

    fn slots(&self) -> &[&'static str] {
        match (self.centered, self.momentum > 0.0) {
            (false, false) => &["velocity"],
            (false, true) => &["velocity", "momentum"],
            (true, false) => &["velocity", "average_gradient"],
            (true, true) => &["velocity", "average_gradient", "momentum"],
        }
    }

    fn update(&self, mut of: ParameterUpdate<'_>) -> Result<Updated> {
        let momentum = (self.momentum > 0.0).then(|| of.slots.pop()).flatten();
        let average = self.centered.then(|| of.slots.pop()).flatten();
        let ([rate], w, g, [velocity]) = of.parts(Self::NAME)?;
        let velocity = mixed(velocity, g.clone() * g.clone(), self.rho);
        let average = average.map(|average| mixed(average, g.clone(), self.rho));
        let variance = match &average {
            None => velocity.clone(),
            Some(average) => velocity.clone() - average.clone() * average.clone(),
        };
        let step = rate.scale(g) / variance.add_scalar(self.epsilon).sqrt();
        let momentum = momentum.map(|momentum| momentum.mul_scalar(self.momentum) + step.clone());
        let step = momentum.clone().unwrap_or(step);
        let slots = [velocity].into_iter().chain(average).chain(momentum);
        Ok((w - step, slots.collect()))
    }
}
