//! Dialling: a connection, past the handshake.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use distribute_net::peers;
use hyper::client::conn::http2::Builder;
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::rpc::channel::Channel;
use crate::rpc::clock::{ComputeTimer, within};
use crate::rpc::failure::{ConnectError, ConnectionEnd};
use crate::rpc::handshake;
use crate::rpc::heard::LastHeard;
use crate::rpc::{
    CONNECTION_WINDOW, FRAME_BYTES, HEADER_LIST_BYTES, RpcOptions, SEND_BUFFER, STREAM_WINDOW,
};

impl Channel {
    /// Connects to `host:port` within the timeout, by the options' clock. Call it inside of a tokio
    /// runtime, which drives the connection from then on.
    ///
    /// # Errors
    /// Why there is no connection.
    pub(crate) async fn connect(
        address: &str,
        options: &RpcOptions,
        timeout: Duration,
    ) -> Result<Self, ConnectError> {
        match within(&options.clock, timeout, Self::open(address, options)).await {
            Some(opened) => opened,
            None => Err(ConnectError::Unavailable(format!(
                "it does not answer within {timeout:.1?} (a firewall? Let connections from this \
                 host to {address} pass)"
            ))),
        }
    }

    async fn open(address: &str, options: &RpcOptions) -> Result<Self, ConnectError> {
        let uri = format!("http://{address}/")
            .parse()
            .map_err(|error| ConnectError::Unavailable(format!("bad address: {error}")))?;
        let connected = peers::connect(address, &options.security).await;
        let mut connection =
            connected.map_err(|(reason, is_certificate)| match is_certificate {
                true => ConnectError::Refused(reason),
                false => ConnectError::Unavailable(reason),
            })?;
        handshake::dial(&mut connection, options).await?;
        let heard = LastHeard::new(options);
        let connection = heard.clone().listening(connection);
        let ended = |error| ConnectError::Unavailable(ConnectionEnd::of(&error).to_string());
        let begun = builder(options).handshake(TokioIo::new(connection));
        let (requests, driver) = begun.await.map_err(ended)?;
        let closed = Arc::new(OnceLock::new());
        let note = closed.clone();
        tokio::spawn(async move {
            let ended = driver.await;
            let _ = note.set(match ended {
                Ok(()) => ConnectionEnd::Gone,
                Err(error) => ConnectionEnd::of(&error),
            });
        });
        Ok(Self {
            requests,
            address: uri,
            closed,
            heard,
        })
    }
}

fn builder(options: &RpcOptions) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .timer(ComputeTimer(options.clock.clone()))
        .keep_alive_interval(options.keepalive_interval)
        .keep_alive_timeout(options.keepalive_timeout)
        .keep_alive_while_idle(true)
        .max_frame_size(FRAME_BYTES)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(HEADER_LIST_BYTES);
    builder
}
