//! A parameter server: holds shards, applies optimizers, serves reads while others write.
//!
//! A shard is guarded by a lock that a reader holds only as long as it takes to note the pieces of
//! the value; the pieces themselves are shared, and a writer copies pieces that a reader still
//! reads. So a reader sees one version of a shard, never half an update.

mod admission;
mod apply;
#[cfg(test)]
mod broken_off;
mod clock;
mod coordinator_watch;
pub(crate) mod elements;
mod finite;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod kernels;
mod memory;
mod optimizers;
mod reservations;
mod segments;
mod service;
mod shard;
mod shard_table;
mod snapshot;
mod store;
#[cfg(test)]
mod tests;
mod wide;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use distribute_core::collectives::Interruption;
use distribute_core::collectives::control::security::Security;
use distribute_core::optim::Optimizer;
use distribute_net::handshake::Purpose;

use crate::error::Result;
use crate::rpc::{PROGRESS_TIMEOUT, RpcListener, RpcOptions, RpcServer};
use crate::server::coordinator_watch::CoordinatorWatch;
pub(crate) use crate::server::coordinator_watch::{
    CoordinatorPresence, CoordinatorTimeouts, chief,
};
use crate::server::optimizers::Optimizers;
pub(crate) use crate::server::optimizers::slots_of;
use crate::server::store::Store;

/// How often it is looked whether there is a coordinator.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Limits and credentials of a server.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServerOptions {
    /// The number of the server in the cluster. A client that takes it for another one refuses it,
    /// for it would look for other variables there. Nothing by default: that is not compared.
    pub server: Option<usize>,
    /// Token and certificates; none by default.
    pub security: Security,
    /// The largest shard in bytes; 4 GiB by default.
    pub max_shard_bytes: u64,
    /// The most bytes of one push or assignment; 4 GiB by default.
    pub max_request_bytes: u64,
    /// The most bytes of pushes, assignments and row numbers that the server holds before they are
    /// applied, of all connections together. Further calls wait, in their order, and are not read
    /// meanwhile (the first 1 MiB of each may have come, and counts for nothing); one that is
    /// larger waits until it has all. A push that waits for slower workers holds nothing, and one
    /// that has its place and sends less than 1 MiB in 10 s fails with
    /// [`PsError::Deadline`](crate::PsError::Deadline). A quarter of the memory that the process
    /// may use by default (the limit of its control group, or of the machine), at least 64 MiB and
    /// at most 4 GiB.
    pub max_payload_bytes: u64,
    /// The most bytes of all variables with their slots; 64 GiB by default.
    pub max_memory_bytes: u64,
    /// The most shards; 100,000 by default.
    pub max_variables: usize,
    /// How often a silent connection is asked for a sign of life; 1 s by default.
    pub keepalive_interval: Duration,
    /// How long the answer may take; 3 s by default.
    pub keepalive_timeout: Duration,
    /// How long [`ParameterServer::wait`] waits for the first coordinator; 30 minutes by default.
    /// Before that, how long [`ParameterServer::bind`] waits for a name or an address of this host
    /// that may still come.
    pub coordinator_timeout: Duration,
    /// How long a coordinator that has gone may stay away before [`ParameterServer::wait`] gives
    /// up; 5 minutes by default. Another coordinator that comes within this time begins a new run.
    pub orphan_timeout: Duration,
    /// What ends [`ParameterServer::wait`] before its time, such as a signal, while no coordinator
    /// is connected or it gives no sign of life. Nothing by default.
    pub interruption: Interruption,
    /// The address of the chief, for messages; not known by default.
    pub chief: Option<String>,
    pub(crate) progress_timeout: Duration,
    pub(crate) optimizers: Optimizers,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            server: None,
            security: Security::default(),
            max_shard_bytes: 4 << 30,
            max_request_bytes: 4 << 30,
            max_payload_bytes: memory::default_budget(),
            max_memory_bytes: 64 << 30,
            max_variables: 100_000,
            keepalive_interval: Duration::from_secs(1),
            keepalive_timeout: Duration::from_secs(3),
            coordinator_timeout: Duration::from_secs(1800),
            orphan_timeout: Duration::from_secs(300),
            interruption: Interruption::default(),
            chief: None,
            progress_timeout: PROGRESS_TIMEOUT,
            optimizers: Optimizers::default(),
        }
    }
}

impl ServerOptions {
    /// The defaults for server number `server` with these credentials.
    pub fn new(server: usize, security: Security) -> Self {
        Self {
            server: Some(server),
            security,
            ..Self::default()
        }
    }

    /// Teaches the server an optimizer of one's own; `build` gets its
    /// [`config`](Optimizer::config).
    #[must_use]
    pub fn optimizer(
        mut self,
        name: &str,
        build: impl Fn(&serde_json::Value) -> Result<Arc<dyn Optimizer>> + Send + Sync + 'static,
    ) -> Self {
        self.optimizers.insert(name, build);
        self
    }
}

/// A server that runs. Dropping it ends it: connections are closed and threads joined.
pub struct ParameterServer {
    server: RpcServer,
    store: Arc<Store>,
}

impl ParameterServer {
    /// Listens at `host:port` (port 0 takes a free one) and serves from then on. A name that does
    /// not resolve yet, and an address that this host has not got yet, are waited for.
    ///
    /// # Errors
    /// [`PsError::InvalidArgument`] for an address that makes no sense, or that other hosts can
    /// reach without token and TLS, and for credentials that cannot be used; [`PsError::System`]
    /// for a port that is in use, when there are no more threads, and for a name that does not
    /// resolve or an address that is not of this host after
    /// [`coordinator_timeout`](ServerOptions::coordinator_timeout); [`PsError::Interrupted`] when
    /// the [interruption](ServerOptions::interruption) was raised before that.
    ///
    /// [`PsError::InvalidArgument`]: crate::PsError::InvalidArgument
    /// [`PsError::System`]: crate::PsError::System
    /// [`PsError::Interrupted`]: crate::PsError::Interrupted
    pub fn bind(address: &str, options: ServerOptions) -> Result<Self> {
        let kind = Purpose::ParameterServer;
        let mut rpc = RpcOptions::new(kind, options.server, options.security.clone());
        rpc.keepalive_interval = options.keepalive_interval;
        rpc.keepalive_timeout = options.keepalive_timeout;
        rpc.progress_timeout = options.progress_timeout;
        let timeout = options.coordinator_timeout;
        let listener = RpcListener::bind(address, rpc, timeout, &options.interruption)?;
        let store = Arc::new(Store::new(options));
        let served = store.clone();
        let server = listener
            .serve(move |request, peer| Box::pin(service::answer(served.clone(), request, peer)))?;
        Ok(Self { server, store })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Blocks until a coordinator has asked the server to end
    /// ([`VariableClient::shut_servers_down`](crate::VariableClient::shut_servers_down)), or for
    /// so long; whether it was asked.
    ///
    /// # Errors
    /// [`PsError::NoCoordinator`] and [`PsError::CoordinatorLost`] when there was none for as long
    /// as the options say; [`PsError::Interrupted`] when there was none, or none that gives a sign
    /// of life, and the [interruption](ServerOptions::interruption) was raised.
    ///
    /// [`PsError::NoCoordinator`]: crate::PsError::NoCoordinator
    /// [`PsError::CoordinatorLost`]: crate::PsError::CoordinatorLost
    /// [`PsError::Interrupted`]: crate::PsError::Interrupted
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        let begun = Instant::now();
        let mut watch = CoordinatorWatch::new(&self.store.options);
        loop {
            watch.check(self.store.presence(), || self.server.why_no_peer())?;
            let left = timeout.map(|limit| limit.saturating_sub(begun.elapsed()));
            let look = left.unwrap_or(POLL_INTERVAL).min(POLL_INTERVAL);
            if self.store.wait(look) {
                return Ok(true);
            }
            if left.is_some_and(|left| left <= look) {
                return Ok(false);
            }
        }
    }

    /// Ends it: closes all connections and joins all threads.
    pub fn shutdown(self) {
        drop(self);
    }
}

impl fmt::Debug for ParameterServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address();
        f.debug_struct("ParameterServer")
            .field("address", &address)
            .finish_non_exhaustive()
    }
}
