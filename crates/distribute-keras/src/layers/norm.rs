//! Normalizations.

use burn::module::{Module, Param};
use burn::nn::BatchNorm;
use burn::tensor::Tensor;
use burn::tensor::module::{batch_norm as normalize, layer_norm};

use super::{Flow, Pass};

/// Keras' `BatchNormalization`, by burn's. Every place of an image or a sequence is an example.
pub(super) fn batch_norm(layer: &BatchNorm, x: Flow, pass: &mut Pass<'_, '_>) -> Flow {
    let training = pass.training().is_some();
    match x {
        Flow::Image(x) => Flow::Image(batch_norm_of(layer, x, training)),
        Flow::Flat(x) => Flow::Flat(batch_norm_of(layer, x, training)),
        sequence @ Flow::Sequence(_) => {
            let dims = sequence.keras_dims();
            Flow::like(&dims, batch_norm_of(layer, sequence.into_rows(), training))
        }
    }
}

fn batch_norm_of<const D: usize>(layer: &BatchNorm, x: Tensor<D>, training: bool) -> Tensor<D> {
    if training {
        return layer.forward(x);
    }
    // burn's layer trains on every device with gradients.
    let device = x.device();
    let mean = layer.running_mean.value_sync().to_device(&device);
    let variance = layer.running_var.value_sync().to_device(&device);
    let (gamma, beta) = (layer.gamma.val(), layer.beta.val());
    normalize(x, gamma, beta, mean, variance, layer.epsilon)
}

/// Keras' `LayerNormalization` over the features of every place.
#[derive(Module, Debug)]
pub(crate) struct LayerNorm {
    pub(crate) gamma: Param<Tensor<1>>,
    pub(crate) beta: Param<Tensor<1>>,
    #[module(skip)]
    pub(crate) epsilon: f64,
}

impl LayerNorm {
    pub(super) fn forward(&self, x: Flow) -> Flow {
        let dims = x.keras_dims();
        let beta = Some(self.beta.val());
        let rows = layer_norm(x.into_rows(), self.gamma.val(), beta, self.epsilon);
        Flow::like(&dims, rows)
    }
}

/// Keras' `Normalization`: `(x - mean) / max(sqrt(variance), 1e-7)`. Neither is trained.
#[derive(Module, Debug)]
pub(crate) struct Normalization {
    pub(crate) mean: Param<Tensor<1>>,
    pub(crate) variance: Param<Tensor<1>>,
}

/// The smallest standard deviation (Keras: `backend.epsilon()`).
const SMALLEST_DEVIATION: f64 = 1e-7;

impl Normalization {
    pub(super) fn forward(&self, x: Flow) -> Flow {
        let deviation = self.variance.val().sqrt().clamp_min(SMALLEST_DEVIATION);
        let offset = self.mean.val().neg() / deviation.clone();
        x.scale_features(deviation.recip(), offset)
    }
}
