//! Stochastic gradient descent with momentum, as in Keras.

use super::{KerasOptimizer, ParameterUpdate, Rule, Updated, numbers};
use crate::Result;

/// `keras.optimizers.SGD`.
///
/// Without momentum: `w -= lr * g`. With momentum: `v = momentum * v - lr * g; w += v`, and with
/// Nesterov: `w += momentum * v - lr * g`.
///
/// Keras' defaults: a learning rate of 0.01, no momentum.
pub type Sgd = KerasOptimizer<SgdRule>;

numbers! {
    /// The numbers of SGD.
    SgdRule of Sgd {
        /// Sets the momentum, between 0 and 1.
        momentum: f64 = 0.0,
        /// Turns Nesterov's form of momentum on or off.
        nesterov: bool = false,
    }
}

impl Rule for SgdRule {
    const NAME: &'static str = "sgd";
    const LEARNING_RATE: f64 = 0.01;
    const SLOTS: &'static [&'static str] = &["momentum"];

    fn slots(&self) -> &[&'static str] {
        if self.momentum == 0.0 {
            &[]
        } else {
            Self::SLOTS
        }
    }

    fn update(&self, of: ParameterUpdate<'_>) -> Result<Updated> {
        if self.momentum == 0.0 {
            let ([rate], w, g, []) = of.parts(Self::NAME)?;
            return Ok((w - rate.scale(g), Vec::new()));
        }
        let ([rate], w, g, [velocity]) = of.parts(Self::NAME)?;
        let step = rate.scale(g);
        let velocity = velocity.mul_scalar(self.momentum) - step.clone();
        let w = if self.nesterov {
            w + velocity.clone().mul_scalar(self.momentum) - step
        } else {
            w + velocity.clone()
        };
        Ok((w, vec![velocity]))
    }
}
