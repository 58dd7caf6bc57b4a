//! Optimizers with Keras' arithmetic, written as tensor functions.
//!
//! An optimizer's state is tensors (its *slots*), and what changes from step to step (learning
//! rate, bias corrections) enters as [`Coefficient`]s. burn's own optimizers bake the step number
//! into a captured graph, so they cannot run on a TPU; ours can. burn writes their state as a
//! record of its own (`ModuleOptimizer::to_record`), ours are slots by name, which our checkpoints,
//! servers and workers share. Defaults are Keras', not burn's (Adam's epsilon is 1e-7 here).

mod adam;
mod sgd;

use std::borrow::Cow;
use std::fmt::Debug;

use burn::tensor::{DType, Tensor};

pub use adam::{Adam, AdamW};
pub use sgd::Sgd;

use crate::checkpoint::OptimizerSlots;
use crate::{Error, Result};

/// A number that may change every step: a host number under the eager strategies, an input
/// tensor of shape `[1]` in a captured step.
#[derive(Debug, Clone)]
#[expect(
    clippy::large_enum_variant,
    reason = "a handful live for the length of one update"
)]
pub enum Coefficient {
    /// Known on the host.
    Host(f64),
    /// An input of a captured step, of shape `[1]`.
    Tensor(Tensor<1>),
}

impl Coefficient {
    /// Those for a parameter of this type: the tensors of compiled steps are `f32`.
    pub(crate) fn of_type(all: &[Self], dtype: DType) -> Cow<'_, [Self]> {
        let fits = |one: &Self| match one {
            Self::Host(_) => true,
            Self::Tensor(value) => value.dtype() == dtype,
        };
        if all.iter().all(fits) {
            return Cow::Borrowed(all);
        }
        let cast = |one: &Self| match one {
            Self::Tensor(value) if !fits(one) => Self::Tensor(value.clone().cast(dtype)),
            _ => one.clone(),
        };
        all.iter().map(cast).collect()
    }

    /// `tensor` times this number.
    pub fn scale(&self, tensor: Tensor<1>) -> Tensor<1> {
        match self {
            Self::Host(value) => tensor.mul_scalar(*value),
            Self::Tensor(value) => tensor * value.clone(),
        }
    }
}

/// The rule by which one parameter is updated.
///
/// Parameters, gradients and slots arrive flattened to rank 1, on the replica's device and
/// without autodiff.
pub trait Optimizer: Send + Sync + Debug {
    /// The name on the command line and in checkpoints: `sgd`, `adam`, `adamw`.
    fn name(&self) -> &'static str;

    /// The names of the state tensors kept per parameter; all start as zeros.
    fn slots(&self) -> &'static [&'static str];

    /// The learning rate it was built with.
    fn learning_rate(&self) -> f64;

    /// All hyper-parameters, for checkpoints.
    fn config(&self) -> serde_json::Value;

    /// The numbers that `update` needs at a step.
    ///
    /// `learning_rate` is the state's current one; `step` counts from 1.
    fn coefficients(&self, learning_rate: f64, step: u64) -> Vec<f64>;

    /// The updated parameter and slots.
    ///
    /// `coefficients` are those of [`coefficients`](Self::coefficients), in the same order.
    ///
    /// # Errors
    /// If the number of coefficients or slots is not this optimizer's.
    fn update(
        &self,
        coefficients: &[Coefficient],
        parameter: Tensor<1>,
        gradient: Tensor<1>,
        slots: Vec<Tensor<1>>,
    ) -> Result<(Tensor<1>, Vec<Tensor<1>>)>;
}

impl dyn Optimizer + '_ {
    /// By what a checkpoint knows it.
    pub fn checkpoint_slots(&self) -> OptimizerSlots<'_> {
        OptimizerSlots {
            optimizer: self.name(),
            slots: self.slots(),
        }
    }
}

/// The `N` slots of a parameter; an error that names the optimizer where there are others.
fn exactly<const N: usize>(optimizer: &str, slots: Vec<Tensor<1>>) -> Result<[Tensor<1>; N]> {
    <[_; N]>::try_from(slots).map_err(|slots| {
        let found = slots.len();
        Error::invalid(format!(
            "{optimizer} needs {N} slots per parameter, got {found}"
        ))
    })
}
