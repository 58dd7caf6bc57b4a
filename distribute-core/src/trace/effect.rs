//! What a compiled step does to values of the host: metrics and variables.
//!
//! A step captures them, so the program knows nothing of them. What it hands to a metric becomes an
//! output of the program, and after each call the host does with it what the step would have done.
//! A variable is an input as well: its value is sent before each call, and its new value is a
//! result.

use std::fmt;
use std::sync::Arc;

use burn::tensor::TensorData;

use super::CapturedTensor;
use crate::{Leaf, Result};

/// One leaf of a step's result, or of what it hands to a metric.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ResultLeaf {
    /// An output of the program.
    Output(usize),
    /// A leaf of the arguments, unchanged.
    Leaf(usize),
    /// A number, or a tensor that does not depend on the arguments.
    Constant(TensorData),
}

/// Takes the values of one local replica, after a call.
pub type Apply = Arc<dyn Fn(usize, Vec<TensorData>) -> Result<()> + Send + Sync>;

/// What an effect changes.
pub trait Target: Send + Sync {
    /// Tells it from others, as long as it is there.
    fn address(&self) -> Option<usize>;
}

/// What a step hands values to.
pub struct Receiver<'a> {
    pub(crate) target: Arc<dyn Target>,
    /// Looks whether values of these shapes fit, where the step is captured.
    pub(crate) check: &'a dyn Fn(&[TensorData]) -> Result<()>,
    pub(crate) apply: Apply,
}

impl Receiver<'_> {
    /// Takes values of the host.
    pub(crate) fn receive(&self, replica: usize, values: &mut [&mut dyn Leaf]) -> Result<()> {
        let values = values.iter_mut().map(|value| value.take());
        (self.apply)(replica, values.collect::<Result<_>>()?)
    }
}

/// A tensor or number that the step has handed over.
#[derive(Debug, Clone)]
pub enum Given {
    Captured(CapturedTensor),
    Host(TensorData),
}

/// A change of something on the host that a captured step has made.
#[derive(Clone)]
pub(crate) struct Deferred {
    pub(crate) given: Vec<Given>,
    pub(crate) target: Arc<dyn Target>,
    pub(crate) apply: Apply,
}

/// The same as part of a program.
#[derive(Clone)]
pub(crate) struct Effect {
    pub(crate) leaves: Vec<ResultLeaf>,
    target: Arc<dyn Target>,
    pub(crate) apply: Apply,
}

impl Deferred {
    pub(crate) fn effect(&self, leaves: Vec<ResultLeaf>) -> Effect {
        Effect {
            leaves,
            target: Arc::clone(&self.target),
            apply: Arc::clone(&self.apply),
        }
    }
}

/// A variable that steps read and change.
pub(crate) trait HostVariable: Target {
    /// The copies of the local replicas; `None` if the variable is gone.
    fn values(&self, replicas: usize) -> Option<Vec<TensorData>>;
}

/// What a program changes and reads on the host.
#[derive(Clone, Default)]
pub(crate) struct HostSide {
    pub(crate) effects: Vec<Effect>,
    pub(crate) variables: Vec<Arc<dyn HostVariable>>,
}

impl HostSide {
    /// Which metrics and variables these are, in order; `None` if one is gone.
    pub(crate) fn addresses(&self) -> Option<Vec<usize>> {
        let effects = self.effects.iter().map(|effect| effect.target.address());
        let variables = self.variables.iter().map(|variable| variable.address());
        effects.chain(variables).collect()
    }
}

impl fmt::Debug for HostSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostSide")
            .field("effects", &self.effects.len())
            .field("variables", &self.variables.len())
            .finish()
    }
}

impl fmt::Debug for Deferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deferred")
            .field("given", &self.given)
            .finish_non_exhaustive()
    }
}
