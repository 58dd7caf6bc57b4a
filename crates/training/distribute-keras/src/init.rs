//! Keras' initializers, drawn from a generator of our own so that a seed gives the same weights
//! on every machine, under every strategy and for any number of replicas.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// How a weight starts (Keras: `keras.initializers`).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Initializer {
    /// Every element has this value (`Zeros`, `Ones`, `Constant`).
    Constant(f64),
    /// Uniform between two bounds (`RandomUniform`).
    Uniform {
        /// The lower bound.
        low: f64,
        /// The upper bound.
        high: f64,
    },
    /// Normal (`RandomNormal`), or normal without the values beyond two standard deviations
    /// (`TruncatedNormal`).
    Normal {
        /// The mean.
        mean: f64,
        /// The standard deviation (before truncation).
        stddev: f64,
        /// Whether values beyond two standard deviations are drawn again.
        truncated: bool,
    },
    /// The variance is `scale` divided by a fan (`VarianceScaling`, the Glorot, He and LeCun
    /// initializers).
    VarianceScaling {
        /// The factor.
        scale: f64,
        /// The divisor.
        fan: Fan,
        /// Uniform, or else truncated normal.
        uniform: bool,
    },
    /// Rows that stand at right angles to each other, or columns if there are fewer of them
    /// (`Orthogonal`; Saxe et al., 2014). The last axis is the columns.
    Orthogonal {
        /// The length of each.
        gain: f64,
    },
}

/// The number of connections that the variance is divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fan {
    /// Inputs of one output.
    In,
    /// Outputs of one input.
    Out,
    /// The mean of both.
    Average,
}

impl Initializer {
    /// `glorot_uniform`, the default of kernels (Glorot and Bengio, 2010).
    pub const GLOROT_UNIFORM: Self = Self::VarianceScaling {
        scale: 1.0,
        fan: Fan::Average,
        uniform: true,
    };
    /// `orthogonal`, the default of the kernels on the state of a recurrent layer.
    pub const ORTHOGONAL: Self = Self::Orthogonal { gain: 1.0 };
    /// `zeros`, the default of biases.
    pub const ZEROS: Self = Self::Constant(0.0);
    /// `ones`, the default of factors and variances.
    pub(crate) const ONES: Self = Self::Constant(1.0);
    /// `random_uniform` between -0.05 and 0.05, the default of embeddings.
    pub const EMBEDDING_DEFAULT: Self = Self::Uniform {
        low: -0.05,
        high: 0.05,
    };

    /// Draws a weight of this shape, in Keras' layout.
    ///
    /// `stream` is the weight's number in the model: every weight has a stream of its own, so it
    /// does not depend on the layers before it.
    pub fn draw(self, shape: &[usize], seed: u64, stream: u64) -> Weight {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        let count = shape.iter().product();
        if let Self::Orthogonal { gain } = self {
            let columns = shape.last().copied().unwrap_or(1).max(1);
            let values = orthogonal(count / columns, columns, &mut rng).into_iter();
            return Weight {
                shape: shape.to_vec(),
                values: values.map(|x| (gain * x) as f32).collect(),
            };
        }
        let mut draw: Box<dyn FnMut() -> f64> = match self.resolve(shape) {
            Self::Uniform { low, high } => {
                Box::new(move || low + (high - low) * unit_uniform(&mut rng))
            }
            Self::Normal {
                mean,
                stddev,
                truncated,
            } => Box::new(move || mean + stddev * unit_normal(&mut rng, truncated)),
            Self::Constant(value) => Box::new(move || value),
            Self::VarianceScaling { .. } | Self::Orthogonal { .. } => Box::new(|| 0.0),
        };
        let values = (0..count).map(|_| draw() as f32).collect();
        Weight {
            shape: shape.to_vec(),
            values,
        }
    }

    /// Variance scaling becomes the distribution that it stands for; others stay.
    fn resolve(self, shape: &[usize]) -> Self {
        let Self::VarianceScaling {
            scale,
            fan,
            uniform,
        } = self
        else {
            return self;
        };
        let (fan_in, fan_out) = fans(shape);
        let fan = match fan {
            Fan::In => fan_in,
            Fan::Out => fan_out,
            Fan::Average => f64::midpoint(fan_in, fan_out),
        };
        let variance = scale / fan.max(1.0);
        if uniform {
            let high = (3.0 * variance).sqrt();
            Self::Uniform { low: -high, high }
        } else {
            Self::Normal {
                mean: 0.0,
                stddev: variance.sqrt() / TRUNCATED_STDDEV,
                truncated: true,
            }
        }
    }
}

/// The standard deviation of a unit normal without the values beyond 2, as in Keras.
const TRUNCATED_STDDEV: f64 = 0.879_625_661_034_239_8;

/// Keras' `compute_fans`: the last two axes are inputs and outputs, the others the window.
fn fans(shape: &[usize]) -> (f64, f64) {
    match shape {
        [] => (1.0, 1.0),
        [n] => (*n as f64, *n as f64),
        [window @ .., inputs, outputs] => {
            let window: usize = window.iter().product();
            ((window * inputs) as f64, (window * outputs) as f64)
        }
    }
}

/// A matrix by rows whose shorter sides have the length 1 and are at right angles: normal numbers,
/// of which each side loses what it shares with the sides before it (Gram and Schmidt), twice for
/// the sake of rounding.
fn orthogonal(rows: usize, columns: usize, rng: &mut ChaCha8Rng) -> Vec<f64> {
    let (sides, length) = (rows.min(columns), rows.max(columns));
    let mut found: Vec<Vec<f64>> = Vec::with_capacity(sides);
    while found.len() < sides {
        let mut side: Vec<f64> = (0..length).map(|_| unit_normal(rng, false)).collect();
        for other in found.iter().chain(&found) {
            let shared: f64 = side.iter().zip(other).map(|(x, y)| x * y).sum();
            for (x, y) in side.iter_mut().zip(other) {
                *x -= shared * y;
            }
        }
        let norm = side.iter().map(|x| x * x).sum::<f64>().sqrt();
        // By chance nothing but rounding is left of a side: it is drawn again.
        if norm > 1e-6 {
            side.iter_mut().for_each(|x| *x /= norm);
            found.push(side);
        }
    }
    let at = |row: usize, column: usize| {
        if rows <= columns {
            found[row][column]
        } else {
            found[column][row]
        }
    };
    let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
    places.map(|(row, column)| at(row, column)).collect()
}

/// A number in `[0, 1)` with 53 random bits.
fn unit_uniform(rng: &mut ChaCha8Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// A number from the unit normal distribution (Box and Muller, 1958).
fn unit_normal(rng: &mut ChaCha8Rng, truncated: bool) -> f64 {
    loop {
        let radius = (-2.0 * (1.0 - unit_uniform(rng)).ln()).sqrt();
        let value = radius * (std::f64::consts::TAU * unit_uniform(rng)).cos();
        if !truncated || value.abs() <= 2.0 {
            return value;
        }
    }
}

/// A weight in Keras' layout: kernels of a `Conv2D` are (height, width, inputs, outputs), of a
/// `Dense` layer (inputs, outputs).
#[derive(Debug, Clone, PartialEq)]
pub struct Weight {
    /// The extent of each axis.
    pub shape: Vec<usize>,
    /// The values, row major.
    pub values: Vec<f32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(weight: &Weight) -> (f64, f64) {
        let n = weight.values.len() as f64;
        let mean = weight.values.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
        let square = |x: &f32| (f64::from(*x) - mean).powi(2);
        (mean, weight.values.iter().map(square).sum::<f64>() / n)
    }

    #[test]
    fn orthogonal_sides_are_at_right_angles_and_have_their_length() {
        for (shape, sides) in [([5, 12], 5), ([3 * 4, 7], 7), ([1, 1], 1)] {
            let kernel = Initializer::Orthogonal { gain: 2.0 }.draw(&shape, 3, 1);
            assert_eq!(kernel.values.len(), shape[0] * shape[1]);
            let at = |side: usize, i: usize| {
                let (row, column) = if shape[0] <= shape[1] {
                    (side, i)
                } else {
                    (i, side)
                };
                f64::from(kernel.values[row * shape[1] + column])
            };
            let length = shape[0].max(shape[1]);
            for a in 0..sides {
                for b in 0..sides {
                    let product: f64 = (0..length).map(|i| at(a, i) * at(b, i)).sum();
                    let expected = if a == b { 4.0 } else { 0.0 };
                    assert!((product - expected).abs() < 1e-5, "{a} {b} {product}");
                }
            }
        }
    }

    #[test]
    fn glorot_uniform_has_its_bound_and_variance() {
        let kernel = Initializer::GLOROT_UNIFORM.draw(&[3, 3, 32, 64], 1, 0);
        let bound = (6.0_f64 / (9.0 * 96.0)).sqrt();
        let largest = kernel.values.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
        assert!(f64::from(largest) <= bound && f64::from(largest) > bound * 0.999);
        let (mean, variance) = moments(&kernel);
        assert!(mean.abs() < 0.002, "{mean}");
        assert!((variance / (bound * bound / 3.0) - 1.0).abs() < 0.02);
    }

    #[test]
    fn he_normal_has_its_variance_after_truncation() {
        let he = Initializer::VarianceScaling {
            scale: 2.0,
            fan: Fan::In,
            uniform: false,
        };
        let kernel = he.draw(&[200, 100], 1, 0);
        let (_, variance) = moments(&kernel);
        assert!((variance * 100.0 - 1.0).abs() < 0.03, "{variance}");
        let limit = 2.0 * 0.1 / TRUNCATED_STDDEV;
        assert!(kernel.values.iter().all(|x| f64::from(x.abs()) <= limit));
    }

    #[test]
    fn seed_and_stream_decide_everything() {
        let draw = |seed, stream| Initializer::GLOROT_UNIFORM.draw(&[4, 5], seed, stream);
        assert_eq!(draw(3, 1), draw(3, 1));
        assert_ne!(draw(3, 1), draw(4, 1));
        assert_ne!(draw(3, 1), draw(3, 2));
        assert_eq!(
            Initializer::Constant(2.0).draw(&[3], 0, 0).values,
            [2.0, 2.0, 2.0]
        );
    }
}
