//! One attempt to reach a process, and its outcome.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// An attempt of one process to reach another one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Attempt {
    /// Who was to be reached.
    pub rank: usize,
    /// The address that was tried, as it is known.
    pub address: String,
    /// The same, resolved; `None` if it does not resolve.
    pub resolved: Option<SocketAddr>,
    /// The address of this end, by the routes of the host.
    pub from: Option<IpAddr>,
    /// The interface that has this address.
    pub interface: Option<String>,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Whether the process was reached, or why not.
    pub outcome: Outcome,
}

/// The outcome of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind", content = "detail")]
#[non_exhaustive]
pub enum Outcome {
    /// The process answered, and has proven that it is of this job.
    Reached,
    /// No address is known.
    Unknown,
    /// The name does not resolve, or it is no address.
    Unresolved(String),
    /// The host refuses the connection: no process listens there.
    Refused,
    /// Nothing came back in the time for an attempt.
    NoAnswer,
    /// This host has no way there, or may not use it.
    NoRoute(String),
    /// This host lacks something for a connection.
    Lacking(String),
    /// The connection was accepted, and then nothing came in the time for an answer.
    Silent,
    /// The connection was accepted and ended.
    Closed(String),
    /// Another kind of program answers.
    NotDoctor(String),
    /// It does not accept this process, or this process not it: token, certificates, versions.
    Untrusted(String),
    /// A process of another rank answers.
    OtherRank(u32),
}

impl Outcome {
    /// Whether the process was reached.
    pub fn is_reached(&self) -> bool {
        *self == Self::Reached
    }
}
