//! Mirrored values as a captured step sees them: tensors on the device, and numbers on the host.

use std::sync::Arc;

use super::CapturedTensor;
use crate::optim::Optimizer;

/// What a training state has on the host, where it stays while its tensors are on the device.
#[derive(Debug)]
pub struct HostState {
    /// What the program depends on: optimizer, clipping, accumulation.
    pub(crate) program: String,
    pub(crate) coefficients: Coefficients,
    pub(crate) counters: Counters,
    /// Whether the captured step makes its update, as a tensor of shape `[1]`: 1, or 0 if it leaves
    /// out this one, because gradients are not finite. `None` if it makes every update.
    pub(crate) applies: Option<CapturedTensor>,
}

impl HostState {
    /// The optimizer.
    pub fn optimizer(&self) -> &dyn Optimizer {
        &*self.coefficients.optimizer
    }

    /// The number of updates.
    pub fn updates(&self) -> u64 {
        self.counters.updates
    }
}

/// The numbers of a training state that a step may change.
#[derive(Debug, Clone)]
pub struct Counters {
    /// The number of updates.
    pub(crate) updates: u64,
    pub(crate) learning_rate: f64,
    /// Whether the captured step has set the learning rate.
    pub(crate) sets_learning_rate: bool,
    pub(crate) waiting: Option<Waiting>,
}

/// Micro-batches that wait for the rest of their update.
#[derive(Debug, Clone)]
pub struct Waiting {
    pub(crate) micro_batches: usize,
    /// For each trained parameter whether it has a gradient in them.
    pub(crate) has_gradient: Vec<bool>,
}

/// What a training state has on the host at the beginning of a step, and the numbers of an update
/// that follow from it.
#[derive(Debug)]
pub struct Coefficients {
    pub(crate) optimizer: Arc<dyn Optimizer>,
    pub(crate) learning_rate: f64,
    /// The number of updates so far.
    pub(crate) step: u64,
    /// What the loss is multiplied by.
    pub(crate) loss_scale: f64,
    /// A number that differs from step to step, and is the same in a resumed run.
    pub(crate) position: u64,
}

impl Coefficients {
    /// The coefficients of the update after `earlier` others, with this learning rate or the
    /// state's own.
    pub(crate) fn of_update(&self, earlier: u64, learning_rate: Option<f64>) -> Vec<f64> {
        let learning_rate = learning_rate.unwrap_or(self.learning_rate);
        self.optimizer
            .coefficients(learning_rate, self.step + earlier + 1)
    }
}
