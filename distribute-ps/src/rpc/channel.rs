//! One HTTP/2 connection, as the dialling side has it.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use http::uri::{Authority, Scheme};
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use tonic::body::Body;
use tower_service::Service;

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

distribute_core::wrap_errors!(Step: ConnectError);

/// One connection to a process of the job; what generated tonic clients run over.
///
/// Cheap to clone. It never reconnects: when [`closed`](Self::closed) says why it ended, connect
/// again. The connection ends when the last clone is dropped.
#[derive(Clone)]
pub struct Channel {
    pub(super) requests: SendRequest<Body>,
    pub(super) authority: Authority,
    pub(super) closed: Arc<OnceLock<ConnectionEnd>>,
}

impl Channel {
    /// Why the connection ended; `None` while it lives.
    pub fn closed(&self) -> Option<ConnectionEnd> {
        match self.closed.get() {
            Some(end) => Some(end.clone()),
            None if self.requests.is_closed() => Some(ConnectionEnd::Gone),
            None => None,
        }
    }
}

/// How a connection ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionEnd {
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
        let is_timeout = |error: &hyper::Error| error.is_timeout();
        if error.downcast_ref::<hyper::Error>().is_some_and(is_timeout) {
            return Self::Silent;
        }
        let chain = || std::iter::successors(Some(error), |error| error.source());
        let io_kind = |error: &(dyn std::error::Error + 'static)| {
            let wrapped = error.downcast_ref().and_then(h2::Error::get_io);
            let found = wrapped.or_else(|| error.downcast_ref());
            found.map(io::Error::kind)
        };
        match chain().find_map(io_kind) {
            Some(io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => Self::Gone,
            _ => chain()
                .last()
                .map_or(Self::Gone, |innermost| Self::Broken(innermost.to_string())),
        }
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
