//! Cross-device ops: how gradients get summed over the replicas of one machine.
//!
//! [`CrossDeviceOps`] is the exchangeable part of `MirroredStrategy`
//! (TensorFlow: `tf.distribute.CrossDeviceOps`). Unlike TensorFlow's, which is called once with
//! everybody's values, ours is called on every replica's thread with that replica's buffers and
//! its endpoint of the group: that form also works between processes.

mod hierarchical_copy;
mod nccl_all_reduce;
mod reduction_to_one_device;

use std::fmt::Debug;

use burn::tensor::TensorData;
use distribute_collectives::{Buffer, Communicator, Element, ReduceOp, reduce};

pub use hierarchical_copy::HierarchicalCopy;
pub use nccl_all_reduce::NcclAllReduce;
pub use reduction_to_one_device::ReductionToOneDevice;

use crate::host_reduce::for_element;
use crate::{DeviceReduction, Error, Result};

/// Sums (or averages, ...) buffers over the replicas of a process.
///
/// Implement it to bring an algorithm of your own; see the example `own_cross_device_ops`.
///
/// # Contract
/// Every replica calls `all_reduce` with the same operation and buffers of equal lengths and
/// types. Afterwards all replicas hold the same bits. `Mean` is the sum divided by the number
/// of replicas.
pub trait CrossDeviceOps: Send + Sync + Debug {
    /// A name for messages.
    fn name(&self) -> &str;

    /// The reducers of gradients that are in the memory of GPUs. A user's own ops get them in host
    /// memory, unless they say something else here.
    fn device_reduction(&self) -> DeviceReduction {
        DeviceReduction::HostMemory
    }

    /// Reduces `buffers` over all ranks of the group, in place. Blocks until the result is
    /// there.
    ///
    /// # Errors
    /// What the communicator reports: a replica failed, did not come, or called with other
    /// buffers.
    fn all_reduce(
        &self,
        communicator: &mut dyn Communicator,
        op: ReduceOp,
        buffers: &mut [Buffer<'_>],
    ) -> Result<()>;
}

/// The default: the group's own all-reduce. In one process every replica reduces its share of
/// the elements over all replicas and writes the result to every replica's buffer.
///
/// Order: the canonical one ([`tree`](distribute_collectives::tree) over the replicas). A mean is
/// the sum divided by the number of replicas: as in TensorFlow, the sum of half types must be in
/// their range.
///
/// Gradients of several GPUs are reduced by NCCL where that can be used
/// ([`DeviceReduction::Auto`]).
#[derive(Debug, Clone, Copy, Default)]
pub struct DirectAllReduce;

impl CrossDeviceOps for DirectAllReduce {
    fn name(&self) -> &str {
        "direct"
    }

    fn device_reduction(&self) -> DeviceReduction {
        DeviceReduction::Auto
    }

    fn all_reduce(
        &self,
        communicator: &mut dyn Communicator,
        op: ReduceOp,
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        communicator.all_reduce(sum_for(op), buffers)?;
        divide_for(op, communicator.world_size(), buffers);
        Ok(())
    }
}

/// What replicas do together for an operation: a mean begins with the sum, in one process and in
/// several, so that it is rounded alike.
pub(crate) fn sum_for(op: ReduceOp) -> ReduceOp {
    match op {
        ReduceOp::Mean => ReduceOp::Sum,
        other => other,
    }
}

/// For `Mean`, divides the sum by the number of replicas.
pub(crate) fn divide_for(op: ReduceOp, replicas: usize, buffers: &mut [Buffer<'_>]) {
    if op == ReduceOp::Mean {
        let buffers = buffers.iter_mut();
        buffers.for_each(|buffer| reduce::divide(buffer, replicas));
    }
}

/// Calls an operation once per element type of lists of tensors that have the same types: with the
/// first list's buffers of a type, then the second one's, and so on.
pub(crate) fn by_type(
    lists: &mut [&mut [TensorData]],
    mut call: impl FnMut(&mut [Buffer<'_>]) -> Result<()>,
) -> Result<()> {
    let lists = lists
        .iter_mut()
        .map(|tensors| as_buffers(tensors))
        .collect::<Result<Vec<_>>>()?;
    let mut buffers: Vec<Buffer<'_>> = lists.into_iter().flatten().collect();
    while let Some(dtype) = buffers.first().map(Buffer::dtype) {
        // A stable partition: the order of the buffers within a type is the caller's.
        let (mut same, rest): (Vec<_>, Vec<_>) =
            buffers.into_iter().partition(|b| b.dtype() == dtype);
        call(&mut same)?;
        buffers = rest;
    }
    Ok(())
}

/// The typed views that the collectives work on; they share the tensors' storage.
pub(crate) fn as_buffers(tensors: &mut [TensorData]) -> Result<Vec<Buffer<'_>>> {
    let buffers = tensors.iter_mut().map(|data| {
        for_element!("all_reduce", data.dtype(), E => {
            data.as_mut_slice::<E>().map(E::buffer).map_err(Error::internal)
        })
    });
    buffers.collect()
}
