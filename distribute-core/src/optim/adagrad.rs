//! Adagrad, as in Keras.

use super::{KerasOptimizer, ParameterUpdate, Rule, SlotStart, Updated, numbers};
use crate::Result;

/// `keras.optimizers.Adagrad` (Duchi et al., 2011).
///
/// `a += g * g; w -= lr * g / sqrt(a + epsilon)`; `a` starts at `initial_accumulator_value`.
///
/// Keras' defaults: a learning rate of 0.001, an initial accumulator of 0.1, epsilon 1e-7.
pub type Adagrad = KerasOptimizer<AdagradRule>;

numbers! {
    /// The numbers of Adagrad.
    AdagradRule of Adagrad {
        /// Sets what the sums of squares start at, 0 or more.
        initial_accumulator_value: f64 = 0.1,
        /// Sets the number that keeps the division from zero.
        epsilon: f64 = 1e-7,
    }
}

impl Rule for AdagradRule {
    const NAME: &'static str = "adagrad";
    const SLOTS: &'static [&'static str] = &["accumulator"];

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
