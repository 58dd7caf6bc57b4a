//! GPUs of a kind that a crate of its own brings: strategies ask the devices for all they need.

use std::sync::Arc;
use std::time::Duration;

use distribute_core::{
    Device, DeviceReducers, DeviceReduction, Error, GpuKind, HierarchicalCopy, LogicalDevice,
    MirroredStrategy, NcclAllReduce, NcclReducers, OneDeviceStrategy, Result, Strategy,
};

use crate::common::{close, nothing, train, within_limit};
use crate::fake::Fake;
use crate::memory::HostMemory;

/// Four GPUs that compute as CPUs do.
#[derive(Debug)]
struct Pretended(NcclReducers);

impl GpuKind for Pretended {
    fn name(&self) -> &'static str {
        "pretended"
    }

    fn burn_device(&self, _: usize) -> Device {
        Device::flex()
    }

    fn check(&self, index: usize) -> Result<()> {
        match index {
            0..4 => Ok(()),
            _ => Err(Error::invalid(format!("there is no GPU {index}"))),
        }
    }

    fn reducers(&self, _: DeviceReduction, timeout: Duration) -> Arc<dyn DeviceReducers> {
        Arc::new(self.0.clone().timeout(timeout))
    }
}

/// The kind whose gradients are reduced in this memory.
pub fn gpus(memory: &HostMemory, fake: &Fake) -> &'static dyn GpuKind {
    Box::leak(Box::new(Pretended(memory.reducers_of_gpus(fake))))
}

#[test]
fn gradients_are_reduced_as_the_devices_say() {
    within_limit(|| {
        let (fake, memory) = (Fake::new(""), HostMemory::default());
        let kind = gpus(&memory, &fake);
        let devices = [0, 1].map(|index| LogicalDevice::Gpu(kind, index));
        let builder = || MirroredStrategy::builder().devices(devices);
        let on_host = MirroredStrategy::builder().replicas(2).build().unwrap();
        let expected = train(&on_host, |state| state, nothing).unwrap();
        for (builder, told, calls) in [
            (builder(), "gradients stay on the devices: ", 12),
            (
                builder().cross_device_ops(NcclAllReduce::new()),
                "gradients stay on the devices: ",
                24,
            ),
            (
                builder().cross_device_ops(HierarchicalCopy::default()),
                "gradients go through host memory: asked for by name",
                24,
            ),
        ] {
            let strategy = builder.build().unwrap();
            assert!(
                strategy.device_reduction()[0].starts_with(told),
                "{:?}",
                strategy.device_reduction()
            );
            close(
                &train(&strategy, |state| state, nothing).unwrap(),
                &expected,
            );
            assert_eq!(memory.calls(), calls, "{told}");
        }
        fake.assert_clean();
    });
}

#[test]
fn replicas_on_cpus_and_on_gpus_go_through_the_host() {
    let (fake, memory) = (Fake::new(""), HostMemory::default());
    let gpu = LogicalDevice::Gpu(gpus(&memory, &fake), 0);
    let builder = || MirroredStrategy::builder().devices([gpu, LogicalDevice::cpu(0)]);
    let strategy = builder().build().unwrap();
    assert_eq!(
        strategy.device_reduction(),
        ["gradients go through host memory: some replicas are on CPUs"]
    );
    let ops = NcclAllReduce::new();
    let error = builder().cross_device_ops(ops).build().unwrap_err();
    assert!(
        error.to_string().contains("put every replica on a GPU"),
        "{error}"
    );
    assert_eq!(memory.calls(), 0);
}

#[test]
fn a_gpu_that_is_not_there_is_refused() {
    let (fake, memory) = (Fake::new(""), HostMemory::default());
    let kind = gpus(&memory, &fake);
    let gpu = LogicalDevice::parse("/gpu:7", &[kind]).unwrap();
    assert_eq!(
        (gpu.to_string(), gpu.gpu_index()),
        ("pretended:7".into(), Some(7))
    );
    let error = OneDeviceStrategy::new(gpu).unwrap_err();
    assert_eq!(error.to_string(), "there is no GPU 7");
}
