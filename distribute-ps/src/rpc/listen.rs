//! Listening: calls are answered behind the handshake, on a thread of their own.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use distribute_collectives::Interruption;
use distribute_net::address::Patience;
use distribute_net::peers::{Connection, PeerListener};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use tokio_stream::StreamExt;

use crate::error::{PsError, Result};
use crate::rpc::clock::ComputeTimer;
use crate::rpc::driver::Driver;
use crate::rpc::message::{Outgoing, Pace, Reader};
use crate::rpc::peer::Peer;
use crate::rpc::{
    self, CONCURRENT_CALLS_MAX, CONNECTION_WINDOW, FRAME_BYTES, HEADER_LIST_BYTES, RpcOptions,
    SEND_BUFFER, STREAM_WINDOW, handshake,
};

/// Longer times count as this long: sums with the clock stay in its range.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// The answer to a call.
pub(crate) type Answer = Pin<Box<dyn Future<Output = Outgoing> + Send>>;

/// Answers the calls of peers that have proven themselves.
type Handler = Arc<dyn Fn(Reader<Incoming>, Arc<Peer>) -> Answer + Send + Sync>;

/// A socket that does not answer yet.
#[derive(Debug)]
pub(crate) struct RpcListener {
    listener: PeerListener,
    options: RpcOptions,
}

impl RpcListener {
    /// Listens at `host:port`; port 0 takes a free one. A name or an address of this host that may
    /// still come is waited for, at most so long and until the interruption is raised.
    ///
    /// # Errors
    /// [`PsError::InvalidArgument`] when the address or the credentials cannot be used,
    /// [`PsError::System`] when they cannot be used now: a port that is in use.
    pub(crate) fn bind(
        address: &str,
        options: RpcOptions,
        timeout: Duration,
        interruption: &Interruption,
    ) -> Result<Self> {
        let task = options.task.unwrap_or_default();
        let name = rpc::name(options.purpose, options.task);
        let begun = Instant::now();
        let patience = Patience {
            until: begun + timeout.min(FOREVER),
            pause: &|time| !interruption.raised_within(time),
        };
        let listener = PeerListener::bind_patiently(task, address, &options.security, &patience);
        let listener = listener.map_err(|error| {
            if error.is_permanent() {
                PsError::invalid(format!("{name}: {error}"))
            } else if interruption.is_raised() {
                PsError::Interrupted {
                    task: name,
                    what: format!("its own address: {error}"),
                    waited: begun.elapsed(),
                }
            } else {
                PsError::System {
                    what: name,
                    reason: error.to_string(),
                }
            }
        })?;
        Ok(Self { listener, options })
    }

    /// The address, with the port that is in use.
    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Serves from now on, on threads of its own.
    ///
    /// # Errors
    /// [`PsError::System`] when there are no more threads.
    pub(crate) fn serve(
        self,
        handler: impl Fn(Reader<Incoming>, Arc<Peer>) -> Answer + Send + Sync + 'static,
    ) -> Result<RpcServer> {
        let address = self.address();
        let name = rpc::name(self.options.purpose, self.options.task);
        let driver = Driver::start(name, "cannot serve", self.options.clock.clone())?;
        let service = Arc::new(Service {
            address,
            options: self.options,
            handler: Arc::new(handler),
            refusals: Refusals::default(),
        });
        let refusals = service.refusals.clone();
        driver.spawn(async move {
            if let Err(error) = accept(self.listener, service).await {
                tracing::error!(%error, "cannot accept connections");
            }
        });
        Ok(RpcServer {
            address,
            refusals,
            _driver: driver,
        })
    }
}

/// What the peers of a port may call.
struct Service {
    address: SocketAddr,
    options: RpcOptions,
    handler: Handler,
    refusals: Refusals,
}

/// A possible reason why no peer has come.
#[derive(Default)]
struct Noted {
    /// The last process that was turned away: its address, and why.
    turned_away: Option<String>,
    /// What this process lacked for a connection.
    lacking: Option<String>,
}

type Refusals = Arc<Mutex<Noted>>;

fn note(refusals: &Refusals, address: impl fmt::Display, reason: &str) {
    refusals.lock().turned_away = Some(format!("{address}: {reason}"));
}

/// A port that answers. Dropping it ends it: connections are closed and threads joined.
pub(crate) struct RpcServer {
    address: SocketAddr,
    refusals: Refusals,
    _driver: Driver,
}

impl RpcServer {
    /// The address that the server listens at.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The last process that was turned away (its token, certificate, version or kind were wrong):
    /// its address, and why.
    #[cfg(test)]
    pub(crate) fn last_refusal(&self) -> Option<String> {
        self.refusals.lock().turned_away.clone()
    }

    /// A possible reason why no peer has come, as a part of a message: what this process lacks for
    /// a connection, or the last process that was turned away.
    pub(crate) fn why_no_peer(&self) -> Option<String> {
        let noted = self.refusals.lock();
        let lacking = noted
            .lacking
            .as_ref()
            .map(|why| format!("it could not take connections: {why}"));
        lacking.or_else(|| {
            let turned_away = noted.turned_away.as_ref();
            turned_away.map(|why| format!("the last process that was turned away: {why}"))
        })
    }
}

/// Accepts connections until the runtime ends.
async fn accept(listener: PeerListener, service: Arc<Service>) -> io::Result<()> {
    let noting = service.refusals.clone();
    let lacking = service.refusals.clone();
    let incoming = listener.incoming_with(
        move |address, reason| note(&noting, address, &reason),
        move |why| lacking.lock().lacking = Some(why),
    );
    let mut incoming = incoming?;
    while let Some(accepted) = incoming.next().await {
        match accepted {
            Ok(connection) => drop(tokio::spawn(serve(connection, service.clone()))),
            Err(error) => tracing::warn!(%error, "a connection was lost"),
        }
    }
    Ok(())
}

/// One connection, from its first byte to its last.
async fn serve(mut connection: Connection, service: Arc<Service>) {
    let options = &service.options;
    let remote = connection.guard().remote();
    if let Err(failure) = handshake::listen(&mut connection, options, service.address).await {
        tracing::debug!(%remote, error = %failure, "a connection came to nothing");
        if let Some(reason) = handshake::refusal(&failure) {
            tracing::warn!(%remote, reason, "a process was turned away");
            note(&service.refusals, remote, &reason);
        }
        return;
    }
    let peer = Arc::new(Peer::new(remote, options));
    let (handler, served) = (service.handler.clone(), peer.clone());
    let pace = Pace {
        clock: options.clock.clone(),
        limit: options.progress_timeout,
    };
    let calls = service_fn(move |request: Request<Incoming>| {
        let reader = Reader::new(request.into_body()).at_pace(pace.clone());
        let answer = handler(reader, served.clone());
        async { Ok::<_, Infallible>(Response::new(answer.await)) }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .timer(ComputeTimer(options.clock.clone()))
        .keep_alive_interval(options.keepalive_interval)
        .keep_alive_timeout(options.keepalive_timeout)
        .max_frame_size(FRAME_BYTES)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(CONCURRENT_CALLS_MAX)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(HEADER_LIST_BYTES);
    let connection = peer.heard().clone().listening(connection);
    let served = builder.serve_connection(TokioIo::new(connection), calls);
    if let Err(error) = served.await {
        tracing::debug!(%remote, %error, "a connection ended");
    }
}
