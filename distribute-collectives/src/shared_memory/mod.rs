//! Ranks of one host: buffers and meetings in a shared segment.
//!
//! [`passing`] finds out which ranks share the host and hands the segment from its leader to the
//! others; [`LocalGroup`] is the result. [`SharedMemoryCommunicator`] carries out every operation
//! of a group whose ranks are all in it; [`mailbox`] carries single segments, for transports that
//! use shared memory between some ranks only.

mod acceptor;
mod arrival;
mod direct;
mod doorbell;
mod endpoint;
mod group;
#[expect(unsafe_code, reason = "each use says why it is sound")]
mod inline;
mod kernels;
mod layout;
#[expect(unsafe_code, reason = "each use says why it is sound")]
mod mailbox;
#[cfg(all(test, feature = "loom"))]
#[expect(
    unsafe_code,
    reason = "the functions have the signatures of the real ones"
)]
mod model_segment;
#[cfg(all(test, feature = "loom"))]
mod models;
mod passing;
mod pieces;
#[cfg(test)]
mod processes_test;
#[cfg(not(all(test, feature = "loom")))]
#[expect(unsafe_code, reason = "each use says why it is sound")]
mod segment;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
#[expect(unsafe_code, reason = "each use says why it is sound")]
mod windows;

pub(crate) use direct::SharedMemoryCommunicator;
pub(crate) use doorbell::Operation;
pub(crate) use endpoint::LocalTransport;
pub(crate) use group::LocalGroup;
pub(crate) use layout::{MEMBERS_MAX, SEGMENT_BYTES_MAX, Settings};
#[cfg(all(test, feature = "loom"))]
use model_segment as segment;
#[cfg(test)]
pub(crate) use passing::welcome_of;
pub(crate) use passing::{Attachment, LocalIdentity, Offer, establish, find_leader};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use passing::{WELCOME_BYTES, read_welcome};
