//! All of burn that is not made for programs, and changes from version to version: the
//! representation of captured graphs, the backends behind tensors, and the texts that say what
//! they cannot do.
//!
//! The crates of this workspace that are above core take it from here (`distribute-kernels`, which
//! is below, has the backend by itself). What has a type fails to compile after a change of burn;
//! for each text or layout that is read there is a test in this module, so that an upgrade fails
//! here.

mod layers;
mod messages;
mod operation;
mod shown;

pub use burn_autodiff as autodiff;
pub use burn_backend as backend;
pub use burn_capture as capture;
pub use burn_ir as ir;
pub use burn_router as router;

pub(crate) use layers::{BATCH_NORM, RECURRENT, RUNNING_STATISTICS};
pub(crate) use messages::{is_used_up, of_message, of_panic, wants_autodiff};
pub(crate) use operation::{hash_renumbered, name, without_numbers_of_tensors};
pub(crate) use shown::without_inside;
