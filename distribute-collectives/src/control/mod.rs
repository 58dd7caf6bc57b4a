//! The control plane: ranks find each other, watch each other and tell each other what went wrong.
//!
//! Every rank of a group of processes has one: a thread with a gRPC server on the
//! rank's address and one stream to every other rank (see `proto/control.proto`). The thread only
//! moves small messages, so that it answers in time also while all cores compute.
//!
//! Which processes may take part, and how they prove it, is defined in [`distribute_net`]: its
//! [`security`] and [`peers`] are also here.

mod addresses;
mod client;
mod clock;
pub(crate) mod convert;
mod gather;
#[allow(clippy::allow_attributes, missing_docs, clippy::all, reason = "generated")]
#[rustfmt::skip]
pub(crate) mod generated;
mod handshake;
mod interrupted;
mod membership;
mod plane;
mod probe;
mod process;
mod server;
mod silence;
#[cfg(test)]
mod tests;
mod watch;

pub use distribute_net::{peers, security};
pub(crate) use generated::Announcement;
pub(crate) use membership::JoinOptions;
pub(crate) use plane::ControlPlane;

/// The service of `control.proto`, and the path of its only method.
const SERVICE_NAME: &str = "distribute.v1.Control";
const JOIN_PATH: &str = "/distribute.v1.Control/Join";
