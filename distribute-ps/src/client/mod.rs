//! The client of the parameter servers: what workers and the coordinator call.

use std::time::Duration;

use burn::tensor::TensorData;
use distribute_core::collectives::control::security::Security;

use crate::error::{PsError, Result};
use crate::placement::Placement;
use crate::update::{Gradient, PushOutcome, RunId, RunOptions, UpdateId, Versions};
use crate::variable::{Snapshot, VariableRef, VariableSpec};

/// How a client speaks with the servers.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ClientOptions {
    /// Token and certificates; none by default.
    pub security: Security,
    /// The longest time of one call; 60 s by default.
    pub timeout: Duration,
    /// How long [`VariableClient::connect`] waits for servers that do not listen yet; 60 s by
    /// default.
    pub connect_timeout: Duration,
    /// Sends `f32` values and gradients as bf16; the servers keep `f32`. Off by default.
    pub bf16: bool,
    /// How often a silent connection is asked for a sign of life; 1 s by default.
    pub keepalive_interval: Duration,
    /// How long the answer may take; 3 s by default.
    pub keepalive_timeout: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            security: Security::default(),
            timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(60),
            bf16: false,
            keepalive_interval: Duration::from_secs(1),
            keepalive_timeout: Duration::from_secs(3),
        }
    }
}

/// A variable as it was pulled.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Pulled {
    /// The whole value, or `None` when no shard has changed since the known versions.
    pub value: Option<TensorData>,
    /// The versions of its shards.
    pub versions: Versions,
}

/// Connections to all parameter servers. Cheap to clone; calls block and may come from any thread.
#[derive(Debug, Clone)]
pub struct VariableClient {}

fn pending<T>() -> Result<T> {
    Err(PsError::invalid("not there yet"))
}

#[allow(unused_variables, missing_docs)]
impl VariableClient {
    /// Connects to the servers, in the order of the cluster. Waits for those that do not listen
    /// yet.
    pub fn connect<A: AsRef<str>>(addresses: &[A], options: ClientOptions) -> Result<Self> {
        pending()
    }

    /// Begins a run (coordinator): servers forget everything of an earlier run.
    pub fn attach(&self, run: RunId, options: RunOptions) -> Result<()> {
        pending()
    }

    /// Takes part in the run that a coordinator has begun (workers).
    pub fn join(&self, run: RunId) -> Result<()> {
        pending()
    }

    /// The number of servers.
    pub fn num_servers(&self) -> usize {
        0
    }

    pub fn create(&self, spec: &VariableSpec, placement: &Placement) -> Result<VariableRef> {
        pending()
    }

    /// Looks a variable up by name.
    pub fn variable(&self, name: &str) -> Result<VariableRef> {
        pending()
    }

    /// All variables in creation order.
    pub fn variables(&self) -> Result<Vec<VariableRef>> {
        pending()
    }

    /// Sets the value without an update id (initial values).
    pub fn initialize(&self, variable: &VariableRef, value: TensorData) -> Result<Versions> {
        pending()
    }

    /// Current values. `known` (empty, or one entry per variable): what has not changed since is
    /// not sent. `closure`: the update that these weights are pulled for (staleness by waiting).
    pub fn pull(
        &self,
        variables: &[VariableRef],
        known: &[Versions],
        closure: Option<u64>,
    ) -> Result<Vec<Pulled>> {
        pending()
    }

    /// Rows of a variable, one per id, in this order.
    pub fn pull_rows(&self, variable: &VariableRef, ids: &[u64]) -> Result<TensorData> {
        pending()
    }

    /// Applies gradients. `base` (empty, or one entry per gradient): the versions that they were
    /// computed at.
    pub fn push(
        &self,
        update: UpdateId,
        gradients: Vec<(VariableRef, Gradient)>,
        base: &[Versions],
    ) -> Result<PushOutcome> {
        pending()
    }

    pub fn assign(
        &self,
        update: UpdateId,
        variable: &VariableRef,
        value: TensorData,
    ) -> Result<PushOutcome> {
        pending()
    }

    pub fn assign_add(
        &self,
        update: UpdateId,
        variable: &VariableRef,
        value: TensorData,
    ) -> Result<PushOutcome> {
        pending()
    }

    pub fn assign_sub(
        &self,
        update: UpdateId,
        variable: &VariableRef,
        value: TensorData,
    ) -> Result<PushOutcome> {
        pending()
    }

    /// The current value of a variable.
    pub fn read(&self, name: &str) -> Result<TensorData> {
        pending()
    }

    /// All closures below this number are finished: servers forget their update ids, and refuse
    /// to apply later updates of theirs.
    pub fn finished_below(&self, closure: u64) -> Result<()> {
        pending()
    }

    /// A closure's worker was lost: nobody waits for its push until it pulls again.
    pub fn abandon(&self, closure: u64) -> Result<()> {
        pending()
    }

    /// The learning rate of all optimizers from now on.
    pub fn set_learning_rate(&self, learning_rate: f64) -> Result<()> {
        pending()
    }

    pub fn snapshot(&self) -> Result<Snapshot> {
        pending()
    }

    /// Puts values, slots and counts of updates back.
    pub fn restore(&self, snapshot: &Snapshot) -> Result<()> {
        pending()
    }

    /// Ends the server processes that serve until a coordinator is done.
    pub fn shut_servers_down(&self) -> Result<()> {
        pending()
    }
}
