//! The strategy that an option of a program names.

use std::sync::Arc;

use clap::ValueEnum;
use distribute_core::prelude::*;
use distribute_tpu_xla::{TpuClusterResolver, TpuStrategy};

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Kind {
    OneDevice,
    Mirrored,
    /// In the cluster of `TF_CONFIG`
    MultiWorker,
    /// Compiled, by the PJRT plugin of TPUs or of `PJRT_PLUGIN_LIBRARY_PATH`
    Tpu,
}

impl Kind {
    /// A strategy with so many replicas in this process; one device has one in any case.
    pub fn strategy(self, replicas: usize) -> Result<Arc<dyn Strategy>> {
        Ok(match self {
            Self::OneDevice => Arc::new(OneDeviceStrategy::new("cpu:0".parse()?)?),
            Self::Mirrored => Arc::new(MirroredStrategy::builder().replicas(replicas).build()?),
            Self::MultiWorker => {
                let builder = MultiWorkerMirroredStrategy::builder();
                Arc::new(builder.replicas(replicas).build()?)
            }
            Self::Tpu => {
                let system = TpuClusterResolver::from_env()?.connect()?.initialize()?;
                Arc::new(TpuStrategy::builder(&system).replicas(replicas).build()?)
            }
        })
    }
}
