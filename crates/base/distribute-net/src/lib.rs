//! Trust between the processes of a job: token, certificates, addresses, and one handshake.
//!
//! - [`security`]: the job's token and certificates, and what they allow.
//! - [`address`]: addresses, and the sockets that are bound to them.
//! - [`handshake`]: the first messages of every connection, for every transport.
//! - `exchange` (feature `tokio`): the handshake on connections that carry bytes.
//! - [`certificate`] and [`calendar`]: the hosts and the dates of a certificate.
//! - [`pending`]: how much a port grants to unauthenticated connections.
//! - [`compute_clock`]: a clock of the time in which this process could compute, for waits for
//!   signs of life.
//! - [`shortage`]: what this process lacks for a connection.
//! - `peers` (feature `tokio`): connections with or without TLS, and the gate for unauthenticated
//!   peers.
#![forbid(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

pub mod address;
#[cfg(feature = "tokio")]
mod backlog;
pub mod calendar;
pub mod certificate;
pub mod compute_clock;
#[cfg(feature = "tokio")]
mod connection;
mod credentials;
#[cfg(feature = "tokio")]
mod crowd;
mod error;
#[cfg(feature = "tokio")]
pub mod exchange;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(feature = "tokio")]
mod gate;
pub mod handshake;
mod machine_load;
#[cfg(feature = "tokio")]
mod pacing;
#[cfg(feature = "tokio")]
pub mod peers;
pub mod pending;
pub mod security;
pub mod shortage;
#[cfg(feature = "tokio")]
pub mod tls;

pub use error::{NetError, Result};

/// Random bytes that cannot be guessed.
///
/// # Errors
/// [`NetError::NoRandomNumbers`] when the system has none.
pub fn random<const BYTES: usize>() -> Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(|error| NetError::NoRandomNumbers {
        reason: error.to_string(),
    })?;
    Ok(bytes)
}

/// As [`random`], as hexadecimal digits: two for each byte.
///
/// # Errors
/// As `random`.
pub fn random_hex<const BYTES: usize>() -> Result<String> {
    Ok(hex::encode(random::<BYTES>()?))
}
