//! Where a replica is, and its variables.

use burn::tensor::Device;

use crate::LogicalDevice;

/// Where variables live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum VariablePlacement {
    /// Every replica has its own copy and applies the same update to it.
    Mirrored,
    /// There is one copy, in host memory; replicas read it and one update is applied to it.
    Central,
}

/// One replica of this process: a copy of the model on a device.
#[derive(Debug, Clone)]
pub struct Replica {
    /// The id among all replicas of all workers.
    pub id: usize,
    /// The device's name.
    pub logical: LogicalDevice,
    /// burn's device, with autodiff.
    pub device: Device,
}

impl Replica {
    /// A replica whose values are built on this device.
    pub fn new(id: usize, logical: LogicalDevice) -> Self {
        Self {
            id,
            logical,
            device: logical.burn_device().autodiff(),
        }
    }

    /// The replica with gradient checkpointing: the backward pass computes activations of cheap
    /// operations again instead of keeping them
    /// ([`Device::gradient_checkpointing`](burn::tensor::Device::gradient_checkpointing)). Its
    /// device has it, and so have models and batches that are made there.
    ///
    /// Training gives the same bits, but for the convolutions and poolings of
    /// `distribute-kernels`: they keep their inputs, so burn's own, which round differently, take
    /// their place. A compiled step is not changed: its compiler decides what it keeps.
    #[must_use]
    pub fn gradient_checkpointing(mut self) -> Self {
        self.device = self.device.gradient_checkpointing();
        self
    }
}
