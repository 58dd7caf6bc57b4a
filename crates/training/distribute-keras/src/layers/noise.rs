//! `GaussianNoise`, `GaussianDropout`, `AlphaDropout` and `StochasticDepth`: random changes in
//! training.

use distribute_core::{dropout, uniform};
use rand::Rng;

use super::flow::each;
use super::*;

/// The layers that change values at random in training, and nothing else.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Noise {
    /// `keras.layers.GaussianNoise`: adds normal numbers.
    Gaussian {
        /// Their standard deviation.
        stddev: f64,
    },
    /// `keras.layers.GaussianDropout`: multiplies with normal numbers around 1.
    GaussianDropout {
        /// The rate of the `Dropout` that has the same variance.
        rate: f64,
    },
    /// `keras.layers.AlphaDropout`: a dropout that keeps mean and variance of `selu`.
    Alpha {
        /// The fraction of values that are dropped.
        rate: f64,
    },
    /// The layer `StochasticDepth` of ConvNeXt in `keras.applications`: drops whole examples.
    Depth {
        /// The fraction of examples that are dropped.
        rate: f64,
    },
}

impl KerasLayer for Noise {
    fn parse(class: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        no_seed(fields);
        Ok(match class {
            "GaussianNoise" => Self::Gaussian {
                stddev: fields.factor("stddev", 0.0)?,
            },
            "GaussianDropout" => Self::GaussianDropout {
                rate: rate(fields, "rate")?,
            },
            "AlphaDropout" => {
                if fields.get("noise_shape").is_some() {
                    return Err(fields.refuse("noise_shape", "leave it out"));
                }
                Self::Alpha {
                    rate: rate(fields, "rate")?,
                }
            }
            _ => Self::Depth {
                rate: rate(fields, "drop_path_rate")?,
            },
        })
    }

    fn class(&self) -> Option<&'static str> {
        Some(match self {
            Self::Gaussian { .. } => "GaussianNoise",
            Self::GaussianDropout { .. } => "GaussianDropout",
            Self::Alpha { .. } => "AlphaDropout",
            Self::Depth { .. } => "StochasticDepth",
        })
    }

    fn call(&self, x: Value, pass: &mut Pass<'_, '_>) -> Value {
        let Value { flow, mask } = x;
        let flow = match pass.training() {
            Some(rng) if self.strength() > 0.0 => each!(flow, x => self.changed(x, rng)),
            _ => flow,
        };
        Value { flow, mask }
    }

    fn mask(&self, masks: &[Option<usize>], _: usize) -> Result<Option<usize>, String> {
        Ok(first_mask(masks))
    }

    fn changes_nothing(&self, _: Shape, inference: bool) -> bool {
        inference || self.strength() == 0.0
    }

    fn treats_features_alike(&self) -> bool {
        true
    }
}

/// The value that takes the place of dropped ones: where `selu` ends.
const ALPHA: f64 = -1.673_263_242_354_377_2 * 1.050_700_987_355_480_5;

impl Noise {
    fn strength(self) -> f64 {
        match self {
            Self::Gaussian { stddev } => stddev,
            Self::GaussianDropout { rate } | Self::Alpha { rate } | Self::Depth { rate } => rate,
        }
    }

    fn changed<const D: usize>(self, x: Tensor<D>, rng: &mut dyn Rng) -> Tensor<D> {
        let device = x.device().without_autodiff();
        match self {
            Self::Gaussian { stddev } => x.clone() + normal(&x, rng).mul_scalar(stddev),
            Self::GaussianDropout { rate } => {
                let stddev = (rate / (1.0 - rate)).sqrt();
                x.clone() * normal(&x, rng).mul_scalar(stddev).add_scalar(1.0)
            }
            Self::Alpha { rate } => {
                let ones = Tensor::ones(x.dims(), (&device, x.dtype()));
                let kept = dropout(ones, rate, rng).mul_scalar(1.0 - rate);
                let dropped = kept.clone().neg().add_scalar(1.0).mul_scalar(ALPHA);
                let scale = ((1.0 - rate) * (1.0 + rate * ALPHA * ALPHA)).powf(-0.5);
                let offset = -scale * ALPHA * rate;
                (x * kept + dropped).mul_scalar(scale).add_scalar(offset)
            }
            Self::Depth { rate } => {
                let mut dims = [1; D];
                dims[0] = x.dims()[0];
                let ones = Tensor::ones(dims, (&device, x.dtype()));
                x * dropout(ones, rate, rng)
            }
        }
    }
}

/// Normal numbers (Box and Muller, 1958) for every element of `x`.
fn normal<const D: usize>(x: &Tensor<D>, rng: &mut dyn Rng) -> Tensor<D> {
    let device = x.device().without_autodiff();
    let [radius, angle] = [(); 2].map(|()| uniform(x.dims(), rng, &device));
    // 1 - u is not 0.
    let radius = radius.neg().add_scalar(1.0).log().mul_scalar(-2.0).sqrt();
    let angle = angle.mul_scalar(std::f64::consts::TAU);
    (radius * angle.cos()).cast(x.dtype())
}
