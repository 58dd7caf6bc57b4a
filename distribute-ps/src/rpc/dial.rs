//! Dialling: a connection, past the handshake.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use distribute_core::collectives::control::peers;
use hyper::client::conn::http2::Builder;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};

use crate::rpc::channel::{Channel, ConnectError, ConnectionEnd};
use crate::rpc::handshake;
use crate::rpc::{
    CONNECTION_WINDOW, FRAME_BYTES, HEADER_LIST_BYTES, RpcOptions, SEND_BUFFER, STREAM_WINDOW,
};

impl Channel {
    /// Connects to `host:port` within the timeout. Call it inside of a tokio runtime, which drives
    /// the connection from then on.
    ///
    /// # Errors
    /// Why there is no connection.
    pub async fn connect(
        address: &str,
        options: &RpcOptions,
        timeout: Duration,
    ) -> Result<Self, ConnectError> {
        match tokio::time::timeout(timeout, Self::open(address, options)).await {
            Ok(opened) => opened,
            Err(_) => Err(ConnectError::Unavailable(format!(
                "it does not answer within {timeout:.1?}"
            ))),
        }
    }

    async fn open(address: &str, options: &RpcOptions) -> Result<Self, ConnectError> {
        let connection = peers::connect(address, &options.security).await;
        let connection = connection.map_err(|(reason, is_certificate)| match is_certificate {
            true => ConnectError::Refused(reason),
            false => ConnectError::Unavailable(reason),
        })?;
        let guard = connection.guard();
        let authority = address
            .parse()
            .map_err(|error| ConnectError::Unavailable(format!("bad address: {error}")))?;
        let authenticated = async {
            let (requests, driver) = builder(options)
                .handshake(TokioIo::new(connection))
                .await
                .map_err(|error| {
                    ConnectError::Unavailable(ConnectionEnd::of(&error).to_string())
                })?;
            let closed = Arc::new(OnceLock::new());
            let note = closed.clone();
            tokio::spawn(async move {
                let ended = driver.await;
                let _ = note.set(match ended {
                    Ok(()) => ConnectionEnd::Gone,
                    Err(error) => ConnectionEnd::of(&error),
                });
            });
            let channel = Self {
                requests,
                authority,
                closed,
            };
            handshake::authenticate_as_client(&channel, options).await?;
            Ok(channel)
        };
        let result: Result<Self, ConnectError> = authenticated.await;
        // A certificate that the other side does not accept shows only after the TLS handshake.
        match guard.certificate_refusal() {
            Some(reason) if result.is_err() => Err(ConnectError::Refused(reason)),
            _ => result,
        }
    }
}

fn builder(options: &RpcOptions) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
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
