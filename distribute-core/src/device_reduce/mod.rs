//! Gradients that are reduced where they are: in the memory of the replicas' devices.
//!
//! A [`DeviceReducer`](crate::DeviceReducer) is one replica's part in it: the crate has one over
//! NCCL (feature `nccl`), and kinds of GPUs may bring others. Without one, gradients of devices go
//! through host memory: copied there, reduced like gradients of CPU replicas, and copied back.

mod between;
#[cfg(feature = "nccl")]
mod nccl;
mod plan;

#[cfg(feature = "nccl")]
pub use nccl::{NcclReducer, NcclReducers, TensorMemory};
pub(crate) use plan::DevicePlan;
