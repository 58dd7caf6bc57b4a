//! FTRL-Proximal, as in Keras.

use burn::tensor::Tensor;

use super::{KerasOptimizer, ParameterUpdate, Rule, SlotStart, Updated, numbers};
use crate::Result;

/// `keras.optimizers.Ftrl` (McMahan et al., 2013), for sparse models with many features.
///
/// With `p = -learning_rate_power` and the shrunk gradient `s = g + 2 * l2_shrinkage * w`:
/// `n' = n + g * g; z += s - (n'^p - n^p) / lr * w;
/// w = (clip(z, -l1, l1) - z) / (n'^p / lr + 2 * l2 + beta / lr)`; `n` starts at
/// `initial_accumulator_value`. The learning rate is a divisor: one of 0 makes the weights NaN, as
/// in Keras.
///
/// Keras' defaults: a learning rate of 0.001 and its power -0.5, an initial accumulator of 0.1, no
/// regularization.
pub type Ftrl = KerasOptimizer<FtrlRule>;

numbers! {
    /// The numbers of FTRL.
    FtrlRule of Ftrl {
        /// Sets how fast the rate falls with the gradients, 0 or less; 0 keeps it.
        learning_rate_power: f64 = -0.5,
        /// Sets what the sums of squares start at, 0 or more.
        initial_accumulator_value: f64 = 0.1,
    }
    with {
        l1_regularization_strength: f64 = 0.0,
        l2_regularization_strength: f64 = 0.0,
        l2_shrinkage_regularization_strength: f64 = 0.0,
        beta: f64 = 0.0,
    }
}

impl Ftrl {
    /// Sets the strength of the L1 regularization, which makes weights exactly 0, of the L2
    /// regularization, and of the L2 term of the gradient. Each is 0 or more.
    pub fn regularization(mut self, l1: f64, l2: f64, l2_shrinkage: f64) -> Self {
        self.rule.l1_regularization_strength = l1;
        self.rule.l2_regularization_strength = l2;
        self.rule.l2_shrinkage_regularization_strength = l2_shrinkage;
        self
    }

    /// Sets beta of the paper, which adds `beta / lr` to the divisor.
    pub fn beta(mut self, beta: f64) -> Self {
        self.rule.beta = beta;
        self
    }
}

impl FtrlRule {
    fn powered(&self, sum: Tensor<1>) -> Tensor<1> {
        match self.learning_rate_power {
            -0.5 => sum.sqrt(),
            power => sum.powf_scalar(-power),
        }
    }
}

impl Rule for FtrlRule {
    const NAME: &'static str = "ftrl";
    const SLOTS: &'static [&'static str] = &["accumulator", "linear"];

    fn slot_start(&self, slot: &str) -> SlotStart {
        SlotStart::Number(match slot {
            "accumulator" => self.initial_accumulator_value,
            _ => 0.0,
        })
    }

    fn coefficients(&self, learning_rate: f64, _step: u64) -> Vec<f64> {
        let l2 = 2.0 * self.l2_regularization_strength;
        vec![1.0 / learning_rate, l2 + self.beta / learning_rate]
    }

    fn update(&self, of: ParameterUpdate<'_>) -> Result<Updated> {
        let ([inverse_rate, l2], w, g, [sum, linear]) = of.parts(Self::NAME)?;
        let new_sum = sum.clone() + g.clone() * g.clone();
        let (old, new) = (self.powered(sum), self.powered(new_sum.clone()));
        let shrinkage = 2.0 * self.l2_shrinkage_regularization_strength;
        let shrunk = g + w.clone().mul_scalar(shrinkage);
        let linear = linear + shrunk - inverse_rate.scale(new.clone() - old) * w;
        let l1 = self.l1_regularization_strength;
        let excess = linear.clone().clamp(-l1, l1) - linear.clone();
        let w = excess / l2.add_to(inverse_rate.scale(new));
        Ok((w, vec![new_sum, linear]))
    }
}
