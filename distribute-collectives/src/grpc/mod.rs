//! Data connections: ordinary gRPC on the wire, driven by the thread that calls an operation.
//!
//! A *lane* is one of the data connections between two ranks: a TCP connection, to which the lower
//! rank listens. It carries HTTP/2 (the crate `h2`) with a handshake, and then one bidirectional
//! stream:
//!
//! ```proto
//! syntax = "proto3";
//! package distribute.v1;
//!
//! service Collectives {
//!   // The first two texts of the handshake (see `distribute_net::handshake`), in the metadata
//!   // distribute-handshake of the request and of the response.
//!   rpc Handshake(Nothing) returns (Nothing);
//!   // Segments in both directions for as long as the group lives. Metadata of the request:
//!   // distribute-handshake, with the last text. A peer that does not belong here is answered
//!   // UNAUTHENTICATED or FAILED_PRECONDITION.
//!   rpc Exchange(stream Segment) returns (stream Segment);
//! }
//! // Segment is not a protobuf message: 64 bytes of header (see `wire`), then the payload.
//! ```
//!
//! There is no thread and no reactor. [`Links::send`](links::Links::send) and
//! [`Links::receive`](links::Links::receive) poll the HTTP/2 connections themselves and block in
//! `poll(2)` when nothing moves. A segment is written from where it lies, and only what the kernel
//! does not take at once is copied (see [`lent_bytes`]). Received segments are used where HTTP/2
//! has put them: a segment is one DATA frame, so they stay in the cache.
// Used by the groups between processes.

pub(crate) mod config;
mod connect;
pub(crate) mod frames;
mod handshake;
mod hello;
mod lane;
#[expect(unsafe_code, reason = "each use says why it is sound")]
mod lent_bytes;
mod links;
mod pool;
#[expect(unsafe_code, reason = "each use says why it is sound")]
mod raw;
mod socket;
mod stall;
mod stream;
#[cfg(test)]
mod tests;
mod transport;

pub(crate) use config::{DataTls, LinkConfig, MESSAGE_BYTES_MIN};
pub(crate) use connect::DataListener;
pub(crate) use links::{Links, max_segment_bytes};
pub(crate) use stall::stall_limit;
pub(crate) use transport::GrpcTransport;
