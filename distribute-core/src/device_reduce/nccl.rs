//! Reducers over NCCL.

use std::fmt;
use std::sync::Arc;

use burn::tensor::Tensor;
use distribute_collectives::nccl::{
    ControlGroup, DeviceBuffer, NcclCommunicator, NcclOptions, in_process,
};
use distribute_collectives::{CollectiveError, Communicator, GroupOptions, ReduceOp};

use crate::communication::CommunicationOptions;
use crate::{DeviceReducer, DeviceReducers, JoinWorkers, LogicalDevice, Result};

/// Where tensors have their elements, so that NCCL can be told.
pub trait TensorMemory: Send {
    /// Calls `work` with the elements of all tensors, in their order, and returns tensors with what
    /// it has written. The tensors are flattened and on this rank's device.
    ///
    /// While `work` runs, nothing else uses the elements: an implementation waits for what the
    /// device does with them first, and copies those that another tensor shares.
    ///
    /// # Errors
    /// The errors of the device, of `work`, and tensors that are somewhere else.
    fn with_buffers(
        &mut self,
        tensors: Vec<Tensor<1>>,
        work: &mut dyn FnMut(&mut [DeviceBuffer<'_>]) -> Result<()>,
    ) -> Result<Vec<Tensor<1>>>;
}

/// One rank's reducer over NCCL, beside a group of the same ranks.
pub struct NcclReducer<G: ControlGroup> {
    communicator: NcclCommunicator<G>,
    memory: Box<dyn TensorMemory>,
    options: CommunicationOptions,
}

impl<G: ControlGroup> NcclReducer<G> {
    /// Of `options`, `bytes_per_pack` takes effect.
    pub fn new(
        communicator: NcclCommunicator<G>,
        memory: Box<dyn TensorMemory>,
        options: CommunicationOptions,
    ) -> Self {
        Self {
            communicator,
            memory,
            options,
        }
    }
}

impl<G: ControlGroup> DeviceReducer for NcclReducer<G> {
    fn all_reduce(&mut self, op: ReduceOp, tensors: Vec<Tensor<1>>) -> Result<Vec<Tensor<1>>> {
        let (communicator, options) = (&mut self.communicator, &self.options);
        self.memory.with_buffers(tensors, &mut |buffers| {
            // Every pack is one group of NCCL, also with several types.
            let sizes_bytes: Vec<usize> = buffers.iter().map(DeviceBuffer::size_bytes).collect();
            for pack in options.packs(&sizes_bytes) {
                communicator.all_reduce_device(op, &mut buffers[pack])?;
            }
            Ok(())
        })
    }

    fn broadcast(&mut self, root: usize, tensors: Vec<Tensor<1>>) -> Result<Vec<Tensor<1>>> {
        let communicator = &mut self.communicator;
        self.memory.with_buffers(tensors, &mut |buffers| {
            Ok(communicator.broadcast_device(root, buffers)?)
        })
    }

    fn abort(&self, reason: &str) {
        self.communicator.abort(reason);
    }

    fn describe(&self) -> String {
        self.communicator.describe().to_string()
    }
}

/// The memory of the device of one replica.
type MemoryOf = dyn Fn(LogicalDevice) -> Box<dyn TensorMemory> + Send + Sync;

/// Reducers over NCCL between the replicas of one process.
#[derive(Clone)]
#[must_use]
pub struct NcclReducers {
    options: NcclOptions,
    group: GroupOptions,
    /// The GPU of a device.
    gpu: fn(LogicalDevice) -> Option<usize>,
    memory: Arc<MemoryOf>,
}

impl fmt::Debug for NcclReducers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NcclReducers")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl NcclReducers {
    /// `gpu` is the number of a device's GPU, `memory` says where its tensors have their elements.
    /// The device of `options` does not matter.
    pub fn new(
        options: NcclOptions,
        gpu: fn(LogicalDevice) -> Option<usize>,
        memory: impl Fn(LogicalDevice) -> Box<dyn TensorMemory> + Send + Sync + 'static,
    ) -> Self {
        Self {
            options,
            group: GroupOptions::default(),
            gpu,
            memory: Arc::new(memory),
        }
    }

    /// How long a replica waits for the others.
    pub fn timeout(mut self, timeout: std::time::Duration) -> Self {
        self.group = self.group.timeout(timeout);
        self
    }

    fn gpus(&self, devices: &[LogicalDevice]) -> Option<Vec<usize>> {
        devices.iter().map(|device| (self.gpu)(*device)).collect()
    }
}

impl DeviceReducers for NcclReducers {
    fn connect(
        &self,
        devices: &[LogicalDevice],
        generation: u64,
    ) -> Result<Vec<Box<dyn DeviceReducer>>> {
        let elsewhere = || CollectiveError::unavailable("NCCL", "a replica is not on a GPU");
        let gpus = self.gpus(devices).ok_or_else(elsewhere)?;
        let group = self.group.clone().generation(generation);
        let ranks = in_process(&gpus, group, self.options.clone())?.into_iter();
        let reducers = ranks.zip(devices).map(|(rank, device)| {
            let options = CommunicationOptions::default();
            let reducer = NcclReducer::new(rank, (self.memory)(*device), options);
            Box::new(reducer) as Box<dyn DeviceReducer>
        });
        Ok(reducers.collect())
    }

    fn between_workers(&self, devices: &[LogicalDevice]) -> Option<JoinWorkers> {
        let (gpus, device) = (self.gpus(devices)?, *devices.first()?);
        let memory = Arc::clone(&self.memory);
        // The group of workers is not NCCL's alone, which has an order of its own.
        let options = self.options.clone().device(*gpus.first()?).own_order(true);
        Some(Box::new(move |group, communication| {
            let communicator =
                NcclCommunicator::new(group, options).map_err(CollectiveError::from)?;
            let reducer = NcclReducer::new(communicator, memory(device), communication);
            Ok(Box::new(reducer))
        }))
    }
}
