//! What reduces gradients in the memory of devices: who is asked for, and what a reducer has to do.

use std::fmt;

use burn::tensor::Tensor;
use distribute_collectives::ReduceOp;

use super::shared_group::SharedGroup;
use crate::communication::{CommunicationImplementation, CommunicationOptions};
use crate::{LogicalDevice, Result};

/// Reduces gradients that are in the memory of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum DeviceReduction {
    /// NCCL between GPUs, and host memory where NCCL cannot be used; the reason is told.
    #[default]
    Auto,
    /// This library, through host memory.
    HostMemory,
    /// NCCL, or an error.
    Nccl,
    /// burn's own collective, or an error. Between the GPUs of one process only.
    Burn,
}

impl From<CommunicationImplementation> for DeviceReduction {
    fn from(implementation: CommunicationImplementation) -> Self {
        match implementation {
            CommunicationImplementation::Auto => Self::Auto,
            CommunicationImplementation::Ring => Self::HostMemory,
            CommunicationImplementation::Nccl => Self::Nccl,
        }
    }
}

impl DeviceReduction {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::HostMemory => "host-memory",
            Self::Nccl => "nccl",
            Self::Burn => "burn",
        }
    }
}

/// Reduces the tensors of one rank with the tensors of the other ranks of a group, in the memory of
/// their devices.
///
/// # Contract
/// All ranks make the same calls with tensors of equal lengths and types. The tensors are
/// flattened and on the device of the rank; work on them that was begun on the calling thread is
/// waited for, and the results can be used when a call returns. Every rank ends with the same bits.
/// A call ends with an error that names who is missing, in bounded time, also after
/// [`abort`](Self::abort) on any rank.
pub trait DeviceReducer: Send {
    /// Combines the tensors of all ranks, element by element; every rank gets the result. Uses the
    /// memory of the tensors where nothing else does.
    ///
    /// # Errors
    /// A rank that was lost, failed or did not come, and the errors of the device. The group has
    /// ended then.
    fn all_reduce(&mut self, op: ReduceOp, tensors: Vec<Tensor<1>>) -> Result<Vec<Tensor<1>>>;

    /// Gives every rank the tensors of rank `root`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    fn broadcast(&mut self, root: usize, tensors: Vec<Tensor<1>>) -> Result<Vec<Tensor<1>>>;

    /// Ends the running and every later call of all ranks.
    fn abort(&self, reason: &str);

    /// What reduces, and how, for messages.
    fn describe(&self) -> String;
}

/// Makes the reducers of the replicas of one process.
pub trait DeviceReducers: Send + Sync + fmt::Debug {
    /// One reducer per replica, for the `generation`-th group of the strategy, from 0: after a
    /// failed run the strategy makes a new group.
    ///
    /// # Errors
    /// [`CollectiveError::BackendUnavailable`](distribute_collectives::CollectiveError) where it
    /// cannot work on this machine or with these devices: with [`DeviceReduction::Auto`] the
    /// gradients go through host memory then.
    fn connect(
        &self,
        devices: &[LogicalDevice],
        generation: u64,
    ) -> Result<Vec<Box<dyn DeviceReducer>>>;

    /// The way of this worker into a group of all workers, if the reducers have one for all of its
    /// `devices`. None by default: between workers gradients go through host memory then.
    fn between_workers(&self, devices: &[LogicalDevice]) -> Option<JoinWorkers> {
        let _ = devices;
        None
    }
}

/// Makes the reducer of a worker's replica 0 with the replicas 0 of all workers, beside their
/// group, with the options of the strategy. All workers call it together.
pub type JoinWorkers =
    Box<dyn FnOnce(SharedGroup, CommunicationOptions) -> Result<Box<dyn DeviceReducer>>>;
