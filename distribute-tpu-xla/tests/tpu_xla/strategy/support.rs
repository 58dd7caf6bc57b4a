//! The plugin, strategies on it, and data.

use std::collections::BTreeMap;

use burn::prelude::*;
use distribute_core::{MirroredStrategy, PerReplica, TensorData};
use distribute_tpu_xla::pjrt::Plugin;
use distribute_tpu_xla::{TpuStrategy, TpuSystem};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub use crate::plugins::{cpu_plugin as plugin, libtpu, within};

/// A system of this many CPU devices.
pub fn system(devices: usize) -> Option<TpuSystem> {
    let plugin = Plugin::load(plugin()?).unwrap();
    let options = [("cpu_device_count", (devices as i64).into())];
    Some(TpuSystem::from_client(plugin.client(&options).unwrap()))
}

/// A strategy with this many replicas, one per device.
pub fn strategy(replicas: usize) -> Option<TpuStrategy> {
    Some(TpuStrategy::new(&system(replicas)?).unwrap())
}

/// A strategy with this many replicas, each on a thread.
pub fn mirrored(replicas: usize) -> MirroredStrategy {
    let builder = MirroredStrategy::builder().replicas(replicas);
    builder.build().unwrap()
}

/// Batches of `examples` rows for each replica, the same in every run.
pub struct Data {
    rng: ChaCha8Rng,
    replicas: usize,
    shape: Vec<usize>,
    classes: i32,
}

impl Data {
    pub fn new(seed: u64, replicas: usize, shape: &[usize], classes: i32) -> Self {
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
            replicas,
            shape: shape.to_vec(),
            classes,
        }
    }

    /// Rows of token numbers.
    pub fn tokens(&mut self, examples: usize, length: usize) -> PerReplica<Tensor<2, Int>> {
        let parts = (0..self.replicas).map(|_| {
            let count = examples * length;
            let ids: Vec<i32> = (0..count)
                .map(|_| self.rng.random_range(0..self.classes))
                .collect();
            Tensor::from_data(TensorData::new(ids, [examples, length]), &Device::flex())
        });
        PerReplica::new(parts.collect())
    }

    pub fn batch<const D: usize>(
        &mut self,
        examples: usize,
    ) -> PerReplica<(Tensor<D>, Tensor<1, Int>)> {
        let device = Device::flex();
        let parts = (0..self.replicas).map(|_| {
            let mut shape = vec![examples];
            shape.extend(&self.shape);
            let count: usize = shape.iter().product();
            let x: Vec<f32> = (0..count)
                .map(|_| self.rng.random_range(-1.0..1.0))
                .collect();
            let y: Vec<i32> = (0..examples)
                .map(|_| self.rng.random_range(0..self.classes))
                .collect();
            let x = Tensor::from_data(TensorData::new(x, shape), &device);
            (
                x,
                Tensor::from_data(TensorData::new(y, [examples]), &device),
            )
        });
        PerReplica::new(parts.collect())
    }
}

/// Both hold the same tensors, up to `tolerance` in every element, relative to at least 1.
pub fn assert_close(
    found: &BTreeMap<String, TensorData>,
    expected: &BTreeMap<String, TensorData>,
    tolerance: f32,
) {
    assert_eq!(
        found.keys().collect::<Vec<_>>(),
        expected.keys().collect::<Vec<_>>()
    );
    for (name, found) in found {
        let expected = &expected[name];
        assert_eq!(found.shape(), expected.shape(), "{name}");
        let pairs = found.iter::<f32>().zip(expected.iter::<f32>());
        for (index, (found, expected)) in pairs.enumerate() {
            let scale = expected.abs().max(1.0);
            assert!(
                (found - expected).abs() <= tolerance * scale,
                "{name}[{index}]: {found}, expected {expected}"
            );
        }
    }
}
