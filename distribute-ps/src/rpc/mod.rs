//! gRPC between the processes of a job: one way to listen, one way to dial, for servers and
//! workers alike.
//!
//! Every connection begins with a handshake in which both sides prove that they know the job's
//! token and name their version; no other call is answered before. [`RpcListener`] serves tonic
//! services behind it, [`Channel`] is what generated clients run over.

mod channel;
mod dial;
mod handshake;
mod listen;
pub(crate) mod message;
mod peer;
pub(crate) mod rope;

use std::time::Duration;

use distribute_core::collectives::control::security::Security;

pub use channel::{Channel, ConnectError, ConnectionEnd};
pub use listen::{RpcListener, RpcServer};
pub use peer::Peer;

/// The version of the messages; both sides must have the same.
pub const PROTOCOL_VERSION: u32 = 2;

/// The largest DATA frame: one piece of a payload.
pub(crate) const FRAME_BYTES: u32 = 256 << 10;
/// What a peer may have under way on one call, and on one connection.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
const SEND_BUFFER: usize = 1 << 20;
const HEADER_LIST_BYTES: u32 = 16 << 10;

/// How connections behave, on both sides.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RpcOptions {
    /// Token and certificates; none by default.
    pub security: Security,
    /// How often the other side is asked for a sign of life; 1 s by default.
    pub keepalive_interval: Duration,
    /// How long the answer may take before the connection is given up; 3 s by default.
    pub keepalive_timeout: Duration,
    /// What the listening process is, for the handshake: `parameter server`, `worker`.
    pub service: &'static str,
    /// Calls that one connection may have under way; 256 by default.
    pub max_concurrent_calls: u32,
    /// Bytes of payloads that the calls of one connection may hold in the server's memory before
    /// they are used; 4 GiB by default.
    pub connection_bytes: u64,
    /// What this process says that it speaks; tests are of another version by it.
    pub(crate) protocol_version: u32,
}

impl Default for RpcOptions {
    fn default() -> Self {
        Self {
            security: Security::default(),
            keepalive_interval: Duration::from_secs(1),
            keepalive_timeout: Duration::from_secs(3),
            service: "parameter server",
            max_concurrent_calls: 256,
            connection_bytes: 4 << 30,
            protocol_version: PROTOCOL_VERSION,
        }
    }
}

impl RpcOptions {
    /// The defaults for a service of this kind with these credentials.
    pub fn new(service: &'static str, security: Security) -> Self {
        Self {
            security,
            service,
            ..Self::default()
        }
    }
}
