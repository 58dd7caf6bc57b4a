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
}
