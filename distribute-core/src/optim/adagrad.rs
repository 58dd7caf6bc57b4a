//! Adagrad, as in Keras.

use serde::{Deserialize, Serialize};

use super::{KerasOptimizer, ParameterUpdate, Rule, SlotStart, Updated};
use crate::Result;

/// `keras.optimizers.Adagrad` (Duchi et al., 2011).
///
/// `a += g * g; w -= lr * g / sqrt(a + epsilon)`; `a` starts at `initial_accumulator_value`.
///
/// Keras' defaults: a learning rate of 0.001, an initial accumulator of 0.1, epsilon 1e-7.
pub type Adagrad = KerasOptimizer<AdagradRule>;

/// The numbers of Adagrad.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AdagradRule {
    initial_accumulator_value: f64,
    epsilon: f64,
}

impl Default for AdagradRule {
    fn default() -> Self {
        Self {
            initial_accumulator_value: 0.1,
            epsilon: 1e-7,
        }
    }
}

impl Adagrad {
    /// Sets what the sums of squares start at, 0 or more.
    pub fn initial_accumulator_value(mut self, value: f64) -> Self {
        self.rule.initial_accumulator_value = value;
        self
    }

    /// Sets the number that keeps the division from zero.
    pub fn epsilon(mut self, epsilon: f64) -> Self {
        self.rule.epsilon = epsilon;
        self
    }
}

impl Rule for AdagradRule {
    const NAME: &'static str = "adagrad";

    fn slots(&self) -> &[&'static str] {
        &["accumulator"]
    }

    fn slot_start(&self, _: &str) -> SlotStart {
        SlotStart::Number(self.initial_accumulator_value)
    }

    fn update(&self, of: ParameterUpdate<'_>) -> Result<Updated> {
        let ([rate], w, g, [sum]) = of.parts(Self::NAME)?;
        let sum = sum + g.clone() * g.clone();
        let step = rate.scale(g) / sum.clone().add_scalar(self.epsilon).sqrt();
        Ok((w - step, vec![sum]))
    }
}
