//! Mirrored values as a captured step sees them: tensors on the device, and numbers on the host.

use std::sync::Arc;

use super::{CapturedTensor, DeviceTensor, Fingerprint, Trace};
use crate::optim::Optimizer;

/// The numbers of a training state, which stay on the host while its tensors are on the device.
pub trait HostState {
    /// Names what the program depends on: optimizer, clipping, accumulation.
    fn fingerprint(&self, key: &mut dyn Fingerprint);

    /// What computes the numbers that enter an update as tensors.
    fn coefficients(&self) -> Coefficients;

    /// Tells the state that it is part of a capture, as its `index`-th training state.
    fn bind(&mut self, trace: Arc<Trace>, index: usize);

    /// The numbers that a step may change.
    fn record(&self) -> Vec<u64>;

    /// Whether the captured step makes its update, as a tensor of shape `[1]`: 1, or 0 if it leaves
    /// out this one, because gradients are not finite. `None` if it makes every update.
    fn applies(&self) -> Option<CapturedTensor>;

    /// Makes the change that a captured step has made between two records, in a call that made its
    /// update or has skipped it.
    fn replay(&mut self, before: &[u64], after: &[u64], is_skipped: bool);
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
    /// A number that is another one in every step, and the same again in a run that is resumed.
    pub(crate) position: u64,
}

impl Coefficients {
    /// Those of the update after `earlier` others, with this learning rate or the state's own.
    pub(crate) fn of_update(&self, earlier: u64, learning_rate: Option<f64>) -> Vec<f64> {
        let learning_rate = learning_rate.unwrap_or(self.learning_rate);
        self.optimizer
            .coefficients(learning_rate, self.step + earlier + 1)
    }
}

/// A mirrored value's tensors on the devices.
#[derive(Debug, Clone, Default)]
pub(crate) struct OnDevice {
    pub(crate) tensors: Vec<Arc<dyn DeviceTensor>>,
    /// Whether the host's copy is older.
    pub(crate) is_newer: bool,
    /// The same for steps that only read, where these differ: with the mean of the replicas'
    /// running statistics.
    pub(crate) to_read: Option<Vec<Arc<dyn DeviceTensor>>>,
}
