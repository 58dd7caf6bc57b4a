//! Keras' activation functions.

use std::f64::consts::PI;

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
    /// `x * Phi(x)`, approximated with `tanh` (`approximate=True`).
    GeluTanh,
    /// `x * sigmoid(x)`, also called swish.
    Silu,
    /// `x` if positive, else `alpha * (exp(x) - 1)`.
    Elu {
        /// The factor of what is negative, 1 by default.
        alpha: f64,
    },
    /// `exp(x)`.
    Exponential,
    /// `max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0)`, with alpha 1.
    Celu,
    /// `1.0507 * x` if positive, else `1.7581 * (exp(x) - 1)`.
    Selu,
    /// `x * tanh(log(1 + exp(x)))`.
    Mish,
    /// `slope * x + 0.5` between 0 and 1. The slope is 1/6 in Keras 3, 0.2 in Keras 2.
    HardSigmoid {
        /// The slope between the bounds.
        slope: f64,
    },
    /// `x * min(max(x + 3, 0), 6) / 6`, also called hard swish.
    HardSilu,
    /// `min(max(x, -1), 1)`.
    HardTanh,
    /// `x` beyond 0.5 on either side, else 0.
    HardShrink,
    /// `x` moved towards 0 by 0.5, and 0 before it would change its sign.
    SoftShrink,
    /// `x - tanh(x)`.
    TanhShrink,
    /// `log(1 / (1 + exp(-x)))`.
    LogSigmoid,
    /// The logarithm of the softmax.
    LogSoftmax,
    /// `(x + sqrt(x^2 + 4)) / 2`.
    Squareplus,
    /// 0 up to -1, `(x + 1)^2 / 4` up to 1, then `x`.
    SparsePlus,
    /// `(x + 1) / 2` between 0 and 1.
    SparseSigmoid,
}

/// The constants of `selu` (Klambauer et al., 2017).
const SELU: (f64, f64) = (1.050_700_987_355_480_5, 1.673_263_242_354_377_2);
/// How far `hard_shrink` and `soft_shrink` reach.
const SHRINK: f64 = 0.5;
/// The slope of Keras 2's `hard_sigmoid`.
const HARD_SIGMOID_KERAS2: f64 = 0.2;

/// The slope of the function `leaky_relu`; the layer `LeakyReLU` has another one.
const LEAKY_SLOPE: f64 = 0.2;

/// Keras' names; the first name of a function is the one that is printed.
const NAMES: [(&str, Activation); 29] = [
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
    ("celu", Activation::Celu),
    ("selu", Activation::Selu),
    ("mish", Activation::Mish),
    ("hard_sigmoid", Activation::HardSigmoid { slope: 1.0 / 6.0 }),
    ("hard_silu", Activation::HardSilu),
    ("hard_swish", Activation::HardSilu),
    ("hard_tanh", Activation::HardTanh),
    ("hard_shrink", Activation::HardShrink),
    ("soft_shrink", Activation::SoftShrink),
    ("tanh_shrink", Activation::TanhShrink),
    ("log_sigmoid", Activation::LogSigmoid),
    ("log_softmax", Activation::LogSoftmax),
    ("squareplus", Activation::Squareplus),
    ("sparse_plus", Activation::SparsePlus),
    ("sparse_sigmoid", Activation::SparseSigmoid),
];

impl Activation {
    /// The function with this name in Keras 3.
    pub fn from_name(name: &str) -> Option<Self> {
        let found = NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, activation)| *activation)
    }

    /// The function with this name in Keras 2, where `hard_sigmoid` is another one.
    pub fn from_keras2_name(name: &str) -> Option<Self> {
        match Self::from_name(name)? {
            Self::HardSigmoid { .. } => Some(Self::HardSigmoid {
                slope: HARD_SIGMOID_KERAS2,
            }),
            other => Some(other),
        }
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
            Self::GeluTanh => gelu_tanh(x),
            Self::Silu => activation::silu(x),
            Self::Elu { alpha } => activation::elu(x, alpha),
            Self::ReluWith {
                max_value,
                negative_slope,
                threshold,
            } => relu_with(x, max_value, negative_slope, threshold),
            Self::Exponential => x.exp(),
            Self::LogSoftmax => activation::log_softmax(x, features),
            Self::Celu => activation::elu(x, 1.0),
            Self::Selu => activation::elu(x, SELU.1).mul_scalar(SELU.0),
            Self::Mish => x.clone() * activation::softplus(x, 1.0).tanh(),
            Self::HardSigmoid { slope } => x.mul_scalar(slope).add_scalar(0.5).clamp(0.0, 1.0),
            Self::HardSilu => {
                let gate = x.clone().add_scalar(3.0).clamp(0.0, 6.0);
                x * gate.div_scalar(6.0)
            }
            Self::HardTanh => x.clamp(-1.0, 1.0),
            Self::HardShrink => {
                let small = x.clone().abs().lower_equal_elem(SHRINK);
                x.mask_fill(small, 0.0)
            }
            Self::SoftShrink => {
                let above = activation::relu(x.clone().sub_scalar(SHRINK));
                above - activation::relu(x.neg().sub_scalar(SHRINK))
            }
            Self::TanhShrink => x.clone() - x.tanh(),
            Self::LogSigmoid => activation::log_sigmoid(x),
            Self::Squareplus => {
                let root = (x.clone() * x.clone()).add_scalar(4.0).sqrt();
                (x + root).div_scalar(2.0)
            }
            Self::SparsePlus => sparse_plus(x),
            Self::SparseSigmoid => x.add_scalar(1.0).div_scalar(2.0).clamp(0.0, 1.0),
        }
    }
}

fn gelu_tanh<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let cube = x.clone() * x.clone() * x.clone();
    let inner = (x.clone() + cube.mul_scalar(0.044_715)).mul_scalar((2.0 / PI).sqrt());
    x.mul_scalar(0.5) * inner.tanh().add_scalar(1.0)
}

fn sparse_plus<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let bend = x.clone().add_scalar(1.0).clamp(0.0, 2.0);
    let bend = (bend.clone() * bend).div_scalar(4.0);
    bend + activation::relu(x.sub_scalar(1.0))
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
    let y = if threshold == 0.0 {
        activation::relu(x.clone())
    } else {
        x.clone() * above.float().cast(x.dtype())
    };
    let y = match max_value {
        Some(max_value) => y.clamp(0.0, max_value),
        None => y,
    };
    if negative_slope == 0.0 {
        y
    } else {
        y - activation::relu(x.neg().add_scalar(threshold)).mul_scalar(negative_slope)
    }
}
