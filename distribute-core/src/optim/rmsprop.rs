//! RMSprop, as in Keras.

use super::{KerasOptimizer, ParameterUpdate, Rule, Updated, ema_rmsprop, numbers};
use crate::Result;

/// `keras.optimizers.RMSprop` (Tieleman and Hinton, 2012).
///
/// `v = rho * v + (1 - rho) * g * g; w -= lr * g / sqrt(v + epsilon)`. Centered, the square of the
/// mean gradient `a = rho * a + (1 - rho) * g` is subtracted from `v` in the root. With momentum
/// `m = momentum * m + step; w -= m`.
///
/// Keras' defaults: a learning rate of 0.001, rho 0.9, epsilon 1e-7, no momentum, not centered.
pub type RmsProp = KerasOptimizer<RmsPropRule>;

numbers! {
    /// The numbers of RMSprop.
    RmsPropRule of RmsProp {
        /// Sets the decay rate of the averages, below 1.
        rho: f64 = 0.9,
        /// Sets the momentum, between 0 and 1.
        momentum: f64 = 0.0,
        /// Sets the number that keeps the division from zero.
        epsilon: f64 = 1e-7,
        /// Divides by the variance of the gradients instead of the mean of their squares.
        centered: bool = false,
    }
}

impl Rule for RmsPropRule {
    const NAME: &'static str = "rmsprop";
    const SLOTS: &'static [&'static str] = &["velocity", "average_gradient", "momentum"];

    fn slots(&self) -> &[&'static str] {
        match (self.centered, self.momentum > 0.0) {
            (false, false) => &["velocity"],
            (false, true) => &["velocity", "momentum"],
            (true, false) => &["velocity", "average_gradient"],
            (true, true) => Self::SLOTS,
        }
    }

    fn update(&self, mut of: ParameterUpdate<'_>) -> Result<Updated> {
        let momentum = (self.momentum > 0.0).then(|| of.slots.pop()).flatten();
        let average = self.centered.then(|| of.slots.pop()).flatten();
        let ([rate], w, g, [velocity]) = of.parts(Self::NAME)?;
        let velocity = ema_rmsprop(velocity, g.clone() * g.clone(), self.rho);
        let average = average.map(|average| ema_rmsprop(average, g.clone(), self.rho));
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
