//! How much a port grants to connections whose peers are not authenticated yet.

/// How many bytes of a connection are read before its peer is authenticated: more than a
/// handshake needs, certificates included. An unauthenticated peer's bytes take no more memory than
/// this.
pub const UNPROVEN_BYTES_MAX: usize = 64 << 10;
/// What all unauthenticated connections of a port hold at most: their bytes, and what each of them
/// costs without any.
#[cfg(feature = "tokio")]
pub(crate) const UNPROVEN_BYTES_OF_ALL_MAX: usize = 4 << 20;
/// How many unauthenticated connections a port may have. What they hold is counted beside it, so
/// that this is about descriptors only.
const PENDING_MAX: usize = 1024;
const PENDING_MIN: usize = 4;
/// Pending connections take at most this part of the descriptors that the process may have.
const PENDING_PART: u64 = 8;

/// How many connections of unauthenticated peers a port may keep: a flood must not take the
/// descriptors that the process needs for itself.
pub fn pending_connections_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let part = limit.map_or(u64::MAX, |limit| limit / PENDING_PART);
    let part = usize::try_from(part).unwrap_or(usize::MAX);
    part.clamp(PENDING_MIN, PENDING_MAX)
}
