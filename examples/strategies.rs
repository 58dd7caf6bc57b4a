//! Makes the strategy that a command line option names.

use std::sync::Arc;

use clap::ValueEnum;
use distribute::prelude::*;
use distribute::tpu::{TpuClusterResolver, TpuStrategy};

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
    /// A strategy with this number of replicas in this process; `OneDevice` always has one.
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
