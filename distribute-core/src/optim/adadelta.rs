//! Adadelta, as in Keras.

use burn::tensor::Tensor;

use super::{KerasOptimizer, ParameterUpdate, Rule, Updated, ema_rmsprop, numbers};
use crate::Result;

/// `keras.optimizers.Adadelta` (Zeiler, 2012).
///
/// `a = rho * a + (1 - rho) * g * g; d = sqrt(b + epsilon) / sqrt(a + epsilon) * g;
/// b = rho * b + (1 - rho) * d * d; w -= lr * d`.
///
/// Keras' defaults: a learning rate of 0.001 (the paper has 1), rho 0.95, epsilon 1e-7.
pub type Adadelta = KerasOptimizer<AdadeltaRule>;

numbers! {
    /// The numbers of Adadelta.
    AdadeltaRule of Adadelta {
        /// Sets the decay rate of the averages, below 1.
        rho: f64 = 0.95,
        /// Sets the number that keeps the division from zero.
        epsilon: f64 = 1e-7,
    }
}

impl Rule for AdadeltaRule {
    const NAME: &'static str = "adadelta";
    const SLOTS: &'static [&'static str] = &["accumulated_gradient", "accumulated_delta"];

    fn update(&self, of: ParameterUpdate<'_>) -> Result<Updated> {
        let ([rate], w, g, [gradients, deltas]) = of.parts(Self::NAME)?;
        let root = |mean_square: &Tensor<1>| mean_square.clone().add_scalar(self.epsilon).sqrt();
        let gradients = ema_rmsprop(gradients, g.clone() * g.clone(), self.rho);
        let delta = root(&deltas) * g / root(&gradients);
        let deltas = ema_rmsprop(deltas, delta.clone() * delta.clone(), self.rho);
        Ok((w - rate.scale(delta), vec![gradients, deltas]))
    }
}
