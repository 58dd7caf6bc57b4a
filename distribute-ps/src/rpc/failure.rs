//! Why there is no connection, and how one ended.

use std::io;
use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};

use serde::{Deserialize, Serialize};

/// Why there is no connection.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub(crate) enum ConnectError {
    /// The process is not one of this job: token, certificate, version or kind. No use to retry.
    #[error("refused: {0}")]
    Refused(String),
    /// No process answers there; one may later.
    #[error("unavailable: {0}")]
    Unavailable(String),
}

distribute_error::debug_as_message!(ConnectError);

/// How a connection ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConnectionEnd {
    /// The other side closed it.
    #[error("its process ended (connection closed)")]
    Gone,
    /// The other side no longer answers keep-alive pings.
    #[error("it does not answer keep-alive pings (stopped, or cut off)")]
    Silent,
    /// Anything else, in the words of the innermost cause.
    #[error("the connection to it broke ({0})")]
    Broken(String),
}

impl ConnectionEnd {
    pub(crate) fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        if error.downcast_ref().is_some_and(hyper::Error::is_timeout) {
            return Self::Silent;
        }
        let chain = || std::iter::successors(Some(error), |error| error.source());
        let io_kind = |error: &(dyn std::error::Error + 'static)| {
            let wrapped = error.downcast_ref().and_then(h2::Error::get_io);
            let found = wrapped.or_else(|| error.downcast_ref());
            found.map(io::Error::kind)
        };
        match chain().find_map(io_kind) {
            Some(ConnectionReset | BrokenPipe | UnexpectedEof) => Self::Gone,
            _ => chain()
                .last()
                .map_or(Self::Gone, |innermost| Self::Broken(innermost.to_string())),
        }
    }
}
