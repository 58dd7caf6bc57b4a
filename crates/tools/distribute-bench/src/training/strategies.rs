//! The competitors of a comparison of strategies.

use distribute_core::{
    CentralStorageStrategy, LogicalDevice, MirroredStrategy, OneDeviceStrategy, Result, Strategy,
};
use distribute_tpu_xla::{TpuStrategy, TpuSystem};

use super::contenders::{Contender, HandWritten, UnderStrategy};
use super::independent::Independent;
use super::models::{BenchModel, ModelUnder};
use super::workers::Workers;

/// A loop written by hand, the same with burn's own kernels, and the same training under every
/// strategy: of one machine, and of worker processes, which are this program with the arguments
/// `worker`.
///
/// # Errors
/// The errors of the strategies, and processes and threads that cannot be started.
pub fn strategies(
    batch_size: usize,
    replicas: &[usize],
    worker: &[&str],
) -> Result<Vec<Box<dyn Contender>>> {
    let batch = batch_size;
    let one_device = OneDeviceStrategy::new(LogicalDevice::cpu(0))?;
    let mut list: Vec<Box<dyn Contender>> = vec![
        Box::new(HandWritten::new(batch)),
        Box::new(HandWritten::with_burns_kernels(batch)),
        Box::new(UnderStrategy::new("one-device", one_device, batch)?),
    ];
    for &replicas in replicas.iter().filter(|replicas| **replicas > 1) {
        list.push(Box::new(Independent::new(replicas, batch)?));
    }
    for &replicas in replicas {
        let mirrored = MirroredStrategy::builder().replicas(replicas).build()?;
        list.push(Box::new(UnderStrategy::new("mirrored", mirrored, batch)?));
    }
    for &workers in replicas {
        list.push(Box::new(Workers::new(workers, batch, worker)?));
    }
    for &replicas in replicas {
        let central = CentralStorageStrategy::with_replicas(replicas)?;
        list.push(Box::new(UnderStrategy::new(
            "central-storage",
            central,
            batch,
        )?));
    }
    Ok(list)
}

/// Steps that are compiled for a system, after steps of burn's own backend.
///
/// # Errors
/// The errors of the strategies.
pub fn compiled(
    system: &TpuSystem,
    model: BenchModel,
    batch_size: usize,
    replicas: &[usize],
) -> Result<Vec<Box<dyn Contender>>> {
    let one = OneDeviceStrategy::new(LogicalDevice::cpu(0))?;
    let mut list = vec![contender("one-device", one, model, batch_size)?];
    for &replicas in replicas {
        let strategy = TpuStrategy::builder(system).replicas(replicas).build()?;
        list.push(contender("tpu", strategy, model, batch_size)?);
    }
    Ok(list)
}

/// The tutorial's CNN is the one that is written by hand too; the others are built in.
fn contender<S: Strategy + 'static>(
    name: &'static str,
    strategy: S,
    model: BenchModel,
    size: usize,
) -> Result<Box<dyn Contender>> {
    Ok(match model {
        BenchModel::MnistCnn => Box::new(UnderStrategy::new(name, strategy, size)?),
        model => Box::new(ModelUnder::new(name, strategy, model, size)?),
    })
}
