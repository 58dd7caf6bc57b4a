//! Stochastic gradient descent with momentum, as in Keras.

use serde::{Deserialize, Serialize};

use super::{KerasOptimizer, ParameterUpdate, Rule, Updated};
use crate::Result;

/// `keras.optimizers.SGD`.
///
/// Without momentum: `w -= lr * g`. With momentum: `v = momentum * v - lr * g; w += v`, and with
/// Nesterov: `w += momentum * v - lr * g`.
///
/// Keras' defaults: a learning rate of 0.01, no momentum.
pub type Sgd = KerasOptimizer<SgdRule>;

/// The numbers of SGD.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SgdRule {
    momentum: f64,
    nesterov: bool,
}

impl Sgd {
    /// Sets the momentum, between 0 and 1.
    pub fn momentum(mut self, momentum: f64) -> Self {
        self.rule.momentum = momentum;
        self
    }

    /// Turns Nesterov's form of momentum on or off.
    pub fn nesterov(mut self, nesterov: bool) -> Self {
        self.rule.nesterov = nesterov;
        self
    }
}

impl Rule for SgdRule {
    const NAME: &'static str = "sgd";
    const LEARNING_RATE: f64 = 0.01;

    fn slots(&self) -> &[&'static str] {
        match self.momentum == 0.0 {
            true => &[],
            false => &["momentum"],
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
        let w = match self.nesterov {
            true => w + velocity.clone().mul_scalar(self.momentum) - step,
            false => w + velocity.clone(),
        };
        Ok((w, vec![velocity]))
    }
}
