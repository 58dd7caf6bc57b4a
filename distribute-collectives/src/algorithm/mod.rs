//! How an operation is made of segments that travel between ranks.
//!
//! Words used in this module: the buffers of a rank are one long *vector*; a *chunk* is the part of
//! it that belongs to one rank (see [`chunk_range`](crate::chunk_range)); a *segment* is what is
//! sent at a time, at most `segment_bytes`.
//!
//! | module | algorithm | steps | bytes sent per rank (vector of `S` bytes, `P` ranks) |
//! |---|---|---|---|
//! | `ring` | ring | `2(P-1)` | `2S(P-1)/P` |
//! | `halving_doubling` | Rabenseifner on the tree | `2 log2 P` (+2, +4, ..) | `2S(P-1)/P` (+) |
//! | `hierarchical` | host, ring of hosts, host | `2 + 2(H-1)` | a host sends `2S(H-1)/H` |
//! | `direct_exchange` | everybody sends everything | 1 | `S(P-1)` |
//! | `ordered` | canonical order for ring and hierarchical | `2(P-1)` | `2S(P-1)/P` |
//!
//! With a [`WireType`](crate::WireType) two bytes travel per `f32` element, so the bytes of the
//! table are halved; that happens in `exchange`, and no algorithm knows of it but the ones that
//! add up in canonical order (see [`Exchange::round_own`]).

pub(crate) mod broadcast;
mod compression;
pub(crate) mod direct_exchange;
pub(crate) mod dissemination;
pub(crate) mod exchange;
pub(crate) mod gather;
pub(crate) mod halving_doubling;
pub(crate) mod hierarchical;
pub(crate) mod ordered;
#[cfg(feature = "grpc")]
pub(crate) mod partners;
pub(crate) mod point_to_point;
pub(crate) mod ring;

pub(crate) use exchange::Exchange;
