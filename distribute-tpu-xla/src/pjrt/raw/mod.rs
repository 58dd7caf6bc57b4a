//! The handles of the PJRT C API. All `unsafe` of this crate is here.
//!
//! What the SAFETY comments rely on:
//!
//! - **Arguments.** Each function of the table takes one struct of its own type. The bindings give
//!   it zeroed and with the right `struct_size`, so that whatever a call does not set is what the
//!   C API calls unset, and nothing is read beyond the struct.
//! - **Handles.** A handle is not null, was returned by the same plugin, and is destroyed once: in
//!   the `Drop` of the one value that owns it. Whatever it was made from is kept alive by an `Arc`
//!   beside it.
//! - **Strings and arrays** that the plugin lends are copied before the call that lent them is
//!   followed by another on the same handle.
//! - **Threads.** The C API may be called from any thread, also on the same handle (as PyTorch and
//!   JAX do). The one exception known, values that an executable computes at the first question,
//!   is asked under a lock.

#[allow(
    clippy::allow_attributes,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    dead_code,
    missing_docs,
    clippy::all,
    reason = "generated"
)]
mod bindings;

mod api;
mod arguments;
mod buffer;
mod client;
mod description;
mod device;
mod event;
mod executable;
mod execute;
mod handles;
mod load;
mod named;
mod topology;

pub use buffer::Buffer;
pub use client::Client;
pub use description::DeviceDescription;
pub use device::{Device, DeviceMemoryStats};
pub use event::Event;
pub use executable::{CompiledMemoryStats, Executable};
pub use execute::{ExecuteOptions, Execution, LoadedExecutable};
pub use load::Plugin;
pub use topology::Topology;
