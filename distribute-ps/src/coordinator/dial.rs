//! How the coordinator reaches a worker.

use std::io;

use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use super::link::{Failed, PATIENCE};
use super::shared::Shared;

/// A connection to the worker.
pub(super) async fn dial(shared: &Shared, worker: usize) -> Result<Channel, Failed> {
    let address = &shared.addresses[worker];
    let options = &shared.options;
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| Failed::Refused(format!("the address cannot be used: {error}")))?
        .connect_timeout(PATIENCE)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(options.keepalive_interval)
        .keep_alive_timeout(options.keepalive_timeout)
        .keep_alive_while_idle(true);
    match tokio::time::timeout(PATIENCE, endpoint.connect()).await {
        Err(_) => Err(Failed::Later(
            "no answer to the attempt to connect".to_string(),
        )),
        Ok(Err(error)) => Err(Failed::Later(error.to_string())),
        Ok(Ok(channel)) => Ok(channel),
    }
}

/// What a broken stream says about the worker.
pub(super) fn why_ended(status: &Status) -> String {
    let chain = || std::iter::successors(std::error::Error::source(status), |e| e.source());
    let found = chain().find_map(|error| error.downcast_ref::<io::Error>().map(io::Error::kind));
    match found {
        Some(
            io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::UnexpectedEof,
        ) => "its process ended (connection closed)".to_string(),
        _ => {
            let innermost = chain().last().map(|error| error.to_string());
            let text = innermost.unwrap_or_else(|| status.message().to_string());
            format!("the connection to it broke ({text})")
        }
    }
}
