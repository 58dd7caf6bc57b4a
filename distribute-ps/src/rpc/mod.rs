//! Calls between the processes of a job: one way to listen, one way to dial, for servers and
//! workers alike.
//!
//! Every connection begins with a handshake in which both sides prove that they know the job's
//! token, and which service they want from which process; HTTP/2 follows. [`RpcListener`] answers
//! calls, [`Channel`] is what they are made over.

mod channel;
pub(crate) mod clock;
mod dial;
pub(crate) mod driver;
mod failure;
mod handshake;
mod heard;
mod listen;
pub(crate) mod message;
mod peer;
pub(crate) mod rope;

use std::sync::Arc;
use std::time::Duration;

use distribute_net::compute_clock::ComputeClock;
use distribute_net::handshake::Purpose;
use distribute_net::security::Security;

pub(crate) use channel::Channel;
pub(crate) use failure::{ConnectError, ConnectionEnd};
pub(crate) use heard::{LastHeard, POLL_INTERVAL};
#[cfg(test)]
pub(crate) use listen::Answer;
pub(crate) use listen::{RpcListener, RpcServer};
pub(crate) use peer::Peer;

/// The version of the messages; both sides must have the same.
pub(crate) const PROTOCOL_VERSION: u32 = 7;

/// The largest DATA frame: one piece of a payload.
pub(crate) const FRAME_BYTES: u32 = 256 << 10;
/// What a listening process lets a peer have under way on one call.
const STREAM_WINDOW: u32 = 1 << 20;
/// Calls that one connection may have under way.
const CONCURRENT_CALLS_MAX: u32 = 256;
/// The same on one connection: room for all of its calls, so that those which
/// wait, and are not read meanwhile, never keep out the one that they wait for.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * CONCURRENT_CALLS_MAX;
/// What a dialling process lets a peer have under way on one answer, and on one connection: answers
/// are all read as they come.
const ANSWER_WINDOW: u32 = 4 << 20;
const ANSWERS_WINDOW: u32 = 16 << 20;
const SEND_BUFFER: usize = 1 << 20;
const HEADER_LIST_BYTES: u32 = 16 << 10;

/// Others wait for what a call holds while its payload is read: a peer that lives and does not send
/// must not hold it for ever.
pub(crate) const PROGRESS_TIMEOUT: Duration = Duration::from_secs(10);

/// How connections behave, on both sides.
#[derive(Debug, Clone)]
pub(crate) struct RpcOptions {
    /// Token and certificates; none by default.
    pub(crate) security: Security,
    /// How often the other side is asked for a sign of life; 1 s by default.
    pub(crate) keepalive_interval: Duration,
    /// How long the answer may take before the connection is given up; 3 s by default.
    pub(crate) keepalive_timeout: Duration,
    /// How long a payload that this process reads as a listener may take for each MiB, or for what
    /// is left of it; 10 s by default.
    pub(crate) progress_timeout: Duration,
    /// What the listening process is.
    pub(crate) purpose: Purpose,
    /// Its number within its kind, if it is known: the listening side sends it, the
    /// dialling side says which one it wants, and both compare.
    pub(crate) task: Option<usize>,
    /// The clock of the thread that drives the connections, by which they wait.
    pub(crate) clock: Arc<ComputeClock>,
    /// What this process says that it speaks; tests are of another version by it.
    pub(crate) protocol_version: u32,
}

impl RpcOptions {
    /// The defaults for a process of this kind and number with these credentials.
    pub(crate) fn new(purpose: Purpose, task: Option<usize>, security: Security) -> Self {
        Self {
            security,
            keepalive_interval: Duration::from_secs(1),
            keepalive_timeout: Duration::from_secs(3),
            progress_timeout: PROGRESS_TIMEOUT,
            purpose,
            task,
            clock: clock::new_clock(),
            protocol_version: PROTOCOL_VERSION,
        }
    }
}

/// What a process is called in messages: "worker 1", or "worker" where its number is not known.
pub(crate) fn name(purpose: Purpose, task: Option<usize>) -> String {
    match task {
        Some(task) => format!("{purpose} {task}"),
        None => purpose.to_string(),
    }
}
