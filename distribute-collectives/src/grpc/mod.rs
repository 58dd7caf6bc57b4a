//! Data connections: ordinary gRPC on the wire, driven by the thread that calls an operation.
//!
//! A *lane* is one of the data connections between two ranks: a TCP connection to the port that the
//! lower rank also has for the control plane. Two ranks have none before an operation of theirs
//! needs it. Then the higher rank dials (see [`connect`]); the control threads make the connection,
//! with the handshake of every connection (see [`entrance`]), and give it to the threads that call
//! operations. It carries HTTP/2 (the crate `h2`) with one bidirectional stream:
//!
//! ```proto
//! syntax = "proto3";
//! package distribute.v1;
//!
//! service Collectives {
//!   // Segments in both directions for as long as the group lives.
//!   rpc Exchange(stream Segment) returns (stream Segment);
//! }
//! // Segment is not a protobuf message: 64 bytes of header (see `wire`), then the payload.
//! ```
//!
//! A lane that was not used for long ([`IDLE_LIMIT`]) is closed. The client, which is the rank that
//! has dialled, ends its half of the stream with a trailer that says so, and sends what comes later
//! over the next lane. The server still gets all that was sent before, says the same in its own
//! trailers behind all that it has sent, and the client closes the connection when it has read
//! that. So a message that crosses the end arrives, and before the ones of the next lane. Messages
//! are numbered on.
//!
//! A lane has no thread and no reactor. [`Links::send`](links::Links::send) and
//! [`Links::receive`](links::Links::receive) poll the HTTP/2 connections themselves and block in
//! `poll(2)` when nothing moves. A segment is written from where it lies, and only what the kernel
//! does not take at once is copied (see [`lent_bytes`]). Received segments are used where HTTP/2
//! has put them: a segment is one DATA frame, so they stay in the cache.
// Used by the groups between processes.

pub(crate) mod config;
mod connect;
mod entrance;
pub(crate) mod frames;
mod lane;
#[expect(unsafe_code, reason = "each use says why it is sound")]
mod lent_bytes;
mod links;
mod open;
mod peer;
mod pool;
#[expect(unsafe_code, reason = "each use says why it is sound")]
mod raw;
pub(crate) mod rules;
mod socket;
mod stall;
mod stream;
#[cfg(test)]
mod tests;
mod transport;

pub(crate) use config::{LinkConfig, MESSAGE_BYTES_MIN};
pub(crate) use connect::IDLE_LIMIT;
pub(crate) use entrance::{Doorway, Entrance, LanePeer};
pub(crate) use links::{Links, max_segment_bytes};
pub(crate) use rules::LaneRules;
pub(crate) use stall::stall_limit;
pub(crate) use transport::GrpcTransport;
