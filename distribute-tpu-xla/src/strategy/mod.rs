//! `TpuStrategy`, and how a TPU system is found and started.
//!
//! ```no_run
//! use distribute_core::Strategy;
//! use distribute_tpu_xla::{TpuClusterResolver, TpuStrategy};
//!
//! let resolver = TpuClusterResolver::new(None)?;
//! println!("Running on TPU {:?}", resolver.addresses());
//! let system = resolver.connect()?.initialize()?;
//! let strategy = TpuStrategy::new(&system)?;
//! println!("Number of accelerators: {}", strategy.num_replicas_in_sync());
//! # Ok::<(), distribute_tpu_xla::TpuError>(())
//! ```

mod array;
mod compile_only;
mod error;
mod resolver;
mod system;
mod tpu;
mod tracer;

pub use compile_only::{CompileOnlyStrategy, CompileReport};
pub use error::TpuError;
pub use resolver::{TpuClusterResolver, TpuSource};
pub use system::{TpuConnection, TpuSystem};
pub use tpu::{TpuStrategy, TpuStrategyBuilder};
pub use tracer::lower_step;
