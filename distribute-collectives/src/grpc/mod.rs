//! Data connections: ordinary gRPC on the wire, driven by the thread that calls an operation.
//!
//! A *lane* is one of the data connections between two ranks: a TCP connection, to which the lower
//! rank listens. It carries HTTP/2 (the crate `h2`) with one bidirectional stream:
//!
//! ```proto
//! syntax = "proto3";
//! package distribute.v1;
//!
//! service Collectives {
//!   // Segments in both directions for as long as the group lives. Metadata of the request:
//!   // distribute-group, distribute-generation, distribute-world-size, distribute-rank,
//!   // distribute-lane, distribute-lanes, distribute-proof. A peer that does not belong here
//!   // is answered UNAUTHENTICATED or FAILED_PRECONDITION.
//!   rpc Exchange(stream Segment) returns (stream Segment);
//! }
//! // Segment is not a protobuf message: 64 bytes of header (see `wire`), then the payload.
//! ```
//!
//! There is no thread and no reactor. [`Links::send`](links::Links::send) and
//! [`Links::receive`](links::Links::receive) poll the HTTP/2 connections themselves and block in
//! `poll(2)` when nothing moves. A segment is copied once, into a pooled buffer that is written
//! at once, and received ones are used where HTTP/2 has put them: a segment is one DATA frame, so
//! both copies stay in the cache.
// Used by the groups between processes.

mod connect;
pub(crate) mod frames;
mod handshake;
mod hello;
mod lane;
mod links;
mod pool;
#[expect(unsafe_code, reason = "each use says why it is sound")]
mod raw;
mod socket;
mod stream;
#[cfg(test)]
mod tests;
mod transport;

pub(crate) use connect::{DataListener, DataTls, LinkConfig, MESSAGE_BYTES_MIN};
pub(crate) use links::{Links, max_segment_bytes};
pub(crate) use transport::GrpcTransport;
