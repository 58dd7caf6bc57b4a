//! Tensors of the host, in memory of the fake driver while NCCL works on them: it has addresses of
//! its own, and refuses all others.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use distribute_core::collectives::nccl::{DeviceBuffer, ElementType, NcclOptions};
use distribute_core::{
    Error, LogicalDevice, NcclReducers, Result, Tensor, TensorData, TensorMemory,
};
use libloading::Library;

use crate::fake::Fake;

type Allocate = unsafe extern "C" fn(*mut u64, usize) -> i32;
type Free = unsafe extern "C" fn(u64) -> i32;
type Upload = unsafe extern "C" fn(u64, *const f32, usize) -> i32;
type Download = unsafe extern "C" fn(*mut f32, u64, usize) -> i32;
type Current = unsafe extern "C" fn(usize) -> i32;

/// The memory of one device.
struct DriverMemory {
    library: Library,
    count: HostMemory,
}

impl DriverMemory {
    /// Elements on the device, with these values.
    fn upload(&self, values: &[f32]) -> u64 {
        let mut address = 0;
        let bytes = size_of_val(values);
        // SAFETY: the fake's functions have these types; its device 0 has context 1; the variables
        // outlive the calls.
        unsafe {
            let push = self.library.get::<Current>(b"cuCtxPushCurrent_v2").unwrap();
            assert_eq!(push(1), 0);
            let allocate = self.library.get::<Allocate>(b"cuMemAlloc_v2").unwrap();
            assert_eq!(allocate(&raw mut address, bytes.max(1)), 0);
            let copy = self.library.get::<Upload>(b"cuMemcpyHtoD_v2").unwrap();
            assert_eq!(copy(address, values.as_ptr(), bytes), 0);
        }
        address
    }

    /// The values back, and the memory too.
    fn take(&self, address: u64, values: &mut [f32]) {
        // SAFETY: as above; `address` is one of `upload`, with as many elements.
        unsafe {
            let copy = self.library.get::<Download>(b"cuMemcpyDtoH_v2").unwrap();
            assert_eq!(copy(values.as_mut_ptr(), address, size_of_val(values)), 0);
            let free = self.library.get::<Free>(b"cuMemFree_v2").unwrap();
            assert_eq!(free(address), 0);
        }
    }
}

impl TensorMemory for DriverMemory {
    fn with_buffers(
        &mut self,
        tensors: Vec<Tensor<1>>,
        work: &mut dyn FnMut(&mut [DeviceBuffer<'_>]) -> Result<()>,
    ) -> Result<Vec<Tensor<1>>> {
        self.count.calls.fetch_add(1, Ordering::Relaxed);
        let devices: Vec<_> = tensors.iter().map(Tensor::device).collect();
        let mut data: Vec<TensorData> = tensors.into_iter().map(Tensor::into_data).collect();
        let mut addresses = Vec::new();
        let mut buffers = Vec::new();
        for data in &data {
            let values = data.as_slice::<f32>().map_err(Error::step)?;
            self.count
                .elements
                .fetch_add(values.len(), Ordering::Relaxed);
            let address = self.upload(values);
            addresses.push(address);
            // SAFETY: memory of the device that no other code knows, freed after `work`.
            buffers
                .push(unsafe { DeviceBuffer::from_raw(address, ElementType::F32, values.len()) });
        }
        let outcome = work(&mut buffers);
        drop(buffers);
        for (data, address) in data.iter_mut().zip(addresses) {
            self.take(address, data.as_mut_slice::<f32>().map_err(Error::step)?);
        }
        outcome?;
        let back = data.into_iter().zip(&devices);
        Ok(back
            .map(|(data, device)| Tensor::from_data(data, device))
            .collect())
    }
}

fn gpu(device: LogicalDevice) -> Option<usize> {
    match device {
        LogicalDevice::Cpu(index) => Some(index),
        _ => None,
    }
}

/// Counts what the memory of the devices is used for.
#[derive(Debug, Clone, Default)]
pub struct HostMemory {
    calls: Arc<AtomicUsize>,
    elements: Arc<AtomicUsize>,
}

impl HostMemory {
    /// Reducers that use this memory: `cpu:i` is GPU `i` of the fake.
    pub fn reducers(&self, fake: &Fake) -> NcclReducers {
        self.reducers_of(fake, fake.options())
    }

    /// Reducers that use this memory for GPUs of any kind.
    pub fn reducers_of_gpus(&self, fake: &Fake) -> NcclReducers {
        self.with_gpus(fake, fake.options(), LogicalDevice::gpu_index)
    }

    /// With other options.
    pub fn reducers_of(&self, fake: &Fake, options: NcclOptions) -> NcclReducers {
        self.with_gpus(fake, options, gpu)
    }

    /// As [`reducers`](Self::reducers), with replica `i` of every process on GPU `first + i`.
    pub fn reducers_from(&self, fake: &Fake, first: usize) -> NcclReducers {
        let gpu: fn(LogicalDevice) -> Option<usize> = match first {
            0 => gpu,
            1 => |device| gpu(device).map(|gpu| gpu + 1),
            2 => |device| gpu(device).map(|gpu| gpu + 2),
            _ => |_| None,
        };
        self.with_gpus(fake, fake.options(), gpu)
    }

    fn with_gpus(
        &self,
        fake: &Fake,
        options: NcclOptions,
        gpu: fn(LogicalDevice) -> Option<usize>,
    ) -> NcclReducers {
        let (count, path): (_, PathBuf) = (self.clone(), fake.path());
        NcclReducers::new(options, gpu, move |_| {
            // SAFETY: the fake has no initialisers.
            let library = unsafe { Library::new(&path) }.expect("the fake");
            let count = count.clone();
            Box::new(DriverMemory { library, count })
        })
    }

    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    pub fn elements(&self) -> usize {
        self.elements.load(Ordering::Relaxed)
    }
}
