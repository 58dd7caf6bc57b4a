//! What the processes say to each other after the handshake: JSON, preceded by its length.
//!
//! The dialling side begins with [`Opening`]. On a session, which a process has with rank 0, rank 0
//! gives [`Order`]s and the process answers each with one [`Answer`].

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use distribute_net::exchange::{receive_text, send_text};
use distribute_net::peers::Connection;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::attempt::Attempt;
use crate::facts::Facts;
use crate::interfaces::Interface;
use crate::measure::Figures;

/// The version of these messages.
pub(crate) const VERSION: u32 = 1;
/// The longest message.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Lists of addresses of more ranks are not compared.
pub(crate) const LISTED_MAX: usize = 256;

/// The first message of the side that dialled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Opening {
    /// A process comes to rank 0.
    Join(Box<Card>),
    /// Rank 0 comes to a process that has not come by itself.
    Lead,
    /// Does this port answer?
    Probe,
    /// What follows are measurements.
    Measure,
}

/// The answer to an opening.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reply {
    /// Goes on with it.
    Welcome,
    /// Refuses it.
    Refused(String),
    /// To [`Opening::Lead`]: who this is.
    Here(Box<Card>),
}

/// What a process tells rank 0 of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Card {
    pub(crate) rank: usize,
    /// Its task, such as `worker 1`.
    pub(crate) name: String,
    /// Where the others are to reach it, as far as it knows.
    pub(crate) address: Option<String>,
    /// The address that its socket is bound to.
    pub(crate) listens_at: Option<IpAddr>,
    /// Why it does not listen.
    pub(crate) trouble: Option<String>,
    /// The address from which it reaches rank 0.
    pub(crate) from: Option<IpAddr>,
    /// Why it could not reach rank 0, if rank 0 came to it.
    pub(crate) leader: Option<Attempt>,
    /// The list of addresses that it was given, if that is not long.
    pub(crate) listed: Vec<Option<String>>,
    pub(crate) facts: Facts,
    pub(crate) interfaces: Vec<Interface>,
}

/// Whom to reach. The address is the one in the process' own list, else this one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Target {
    pub(crate) rank: usize,
    pub(crate) address: Option<String>,
}

/// An order of rank 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Order {
    /// What time is it?
    Time,
    /// Tries to reach these ranks, at their addresses.
    Reach(Vec<Target>),
    /// Measures the way to a rank, for about so long.
    Measure(Target, Duration),
    /// It is over; the number of problems that were found.
    Done(usize),
}

/// The answer to an order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// Nanoseconds since 1970.
    Time(u64),
    /// All attempts.
    Reached(Vec<Attempt>),
    /// Figures, or why there are none.
    Measured(Result<Figures, String>),
    /// It heard that it is over.
    Done,
}

/// Sends a message.
pub(crate) async fn send(
    connection: &mut Connection,
    message: &impl Serialize,
    limit: Duration,
) -> io::Result<()> {
    let text = serde_json::to_string(message)?;
    timeout(limit, send_text(connection, &text)).await?
}

/// Receives a message within the limit.
pub(crate) async fn receive<T: DeserializeOwned>(
    connection: &mut Connection,
    limit: Duration,
) -> io::Result<T> {
    let text = timeout(limit, receive_text(connection, MESSAGE_BYTES_MAX)).await??;
    Ok(serde_json::from_str(&text)?)
}
