//! Adam and AdamW, as in Keras.

use burn::tensor::Tensor;
use serde_json::json;

use super::{Coefficient, Optimizer, exactly};
use crate::{Error, Result};

/// `keras.optimizers.Adam` (Kingma and Ba, 2014, in the form before section 2.1 of the paper):
/// epsilon is outside of the bias correction.
///
/// `m += (g - m) * (1 - beta_1); v += (g * g - v) * (1 - beta_2);
/// w -= lr * sqrt(1 - beta_2^t) / (1 - beta_1^t) * m / (sqrt(v) + epsilon)`.
#[derive(Debug, Clone)]
#[must_use]
pub struct Adam {
    learning_rate: f64,
    beta_1: f64,
    beta_2: f64,
    epsilon: f64,
}

impl Adam {
    /// Adam with Keras' defaults: betas 0.9 and 0.999, epsilon 1e-7.
    pub fn new(learning_rate: f64) -> Self {
        Self {
            learning_rate,
            beta_1: 0.9,
            beta_2: 0.999,
            epsilon: 1e-7,
        }
    }

    /// Sets the decay rates of the two moments, each below 1.
    pub fn betas(mut self, beta_1: f64, beta_2: f64) -> Self {
        self.beta_1 = beta_1;
        self.beta_2 = beta_2;
        self
    }

    /// Sets the number that keeps the division from zero.
    pub fn epsilon(mut self, epsilon: f64) -> Self {
        self.epsilon = epsilon;
        self
    }
}

impl Optimizer for Adam {
    fn name(&self) -> &'static str {
        "adam"
    }

    fn slots(&self) -> &'static [&'static str] {
        &["momentum", "velocity"]
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn config(&self) -> serde_json::Value {
        json!({
            "learning_rate": self.learning_rate,
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
        })
    }

    fn coefficients(&self, learning_rate: f64, step: u64) -> Vec<f64> {
        let t = i32::try_from(step).unwrap_or(i32::MAX);
        vec![learning_rate * (1.0 - self.beta_2.powi(t)).sqrt() / (1.0 - self.beta_1.powi(t))]
    }

    fn update(
        &self,
        coefficients: &[Coefficient],
        parameter: Tensor<1>,
        gradient: Tensor<1>,
        slots: Vec<Tensor<1>>,
    ) -> Result<(Tensor<1>, Vec<Tensor<1>>)> {
        let [rate] = coefficients else {
            return Err(Error::invalid("adam needs one coefficient"));
        };
        let [m, v] = exactly("adam", slots)?;
        let square = gradient.clone() * gradient.clone();
        let m = m.clone() + (gradient - m).mul_scalar(1.0 - self.beta_1);
        let v = v.clone() + (square - v).mul_scalar(1.0 - self.beta_2);
        let step = rate.scale(m.clone()) / v.clone().sqrt().add_scalar(self.epsilon);
        Ok((parameter - step, vec![m, v]))
    }
}

/// `keras.optimizers.AdamW`: Adam with decoupled weight decay (Loshchilov and Hutter, 2017).
///
/// Before Adam's step, `w -= lr * weight_decay * w`, for every parameter.
#[derive(Debug, Clone)]
#[must_use]
pub struct AdamW {
    adam: Adam,
    weight_decay: f64,
}

impl AdamW {
    /// AdamW with Keras' defaults: Adam's, and a weight decay of 0.004.
    pub fn new(learning_rate: f64) -> Self {
        Self {
            adam: Adam::new(learning_rate),
            weight_decay: 0.004,
        }
    }

    /// Sets the weight decay.
    pub fn weight_decay(mut self, weight_decay: f64) -> Self {
        self.weight_decay = weight_decay;
        self
    }

    /// Sets the decay rates of the two moments, each below 1.
    pub fn betas(mut self, beta_1: f64, beta_2: f64) -> Self {
        self.adam = self.adam.betas(beta_1, beta_2);
        self
    }

    /// Sets the number that keeps the division from zero.
    pub fn epsilon(mut self, epsilon: f64) -> Self {
        self.adam = self.adam.epsilon(epsilon);
        self
    }
}

impl Optimizer for AdamW {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn slots(&self) -> &'static [&'static str] {
        self.adam.slots()
    }

    fn learning_rate(&self) -> f64 {
        self.adam.learning_rate
    }

    fn config(&self) -> serde_json::Value {
        let mut config = self.adam.config();
        config["weight_decay"] = json!(self.weight_decay);
        config
    }

    fn coefficients(&self, learning_rate: f64, step: u64) -> Vec<f64> {
        let mut all = self.adam.coefficients(learning_rate, step);
        all.push(1.0 - learning_rate * self.weight_decay);
        all
    }

    fn update(
        &self,
        coefficients: &[Coefficient],
        parameter: Tensor<1>,
        gradient: Tensor<1>,
        slots: Vec<Tensor<1>>,
    ) -> Result<(Tensor<1>, Vec<Tensor<1>>)> {
        let [rate, keep] = coefficients else {
            return Err(Error::invalid("adamw needs two coefficients"));
        };
        let (rate, parameter) = (std::slice::from_ref(rate), keep.scale(parameter));
        self.adam.update(rate, parameter, gradient, slots)
    }
}
