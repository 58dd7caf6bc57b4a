//! Mixed precision: variables in `f32`, forward and backward passes in 16 bits.

use std::fmt;
use std::str::FromStr;

use burn::module::Module;
use burn::tensor::{DType, Device, FloatDType, Tensor};

use crate::burn_internals::{BATCH_NORM, RECURRENT};
use crate::local_batch_norm::SYNCHRONIZED;
use crate::parameters::{self, Parameter};
use crate::running_statistics::layer_of;
use crate::{Error, LocalBatchNorm, LossScale, Result, RunningStatistics};

/// In which type of floats a step computes (Keras: `keras.mixed_precision.Policy`). Variables,
/// optimizer, gradients and what travels between replicas stay in `f32`.
///
/// A step runs a [copy of the model](Self::model) in the policy's type on
/// [inputs](Self::cast) in that type, and computes its loss from [outputs](Self::output) in `f32`.
/// Gradients are taken with respect to the state's own model, so they arrive as `f32`. The same
/// calls stand in an objective of `Fit`, in evaluation and in compiled steps.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use distribute_core::prelude::*;
/// use distribute_core::Policy;
///
/// let policy = Policy::mixed_bfloat16();
/// let strategy = MirroredStrategy::builder().replicas(2).build()?;
/// let mut state = strategy.scope(|device| {
///     TrainState::new(LinearConfig::new(4, 1).init(device), Adam::new(1e-3))
///         .with_loss_scale(policy.loss_scale())
/// })?;
/// strategy.run(&mut state, |ctx, state: &mut TrainState<Linear>| {
///     let inputs = policy.cast(Tensor::<2>::ones([8, 4], ctx.device()));
///     let outputs = policy.model(&state.model)?.forward(inputs);
///     let loss = ctx.mean_loss_of(policy.output(outputs).mean(), 8.0)?;
///     state.minimize(ctx, &loss)
/// })?;
/// # Ok::<(), distribute_core::Error>(())
/// ```
///
/// | backend | `bf16` | `f16` |
/// |---|---|---|
/// | burn's flex, on CPUs | yes, through `f32`: no faster than it | yes, slower than `f32` |
/// | `TpuStrategy` on XLA's CPU client | yes | yes |
/// | GPUs (not run yet) | what the device says | what the device says |
///
/// [`SyncBatchNorm`](crate::SyncBatchNorm) and [`LocalBatchNorm`] stay in `f32`, as in Keras: they
/// take inputs of the policy's type, compute their statistics in `f32` and give outputs of the
/// policy's type. burn's own `BatchNorm` computes in the type of its inputs alone, and its LSTM,
/// GRU and RNN make states of `f32` by themselves: models with one of them are refused under a
/// mixed policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    compute: FloatDType,
}

/// The layers that stay in `f32`, as burn calls them.
const WIDE: [&str; 2] = [SYNCHRONIZED, LocalBatchNorm::CONTAINER];

impl Default for Policy {
    fn default() -> Self {
        Self::float32()
    }
}

impl Policy {
    /// Everything in `f32` (Keras: `float32`).
    pub const fn float32() -> Self {
        Self::of(FloatDType::F32)
    }

    /// Forward and backward passes in `bf16`, which has the range of `f32` and 8 bits of mantissa
    /// (Keras: `mixed_bfloat16`).
    pub const fn mixed_bfloat16() -> Self {
        Self::of(FloatDType::BF16)
    }

    /// Forward and backward passes in `f16`, which has 11 bits of mantissa and numbers up to
    /// 65,504; train with its [loss scale](Self::loss_scale) (Keras: `mixed_float16`).
    pub const fn mixed_float16() -> Self {
        Self::of(FloatDType::F16)
    }

    const fn of(compute: FloatDType) -> Self {
        Self { compute }
    }

    /// Keras' name of it, which [`FromStr`] reads.
    pub fn name(self) -> &'static str {
        match self.compute {
            FloatDType::BF16 => "mixed_bfloat16",
            FloatDType::F16 => "mixed_float16",
            _ => "float32",
        }
    }

    /// The type of forward and backward passes (Keras: `compute_dtype`).
    pub fn compute_dtype(self) -> FloatDType {
        self.compute
    }

    /// The loss scale that training needs: a dynamic one for `f16`, as Keras' `compile` takes, and
    /// 1 for the others.
    pub fn loss_scale(self) -> LossScale {
        match self.compute {
            FloatDType::F16 => LossScale::dynamic(),
            _ => LossScale::default(),
        }
    }

    /// The model in the policy's type: gradients flow through it to the tensors of `model`. Costs a
    /// conversion of all parameters; under [`float32`](Self::float32) it is the model itself. Call
    /// it once in a step.
    ///
    /// # Errors
    /// [`Error::Policy`] for a device that does not compute in this type, and for a model with a
    /// layer that cannot: a batch normalization or a recurrent layer of burn, and a layer of one's
    /// own with running statistics. It names the layer and what to use.
    pub fn model<M: Module>(self, model: &M) -> Result<M> {
        if self == Self::float32() {
            return Ok(model.clone());
        }
        self.check(model)?;
        parameters::map(model.clone(), |parameter: Parameter<'_>| {
            if !WIDE.contains(&parameter.container())
                && let Some(float) = parameter.tensor.float()
            {
                float.cast_to(self.compute);
            }
            Ok(())
        })
    }

    /// A tensor in the policy's type, such as the inputs of the model.
    #[must_use]
    pub fn cast<const D: usize>(self, tensor: Tensor<D>) -> Tensor<D> {
        if self == Self::float32() {
            tensor
        } else {
            tensor.cast(self.compute)
        }
    }

    /// What the model gives, in `f32`, so that a loss of it keeps its digits (Keras asks for an
    /// output layer of `float32`).
    #[must_use]
    pub fn output<const D: usize>(self, tensor: Tensor<D>) -> Tensor<D> {
        if self == Self::float32() {
            tensor
        } else {
            tensor.cast(FloatDType::F32)
        }
    }

    fn check<M: Module>(self, model: &M) -> Result<()> {
        let (mut is_captured, mut wide) = (false, Vec::new());
        parameters::visit(model, |parameter: Parameter<'_>| {
            is_captured |= parameter.tensor.captured().is_some();
            if WIDE.contains(&parameter.container()) {
                wide.push(parameter.path.to_string());
            }
            if let Some(layer) = parameter.layer_of(&[BATCH_NORM]) {
                return Err(self.refused_statistics(layer));
            }
            match parameter.layer_of(&RECURRENT) {
                Some(layer) => Err(self.refused(
                    format!("the recurrent layer `{layer}`"),
                    "burn 0.22.1 makes the states of LSTM, GRU and RNN in f32 whatever its inputs \
                     are; keep the layer in a model of its own that the policy does not see, on \
                     inputs of f32 (`policy.output`), or use the policy float32",
                )),
                None => Ok(()),
            }
        })?;
        // In a captured step burn cannot tell what else has some, and its compiler refuses types.
        if !is_captured {
            let statistics = RunningStatistics::of(model);
            let mut others = statistics.paths().iter();
            if let Some(other) = others.find(|path| !wide.contains(path)) {
                return Err(self.refused_statistics(layer_of(other)));
            }
        }
        let devices = model.devices();
        let is_lacking = |device: &&Device| !is_captured && !device.supports_dtype(self.compute);
        let lacking = devices.iter().find(is_lacking);
        lacking.map_or(Ok(()), |device| Err(self.unsupported(device)))
    }

    fn refused_statistics(self, layer: &str) -> Error {
        self.refused(
            format!("the batch normalization `{layer}`"),
            "burn 0.22.1 computes its statistics in the type of the inputs and mixes them with \
             running ones of f32; make it a `LocalBatchNorm` (`LocalBatchNorm::from(layer)`) or a \
             `SyncBatchNorm`, which compute in f32, or use the policy float32",
        )
    }

    fn unsupported(self, device: &Device) -> Error {
        self.refused(
            format!("a model on {device:?}"),
            "the device does not compute in this type; use another policy or another device",
        )
    }

    fn refused(self, what: String, why: &str) -> Error {
        Error::Policy {
            policy: self.name(),
            dtype: DType::from(self.compute).name(),
            what,
            why: why.to_string(),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Policy {
    type Err = Error;

    /// Reads Keras' names.
    fn from_str(name: &str) -> Result<Self> {
        let all = [FloatDType::F32, FloatDType::BF16, FloatDType::F16].map(Self::of);
        let found = all.into_iter().find(|policy| policy.name() == name);
        found.ok_or_else(|| {
            let names = all.map(Self::name).join(", ");
            Error::invalid(format!("unknown policy `{name}`: choose among {names}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No device of a default build is without a type of floats.
    #[test]
    fn a_device_that_cannot_is_named() {
        let error = Policy::mixed_float16().unsupported(&Device::flex());
        let text = error.to_string();
        for part in ["mixed_float16", "f16", "Flex", "another device"] {
            assert!(text.contains(part), "{text} does not say {part}");
        }
    }
}
