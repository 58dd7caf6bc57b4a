//! A parameter server: holds shards, applies optimizers, serves reads while others write.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use distribute_core::collectives::control::security::Security;
use distribute_core::optim::Optimizer;

use crate::error::{PsError, Result};

/// Limits and credentials of a server.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServerOptions {
    /// The number of the server in the cluster, for messages.
    pub server: usize,
    /// Token and certificates; none by default.
    pub security: Security,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            server: 0,
            security: Security::default(),
        }
    }
}

impl ServerOptions {
    /// Teaches the server an optimizer of one's own.
    pub fn optimizer(
        self,
        name: &str,
        build: impl Fn(&serde_json::Value) -> Result<Arc<dyn Optimizer>> + Send + Sync + 'static,
    ) -> Self {
        let _ = (name, build);
        self
    }
}

/// A server that runs. Dropping it ends it and joins its threads.
#[derive(Debug)]
pub struct ParameterServer {}

#[allow(unused_variables)]
impl ParameterServer {
    /// Listens at `host:port` (port 0 takes a free one) and serves from then on.
    pub fn bind(address: &str, options: ServerOptions) -> Result<Self> {
        Err(PsError::invalid("not there yet"))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    /// Blocks until a coordinator has asked the server to end
    /// ([`VariableClient::shut_servers_down`](crate::VariableClient::shut_servers_down)), or for
    /// so long; whether it was asked.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        false
    }

    /// Ends it: closes all connections and joins all threads.
    pub fn shutdown(self) {}
}
