//! A worker that listens for the coordinator.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use distribute_core::collectives::Interruption;
use distribute_core::collectives::control::security::Security;
use distribute_net::handshake::Purpose;

use super::registry::StepRegistry;
use super::service::Service;
use super::step_queue::StepQueue;
use crate::client::ClientOptions;
use crate::error::Result;
use crate::rpc::{self, RpcListener, RpcOptions, RpcServer};
use crate::server::{CoordinatorTimeouts, chief};

/// Limits, deadlines and credentials of a [`WorkerServer`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WorkerOptions {
    /// The number of the worker in the cluster. A coordinator that takes it for another one refuses
    /// it. Nothing by default: that is not compared.
    pub worker: Option<usize>,
    /// Token and certificates; none by default.
    pub security: Security,
    /// The options for calls of steps to the parameter servers. Their credentials are replaced by
    /// `security`.
    pub client: ClientOptions,
    /// The most bytes of one closure's arguments, and of its result; 64 MiB by default.
    pub max_message_bytes: usize,
    /// How long the worker waits for the first coordinator, and before that for a name or an
    /// address of this host that may still come; 30 minutes by default.
    pub coordinator_timeout: Duration,
    /// How long a coordinator that has gone may stay away before the worker gives up; 5 minutes by
    /// default. Another coordinator that comes within this time is served.
    pub orphan_timeout: Duration,
    /// What ends the wait for a coordinator before its time, such as a signal; while one is
    /// connected and gives signs of life the worker goes on. Nothing by default.
    pub interruption: Interruption,
    /// The address of the chief, for messages; not known by default.
    pub chief: Option<String>,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            worker: None,
            security: Security::default(),
            client: ClientOptions::default(),
            max_message_bytes: 64 << 20,
            coordinator_timeout: Duration::from_secs(1800),
            orphan_timeout: Duration::from_secs(300),
            interruption: Interruption::default(),
            chief: None,
        }
    }
}

/// A worker that listens for the coordinator, and runs the closures that it sends.
///
/// One coordinator at a time: another one is turned away until the first has ended or is lost.
/// Dropping it closes the connection and ends its thread.
pub struct WorkerServer {
    /// Absent only while it is dropped: the connections end before what they use.
    rpc: Option<RpcServer>,
    queue: Arc<StepQueue>,
    address: SocketAddr,
}

/// Ends a [`WorkerServer`] from another thread. Cheap to clone.
#[derive(Clone)]
pub struct WorkerStopper(Arc<StepQueue>);

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
    /// [`PsError::InvalidArgument`](crate::PsError::InvalidArgument) for an address that makes no
    /// sense, or that other hosts can reach without token and TLS, and for credentials that cannot
    /// be used; [`PsError::System`](crate::PsError::System) for a port that is in use, when there
    /// are no more threads, and for a name that does not resolve or an address that is not of this
    /// host after [`coordinator_timeout`](WorkerOptions::coordinator_timeout);
    /// [`PsError::Interrupted`](crate::PsError::Interrupted) when the
    /// [interruption](WorkerOptions::interruption) was raised before that.
    pub fn bind(
        address: &str,
        registry: Arc<StepRegistry>,
        options: WorkerOptions,
    ) -> Result<Self> {
        let settings = RpcOptions::new(Purpose::Worker, options.worker, options.security.clone());
        let clock = settings.clock.clone();
        let timeout = options.coordinator_timeout;
        let listener = RpcListener::bind(address, settings, timeout, &options.interruption)?;
        let mut client = options.client;
        client.security = options.security;
        let timeouts = CoordinatorTimeouts {
            task: rpc::name(Purpose::Worker, options.worker),
            chief: chief(options.chief.as_deref()),
            first: (
                options.coordinator_timeout,
                "WorkerOptions::coordinator_timeout",
            ),
            orphan: (options.orphan_timeout, "WorkerOptions::orphan_timeout"),
            interruption: options.interruption,
        };
        let queue = Arc::new(StepQueue::new(
            options.max_message_bytes,
            timeouts,
            registry,
        ));
        let service = Arc::new(Service {
            queue: queue.clone(),
            client,
            clock,
        });
        let address = listener.address();
        let rpc =
            listener.serve(move |request, peer| Box::pin(service.clone().answer(request, peer)))?;
        Ok(Self {
            rpc: Some(rpc),
            queue,
            address,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What ends it from another thread.
    pub fn stopper(&self) -> WorkerStopper {
        WorkerStopper(self.queue.clone())
    }

    /// Runs closures on this thread until the coordinator is done.
    ///
    /// # Errors
    /// [`PsError::CoordinatorFailed`](crate::PsError::CoordinatorFailed) if the coordinator gave
    /// up, [`PsError::NoCoordinator`](crate::PsError::NoCoordinator) if none has come within
    /// [`coordinator_timeout`](WorkerOptions::coordinator_timeout),
    /// [`PsError::CoordinatorLost`](crate::PsError::CoordinatorLost) if one has gone and none has
    /// come within [`orphan_timeout`](WorkerOptions::orphan_timeout),
    /// [`PsError::Interrupted`](crate::PsError::Interrupted) if there is none, or one that gives no
    /// sign of life for a second, and the [interruption](WorkerOptions::interruption) was raised. A
    /// step that runs is waited for in each case.
    pub fn serve(self) -> Result<()> {
        let refused = || self.rpc.as_ref().and_then(RpcServer::why_no_peer);
        let queue = Arc::downgrade(&self.queue);
        let _listening = self.queue.timeouts.interruption.on_raise(move || {
            if let Some(queue) = queue.upgrade() {
                queue.wake();
            }
        });
        self.queue.run_closures(refused)
    }
}

impl Drop for WorkerServer {
    fn drop(&mut self) {
        self.rpc = None;
        self.queue.drop_retired();
    }
}
