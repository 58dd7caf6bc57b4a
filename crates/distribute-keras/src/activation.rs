//! Keras' activation functions.

use burn::tensor::{Tensor, activation};

/// An activation function, named as in Keras.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub enum Activation {
    /// The identity.
    #[default]
    Linear,
    /// `max(x, 0)`.
    Relu,
    /// `min(max(x, 0), 6)`.
    Relu6,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// The `ReLU` layer with options, see [`relu`](Self::relu).
    ReluWith {
        /// The largest value; nothing for no bound.
        max_value: Option<f64>,
        /// The slope below the threshold.
        negative_slope: f64,
        /// Where the identity begins.
        threshold: f64,
    },
    /// The hyperbolic tangent.
    Tanh,
    /// `exp(x) / sum(exp(x))` over the last axis (the channels of an image).
    Softmax,
    /// `log(1 + exp(x))`.
    Softplus,
    /// `x / (1 + |x|)`.
    Softsign,
    /// `x * Phi(x)`, exact (with `erf`).
    Gelu,
    /// `x * sigmoid(x)`, also called swish.
    Silu,
    /// `x` if positive, else `alpha * (exp(x) - 1)`.
    Elu {
        /// The factor of what is negative, 1 by default.
        alpha: f64,
    },
    /// `exp(x)`.
    Exponential,
}

/// The slope of the function `leaky_relu`; the layer `LeakyReLU` has another one.
const LEAKY_SLOPE: f64 = 0.2;

/// Keras' names; the first name of a function is the one that is printed.
const NAMES: [(&str, Activation); 14] = [
    ("linear", Activation::Linear),
    ("relu", Activation::Relu),
    ("relu6", Activation::Relu6),
    (
        "leaky_relu",
        Activation::ReluWith {
            max_value: None,
            negative_slope: LEAKY_SLOPE,
            threshold: 0.0,
        },
    ),
    ("sigmoid", Activation::Sigmoid),
    ("tanh", Activation::Tanh),
    ("softmax", Activation::Softmax),
    ("softplus", Activation::Softplus),
    ("softsign", Activation::Softsign),
    ("gelu", Activation::Gelu),
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
    ("elu", Activation::Elu { alpha: 1.0 }),
    ("exponential", Activation::Exponential),
];

impl Activation {
    /// The function with this Keras name.
    pub fn from_name(name: &str) -> Option<Self> {
        let found = NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, activation)| *activation)
    }

    /// Keras' `ReLU` with options: `max_value` from there on, the identity from `threshold` on,
    /// and `negative_slope * (x - threshold)` below.
    pub fn relu(max_value: Option<f64>, negative_slope: f64, threshold: f64) -> Self {
        match max_value {
            None if negative_slope == 0.0 && threshold == 0.0 => Self::Relu,
            _ => Self::ReluWith {
                max_value,
                negative_slope,
                threshold,
            },
        }
    }

    /// All names that [`from_name`](Self::from_name) knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }

    /// Applies the function. `features` is the axis that Keras calls the last one.
    pub(crate) fn apply<const D: usize>(self, x: Tensor<D>, features: usize) -> Tensor<D> {
        match self {
            Self::Linear => x,
            Self::Relu => activation::relu(x),
            Self::Relu6 => activation::relu6(x),
            Self::Sigmoid => activation::sigmoid(x),
            Self::Tanh => activation::tanh(x),
            Self::Softmax => activation::softmax(x, features),
            Self::Softplus => activation::softplus(x, 1.0),
            Self::Softsign => activation::softsign(x),
            Self::Gelu => activation::gelu(x),
            Self::Silu => activation::silu(x),
            Self::Elu { alpha } => activation::elu(x, alpha),
            Self::ReluWith {
                max_value,
                negative_slope,
                threshold,
            } => relu_with(x, max_value, negative_slope, threshold),
            Self::Exponential => x.exp(),
        }
    }
}

/// The steps of Keras' own `relu`, so that a gradient is its gradient where the function bends.
fn relu_with<const D: usize>(
    x: Tensor<D>,
    max_value: Option<f64>,
    negative_slope: f64,
    threshold: f64,
) -> Tensor<D> {
    let above = x.clone().greater_elem(threshold);
    if max_value.is_none() && threshold == 0.0 {
        return x.clone().mul_scalar(negative_slope).mask_where(above, x);
    }
    let y = match threshold == 0.0 {
        true => activation::relu(x.clone()),
        false => x.clone() * above.float().cast(x.dtype()),
    };
    let y = match max_value {
        Some(max_value) => y.clamp(0.0, max_value),
        None => y,
    };
    match negative_slope == 0.0 {
        true => y,
        false => y - activation::relu(x.neg().add_scalar(threshold)).mul_scalar(negative_slope),
    }
}
