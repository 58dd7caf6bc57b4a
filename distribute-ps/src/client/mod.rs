//! The client of the parameter servers: what workers and the coordinator call.

/// The path of a method.
macro_rules! path {
    ($method:literal) => {
        concat!("/distribute.ps.v1.ParameterServer/", $method)
    };
}

mod catalog;
mod driver;
mod server;
mod split;
mod state;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use burn::tensor::{DType, TensorData};
use bytes::Bytes;
use distribute_core::collectives::control::security::Security;

use crate::client::catalog::Catalog;
use crate::client::driver::Driver;
use crate::client::server::{Call, Server};
use crate::client::split::{Piece, tensor};
use crate::error::{PsError, Result};
use crate::generated as wire;
use crate::placement::Placement;
use crate::server::elements;
use crate::update::{
    Gradient, NonFinite, PushOutcome, RunId, RunOptions, StalenessPolicy, UpdateId, Versions,
};
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
    options: ClientOptions,
    run: Mutex<Option<(RunId, RunOptions)>>,
    catalog: Catalog,
}

/// What is sent to one server in one call.
#[derive(Default)]
struct Batch {
    parts: Vec<wire::Part>,
    payload: Vec<Bytes>,
    /// Gradient (or variable) and shard of each part.
    places: Vec<(usize, usize)>,
}

/// Where pulled values go: by variable and shard.
type Collected = BTreeMap<(usize, usize), (u64, Option<Vec<u8>>)>;

impl VariableClient {
    /// Connects to the servers, in the order of the cluster. Waits for those that do not listen
    /// yet, up to [`ClientOptions::connect_timeout`].
    ///
    /// # Errors
    /// [`PsError::Unavailable`], and [`PsError::Refused`] when token, certificate, version or kind
    /// of a process are wrong.
    pub fn connect<A: AsRef<str>>(addresses: &[A], options: ClientOptions) -> Result<Self> {
        if addresses.is_empty() {
            return Err(PsError::invalid(
                "there is no parameter server: the cluster needs at least one task of type `ps`",
            ));
        }
        let driver = Driver::start()?;
        let server = |(index, address): (usize, &A)| {
            Arc::new(Server::new(index, address.as_ref().to_string(), &options))
        };
        let servers: Vec<Arc<Server>> = addresses.iter().enumerate().map(server).collect();
        let limit = options.connect_timeout;
        let client = Self {
            inner: Arc::new(Inner {
                driver,
                servers,
                options,
                run: Mutex::default(),
                catalog: Catalog::default(),
            }),
        };
        client.on_all(move |server| async move { server.connect(limit).await })?;
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
        *self
            .inner
            .run
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, run: RunId, rules: RunOptions) {
        let mut place = self
            .inner
            .run
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *place = Some((run, rules));
        self.inner.catalog.clear();
    }

    /// The run and its rules.
    fn in_run(&self) -> Result<(Vec<u8>, RunOptions)> {
        match self.current() {
            Some((run, rules)) => Ok((run.0.to_le_bytes().to_vec(), rules)),
            None => Err(PsError::invalid(
                "this client takes part in no run: call `attach` (coordinator) or `join` first",
            )),
        }
    }

    /// Does the same with all servers at once; the first error of the lowest server.
    fn on_all<T, F>(&self, work: impl Fn(Arc<Server>) -> F) -> Result<Vec<T>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let works: Vec<F> = self.inner.servers.iter().cloned().map(work).collect();
        self.inner.driver.run(together(works))
    }

    /// Begins a run (coordinator): the servers forget everything of an earlier one and follow
    /// these rules.
    ///
    /// # Errors
    /// [`PsError::OtherRun`] while the coordinator of another run is connected to a server.
    pub fn attach(&self, run: RunId, rules: RunOptions) -> Result<()> {
        rules.check()?;
        let request = rules.to_wire(run.0.to_le_bytes().to_vec());
        self.on_all(|server| {
            let request = request.clone();
            async move { server.tell("attach", path!("Attach"), request).await }
        })?;
        self.enter(run, rules);
        Ok(())
    }

    /// Takes part in the run that a coordinator has begun (workers).
    ///
    /// # Errors
    /// [`PsError::OtherRun`] when a server is in another run or in none.
    pub fn join(&self, run: RunId) -> Result<()> {
        let request = wire::Join {
            run: run.0.to_le_bytes().to_vec(),
        };
        let rules = self.on_all(|server| {
            let request = request.clone();
            let path = path!("Join");
            async move {
                server
                    .ask::<wire::Attach>("join", path, request, Vec::new())
                    .await
            }
        })?;
        let rules = rules.first().map(RunOptions::from_wire).transpose()?;
        self.enter(run, rules.unwrap_or_default());
        Ok(())
    }

    /// Makes a variable on the servers (coordinator); it has no value yet.
    ///
    /// # Errors
    /// [`PsError::VariableExists`], [`PsError::TooLarge`], [`PsError::Full`], and
    /// [`PsError::InvalidArgument`] when a server does not know the optimizer.
    pub fn create(&self, spec: &VariableSpec, placement: &Placement) -> Result<VariableRef> {
        let (run, _) = self.in_run()?;
        let mut per_server: BTreeMap<usize, Vec<(usize, wire::Shard)>> = BTreeMap::new();
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
            let (numbers, shards): (Vec<usize>, Vec<wire::Shard>) = shards.into_iter().unzip();
            let call = Call {
                op: "create",
                path: path!("Create"),
                header: wire::Create {
                    run: run.clone(),
                    shards,
                },
                payload: Vec::new(),
                sizes: server::no_payload,
                may_repeat: false,
            };
            let (created, _): (wire::Created, _) = self
                .inner
                .driver
                .run(async move { server.call(call).await })?;
            for (number, id) in numbers.into_iter().zip(created.ids) {
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
        let replies = self.on_all(|server| {
            let request = wire::Catalog { run: run.clone() };
            let path = path!("Catalog");
            async move {
                server
                    .ask::<wire::CatalogReply>("catalog", path, request, Vec::new())
                    .await
            }
        })?;
        self.inner
            .catalog
            .fill(replies.into_iter().map(|reply| reply.shards).collect())
    }

    /// Sets a value that no update id protects, for example the initial one.
    ///
    /// # Errors
    /// [`PsError::Shape`], [`PsError::DType`], [`PsError::TooLarge`].
    pub fn initialize(&self, variable: &VariableRef, value: TensorData) -> Result<Versions> {
        let outcome = self.assignment("initialize", 0, None, variable, value)?;
        Ok(outcome.versions.into_iter().next().unwrap_or_default())
    }

    /// Current values, each shard at one version.
    ///
    /// `known` is empty or has one entry per variable (an entry may be empty): a variable of which
    /// no shard has changed since is not sent. `closure` names the closure that computes a
    /// gradient of these values: with a staleness bound that waits, servers wait for its push.
    ///
    /// # Errors
    /// [`PsError::Uninitialized`], [`PsError::StalenessTimeout`].
    pub fn pull(
        &self,
        variables: &[VariableRef],
        known: &[Versions],
        closure: Option<u64>,
    ) -> Result<Vec<Pulled>> {
        let mut wanted = Vec::new();
        for (index, variable) in variables.iter().enumerate() {
            let known = known.get(index).map_or(&[][..], |versions| &versions.0);
            let shards = 0..variable.placement().shards.len();
            wanted.extend(shards.map(|shard| (index, shard, known.get(shard).copied())));
        }
        let mut collected = self.pull_shards(variables, &wanted, closure)?;
        // A variable is told whole or not at all.
        let mut missing = Vec::new();
        for (index, variable) in variables.iter().enumerate() {
            let shards = 0..variable.placement().shards.len();
            let is_there = |shard: &usize| collected[&(index, *shard)].1.is_some();
            if shards.clone().any(|shard| is_there(&shard)) {
                let absent = shards.filter(|shard| !is_there(shard));
                missing.extend(absent.map(|shard| (index, shard, None)));
            }
        }
        if !missing.is_empty() {
            collected.extend(self.pull_shards(variables, &missing, None)?);
        }
        let mut entries = collected.into_iter();
        let mut pulled = Vec::with_capacity(variables.len());
        for variable in variables {
            let shards = entries.by_ref().take(variable.placement().shards.len());
            let (versions, values): (Vec<u64>, Vec<Option<Vec<u8>>>) =
                shards.map(|(_, entry)| entry).unzip();
            let values: Option<Vec<Vec<u8>>> = values.into_iter().collect();
            pulled.push(Pulled {
                value: values.map(|values| variable.join(values)),
                versions: Versions(versions),
            });
        }
        Ok(pulled)
    }

    /// Pulls some shards, given as variable, shard and known version.
    fn pull_shards(
        &self,
        variables: &[VariableRef],
        wanted: &[(usize, usize, Option<u64>)],
        closure: Option<u64>,
    ) -> Result<Collected> {
        let (run, rules) = self.in_run()?;
        let bf16 = self.inner.options.bf16;
        let mut per_server: BTreeMap<usize, Vec<PullPlace>> = BTreeMap::new();
        for (variable, shard, known) in wanted {
            let reference = &variables[*variable];
            let placed = &reference.placement().shards[*shard];
            per_server
                .entry(placed.server)
                .or_default()
                .push(PullPlace {
                    place: (*variable, *shard),
                    want: wire::Want {
                        id: reference.0.ids[*shard],
                        known: *known,
                    },
                    bytes: reference.shard_bytes(placed),
                    is_narrow: bf16 && reference.dtype() == DType::F32,
                });
        }
        let works = per_server.into_iter().map(|(server, places)| {
            let server = self.inner.servers[server].clone();
            pull_of_server(server, run.clone(), closure, bf16, places)
        });
        let works: Vec<_> = works.collect();
        let waits = |policy| policy == StalenessPolicy::Wait;
        // Waiting for several servers at a time, two workers could wait for each other.
        let in_turn = closure.is_some() && rules.staleness.is_some_and(|rule| waits(rule.policy));
        let all = match in_turn {
            true => self.inner.driver.run(one_by_one(works))?,
            false => self.inner.driver.run(together(works))?,
        };
        Ok(all.into_iter().flatten().collect())
    }

    /// Rows of a variable, one per id, in this order; shape: ids, then the variable's without its
    /// first axis.
    ///
    /// # Errors
    /// [`PsError::Row`], [`PsError::Uninitialized`].
    pub fn pull_rows(&self, variable: &VariableRef, ids: &[u64]) -> Result<TensorData> {
        let (run, _) = self.in_run()?;
        let mut shape = variable.shape().to_vec();
        match shape.first_mut() {
            Some(first) => *first = ids.len(),
            None => return Err(PsError::invalid("pull of rows: a scalar has no rows")),
        }
        variable.check_ids(ids)?;
        let width = variable.row_bytes();
        let bf16 = self.inner.options.bf16 && variable.dtype() == DType::F32;
        let mut works = Vec::new();
        let mut places = Vec::new();
        for (shard, id) in variable.placement().shards.iter().zip(&variable.0.ids) {
            let range = shard.offset as u64..(shard.offset + shard.rows) as u64;
            let mine = ids.iter().enumerate().filter(|(_, id)| range.contains(id));
            let mine: Vec<(usize, u64)> = mine.map(|(at, id)| (at, id - range.start)).collect();
            if mine.is_empty() {
                continue;
            }
            let numbers: Vec<u8> = mine.iter().flat_map(|(_, id)| id.to_le_bytes()).collect();
            let request = wire::PullRows {
                run: run.clone(),
                bf16,
                id: *id,
                count: mine.len() as u64,
            };
            let bytes = (mine.len() * width) as u64 >> u32::from(bf16);
            let server = self.inner.servers[shard.server].clone();
            places.push(mine);
            works.push(pull_rows_of(server, request, numbers.into(), bytes));
        }
        let mut rows = vec![0; ids.len() * width];
        for (mine, mut bytes) in places
            .into_iter()
            .zip(self.inner.driver.run(together(works))?)
        {
            if bf16 {
                bytes = elements::widen(&bytes);
            }
            for ((at, _), row) in mine.into_iter().zip(bytes.chunks(width.max(1))) {
                rows[at * width..(at + 1) * width].copy_from_slice(row);
            }
        }
        Ok(tensor(rows, shape, variable.dtype()))
    }

    /// Applies gradients. `base` is empty or has one entry per gradient: the versions that it was
    /// computed at, which a staleness bound and synchronous mode need.
    ///
    /// On each server the push is checked as a whole before anything of it is applied.
    ///
    /// # Errors
    /// [`PsError::Shape`], [`PsError::DType`], [`PsError::Row`], [`PsError::NonFinite`],
    /// [`PsError::Stale`], [`PsError::StalenessTimeout`], [`PsError::TooLarge`].
    pub fn push(
        &self,
        update: UpdateId,
        gradients: Vec<(VariableRef, Gradient)>,
        base: &[Versions],
    ) -> Result<PushOutcome> {
        let (run, rules) = self.in_run()?;
        self.same_run(update)?;
        let bf16 = self.inner.options.bf16;
        let shards = |variable: &VariableRef| variable.placement().shards.len();
        let counts = gradients
            .iter()
            .map(|(variable, _)| shards(variable))
            .collect();
        if rules.non_finite == NonFinite::Refuse && self.num_servers() > 1 {
            // One server alone checks before it applies; of several, each checks its own part.
            gradients
                .iter()
                .try_for_each(|(variable, gradient)| finite(variable, gradient))?;
        }
        let mut pieces = Vec::new();
        for (index, (variable, gradient)) in gradients.into_iter().enumerate() {
            let base = base.get(index).map_or(&[][..], |versions| &versions.0);
            let cut = variable.cut_gradient(gradient, base, bf16)?;
            pieces.extend(cut.into_iter().map(|piece| (index, piece)));
        }
        self.send_parts("push", path!("Push"), pieces, counts, |parts| wire::Push {
            run: run.clone(),
            closure: update.closure,
            sequence: update.sequence,
            bf16,
            parts,
        })
    }

    fn same_run(&self, update: UpdateId) -> Result<()> {
        match self.run() {
            Some(run) if run == update.run => Ok(()),
            _ => Err(PsError::OtherRun {
                server: 0,
                address: self.addresses().swap_remove(0),
                reason: format!("the update is from run {}, this client is not", update.run),
            }),
        }
    }

    /// Sends parts to their servers, and puts the outcomes together.
    fn send_parts<H: prost::Message + 'static>(
        &self,
        op: &'static str,
        path: &'static str,
        pieces: Vec<(usize, Piece)>,
        shards: Vec<usize>,
        header: impl Fn(Vec<wire::Part>) -> H,
    ) -> Result<PushOutcome> {
        let mut batches: BTreeMap<usize, Batch> = BTreeMap::new();
        for (index, piece) in pieces {
            let batch = batches.entry(piece.server).or_default();
            batch.places.push((index, piece.shard));
            batch.parts.push(piece.part);
            batch.payload.extend(piece.payload);
        }
        let works = batches.into_iter().map(|(server, batch)| {
            let server = self.inner.servers[server].clone();
            let header = header(batch.parts);
            async move {
                let reply = server.ask::<wire::Pushed>(op, path, header, batch.payload);
                Ok((batch.places, reply.await?.outcomes))
            }
        });
        let replies = self.inner.driver.run(together(works.collect()))?;
        let zeros = |count: usize| Versions(vec![0; count]);
        let mut outcome = PushOutcome {
            versions: shards.into_iter().map(zeros).collect(),
            ..PushOutcome::default()
        };
        for (places, outcomes) in replies {
            for ((index, shard), done) in places.into_iter().zip(outcomes) {
                outcome.versions[index].0[shard] = done.version;
                match done.what {
                    0 => outcome.applied += 1,
                    1 => outcome.already_applied += 1,
                    2 => outcome.accumulated += 1,
                    _ => outcome.dropped += 1,
                }
            }
        }
        Ok(outcome)
    }

    /// Sets a value, at most once per update id.
    ///
    /// # Errors
    /// [`PsError::Shape`], [`PsError::DType`], [`PsError::TooLarge`].
    pub fn assign(
        &self,
        update: UpdateId,
        variable: &VariableRef,
        value: TensorData,
    ) -> Result<PushOutcome> {
        self.assignment("assign", 0, Some(update), variable, value)
    }

    /// Adds to a value, at most once per update id; integers wrap around.
    ///
    /// # Errors
    /// [`PsError::Shape`], [`PsError::DType`], [`PsError::Uninitialized`].
    pub fn assign_add(
        &self,
        update: UpdateId,
        variable: &VariableRef,
        value: TensorData,
    ) -> Result<PushOutcome> {
        self.assignment("assign_add", 1, Some(update), variable, value)
    }

    /// Subtracts from a value, at most once per update id; integers wrap around.
    ///
    /// # Errors
    /// [`PsError::Shape`], [`PsError::DType`], [`PsError::Uninitialized`].
    pub fn assign_sub(
        &self,
        update: UpdateId,
        variable: &VariableRef,
        value: TensorData,
    ) -> Result<PushOutcome> {
        self.assignment("assign_sub", 2, Some(update), variable, value)
    }

    fn assignment(
        &self,
        op: &'static str,
        operation: u32,
        update: Option<UpdateId>,
        variable: &VariableRef,
        value: TensorData,
    ) -> Result<PushOutcome> {
        let (run, _) = self.in_run()?;
        update.map_or(Ok(()), |update| self.same_run(update))?;
        let pieces = variable.cut(op, value, &[], false)?;
        let pieces = pieces.into_iter().map(|piece| (0, piece)).collect();
        let shards = vec![variable.placement().shards.len()];
        self.send_parts(op, path!("Assign"), pieces, shards, |parts| wire::Assign {
            run: run.clone(),
            closure: update.map(|update| update.closure),
            sequence: update.map_or(0, |update| update.sequence),
            operation,
            parts,
        })
    }

    /// The current value of a variable.
    ///
    /// # Errors
    /// [`PsError::UnknownVariable`], [`PsError::Uninitialized`].
    pub fn read(&self, name: &str) -> Result<TensorData> {
        let variable = self.variable(name)?;
        let pulled = self.pull(&[variable], &[], None)?;
        let value = pulled.into_iter().next().and_then(|pulled| pulled.value);
        value.ok_or_else(|| PsError::Uninitialized {
            name: name.to_string(),
        })
    }

    fn control(&self, op: &'static str, control: wire::Control) -> Result<()> {
        let (run, _) = self.in_run()?;
        self.on_all(|server| {
            let request = wire::Control {
                run: run.clone(),
                ..control.clone()
            };
            async move { server.tell(op, path!("Control"), request).await }
        })?;
        Ok(())
    }

    /// All closures below this number are finished: the servers forget their update ids, and
    /// never apply another update of theirs.
    ///
    /// # Errors
    /// What every call may fail with.
    pub fn finished_below(&self, closure: u64) -> Result<()> {
        let finished_below = Some(closure);
        let control = wire::Control {
            finished_below,
            ..wire::Control::default()
        };
        self.control("finished_below", control)
    }

    /// The worker of a closure was lost, or the closure was cancelled: under a staleness bound
    /// that waits, nobody waits for its push until it pulls again.
    ///
    /// # Errors
    /// What every call may fail with.
    pub fn abandon(&self, closure: u64) -> Result<()> {
        let abandon = Some(closure);
        let control = wire::Control {
            abandon,
            ..wire::Control::default()
        };
        self.control("abandon", control)
    }

    /// The learning rate of all optimizers from now on.
    ///
    /// # Errors
    /// What every call may fail with.
    pub fn set_learning_rate(&self, learning_rate: f64) -> Result<()> {
        let learning_rate = Some(learning_rate);
        let control = wire::Control {
            learning_rate,
            ..wire::Control::default()
        };
        self.control("set_learning_rate", control)
    }

    /// Ends the server processes that wait in
    /// [`ParameterServer::wait`](crate::ParameterServer::wait).
    ///
    /// # Errors
    /// What every call may fail with.
    pub fn shut_servers_down(&self) -> Result<()> {
        let control = wire::Control {
            shut_down: true,
            ..wire::Control::default()
        };
        match self.control("shut_servers_down", control) {
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

/// One shard of a pull.
struct PullPlace {
    place: (usize, usize),
    want: wire::Want,
    bytes: usize,
    is_narrow: bool,
}

/// The calls to several servers at once.
async fn together<T, F>(works: Vec<F>) -> Result<Vec<T>>
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

async fn one_by_one<T, F>(works: Vec<F>) -> Result<Vec<T>>
where
    F: Future<Output = Result<T>>,
{
    let mut done = Vec::with_capacity(works.len());
    for work in works {
        done.push(work.await?);
    }
    Ok(done)
}

async fn pull_of_server(
    server: Arc<Server>,
    run: Vec<u8>,
    closure: Option<u64>,
    bf16: bool,
    places: Vec<PullPlace>,
) -> Result<Vec<((usize, usize), (u64, Option<Vec<u8>>))>> {
    let expected: Vec<u64> = places
        .iter()
        .map(|place| place.bytes as u64 >> u32::from(place.is_narrow))
        .collect();
    let call = Call {
        op: "pull",
        path: path!("Pull"),
        header: wire::Pull {
            run,
            closure,
            bf16,
            wants: places.iter().map(|place| place.want).collect(),
        },
        payload: Vec::new(),
        sizes: move |reply: &wire::Pulled| {
            let fits = |(got, bytes): (&wire::Got, &u64)| got.bytes == 0 || got.bytes == *bytes;
            match reply.got.len() == expected.len() && reply.got.iter().zip(&expected).all(fits) {
                true => Ok(reply.got.iter().map(|got| got.bytes).collect()),
                false => Err("values of other sizes than their shards".to_string()),
            }
        },
        may_repeat: true,
    };
    let (reply, tensors): (wire::Pulled, _) = server.call(call).await?;
    let pulled = places.into_iter().zip(reply.got).zip(tensors);
    let entry = |((place, got), bytes): ((PullPlace, wire::Got), Vec<u8>)| {
        let is_new = place.want.known != Some(got.version);
        let value = is_new.then(|| match place.is_narrow {
            true => elements::widen(&bytes),
            false => bytes,
        });
        (place.place, (got.version, value))
    };
    Ok(pulled.map(entry).collect())
}

async fn pull_rows_of(
    server: Arc<Server>,
    request: wire::PullRows,
    numbers: Bytes,
    bytes: u64,
) -> Result<Vec<u8>> {
    let call = Call {
        op: "pull rows",
        path: path!("PullRows"),
        header: request,
        payload: vec![numbers],
        sizes: move |reply: &wire::Pulled| match &reply.got[..] {
            [got] if got.bytes == bytes => Ok(vec![bytes]),
            _ => Err("rows of another size".to_string()),
        },
        may_repeat: true,
    };
    let (_, mut tensors): (wire::Pulled, _) = server.call(call).await?;
    Ok(tensors.pop().unwrap_or_default())
}

/// Refuses NaN and infinity.
fn finite(variable: &VariableRef, gradient: &Gradient) -> Result<()> {
    let values = match gradient {
        Gradient::Dense(values) => values,
        Gradient::Sparse { rows, .. } => rows,
    };
    match elements::all_finite(values.dtype(), values.as_bytes()) {
        true => Ok(()),
        false => Err(PsError::NonFinite {
            name: variable.name().to_string(),
        }),
    }
}
