//! One HTTP/2 connection, as the dialling side has it.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::{Method, Request, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;

use crate::rpc::failure::ConnectionEnd;
use crate::rpc::heard::LastHeard;
use crate::rpc::message::{Outgoing, ReadError, Reader};

/// One connection to a process of the job.
///
/// Cheap to clone. It never reconnects: when [`closed`](Self::closed) says why it ended, connect
/// again. The connection ends when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct Channel {
    pub(super) requests: SendRequest<Outgoing>,
    pub(super) address: Uri,
    pub(super) closed: Arc<OnceLock<ConnectionEnd>>,
    pub(super) heard: LastHeard,
}

impl Channel {
    /// Makes a call; what the other side answers is read from the result.
    pub(crate) async fn call(&mut self, body: Outgoing) -> Result<Reader<Incoming>, ReadError> {
        let broken = |error: hyper::Error| ReadError::Broken(ConnectionEnd::of(&error));
        let mut request = Request::new(body);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.address.clone();
        self.requests.ready().await.map_err(broken)?;
        let response = self.requests.send_request(request).await.map_err(broken)?;
        match response.status() {
            status if status.is_success() => Ok(Reader::new(response.into_body())),
            status => Err(ReadError::Nonsense(format!("it answers HTTP {status}"))),
        }
    }

    /// For how long nothing was heard of the other side, if that is longer than usual.
    pub(crate) fn silence(&self) -> Option<Duration> {
        self.heard.silence()
    }

    /// Why the connection ended; `None` while it lives.
    pub(crate) fn closed(&self) -> Option<ConnectionEnd> {
        match self.closed.get() {
            Some(end) => Some(end.clone()),
            None if self.requests.is_closed() => Some(ConnectionEnd::Gone),
            None => None,
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("address", &self.address)
            .field("closed", &self.closed())
            .finish_non_exhaustive()
    }
}
