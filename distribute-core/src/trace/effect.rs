//! Effects of a compiled step on values of the host: metrics and variables.
//!
//! A step captures them, so the program knows nothing of them. What it hands to a metric becomes an
//! output of the program, and after each call the host does with it what the step would have done.
//! A variable is an input as well: its value is sent before each call, and its new value is a
//! result.

use std::fmt;
use std::sync::{Arc, Weak};

use burn::tensor::TensorData;

use super::CapturedTensor;
use crate::{Leaf, Result};

/// One leaf of a step's result, or of what it hands to a metric or leaves in a mirrored value.
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
    /// Identifies the target while it exists.
    fn address(&self) -> Option<usize>;
}

/// A target on the host, while it exists.
impl<T: ?Sized + Send + Sync> Target for Weak<T> {
    fn address(&self) -> Option<usize> {
        let there = self.strong_count() > 0;
        there.then(|| self.as_ptr().cast::<()>() as usize)
    }
}

/// What a step hands values to.
pub struct Receiver<'a> {
    pub(crate) target: Arc<dyn Target>,
    /// Checks while the step is captured that values of these shapes fit.
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

/// The captured tensor behind a leaf, if it is one.
pub(crate) fn captured(leaf: &mut dyn Leaf) -> Option<CapturedTensor> {
    leaf.tensor()?.captured()
}

/// A tensor or number that the step has handed over.
#[derive(Debug, Clone)]
pub enum LeafValue {
    Captured(CapturedTensor),
    Host(TensorData),
}

impl LeafValue {
    /// A leaf of a value that the step returns.
    pub(crate) fn of(leaf: &mut dyn Leaf) -> Result<Self> {
        match captured(leaf) {
            Some(tensor) => Ok(Self::Captured(tensor)),
            None => leaf.data().map(Self::Host),
        }
    }

    /// A value of its shape and type.
    pub(crate) fn example(&self) -> TensorData {
        match self {
            Self::Host(data) => data.clone(),
            Self::Captured(tensor) => {
                let spec = tensor.spec();
                TensorData::full_dtype(spec.shape, 0.0, spec.dtype)
            }
        }
    }
}

/// A change of something on the host that a captured step has made, from what the step has given
/// or from leaves of a program.
#[derive(Clone)]
pub(crate) struct Effect<T = ResultLeaf> {
    pub(crate) leaves: Vec<T>,
    pub(crate) target: Arc<dyn Target>,
    pub(crate) apply: Apply,
}

/// A variable that steps read and change.
pub(crate) trait HostVariable: Target {
    /// The copies of the local replicas; `None` if the variable is gone.
    fn values(&self, replicas: usize) -> Option<Vec<TensorData>>;
}

/// What a program changes, reads and returns on the host.
pub(crate) struct HostSide {
    /// The leaves of the step's result.
    pub(crate) results: Vec<ResultLeaf>,
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
            .field("results", &self.results)
            .field("effects", &self.effects.len())
            .field("variables", &self.variables.len())
            .finish()
    }
}
