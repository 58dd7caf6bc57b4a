//! Listening: tonic services behind the handshake, on a thread of their own.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use distribute_core::collectives::control::peers::{Connection, PeerListener};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::sync::watch;
use tokio_stream::StreamExt;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tower_service::Service;

use crate::error::{PsError, Result};
use crate::generated::handshake_server::HandshakeServer;
use crate::rpc::handshake::HandshakeService;
use crate::rpc::peer::{Peer, Refusals};
use crate::rpc::{
    CONNECTION_WINDOW, FRAME_BYTES, HEADER_LIST_BYTES, RpcOptions, SEND_BUFFER, STREAM_WINDOW,
};

/// Threads that calls may block, for example to apply an optimizer.
const BLOCKING_THREADS: usize = 16;

/// A socket that does not answer yet.
#[derive(Debug)]
pub struct RpcListener {
    listener: PeerListener,
    task: usize,
    options: RpcOptions,
}

impl RpcListener {
    /// Listens at `host:port`; port 0 takes a free one. `task` is the number of the process among
    /// those of its kind, for messages.
    ///
    /// # Errors
    /// [`PsError::InvalidArgument`] when the address or the credentials cannot be used.
    pub fn bind(task: usize, address: &str, options: RpcOptions) -> Result<Self> {
        let listener = PeerListener::bind(task, address, &options.security)
            .map_err(|error| PsError::invalid(format!("{} {task}: {error}", options.service)))?;
        Ok(Self {
            listener,
            task,
            options,
        })
    }

    /// The address, with the port that is in use.
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Serves from now on, on threads of its own.
    ///
    /// # Errors
    /// [`PsError::System`] when there are no more threads.
    pub fn serve(self, routes: Routes) -> Result<RpcServer> {
        let address = self.address();
        let options = Arc::new(self.options);
        let failed = |error: io::Error| PsError::system("cannot serve", error);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(BLOCKING_THREADS)
            .build()
            .map_err(failed)?;
        let handshake = HandshakeServer::new(HandshakeService {
            options: options.clone(),
        })
        .max_decoding_message_size(4096);
        let (_, health) = tonic_health::server::health_reporter();
        let routes = routes.add_service(handshake).add_service(health).prepare();
        let (stop, stopped) = watch::channel(false);
        let (listener, task) = (self.listener, self.task);
        let refusals = Arc::<Refusals>::default();
        let noted = refusals.clone();
        let thread = std::thread::Builder::new()
            .name(format!("{} {task}", options.service))
            .spawn(move || {
                let run = run(listener, routes, (options, noted), stopped);
                if let Err(error) = runtime.block_on(run) {
                    tracing::error!(%error, "cannot accept connections");
                }
            })
            .map_err(failed)?;
        Ok(RpcServer {
            address,
            stop,
            refusals,
            thread: Some(thread),
        })
    }
}

/// Services that answer. Dropping it ends them: connections are closed and threads joined.
pub struct RpcServer {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    refusals: Arc<Refusals>,
    thread: Option<JoinHandle<()>>,
}

impl RpcServer {
    /// The address that the server listens at.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl RpcServer {
    /// The last process that was turned away (its token, certificate, version or kind were wrong):
    /// its address, and why.
    pub fn last_refusal(&self) -> Option<String> {
        self.refusals.last()
    }
}

impl Drop for RpcServer {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for RpcServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = &self.address;
        f.debug_struct("RpcServer")
            .field("address", address)
            .finish_non_exhaustive()
    }
}

/// Accepts connections until it is stopped; the runtime ends the rest.
async fn run(
    listener: PeerListener,
    routes: Routes,
    (options, refusals): (Arc<RpcOptions>, Arc<Refusals>),
    mut stopped: watch::Receiver<bool>,
) -> io::Result<()> {
    let noting = refusals.clone();
    let mut incoming = listener.incoming_with(move |address, reason| {
        noting.note(address, &reason);
    })?;
    loop {
        tokio::select! {
            _ = stopped.wait_for(|stop| *stop) => return Ok(()),
            accepted = incoming.next() => match accepted {
                Some(Ok(connection)) => {
                    let peer = Peer::new(connection.guard(), &options, refusals.clone());
                    tokio::spawn(serve(connection, peer, routes.clone(), options.clone()));
                }
                Some(Err(error)) => tracing::warn!(%error, "a connection was lost"),
                None => return Ok(()),
            },
        }
    }
}

/// One connection, from its first byte to its last.
async fn serve(connection: Connection, peer: Peer, routes: Routes, options: Arc<RpcOptions>) {
    let peer = Arc::new(peer);
    let remote = peer.remote();
    let served = peer.clone();
    let service = service_fn(move |request| answer(request, routes.clone(), served.clone()));
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(options.keepalive_interval)
        .keep_alive_timeout(options.keepalive_timeout)
        .max_frame_size(FRAME_BYTES)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(options.max_concurrent_calls)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(HEADER_LIST_BYTES);
    if let Err(error) = builder
        .serve_connection(TokioIo::new(connection), service)
        .await
    {
        tracing::debug!(%remote, %error, "a connection ended");
        if let Some(reason) = peer.guard.certificate_refusal() {
            peer.refuse(&reason);
        }
    }
}

/// One call. Only the handshake and health checks are answered before the peer has proven itself.
async fn answer(
    mut request: Request<Incoming>,
    mut routes: Routes,
    peer: Arc<Peer>,
) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path();
    let is_open = path.starts_with("/distribute.ps.v1.Handshake/")
        || path.starts_with("/grpc.health.v1.Health/");
    if !is_open && !peer.guard.is_admitted() {
        let status = Status::unauthenticated(
            "this connection has not begun with a handshake (see proto/rpc.proto)",
        );
        return Ok(status.into_http());
    }
    request.extensions_mut().insert(peer);
    routes.call(request).await
}
