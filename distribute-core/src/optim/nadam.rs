//! Nadam, as in Keras.

use serde::{Deserialize, Serialize};

use super::{KerasOptimizer, Moments, ParameterUpdate, Rule, Updated, ema_adam, power};
use crate::Result;

/// `keras.optimizers.Nadam` (Dozat, 2015): Adam with Nesterov's momentum.
///
/// `u_t = beta_1 * (1 - 0.96^t / 2)`, and `p_t` is the product of `u_1` to `u_t`.
/// `m += (g - m) * (1 - beta_1); v += (g * g - v) * (1 - beta_2);
/// w -= lr * (u_(t+1) * m / (1 - p_(t+1)) + (1 - u_t) * g / (1 - p_t))
/// / (sqrt(v / (1 - beta_2^t)) + epsilon)`. Keras keeps `p_t` as a variable, `u_product`; here it
/// follows from the number of the step.
///
/// Keras' defaults: a learning rate of 0.001, betas 0.9 and 0.999, epsilon 1e-7.
pub type Nadam = KerasOptimizer<Moments<NadamRule>>;

/// Nadam has nothing but the betas and epsilon.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct NadamRule {}

/// From this step on `1 - 0.96^t / 2` is 1 in `f64`.
const LEVEL: u64 = 1000;

impl Moments<NadamRule> {
    /// `u_t`.
    fn momentum(&self, step: u64) -> f64 {
        self.beta_1 * (1.0 - 0.5 * power(0.96, step))
    }

    /// `p_t`.
    fn product(&self, step: u64) -> f64 {
        let first: f64 = (1..=step.min(LEVEL)).map(|t| self.momentum(t)).product();
        first * power(self.beta_1, step.saturating_sub(LEVEL))
    }
}

impl Rule for Moments<NadamRule> {
    const NAME: &'static str = "nadam";
    const SLOTS: &'static [&'static str] = &["momentum", "velocity"];

    /// The shares of the moment and of the gradient, and the correction of the second moment.
    fn coefficients(&self, learning_rate: f64, step: u64) -> Vec<f64> {
        let (now, next) = (self.momentum(step), self.momentum(step + 1));
        let product = self.product(step);
        vec![
            learning_rate * next / (1.0 - product * next),
            learning_rate * (1.0 - now) / (1.0 - product),
            1.0 / (1.0 - power(self.beta_2, step)),
        ]
    }

    fn update(&self, of: ParameterUpdate<'_>) -> Result<Updated> {
        let ([of_moment, of_gradient, correction], w, g, [m, v]) = of.parts(Self::NAME)?;
        let m = ema_adam(m, g.clone(), self.beta_1);
        let v = ema_adam(v, g.clone() * g.clone(), self.beta_2);
        let step = of_moment.scale(m.clone()) + of_gradient.scale(g);
        let root = correction.scale(v.clone()).sqrt();
        Ok((w - step / root.add_scalar(self.epsilon), vec![m, v]))
    }
}

#[cfg(test)]
mod tests {
    use super::Nadam;

    #[test]
    fn the_product_is_that_of_all_steps() {
        let nadam = Nadam::new(0.1).betas(0.999, 0.9).rule;
        let mut product = 1.0;
        for step in 1..=1200 {
            product *= nadam.momentum(step);
            let found = nadam.product(step);
            assert!((found / product - 1.0).abs() < 1e-12, "{step}: {found}");
        }
    }
}
