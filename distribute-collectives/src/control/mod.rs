//! The control plane: ranks find each other, watch each other and tell each other what went wrong.
//!
//! Every rank of a group of processes has one: a thread with a gRPC server on the rank's address
//! and one stream to each of its neighbours in a tree (see `topology` and
//! `proto/control.proto`). The thread only moves small messages, so that it answers in time also
//! while all cores compute.
//!
//! What all ranks must know each rank passes on to its other neighbours (`spread`, `reports`,
//! `watch`): who is there, small values, what went wrong, who has left. A rank that is lost is
//! found by its neighbours, all of them at the same time, whatever its place in the tree; no rank
//! waits for a chain of others. When a rank leaves, its children connect to its parent.
//!
//! Which processes may take part, and how they prove it, is defined in [`distribute_net`]: its
//! [`security`] and [`peers`] are also here.

mod addresses;
mod client;
mod clock;
pub(crate) mod convert;
mod detour;
mod first_failure;
mod gather;
#[allow(clippy::allow_attributes, missing_docs, clippy::all, reason = "generated")]
#[rustfmt::skip]
pub(crate) mod generated;
mod handshake;
mod interrupted;
mod membership;
mod outbound;
mod plane;
mod probe;
mod process;
mod reports;
mod server;
mod silence;
mod spread;
#[cfg(test)]
mod tests;
mod topology;
mod watch;

pub use distribute_net::{peers, security};
pub(crate) use generated::Announcement;
pub(crate) use membership::JoinOptions;
pub(crate) use plane::ControlPlane;
pub(crate) use topology::{ARITY, neighbours_max};

/// The service of `control.proto`, and the path of its only method.
const SERVICE_NAME: &str = "distribute.v1.Control";
const JOIN_PATH: &str = "/distribute.v1.Control/Join";
