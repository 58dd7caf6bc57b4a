//! A worker that listens for the coordinator.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use distribute_core::collectives::control::security::Security;
use tokio::sync::oneshot;
use tonic::transport::Server;

use super::desk::Desk;
use super::generated::worker_server::WorkerServer as Served;
use super::registry::StepRegistry;
use super::service::Service;
use crate::client::ClientOptions;
use crate::coordinator::OVERHEAD;
use crate::error::{PsError, Result};

/// Limits, deadlines and credentials of a [`WorkerServer`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WorkerOptions {
    /// Token and certificates; none by default.
    pub security: Security,
    /// How steps speak with the parameter servers. Its credentials are those of `security`.
    pub client: ClientOptions,
    /// The most bytes of one closure's arguments, and of its result; 64 MiB by default.
    pub max_message_bytes: usize,
    /// How long the worker waits for a coordinator, at the start and when it has lost one; 10
    /// minutes by default.
    pub coordinator_timeout: Duration,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            security: Security::default(),
            client: ClientOptions::default(),
            max_message_bytes: 64 << 20,
            coordinator_timeout: Duration::from_secs(600),
        }
    }
}

/// A worker that listens for the coordinator, and runs the closures that it sends.
///
/// One coordinator at a time: another one is turned away until the first has ended or is lost.
/// Dropping it closes the connection and ends its thread.
pub struct WorkerServer {
    desk: Arc<Desk>,
    address: SocketAddr,
    /// Dropped to end the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Ends a [`WorkerServer`] from another thread. Cheap to clone.
#[derive(Clone)]
pub struct WorkerStopper(Arc<Desk>);

impl WorkerStopper {
    /// [`WorkerServer::serve`] returns when the closure that runs has ended.
    pub fn stop(&self) {
        self.0.end(Ok(()));
    }
}

impl WorkerServer {
    /// Listens at `host:port` (port 0 takes a free one). From then on a coordinator can connect;
    /// closures run when [`serve`](Self::serve) is called.
    ///
    /// # Errors
    /// [`PsError::InvalidArgument`] for an address that does not resolve or that other hosts can
    /// reach without token and TLS, [`PsError::System`] if it is in use or not of this host.
    pub fn bind(
        address: &str,
        registry: Arc<StepRegistry>,
        options: WorkerOptions,
    ) -> Result<Self> {
        let no_socket = |error| PsError::system(format!("cannot listen at {address}"), error);
        let resolved = address.to_socket_addrs().map_err(no_socket)?.next();
        let resolved = resolved.ok_or_else(|| PsError::invalid(format!("no address {address}")))?;
        let socket = TcpListener::bind(resolved).map_err(no_socket)?;
        socket.set_nonblocking(true).map_err(no_socket)?;
        let local = socket.local_addr().map_err(no_socket)?;
        let mut client = options.client;
        client.security = options.security.clone();
        let desk = Arc::new(Desk::new(
            options.max_message_bytes,
            options.coordinator_timeout,
        ));
        let service = Service {
            desk: desk.clone(),
            registry,
            client,
        };
        let limit = options.max_message_bytes.saturating_add(OVERHEAD);
        let served = Served::new(service)
            .max_decoding_message_size(limit)
            .max_encoding_message_size(limit);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| PsError::system("cannot start the worker's runtime", error))?;
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = async move {
            let socket = tokio::net::TcpListener::from_std(socket)?;
            let incoming = tokio_stream::wrappers::TcpListenerStream::new(socket);
            let serving = Server::builder()
                .tcp_nodelay(true)
                .http2_keepalive_interval(Some(Duration::from_secs(5)))
                .http2_keepalive_timeout(Some(Duration::from_secs(15)))
                .add_service(served)
                .serve_with_incoming(incoming);
            tokio::select! {
                served = serving => served.map_err(std::io::Error::other),
                _ = stopped => Ok(()),
            }
        };
        let thread = thread::Builder::new()
            .name("ps-worker".to_string())
            .spawn(move || {
                let served = runtime.block_on(serving);
                if let Err(error) = served {
                    tracing::error!(%error, "the worker's connections ended");
                }
            })
            .map_err(|error| PsError::system("cannot start a thread of the worker", error))?;
        Ok(Self {
            desk,
            address: local,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What ends it from another thread.
    pub fn stopper(&self) -> WorkerStopper {
        WorkerStopper(self.desk.clone())
    }

    /// Runs closures on this thread until the coordinator is done.
    ///
    /// # Errors
    /// [`PsError::CoordinatorFailed`] if the coordinator gave up, [`PsError::Deadline`] if none
    /// has come (back) within [`coordinator_timeout`](WorkerOptions::coordinator_timeout).
    pub fn serve(self) -> Result<()> {
        self.desk.work()
    }
}

impl Drop for WorkerServer {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.desk.forget();
    }
}
