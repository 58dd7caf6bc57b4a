//! Dialling: one HTTP/2 connection, past the handshake.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use distribute_core::collectives::control::peers;
use http::uri::{Authority, Scheme};
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tonic::body::Body;
use tower_service::Service;

use crate::rpc::{
    CONNECTION_WINDOW, FRAME_BYTES, HEADER_LIST_BYTES, RpcOptions, SEND_BUFFER, STREAM_WINDOW,
    handshake,
};

/// Why there is no connection.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The process is not one of this job: token, certificate, version or kind. No use to retry.
    #[error("refused: {0}")]
    Refused(String),
    /// No process answers there; one may later.
    #[error("unavailable: {0}")]
    Unavailable(String),
}

distribute_error::debug_as_message!(ConnectError);

impl From<ConnectError> for distribute_core::Error {
    fn from(error: ConnectError) -> Self {
        Self::step(error)
    }
}

/// One connection to a process of the job; what generated tonic clients run over.
///
/// Cheap to clone. It never reconnects: when [`closed`](Self::closed) says why it ended, connect
/// again. The connection ends when the last clone is dropped.
#[derive(Clone)]
pub struct Channel {
    requests: SendRequest<Body>,
    authority: Authority,
    closed: Arc<OnceLock<String>>,
}

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
                .map_err(|error| ConnectError::Unavailable(reason_of(&error)))?;
            let closed = Arc::new(OnceLock::new());
            let note = closed.clone();
            tokio::spawn(async move {
                let ended = driver.await;
                let reason = ended.map_or_else(|error| reason_of(&error), |()| gone());
                let _ = note.set(reason);
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

    /// Why the connection ended; `None` while it lives.
    pub fn closed(&self) -> Option<String> {
        match self.closed.get() {
            Some(reason) => Some(reason.clone()),
            None if self.requests.is_closed() => Some(gone()),
            None => None,
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

fn gone() -> String {
    "its process ended (connection closed)".to_string()
}

/// The innermost cause in words.
pub(crate) fn reason_of(error: &(dyn std::error::Error + 'static)) -> String {
    let is_timeout = |error: &hyper::Error| error.is_timeout();
    if error.downcast_ref::<hyper::Error>().is_some_and(is_timeout) {
        return "it does not answer keep-alive pings (stopped, or cut off)".to_string();
    }
    let chain = std::iter::successors(Some(error), |error| error.source());
    let innermost = chain.last().map(ToString::to_string);
    match innermost {
        Some(text) if text.contains("reset by peer") || text.contains("broken pipe") => gone(),
        Some(text) => format!("the connection to it broke ({text})"),
        None => gone(),
    }
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = hyper::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.requests.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let mut parts = std::mem::take(request.uri_mut()).into_parts();
        parts.scheme.get_or_insert(Scheme::HTTP);
        parts
            .authority
            .get_or_insert_with(|| self.authority.clone());
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
        Box::pin(self.requests.send_request(request))
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("authority", &self.authority)
            .field("closed", &self.closed())
            .finish_non_exhaustive()
    }
}
