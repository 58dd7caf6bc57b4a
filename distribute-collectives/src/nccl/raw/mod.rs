//! The C libraries behind the communicator: the CUDA driver and NCCL, loaded at run time.
//!
//! All `unsafe` of the NCCL communicator is here. The safe parts on top (contexts, streams, events,
//! memory, communicators) own what they name and free it when they are dropped.

mod buffer;
mod comm;
mod cuda;
mod library;

pub use buffer::{DeviceBuffer, DeviceMemory};
pub(super) use buffer::{PinnedMemory, Span};
pub(super) use comm::{Call, CallKind, Comm};
pub use cuda::Stream;
pub(super) use cuda::{Context, Event, OwnedStream};
pub(super) use library::{Cuda, LibraryError, Nccl, UniqueId};
