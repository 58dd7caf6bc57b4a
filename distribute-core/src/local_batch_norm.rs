//! Batch normalization over the batch of one replica, in `f32` whatever type its inputs have.

use burn::module::{Flag, Module, Param, RunningState};
use burn::nn::BatchNorm;
use burn::tensor::module::batch_norm as normalize;
use burn::tensor::{DType, Tensor};

use crate::burn_internals::{BATCH_NORM, RUNNING_STATISTICS};
use crate::parameters::Parameter;
use crate::{Error, Result};

/// burn's [`BatchNorm`] for mixed precision: inputs in 16 bits are normalized in `f32`, and the
/// output has their type again (Keras: `BatchNormalization` under a mixed policy, whose variables
/// are `f32` as well). A [`Policy`](crate::Policy) leaves gamma, beta and the running statistics
/// as they are. Of `f32` inputs it is burn's layer bit by bit.
///
/// It has the names of burn's fields, so a checkpoint of one is a checkpoint of the other.
///
/// ```
/// use burn::nn::BatchNormConfig;
/// use burn::tensor::{DType, Device, Tensor};
/// use distribute_core::{LocalBatchNorm, Policy};
///
/// let device = Device::flex().autodiff();
/// let norm = LocalBatchNorm::from(BatchNormConfig::new(1).init(&device));
/// let policy = Policy::mixed_bfloat16();
/// let inputs = policy.cast(Tensor::<2>::from_floats([[1.0], [3.0]], &device));
/// let outputs = policy.model(&norm)?.forward(inputs)?;
/// assert_eq!(outputs.dtype(), DType::BF16);
/// let mean: f32 = norm.running_mean.value_sync().into_scalar();
/// assert!((mean - 0.2).abs() < 1e-6, "0.9 x 0 + 0.1 x 2");
/// # Ok::<(), distribute_core::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct LocalBatchNorm {
    /// The trainable factor.
    pub gamma: Param<Tensor<1>>,
    /// The trainable summand.
    pub beta: Param<Tensor<1>>,
    /// Whether the layer trains; a layer that is frozen normalizes with the running statistics.
    pub training: Param<Flag>,
    /// The running mean.
    pub running_mean: RunningState<Tensor<1>>,
    /// The running variance.
    pub running_var: RunningState<Tensor<1>>,
    /// What of the batch's statistics goes into the running ones (Keras' momentum is one minus
    /// this).
    pub momentum: f64,
    /// The number that is added to variances.
    pub epsilon: f64,
}

const LAYER: &str = "LocalBatchNorm: the input is [batch, features, ...]";

impl From<BatchNorm> for LocalBatchNorm {
    fn from(layer: BatchNorm) -> Self {
        Self {
            gamma: layer.gamma,
            beta: layer.beta,
            training: layer.training,
            running_mean: layer.running_mean,
            running_var: layer.running_var,
            momentum: layer.momentum,
            epsilon: layer.epsilon,
        }
    }
}

impl LocalBatchNorm {
    /// What burn calls it, as with [`SyncBatchNorm`](crate::SyncBatchNorm).
    pub(crate) const CONTAINER: &str = "Struct:LocalBatchNorm";

    /// Normalizes an input `[batch, features, ...]`: in training with the mean and variance of
    /// this batch, and moves the running statistics; without autodiff or frozen with these.
    ///
    /// # Errors
    /// [`Error::Shape`] for an input with another number of features; [`Error::DType`] for one of
    /// a type that is neither that of the layer nor one of 16 bits.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Result<Tensor<D>> {
        self.in_f32(input, |input| self.to_burn().forward(input))
    }

    /// Normalizes with the running statistics, also an input with autodiff, through which gradients
    /// flow (Keras: `call` with `training=False`). Of `f32` inputs without autodiff it is
    /// [`forward`](Self::forward) bit by bit.
    ///
    /// # Errors
    /// The errors of [`forward`](Self::forward).
    pub fn forward_inference<const D: usize>(&self, input: Tensor<D>) -> Result<Tensor<D>> {
        self.in_f32(input, |input| {
            let device = input.device();
            let statistics = [&self.running_mean, &self.running_var];
            let [mean, variance] = statistics.map(|of| of.value_sync().to_device(&device));
            let (gamma, beta) = (self.gamma.val(), self.beta.val());
            normalize(input, gamma, beta, mean, variance, self.epsilon)
        })
    }

    /// Has an input of the right shape and type normalized in `f32`, and gives it its type again.
    fn in_f32<const D: usize>(
        &self,
        input: Tensor<D>,
        normalized: impl FnOnce(Tensor<D>) -> Tensor<D>,
    ) -> Result<Tensor<D>> {
        check_features(LAYER, &self.gamma.val(), &input)?;
        let dtype = input.dtype();
        let input = wide(input);
        if input.dtype() != self.gamma.val().dtype() {
            return Err(Error::dtype(LAYER, dtype));
        }
        Ok(normalized(input).cast(dtype))
    }

    /// burn's layer with the same tensors and the same running statistics.
    pub fn to_burn(&self) -> BatchNorm {
        BatchNorm {
            gamma: self.gamma.clone(),
            beta: self.beta.clone(),
            training: self.training.clone(),
            running_mean: self.running_mean.clone(),
            running_var: self.running_var.clone(),
            momentum: self.momentum,
            epsilon: self.epsilon,
        }
    }
}

/// The layers of which each replica has its own statistics, also in compiled steps.
const LOCAL: [&str; 2] = [BATCH_NORM, LocalBatchNorm::CONTAINER];

/// Whether a parameter is a running statistic of a batch normalization that is burn's, or computes
/// as burn's does.
pub(crate) fn is_own_statistic(parameter: &Parameter<'_>) -> bool {
    let field = parameter.path.rsplit('.').next();
    LOCAL.contains(&parameter.container())
        && field.is_some_and(|field| RUNNING_STATISTICS.contains(&field))
}

/// What burn calls a [`SyncBatchNorm`](crate::SyncBatchNorm) where it is the type of which
/// something is a field: the only thing that a walk through a module learns of types.
pub(crate) const SYNCHRONIZED: &str = "Struct:SyncBatchNorm";

/// Whether a parameter is a moving statistic of a [`SyncBatchNorm`](crate::SyncBatchNorm), which is
/// equal on all replicas.
pub(crate) fn is_synchronized_statistic(parameter: &Parameter<'_>) -> bool {
    let field = parameter.path.rsplit('.').next();
    parameter.container() == SYNCHRONIZED
        && field.is_some_and(|field| ["moving_mean", "moving_variance"].contains(&field))
}

/// Looks whether an input is `[batch, features, ...]`; gives the shape of a tensor of features
/// beside it.
pub(crate) fn check_features<const D: usize>(
    layer: &'static str,
    features: &Tensor<1>,
    input: &Tensor<D>,
) -> Result<[usize; D]> {
    let features = features.dims()[0];
    let dims = input.dims();
    if dims.get(1) != Some(&features) {
        let mut expected = dims.to_vec();
        match expected.get_mut(1) {
            Some(found) => *found = features,
            None => expected.push(features),
        }
        return Err(Error::shape(layer, &expected, &dims));
    }
    let mut shape = [1; D];
    shape[1] = features;
    Ok(shape)
}

/// Statistics of half-precision numbers are f32.
pub(crate) fn wide<const D: usize>(input: Tensor<D>) -> Tensor<D> {
    match input.dtype() {
        DType::F16 | DType::BF16 => input.cast(DType::F32),
        _ => input,
    }
}
