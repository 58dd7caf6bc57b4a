//! Normalizations.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use burn::tensor::module::layer_norm;
use distribute_core::{LocalBatchNorm, Result, SyncBatchNorm};

use super::{Flow, Mode, Pass};

/// Keras' `BatchNormalization`, by core's: in `f32` under a mixed policy. Every place of an image
/// or a sequence is an example.
pub(super) fn batch_norm(layer: &LocalBatchNorm, x: Flow, pass: &mut Pass<'_, '_>) -> Result<Flow> {
    Ok(match x {
        Flow::Image(x) => Flow::Image(batch_norm_of(layer, x, pass)?),
        Flow::Flat(x) => Flow::Flat(batch_norm_of(layer, x, pass)?),
        sequence @ Flow::Sequence(_) => {
            let dims = sequence.keras_dims();
            let rows = batch_norm_of(layer, sequence.into_rows(), pass)?;
            Flow::like(&dims, rows)
        }
    })
}

fn batch_norm_of<const D: usize>(
    layer: &LocalBatchNorm,
    x: Tensor<D>,
    pass: &Pass<'_, '_>,
) -> Result<Tensor<D>> {
    let is_frozen = pass.arguments.inference || !layer.training.is_enabled();
    match &*pass.mode {
        // One value per feature has the variance 0, as in Keras: the output is beta.
        Mode::Training { .. } if !is_frozen => layer.forward(x),
        // On a device with gradients `forward` would train.
        _ => layer.forward_inference(x),
    }
}

/// Keras' `BatchNormalization(synchronized=True)`, by core's.
pub(super) fn sync_batch_norm(
    layer: &SyncBatchNorm,
    x: Flow,
    pass: &mut Pass<'_, '_>,
) -> Result<Flow> {
    Ok(match x {
        Flow::Image(x) => Flow::Image(sync_batch_norm_of(layer, x, pass)?),
        Flow::Flat(x) => Flow::Flat(sync_batch_norm_of(layer, x, pass)?),
        // The features are its second axis.
        Flow::Sequence(x) => {
            let normalized = sync_batch_norm_of(layer, x.swap_dims(1, 2), pass)?;
            Flow::Sequence(normalized.swap_dims(1, 2))
        }
    })
}

fn sync_batch_norm_of<const D: usize>(
    layer: &SyncBatchNorm,
    x: Tensor<D>,
    pass: &Pass<'_, '_>,
) -> Result<Tensor<D>> {
    match (&*pass.mode, pass.arguments.inference) {
        (Mode::Training { ctx, weights, .. }, false) => match weights {
            Some(weights) => layer.forward_weighted(ctx, x, weights.clone()),
            None => layer.forward(ctx, x),
        },
        _ => layer.forward_inference(x),
    }
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
