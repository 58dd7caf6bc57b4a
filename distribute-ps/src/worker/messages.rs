//! What the coordinator and a worker say to each other.
//!
//! The coordinator makes one call to each worker and keeps it. It begins with `Attach`, which the
//! worker answers with `Welcome` or `Refused`. Then the coordinator sends one closure after the
//! other and gets one `Outcome` for each. A worker that does not reach a parameter server which the
//! coordinator reaches gets none until it has answered `CheckServers` well. When the call ends
//! without `Finish`, the worker drops what it has not begun, asks what is running to stop, and
//! waits for the next call.

use std::collections::BTreeMap;

use distribute_core::Configuration;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::error::PsError;
use crate::rpc::ConnectError;
use crate::update::RunId;

/// From the coordinator; `A` is the bytes of arguments, which are sent from where they lie.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order<A = ByteBuf> {
    Attach(Attach),
    Execute(Execute<A>),
    /// Stop this closure as soon as it looks.
    Cancel(u64),
    /// Ask all parameter servers for a sign of life.
    CheckServers,
    /// The job is done: the worker need not wait for another coordinator. Also the first and only
    /// message of a call to a worker that has none now.
    Finish {
        /// Why the coordinator gave up; empty if it did not.
        failure: String,
        run: RunId,
    },
}

/// From the worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    Welcome(Welcome),
    /// Why the call fails or ends.
    Refused(ConnectError),
    Outcome {
        closure: u64,
        /// The result in MessagePack, or its error as
        /// [`sendable`](crate::wire_error::sendable) makes it.
        outcome: Result<ByteBuf, PsError>,
    },
    /// Whether the worker reaches all parameter servers.
    Servers(Result<(), PsError>),
}

/// The identity of the coordinator.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Attach {
    pub(crate) run: RunId,
    /// The worker's index, as the coordinator knows it, and the number of workers.
    pub(crate) worker: usize,
    pub(crate) workers: usize,
    /// The addresses of the parameter servers, in order.
    pub(crate) parameter_servers: Vec<String>,
    /// The most bytes of a result that the coordinator takes.
    pub(crate) max_message_bytes: usize,
    /// What the program says that all processes must have the same.
    pub(crate) configuration: Configuration,
}

/// The identity of the worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// The steps that it has registered, sorted: the coordinator must have the same.
    pub(crate) steps: Vec<String>,
    /// The most bytes of a closure's arguments that the worker takes.
    pub(crate) max_message_bytes: usize,
    /// As in `Attach`. If they differ, no closure follows: the coordinator fails, and the worker
    /// ends with the call.
    pub(crate) configuration: Configuration,
}

/// Run a step.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Execute<A = ByteBuf> {
    /// The closure's id: the same when it runs again after its worker was lost.
    pub(crate) closure: u64,
    pub(crate) step: String,
    /// In MessagePack.
    pub(crate) arguments: A,
    /// How often each dataset was made anew.
    pub(crate) datasets: BTreeMap<String, u64>,
}
