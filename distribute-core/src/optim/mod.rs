//! Optimizers with Keras' arithmetic, written as tensor functions.
//!
//! An optimizer's state is tensors (its *slots*), and what changes from step to step (learning
//! rate, bias corrections) enters as [`Coefficient`]s. Defaults are Keras', not burn's (Adam's
//! epsilon is 1e-7 here). burn's own optimizers are a [`BurnOptimizer`]; they bake the step number
//! into a captured graph, so they cannot run on a TPU.

mod adadelta;
mod adagrad;
mod adam;
mod adamax;
mod by_name;
mod constrained;
mod ftrl;
mod keras;
mod lion;
mod moments;
mod moving_average;
mod nadam;
mod of_burn;
mod rate_factors;
mod rmsprop;
mod sgd;
mod weight_decay;

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::Arc;

use burn::tensor::{DType, Tensor};

pub use adadelta::Adadelta;
pub use adagrad::Adagrad;
pub use adam::Adam;
pub use adamax::Adamax;
pub use by_name::{burn_names, from_config, names};
pub use constrained::{Constrained, Constraint, ConstraintRule};
pub use ftrl::Ftrl;
pub use keras::KerasOptimizer;
use keras::{Rule, numbers};
pub use lion::Lion;
use moments::Moments;
pub(crate) use moving_average::AVERAGE;
pub use moving_average::MovingAverage;
pub use nadam::Nadam;
pub use of_burn::{BurnConfig, BurnOptimizer, BurnParts, BurnRecord, OwnRule};
pub(crate) use of_burn::{Of, RecordLeaves};
pub use rate_factors::RateFactors;
use rate_factors::RateGroup;
pub use rmsprop::RmsProp;
pub use sgd::Sgd;
pub use weight_decay::{AdamW, WeightDecay};

use crate::checkpoint::OptimizerSlots;
use crate::macros::forward;
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
        let fits = |one: &Self| !matches!(one, Self::Tensor(value) if value.dtype() != dtype);
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

    /// `tensor` plus this number.
    pub fn add_to(&self, tensor: Tensor<1>) -> Tensor<1> {
        match self {
            Self::Host(value) => tensor.add_scalar(*value),
            Self::Tensor(value) => tensor + value.clone(),
        }
    }
}

/// What the elements of a slot are before the first update.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum SlotStart {
    /// This number.
    Number(f64),
    /// What the parameter is before the first update.
    Parameter,
}

impl SlotStart {
    /// The slot of this parameter, flattened.
    pub fn of(self, parameter: &Tensor<1>) -> Tensor<1> {
        match self {
            Self::Number(0.0) => parameter.zeros_like(),
            Self::Number(number) => parameter.full_like(number),
            Self::Parameter => parameter.clone(),
        }
    }
}

/// What an update of one parameter starts from.
///
/// Tensors are flattened to rank 1, on the replica's device and without autodiff.
#[derive(Debug)]
pub struct ParameterUpdate<'a> {
    /// The path of the parameter, for example `conv1.weight`, on parameter servers with the prefix
    /// of its state.
    pub path: &'a str,
    /// The same as [`Optimizer::coefficients`], in the same order.
    pub coefficients: &'a [Coefficient],
    /// The value of the parameter.
    pub parameter: Tensor<1>,
    /// Its gradient.
    pub gradient: Tensor<1>,
    /// Its slots, in the order of [`Optimizer::slots`].
    pub slots: Vec<Tensor<1>>,
    /// The parameter as a whole, for optimizers of burn; `None` on parameter servers, which update
    /// parts.
    pub whole: Option<WholeParameter<'a>>,
}

/// What only those have who update whole parameters.
#[derive(Debug)]
pub struct WholeParameter<'a> {
    /// The dimensions of the parameter.
    pub shape: &'a [usize],
    /// What an optimizer of burn keeps for it beside slots; `None` before the first update, and for
    /// all other optimizers.
    pub record: &'a mut Option<BurnRecord>,
}

/// A parameter after an update, and its slots in their order.
pub type Updated = (Tensor<1>, Vec<Tensor<1>>);

/// Coefficients, parameter, gradient and slots.
type Parts<'a, const C: usize, const S: usize> =
    (&'a [Coefficient; C], Tensor<1>, Tensor<1>, [Tensor<1>; S]);

impl<'a> ParameterUpdate<'a> {
    /// All that a rule computes with.
    ///
    /// # Errors
    /// That names the optimizer, for other than `C` coefficients and `S` slots.
    fn parts<const C: usize, const S: usize>(self, optimizer: &str) -> Result<Parts<'a, C, S>> {
        let (coefficients, slots) = (self.coefficients.len(), self.slots.len());
        match (self.coefficients.try_into(), self.slots.try_into()) {
            (Ok(coefficients), Ok(slots)) => {
                Ok((coefficients, self.parameter, self.gradient, slots))
            }
            _ => Err(Error::invalid(format!(
                "{optimizer} needs {C} coefficients and {S} slots per parameter, got \
                 {coefficients} and {slots}"
            ))),
        }
    }
}

/// The rule by which one parameter is updated.
///
/// A rule that treats all elements alike also works on parameter servers, which apply it to parts
/// of a parameter.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no optimizer of a training state",
    label = "not an optimizer of `distribute`, nor a `BurnOptimizer`",
    note = "burn's optimizers are a `BurnOptimizer` of their configuration: \
            `BurnOptimizer::new(AdamConfig::new(), 1e-3)`"
)]
pub trait Optimizer: Send + Sync + Debug {
    /// The name on the command line and in checkpoints: `sgd`, `adam`, `adamw`.
    fn name(&self) -> &'static str;

    /// The names of the state tensors kept per parameter.
    fn slots(&self) -> &[&'static str];

    /// What the elements of a slot start as: 0, unless an optimizer says otherwise.
    fn slot_start(&self, slot: &str) -> SlotStart {
        let _ = slot;
        SlotStart::Number(0.0)
    }

    /// The learning rate it was built with.
    fn learning_rate(&self) -> f64;

    /// All hyper-parameters, for checkpoints.
    fn config(&self) -> serde_json::Value;

    /// The numbers that `update` needs at a step.
    ///
    /// `learning_rate` is the state's current one, and all that is needed unless an optimizer says
    /// otherwise; `step` counts from 1.
    fn coefficients(&self, learning_rate: f64, step: u64) -> Vec<f64> {
        let _ = step;
        vec![learning_rate]
    }

    /// Refuses parameters with these paths, for example because a group has none of them. Called
    /// before the first update.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], which says which parameters there are.
    fn check_parameters(&self, paths: &[String]) -> Result<()> {
        let _ = paths;
        Ok(())
    }

    /// The optimizer of burn that it is, or is around, if there is one: it keeps records.
    fn burn(&self) -> Option<&BurnOptimizer> {
        None
    }

    /// The updated parameter and slots.
    ///
    /// # Errors
    /// If the number of coefficients or slots is not this optimizer's.
    fn update(&self, of: ParameterUpdate<'_>) -> Result<Updated>;
}

/// A shared optimizer is one.
impl<T: Optimizer + ?Sized> Optimizer for Arc<T> {
    forward! { self => **self;
        fn name() -> &'static str;
        fn slots() -> &[&'static str];
        fn slot_start(slot: &str) -> SlotStart;
        fn learning_rate() -> f64;
        fn config() -> serde_json::Value;
        fn coefficients(learning_rate: f64, step: u64) -> Vec<f64>;
        fn check_parameters(paths: &[String]) -> Result<()>;
        fn burn() -> Option<&BurnOptimizer>;
        fn update(of: ParameterUpdate<'_>) -> Result<Updated>;
    }
}

impl dyn Optimizer + '_ {
    /// The slots of a parameter before its first update.
    pub fn new_slots(&self, parameter: &Tensor<1>) -> Vec<Tensor<1>> {
        let slots = self.slots().iter();
        slots
            .map(|slot| self.slot_start(slot).of(parameter))
            .collect()
    }

    /// By what a checkpoint knows it.
    pub fn checkpoint_slots(&self) -> OptimizerSlots<'_> {
        OptimizerSlots {
            optimizer: self.name(),
            slots: self.slots(),
        }
    }
}

/// `number` to the power of a step.
fn power(number: f64, step: u64) -> f64 {
    number.powi(i32::try_from(step).unwrap_or(i32::MAX))
}

/// An exponential moving average with this decay rate as Keras' Adam writes it:
/// `old + (new - old) * (1 - rate)`.
fn ema_adam(old: Tensor<1>, new: Tensor<1>, rate: f64) -> Tensor<1> {
    old.clone() + (new - old).mul_scalar(1.0 - rate)
}

/// The same as Keras' RMSprop writes it, which rounds otherwise: `rate * old + (1 - rate) * new`.
fn ema_rmsprop(old: Tensor<1>, new: Tensor<1>, rate: f64) -> Tensor<1> {
    old.mul_scalar(rate) + new.mul_scalar(1.0 - rate)
}
