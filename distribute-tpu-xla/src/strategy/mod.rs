//! `TpuStrategy`, and how a TPU system is found and started.
//!
//! ```no_run
//! use distribute_core::Strategy;
//! use distribute_tpu_xla::{TpuClusterResolver, TpuStrategy};
//!
//! let resolver = TpuClusterResolver::from_env()?;
//! println!("Running on TPU {:?}", resolver.addresses());
//! let system = resolver.connect()?.initialize()?;
//! let strategy = TpuStrategy::new(&system)?;
//! println!("Number of accelerators: {}", strategy.num_replicas_in_sync());
//! # Ok::<(), distribute_tpu_xla::TpuError>(())
//! ```

mod ahead;
mod array;
mod context;
mod error;
mod report;
mod resolver;
mod slice;
mod step_check;
mod system;
mod tpu;
mod tracer;

pub use ahead::{CompileProgress, CompiledProgram, TpuCompiler};
pub use error::TpuError;
pub use report::CompileReport;
pub use resolver::{TpuClusterResolver, TpuSource};
pub use system::{TpuConnection, TpuSystem};
pub use tpu::{TpuStrategy, TpuStrategyBuilder};
pub use tracer::{lower_step, lower_step_for};

/// The error for replicas without a device.
fn refuse_replicas(replicas: usize, devices: usize, names: &str) -> TpuError {
    TpuError::Replicas {
        replicas,
        devices,
        names: names.to_string(),
    }
}
