//! What a server holds: the shards of one run.

use std::collections::BTreeSet;
use std::future::ready;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak,
};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::error::{PsError, Result};
use crate::generated as wire;
use crate::rpc::Peer;
use crate::server::ServerOptions;
use crate::server::clock::StalenessClock;
use crate::server::elements;
use crate::server::reservations::{Decision, Reservations, UpdateKey, Want};
use crate::server::shard::{Shard, UpdateTerms};
use crate::update::{RunId, RunOptions, Staleness, StalenessPolicy};
use crate::variable::OptimizerSpec;

/// The most threads of one push.
const THREADS_MAX: usize = 4;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does what may take a while where it does not hold up other calls.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| PsError::system("a call failed on the server", error))?
}

/// The state of a server process.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) options: ServerOptions,
    run: Mutex<Option<Arc<Run>>>,
    pub(super) done: tokio::sync::watch::Sender<bool>,
}

/// One run of a coordinator.
#[derive(Debug)]
pub(super) struct Run {
    id: RunId,
    coordinator: Mutex<Coordinator>,
    /// When the coordinator, which speaks once a second, last did.
    last_heard: Mutex<Instant>,
    pub(super) rules: RunOptions,
    table: RwLock<ShardTable>,
    learning_rate: Mutex<Option<f64>>,
    low_water: AtomicU64,
    cancelled_below: AtomicU64,
    clock: Mutex<StalenessClock>,
    reservations: Mutex<Reservations>,
    moved: Arc<Notify>,
    /// The most threads that apply one push.
    pub(super) threads: usize,
    /// Held for reading while an update is made, for writing by what nothing may come between: a
    /// snapshot, a restore, a decision about all shards, a push that could fail half way.
    pub(super) update_lock: RwLock<()>,
}

/// The connection of the coordinator, and where it came from.
#[derive(Debug)]
struct Coordinator {
    peer: Weak<Peer>,
    remote: SocketAddr,
}

impl Coordinator {
    fn of(peer: &Arc<Peer>) -> Self {
        Self {
            peer: Arc::downgrade(peer),
            remote: peer.remote(),
        }
    }
}

/// Whether there is a coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CoordinatorPresence {
    /// None has come yet.
    Awaited,
    Connected,
    /// The one that came from this address has gone.
    Gone(SocketAddr),
}

#[derive(Debug, Default)]
struct ShardTable {
    shards: Vec<Arc<Shard>>,
    names: BTreeSet<(String, u32)>,
    bytes: u64,
}

fn run_id(bytes: &[u8]) -> Option<RunId> {
    let bytes = bytes.try_into().ok()?;
    Some(RunId(u128::from_le_bytes(bytes)))
}

impl Store {
    pub(super) fn new(options: ServerOptions) -> Self {
        Self {
            options,
            run: Mutex::default(),
            done: tokio::sync::watch::channel(false).0,
        }
    }

    fn other_run(reason: String) -> PsError {
        PsError::OtherRun {
            server: 0,
            address: String::new(),
            reason,
        }
    }

    /// Begins a run, unless the coordinator of another one is still connected.
    pub(super) fn attach(&self, request: &wire::Attach, peer: &Arc<Peer>) -> Result<()> {
        let id = run_id(&request.run).ok_or_else(|| PsError::invalid("attach: no run id"))?;
        let rules = RunOptions::from_wire(request)?;
        rules.check()?;
        let mut place = lock(&self.run);
        if let Some(run) = &*place {
            if run.id == id {
                run.claim(peer);
                return Ok(());
            }
            if let Some(coordinator) = run.connected_coordinator() {
                return Err(Self::other_run(format!(
                    "it works for the coordinator at {} (run {}), which is still connected; end \
                     that program first",
                    coordinator.remote(),
                    run.id
                )));
            }
        }
        *place = Some(Arc::new(Run::new(id, rules, peer)));
        Ok(())
    }

    /// Whether there is a coordinator now.
    pub(super) fn presence(&self) -> CoordinatorPresence {
        let Some(run) = lock(&self.run).clone() else {
            return CoordinatorPresence::Awaited;
        };
        let coordinator = lock(&run.coordinator);
        match coordinator.peer.strong_count() {
            0 => CoordinatorPresence::Gone(coordinator.remote),
            _ => CoordinatorPresence::Connected,
        }
    }

    /// How long nothing has been heard of the coordinator; nothing without one.
    pub(super) fn silence(&self) -> Option<Duration> {
        let run = lock(&self.run).clone()?;
        Some(lock(&run.last_heard).elapsed())
    }

    /// The run that a call belongs to.
    pub(super) fn run(&self, id: &[u8]) -> Result<Arc<Run>> {
        let place = lock(&self.run);
        let wanted = run_id(id);
        match &*place {
            Some(run) if Some(run.id) == wanted => Ok(run.clone()),
            Some(run) => Err(Self::other_run(format!(
                "it is in run {}, this call is from {}; an update of an earlier run is not \
                 applied",
                run.id,
                wanted.map_or("none".to_string(), |id| format!("run {id}"))
            ))),
            None => Err(Self::other_run(
                "no coordinator has begun a run there: the server was restarted, or the \
                 coordinator has not come yet"
                    .to_string(),
            )),
        }
    }

    /// Ends [`ParameterServer::wait`](crate::ParameterServer::wait).
    pub(super) fn finish(&self) {
        self.done.send_replace(true);
    }
}

impl Run {
    fn new(id: RunId, rules: RunOptions, coordinator: &Arc<Peer>) -> Self {
        Self {
            id,
            coordinator: Mutex::new(Coordinator::of(coordinator)),
            last_heard: Mutex::new(Instant::now()),
            rules,
            table: RwLock::default(),
            learning_rate: Mutex::default(),
            low_water: AtomicU64::new(0),
            cancelled_below: AtomicU64::new(0),
            clock: Mutex::default(),
            reservations: Mutex::default(),
            moved: Arc::default(),
            // Asking takes a dozen system calls, so not at every push.
            threads: std::thread::available_parallelism()
                .map_or(1, usize::from)
                .min(THREADS_MAX),
            update_lock: RwLock::default(),
        }
    }

    /// The coordinator has said what it says once a second.
    pub(super) fn note_coordinator(&self) {
        *lock(&self.last_heard) = Instant::now();
    }

    /// Makes `peer` the coordinator's connection from now on.
    pub(super) fn claim(&self, peer: &Arc<Peer>) {
        self.note_coordinator();
        *lock(&self.coordinator) = Coordinator::of(peer);
    }

    fn connected_coordinator(&self) -> Option<Arc<Peer>> {
        lock(&self.coordinator).peer.upgrade()
    }

    /// Takes in new shards, all or none.
    pub(super) fn create(
        &self,
        shards: Vec<wire::Shard>,
        options: &ServerOptions,
    ) -> Result<Vec<u32>> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = table.bytes;
        let mut made: Vec<Shard> = Vec::with_capacity(shards.len());
        for shard in shards {
            let key = (shard.name.clone(), shard.shard);
            if table.names.contains(&key) || made.iter().any(|made| made.key() == key) {
                return Err(PsError::VariableExists { name: key.0 });
            }
            let shard = checked(shard, options)?;
            // A slot is as large as the value.
            let tensors = 1 + shard.slots().len() as u64;
            bytes = bytes.saturating_add(shard.bytes as u64 * tensors);
            if bytes > options.max_memory_bytes {
                return Err(PsError::TooLarge {
                    what: format!("all variables of the server, with `{}`,", shard.name()),
                    bytes,
                    limit: options.max_memory_bytes,
                    option: "max_memory_bytes",
                });
            }
            made.push(shard);
        }
        if table.shards.len() + made.len() > options.max_variables {
            return Err(PsError::Full {
                what: format!(
                    "it holds at most {} shards; raise `ServerOptions::max_variables`",
                    options.max_variables
                ),
            });
        }
        table.bytes = bytes;
        let mut ids = Vec::with_capacity(made.len());
        for mut shard in made {
            let id = u32::try_from(table.shards.len()).map_err(PsError::invalid)?;
            shard.wire.id = id;
            ids.push(id);
            table.names.insert(shard.key());
            table.shards.push(Arc::new(shard));
        }
        Ok(ids)
    }

    /// All shards in creation order.
    pub(super) fn shards(&self) -> Vec<Arc<Shard>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.shards.clone()
    }

    /// A shard by its number.
    pub(super) fn shard(&self, id: u32) -> Result<Arc<Shard>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table
            .shards
            .get(id as usize)
            .cloned()
            .ok_or_else(|| PsError::UnknownVariable {
                name: format!("#{id}"),
            })
    }

    pub(super) fn learning_rate(&self) -> Option<f64> {
        *lock(&self.learning_rate)
    }

    pub(super) fn set_learning_rate(&self, learning_rate: Option<f64>) {
        *lock(&self.learning_rate) = learning_rate;
    }

    /// The terms of an update.
    pub(super) fn terms(&self, id: Option<(u64, u32)>, base: Option<u64>) -> UpdateTerms {
        UpdateTerms {
            id,
            low_water: self.low_water.load(Ordering::Acquire),
            base,
            synchronous: self.rules.synchronous,
            learning_rate: self.learning_rate(),
        }
    }

    /// All closures below are finished.
    pub(super) fn finished_below(&self, closure: u64) {
        let before = self.low_water.fetch_max(closure, Ordering::AcqRel);
        if before < closure {
            for shard in self.shards() {
                shard.forget_below(closure);
            }
            self.forget_below(closure);
        }
    }

    fn forget_below(&self, closure: u64) {
        lock(&self.clock).forget_below(closure);
        lock(&self.reservations).release_closures(|held| held < closure);
        self.moved.notify_waiters();
    }

    /// All closures below are cancelled; those that wait here are let go.
    pub(super) fn cancelled_below(&self, closure: u64) {
        let before = self.cancelled_below.fetch_max(closure, Ordering::AcqRel);
        if before < closure {
            self.forget_below(closure);
        }
    }

    /// What a cancelled closure asks for is refused.
    fn check_wanted(&self, closure: u64) -> Result<()> {
        match closure < self.cancelled_below.load(Ordering::Acquire) {
            true => Err(PsError::Cancelled),
            false => Ok(()),
        }
    }

    /// The push of this closure will not come: pulls wait for it no longer.
    pub(super) fn abandon(&self, closure: u64) {
        lock(&self.clock).forget(closure);
        lock(&self.reservations).release_closures(|held| held == closure);
        self.moved.notify_waiters();
    }

    /// The bound beyond which gradients are refused, if they are.
    pub(super) fn refuse_beyond(&self) -> Option<u64> {
        let staleness = self.rules.staleness?;
        (staleness.policy == StalenessPolicy::Refuse).then_some(staleness.bound)
    }

    /// Decides about an update of these shards, and keeps their place for it; whether some of them
    /// have had it already. That is decided too: it was when they were given it.
    pub(super) async fn prepare(
        self: &Arc<Self>,
        key: UpdateKey,
        parts: Vec<(Arc<Shard>, Option<u64>)>,
        peer: &Arc<Peer>,
    ) -> Result<bool> {
        let Some(bound) = self.refuse_beyond() else {
            return Err(PsError::invalid("prepare: this run refuses no gradient"));
        };
        let parts = Arc::new(parts);
        // What is kept for a connection is void when that ends.
        peer.notify_at_end(&self.moved);
        let decide = || {
            let (run, parts, peer) = (self.clone(), parts.clone(), peer.clone());
            blocking(move || run.decide(key, &parts, bound, &peer))
        };
        self.until("push", bound, key.0, decide).await
    }

    /// Nothing as long as the update has to wait.
    fn decide(
        &self,
        key: UpdateKey,
        parts: &[(Arc<Shard>, Option<u64>)],
        bound: u64,
        peer: &Arc<Peer>,
    ) -> Result<Option<bool>> {
        let _closed = self.closed();
        let terms = self.terms(Some(key), None);
        let mut wants = Vec::with_capacity(parts.len());
        for (shard, base) in parts {
            let (has_it, version) = shard.look(&terms);
            if has_it {
                return Ok(Some(true));
            }
            wants.push(Want {
                shard: shard.wire.id,
                version,
                base: shard.base(*base)?,
            });
        }
        match lock(&self.reservations).decide(key, &wants, bound, peer) {
            Decision::Decided => Ok(Some(false)),
            Decision::Wait => Ok(None),
            Decision::Stale { shard, lag } => Err(PsError::Stale {
                name: self.shard(shard)?.name().to_string(),
                lag,
                bound,
            }),
        }
    }

    /// The decided update is applied, or will not come: who waits for it looks again.
    pub(super) fn release(&self, key: UpdateKey) {
        if self.refuse_beyond().is_some() {
            lock(&self.reservations).release(key);
            self.moved.notify_waiters();
        }
    }

    /// Keeps the shards as they are.
    pub(super) fn closed(&self) -> RwLockWriteGuard<'_, ()> {
        let closed = self.update_lock.write();
        closed.unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps away what needs the shards as they are.
    pub(super) fn open(&self) -> RwLockReadGuard<'_, ()> {
        let open = self.update_lock.read();
        open.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a closure may pull.
    pub(super) async fn wait_to_pull(&self, closure: u64) -> Result<()> {
        let may = |clock: &mut StalenessClock, bound| clock.pull(closure, bound);
        self.wait("pull", closure, may).await
    }

    /// Waits until a closure may push.
    pub(super) async fn wait_to_push(&self, closure: u64) -> Result<()> {
        let may = |clock: &mut StalenessClock, bound| clock.push(closure, bound);
        self.wait("push", closure, may).await?;
        self.moved.notify_waiters();
        Ok(())
    }

    async fn wait(
        &self,
        op: &'static str,
        closure: u64,
        mut try_it: impl FnMut(&mut StalenessClock, u64) -> bool,
    ) -> Result<()> {
        self.check_wanted(closure)?;
        let Some(Staleness {
            bound,
            policy: StalenessPolicy::Wait,
        }) = self.rules.staleness
        else {
            return Ok(());
        };
        // One that has ended is in nobody's way, and its updates are not applied.
        let has_ended = || closure < self.low_water.load(Ordering::Acquire);
        let attempt = || {
            let may = has_ended() || try_it(&mut lock(&self.clock), bound);
            ready(Ok(may.then_some(())))
        };
        self.until(op, bound, closure, attempt).await
    }

    /// Tries until there is something, for as long as a run lets its workers wait.
    async fn until<T, F: Future<Output = Result<Option<T>>>>(
        &self,
        op: &'static str,
        bound: u64,
        closure: u64,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T> {
        let begin = Instant::now();
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            // From here on no notification is missed.
            moved.as_mut().enable();
            self.check_wanted(closure)?;
            if let Some(done) = attempt().await? {
                return Ok(done);
            }
            let left = self.rules.wait_timeout.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Err(PsError::StalenessTimeout {
                    op,
                    bound,
                    waited: begin.elapsed(),
                });
            }
            let _ = tokio::time::timeout(left, moved).await;
        }
    }
}

impl Shard {
    fn key(&self) -> (String, u32) {
        (self.wire.name.clone(), self.wire.shard)
    }
}

/// A shard whose description makes sense and keeps to the limits.
fn checked(shard: wire::Shard, options: &ServerOptions) -> Result<Shard> {
    let refuse = |what: &str| PsError::invalid(format!("variable `{}`: {what}", shard.name));
    let dtype = elements::parse(&shard.dtype).ok_or_else(|| refuse("an unknown element type"))?;
    let others = shard.shape.get(1..).unwrap_or_default();
    let row = others
        .iter()
        .try_fold(dtype.size() as u64, |row, size| row.checked_mul(*size));
    let bytes = row.and_then(|row| row.checked_mul(shard.rows));
    let (Some(row), Some(bytes)) = (row, bytes) else {
        return Err(refuse("its size is beyond all bounds"));
    };
    let whole = shard.shape.first().copied().unwrap_or(1);
    if shard
        .offset
        .checked_add(shard.rows)
        .is_none_or(|end| end > whole)
    {
        return Err(refuse("the shard has rows that the variable does not have"));
    }
    if bytes > options.max_shard_bytes {
        return Err(PsError::TooLarge {
            what: format!("shard {} of variable `{}`", shard.shard, shard.name),
            bytes,
            limit: options.max_shard_bytes,
            option: "max_shard_bytes",
        });
    }
    let optimizer = match shard.optimizer.is_empty() {
        true => None,
        false => {
            if !dtype.is_float() {
                return Err(refuse("only variables of a float type have an optimizer"));
            }
            let config = serde_json::from_str(&shard.config)
                .map_err(|error| refuse(&format!("the optimizer's configuration: {error}")))?;
            let name = shard.optimizer.clone();
            Some(options.optimizers.build(&OptimizerSpec { name, config })?)
        }
    };
    let narrow = |size| usize::try_from(size).map_err(PsError::invalid);
    let sizes = (narrow(bytes)?, narrow(row)?);
    Ok(Shard::new(shard, dtype, sizes, optimizer))
}
