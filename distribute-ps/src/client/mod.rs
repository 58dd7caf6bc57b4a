//! The client of the parameter servers: what workers and the coordinator call.

mod catalog;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod pool;
mod pull;
mod push;
mod rows;
mod server;
mod split;
mod state;
mod tensor;

pub use pull::Pulled;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use distribute_core::collectives::Interruption;
use distribute_core::collectives::control::security::Security;
use parking_lot::Mutex;

use crate::client::catalog::Catalog;
use crate::client::pool::Pool;
use crate::client::server::Server;
use crate::error::{PsError, Result};
use crate::placement::Placement;
use crate::rpc::clock::new_clock;
use crate::rpc::driver::Driver;
use crate::update::{RunId, RunOptions};
use crate::variable::{Snapshot, VariableRef, VariableSpec};
use crate::wire::{Request, ShardSpec};

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
    /// What ends that wait before its time, such as a signal, and calls to a server that gives no
    /// sign of life for a second; nothing by default.
    pub interruption: Interruption,
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
            interruption: Interruption::default(),
            bf16: false,
            keepalive_interval: Duration::from_secs(1),
            keepalive_timeout: Duration::from_secs(3),
        }
    }
}

/// Connections to all parameter servers. Cheap to clone; calls block and may come from any
/// thread. The last clone that is dropped closes the connections.
///
/// Every call may fail with [`PsError::Unavailable`] (within 5 s of a server's end),
/// [`PsError::Timeout`] and [`PsError::OtherRun`]. A call whose connection broke is repeated
/// once; updates are not applied twice by that.
#[derive(Debug, Clone)]
pub struct VariableClient {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    driver: Driver,
    servers: Vec<Arc<Server>>,
    pool: Arc<Pool>,
    options: ClientOptions,
    run: Mutex<Option<(RunId, RunOptions)>>,
    catalog: Catalog,
}

impl VariableClient {
    /// Connects to the servers, in the order of the cluster. Waits for those that do not listen
    /// yet, up to [`ClientOptions::connect_timeout`].
    ///
    /// # Errors
    /// [`PsError::Unavailable`], [`PsError::Interrupted`] when the
    /// [interruption](ClientOptions::interruption) was raised, and [`PsError::Refused`] when
    /// token, certificate, version or kind
    /// of a process are wrong.
    pub fn connect<A: AsRef<str>>(addresses: &[A], options: ClientOptions) -> Result<Self> {
        if addresses.is_empty() {
            return Err(PsError::invalid(
                "there is no parameter server: the cluster needs at least one task of type `ps`",
            ));
        }
        let clock = new_clock();
        let driver = Driver::start(
            "variable client".to_string(),
            "cannot start the client's thread",
            clock.clone(),
        )?;
        let pool = Arc::new(Pool::default());
        let server = |(index, address): (usize, &A)| {
            let address = address.as_ref().to_string();
            Arc::new(Server::new(index, address, &options, &pool, &clock))
        };
        let servers: Vec<Arc<Server>> = addresses.iter().enumerate().map(server).collect();
        let (limit, interruption) = (options.connect_timeout, options.interruption.clone());
        let client = Self {
            inner: Arc::new(Inner {
                driver,
                servers,
                pool,
                options,
                run: Mutex::default(),
                catalog: Catalog::default(),
            }),
        };
        client.on_all(move |server| {
            let interruption = interruption.clone();
            async move { server.connect(limit, &interruption).await }
        })?;
        Ok(client)
    }

    /// The number of servers.
    pub fn num_servers(&self) -> usize {
        self.inner.servers.len()
    }

    /// The addresses of the servers, in the order of the cluster.
    pub fn addresses(&self) -> Vec<String> {
        let servers = self.inner.servers.iter();
        servers.map(|server| server.address.clone()).collect()
    }

    /// The run that this client takes part in.
    pub fn run(&self) -> Option<RunId> {
        self.current().map(|(run, _)| run)
    }

    fn current(&self) -> Option<(RunId, RunOptions)> {
        *self.inner.run.lock()
    }

    fn enter(&self, run: RunId, rules: RunOptions) {
        *self.inner.run.lock() = Some((run, rules));
        self.inner.catalog.clear();
    }

    /// The run and its rules.
    fn in_run(&self) -> Result<(RunId, RunOptions)> {
        self.current().ok_or_else(|| {
            PsError::invalid(
                "this client takes part in no run: call `attach` (coordinator) or `join` first",
            )
        })
    }

    /// Does the same with all servers at once; the first error of the lowest server.
    fn on_all<T, F>(&self, work: impl Fn(Arc<Server>) -> F) -> Result<Vec<T>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let works: Vec<F> = self.inner.servers.iter().cloned().map(work).collect();
        self.inner.driver.run(in_parallel(works))
    }

    /// Begins a run (coordinator): the servers forget everything of an earlier one and follow
    /// these rules.
    ///
    /// # Errors
    /// [`PsError::OtherRun`] while the coordinator of another run is connected to a server.
    pub fn attach(&self, run: RunId, rules: RunOptions) -> Result<()> {
        rules.check()?;
        self.on_all(|server| async move {
            let request = Request::Attach(rules);
            let _: () = server.ask("attach", run, request, Vec::new()).await?;
            // Whenever the connection is made anew, too.
            server.claim(run).await;
            Ok(())
        })?;
        self.enter(run, rules);
        Ok(())
    }

    /// Takes part in the run that a coordinator has begun (workers).
    ///
    /// # Errors
    /// [`PsError::OtherRun`] when a server is in another run or in none.
    pub fn join(&self, run: RunId) -> Result<()> {
        let rules = self.reach_all(run)?;
        self.enter(run, rules.first().copied().unwrap_or_default());
        Ok(())
    }

    /// Asks all servers whether they are in this run; its rules, as each has them.
    pub(crate) fn reach_all(&self, run: RunId) -> Result<Vec<RunOptions>> {
        self.on_all(|server| async move {
            let request = Request::Join {
                is_coordinator: false,
            };
            server.ask("join", run, request, Vec::new()).await
        })
    }

    /// Makes a variable on the servers (coordinator); it has no value yet.
    ///
    /// # Errors
    /// [`PsError::VariableExists`], [`PsError::TooLarge`], [`PsError::Full`], and
    /// [`PsError::InvalidArgument`] when a server does not know the optimizer.
    pub fn create(&self, spec: &VariableSpec, placement: &Placement) -> Result<VariableRef> {
        let (run, _) = self.in_run()?;
        let mut per_server: BTreeMap<usize, Vec<(usize, ShardSpec)>> = BTreeMap::new();
        let order = self.inner.catalog.next_order();
        for (number, shard) in placement.shards.iter().enumerate() {
            if shard.server >= self.num_servers() {
                return Err(PsError::invalid(format!(
                    "create of variable `{}`: there is no server {}, only {}",
                    spec.name,
                    shard.server,
                    self.num_servers()
                )));
            }
            let described = catalog::describe(spec, placement, number, order)?;
            per_server
                .entry(shard.server)
                .or_default()
                .push((number, described));
        }
        let mut ids = vec![0; placement.shards.len()];
        for (index, shards) in per_server {
            let server = self.inner.servers[index].clone();
            let (numbers, shards): (Vec<usize>, Vec<ShardSpec>) = shards.into_iter().unzip();
            let creating = async move {
                let request = Request::Create(shards);
                server.ask("create", run, request, Vec::new()).await
            };
            let created: Vec<u32> = self.inner.driver.run(creating)?;
            for (number, id) in numbers.into_iter().zip(created) {
                ids[number] = id;
            }
        }
        Ok(self
            .inner
            .catalog
            .insert(spec.clone(), placement.clone(), ids))
    }

    /// Looks a variable up by name, on the servers if this client has not seen it yet.
    ///
    /// # Errors
    /// [`PsError::UnknownVariable`].
    pub fn variable(&self, name: &str) -> Result<VariableRef> {
        if let Some(found) = self.inner.catalog.get(name) {
            return Ok(found);
        }
        self.variables()?;
        let found = self.inner.catalog.get(name);
        found.ok_or_else(|| PsError::UnknownVariable {
            name: name.to_string(),
        })
    }

    /// All variables in creation order.
    ///
    /// # Errors
    /// What every call may fail with.
    pub fn variables(&self) -> Result<Vec<VariableRef>> {
        let (run, _) = self.in_run()?;
        let shards = self.on_all(|server| async move {
            let request = Request::Catalog;
            server.ask("catalog", run, request, Vec::new()).await
        })?;
        self.inner.catalog.fill(shards)
    }

    /// Tells all servers the same.
    fn tell(&self, op: &'static str, request: impl Fn() -> Request) -> Result<()> {
        let (run, _) = self.in_run()?;
        self.on_all(|server| {
            let request = request();
            async move { server.ask(op, run, request, Vec::new()).await }
        })
        .map(|_: Vec<()>| ())
    }

    /// All closures below this number are finished: the servers forget their update ids, and
    /// never apply another update of theirs.
    ///
    /// # Errors
    /// What every call may fail with.
    pub fn finished_below(&self, closure: u64) -> Result<()> {
        self.tell("finished_below", || Request::FinishedBelow(closure))
    }

    /// The worker of a closure was lost, or the closure was cancelled: under a staleness bound
    /// that waits, its push is not waited for until it pulls again.
    ///
    /// # Errors
    /// What every call may fail with.
    pub fn abandon(&self, closure: u64) -> Result<()> {
        self.tell("abandon", || Request::Abandon(closure))
    }

    /// The closures below this number are cancelled: pulls and pushes of theirs that wait for
    /// slower workers end with [`PsError::Cancelled`], and so do all that still come.
    ///
    /// # Errors
    /// What every call may fail with.
    pub fn cancelled_below(&self, closure: u64) -> Result<()> {
        self.tell("cancelled_below", || Request::CancelledBelow(closure))
    }

    /// The learning rate of all optimizers from now on.
    ///
    /// # Errors
    /// What every call may fail with.
    pub fn set_learning_rate(&self, learning_rate: f64) -> Result<()> {
        self.tell("set_learning_rate", || Request::LearningRate(learning_rate))
    }

    /// Ends the server processes that wait in
    /// [`ParameterServer::wait`](crate::ParameterServer::wait).
    ///
    /// # Errors
    /// What every call may fail with.
    pub fn shut_servers_down(&self) -> Result<()> {
        match self.tell("shut_servers_down", || Request::ShutDown) {
            // A server may be gone before its answer is.
            Err(PsError::Unavailable { .. }) => Ok(()),
            told => told,
        }
    }

    /// Values, slots and counts of all variables. Every server is at one moment, at which no push
    /// is half applied; training goes on meanwhile.
    ///
    /// # Errors
    /// What every call may fail with.
    pub fn snapshot(&self) -> Result<Snapshot> {
        state::snapshot(self)
    }

    /// Puts values, slots, counts of updates and learning rate back; variables that are not in
    /// the snapshot keep what they have.
    ///
    /// # Errors
    /// [`PsError::UnknownVariable`], [`PsError::Shape`], [`PsError::DType`] before anything is
    /// changed.
    pub fn restore(&self, snapshot: &Snapshot) -> Result<()> {
        state::restore(self, snapshot)
    }
}

/// The calls to several servers at once.
async fn in_parallel<T, F>(works: Vec<F>) -> Result<Vec<T>>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let running: Vec<_> = works.into_iter().map(tokio::spawn).collect();
    let mut done = Vec::with_capacity(running.len());
    for running in running {
        done.push(
            running
                .await
                .map_err(|error| PsError::system("a call failed", error))?,
        );
    }
    done.into_iter().collect()
}
