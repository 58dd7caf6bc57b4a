//! Strategies on XLA's CPU client.

use distribute_tpu_xla::pjrt::Plugin;
use distribute_tpu_xla::{TpuStrategy, TpuSystem};

use crate::plugins::cpu_plugin;

/// A strategy with this many replicas, one per CPU device.
pub fn strategy(replicas: usize) -> Option<TpuStrategy> {
    let plugin = Plugin::load(cpu_plugin()?).unwrap();
    let options = [("cpu_device_count", (replicas as i64).into())];
    let system = TpuSystem::from_client(plugin.client(&options).unwrap());
    Some(TpuStrategy::new(&system).unwrap())
}
