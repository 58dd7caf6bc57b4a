//! What a crate that brings GPUs has to say of them.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use burn::tensor::Device;

use super::{DeviceReducers, DeviceReduction};
use crate::Result;

/// The GPUs of one of burn's backends: their name, burn's device for each, whether they are there,
/// and what reduces gradients in their memory.
///
/// A crate of its own has a type for it and hands out
/// [`LogicalDevice::Gpu`](crate::LogicalDevice::Gpu)s of it; strategies need nothing else.
/// `distribute-cuda` does so for NVIDIA's. Kinds are told apart by their names.
pub trait GpuKind: fmt::Debug + Send + Sync {
    /// What stands before the colon, in lower case: `cuda` of `cuda:0`.
    fn name(&self) -> &'static str;

    /// burn's device with this number, without autodiff. Need not be there.
    fn burn_device(&self, index: usize) -> Device;

    /// Refuses a GPU that burn could not use, before burn is asked, which may panic.
    ///
    /// # Errors
    /// [`BackendUnavailable`](distribute_collectives::CollectiveError::BackendUnavailable) with the
    /// places that were searched.
    fn check(&self, index: usize) -> Result<()>;

    /// What reduces gradients between GPUs of this kind: what is `wanted` by name, or else what
    /// the kind does best. A replica waits for the others as long as `timeout`. What cannot be used
    /// is an error of [`DeviceReducers::connect`].
    fn reducers(&self, wanted: DeviceReduction, timeout: Duration) -> Arc<dyn DeviceReducers>;
}

impl PartialEq for dyn GpuKind {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for dyn GpuKind {}

impl PartialOrd for dyn GpuKind {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn GpuKind {
    fn cmp(&self, other: &Self) -> Ordering {
        self.name().cmp(other.name())
    }
}

impl Hash for dyn GpuKind {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}
