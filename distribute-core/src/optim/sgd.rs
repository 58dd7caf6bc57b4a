//! Stochastic gradient descent with momentum, as in Keras.

use burn::tensor::Tensor;
use serde_json::json;

use super::{Coefficient, Optimizer, exactly};
use crate::{Error, Result};

/// `keras.optimizers.SGD`.
///
/// Without momentum: `w -= lr * g`. With momentum: `v = momentum * v - lr * g; w += v`, and with
/// Nesterov: `w += momentum * v - lr * g`.
#[derive(Debug, Clone)]
#[must_use]
pub struct Sgd {
    learning_rate: f64,
    momentum: f64,
    nesterov: bool,
}

impl Sgd {
    /// Plain SGD.
    pub fn new(learning_rate: f64) -> Self {
        Self {
            learning_rate,
            momentum: 0.0,
            nesterov: false,
        }
    }

    /// Sets the momentum, between 0 and 1.
    pub fn momentum(mut self, momentum: f64) -> Self {
        self.momentum = momentum;
        self
    }

    /// Turns Nesterov's form of momentum on or off.
    pub fn nesterov(mut self, nesterov: bool) -> Self {
        self.nesterov = nesterov;
        self
    }
}

impl Optimizer for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn slots(&self) -> &'static [&'static str] {
        if self.momentum == 0.0 {
            &[]
        } else {
            &["momentum"]
        }
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn config(&self) -> serde_json::Value {
        json!({
            "learning_rate": self.learning_rate,
            "momentum": self.momentum,
            "nesterov": self.nesterov,
        })
    }

    fn coefficients(&self, learning_rate: f64, _step: u64) -> Vec<f64> {
        vec![learning_rate]
    }

    fn update(
        &self,
        coefficients: &[Coefficient],
        parameter: Tensor<1>,
        gradient: Tensor<1>,
        slots: Vec<Tensor<1>>,
    ) -> Result<(Tensor<1>, Vec<Tensor<1>>)> {
        let [learning_rate] = coefficients else {
            return Err(Error::invalid("sgd needs one coefficient"));
        };
        let step = learning_rate.scale(gradient);
        if self.momentum == 0.0 {
            exactly::<0>("sgd", slots)?;
            return Ok((parameter - step, Vec::new()));
        }
        let [velocity] = exactly("sgd", slots)?;
        let velocity = velocity.mul_scalar(self.momentum) - step.clone();
        let parameter = if self.nesterov {
            parameter + velocity.clone().mul_scalar(self.momentum) - step
        } else {
            parameter + velocity.clone()
        };
        Ok((parameter, vec![velocity]))
    }
}
