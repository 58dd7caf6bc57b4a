//! Any PJRT plugin, safely: load it, compile StableHLO, keep arrays on devices, run.
//!
//! A *plugin* is a shared library that holds XLA for one kind of device behind the PJRT C API:
//! `libtpu.so` for TPUs, `xla_cuda_plugin.so` for NVIDIA GPUs. Its open devices are a *client*; a
//! *topology* is devices that are only named, to compile for. A *program* is what a plugin has
//! compiled, for all replicas. The bindings are checked in, made
//! from version 0.90 of the header; plugins from version 0.29 on and of any newer minor version
//! are accepted, and what one lacks is an error when it is needed, see [`PjrtError`].
//!
//! ```no_run
//! use distribute_tpu_xla::pjrt::{CompileOptions, ExecuteOptions, Plugin};
//!
//! let plugin = Plugin::find(None)?;
//! let client = plugin.client(&[])?;
//! let devices = client.addressable_devices();
//! let program = client.compile(
//!     "func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
//!        %y = stablehlo.add %x, %x : tensor<4xf32>
//!        return %y : tensor<4xf32>
//!      }",
//!     &CompileOptions::replicas(devices.len()),
//! )?;
//! let inputs = devices.iter().map(|device| Ok(vec![client.buffer(&[1.0_f32; 4], &[4], device)?]));
//! let inputs = inputs.collect::<Result<Vec<_>, distribute_tpu_xla::pjrt::PjrtError>>()?;
//! let outputs = program.run(&inputs, &ExecuteOptions::default())?;
//! assert_eq!(outputs[0][0].to_vec::<f32>()?, [2.0; 4]);
//! # Ok::<(), distribute_tpu_xla::pjrt::PjrtError>(())
//! ```
//!
//! All types can be sent to and shared between threads. Each frees what it holds when it is
//! dropped, and keeps alive what it needs: a buffer its client, a client its plugin.

mod compile_options;
mod element;
mod error;
mod libtpu;
mod program;
#[expect(unsafe_code, reason = "each use says why it is sound")]
mod raw;
mod search;
mod value;

pub use compile_options::CompileOptions;
pub use element::{ArrayShape, Element, ElementType};
pub use error::{ApiVersion, ErrorCode, PjrtError, Result};
pub use libtpu::LibtpuEnvironment;
pub use program::Program;
pub use raw::{
    Buffer, Client, CompiledMemoryStats, Device, DeviceDescription, DeviceMemoryStats, Event,
    Executable, ExecuteOptions, Execution, LoadedExecutable, Plugin, Topology,
};
pub use search::PluginSearch;
pub use value::{Attributes, Value};
