//! What a server has: the run of one coordinator.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::error::{PsError, Result};
use crate::rpc::Peer;
use crate::server::ServerOptions;
use crate::server::admission::Admission;
use crate::server::coordinator_watch::CoordinatorPresence;
use crate::server::memory::PayloadBudget;
use crate::server::reservations::{Decision, UpdateTarget};
use crate::server::shard::{Shard, UpdateTerms};
use crate::server::shard_table::ShardTable;
use crate::update::{RunId, RunOptions, UpdateKey};

/// The most threads of one push.
const THREADS_MAX: usize = 4;

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
    /// What the payloads of all connections may hold.
    pub(super) payloads: PayloadBudget,
    run: Mutex<Option<Arc<Run>>>,
    /// Whether a coordinator has asked the process to end.
    done: Mutex<bool>,
    asked: Condvar,
}

/// One run of a coordinator.
#[derive(Debug)]
pub(super) struct Run {
    id: RunId,
    coordinator: Mutex<Coordinator>,
    pub(super) rules: RunOptions,
    pub(super) table: ShardTable,
    pub(super) admission: Arc<Admission>,
    learning_rate: Mutex<Option<f64>>,
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

impl Store {
    pub(super) fn new(options: ServerOptions) -> Self {
        Self {
            payloads: PayloadBudget::new(options.max_payload_bytes),
            options,
            run: Mutex::default(),
            done: Mutex::default(),
            asked: Condvar::new(),
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
    pub(super) fn attach(&self, id: RunId, rules: RunOptions, peer: &Arc<Peer>) -> Result<()> {
        rules.check()?;
        let mut place = self.run.lock();
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
        let Some(run) = self.run.lock().clone() else {
            return CoordinatorPresence::Awaited;
        };
        let coordinator = run.coordinator.lock();
        match coordinator.peer.upgrade() {
            Some(peer) => CoordinatorPresence::Connected(peer.heard().silence()),
            None => CoordinatorPresence::Gone(coordinator.remote.to_string()),
        }
    }

    /// The run that a call belongs to.
    pub(super) fn run(&self, id: RunId) -> Result<Arc<Run>> {
        let place = self.run.lock();
        match &*place {
            Some(run) if run.id == id => Ok(run.clone()),
            Some(run) => Err(Self::other_run(format!(
                "it is in run {}, this call is from run {id}; an update of an earlier run is not \
                 applied",
                run.id
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
        *self.done.lock() = true;
        self.asked.notify_all();
    }

    /// Waits so long for that; whether it has come.
    pub(super) fn wait(&self, limit: Duration) -> bool {
        let mut done = self.done.lock();
        self.asked.wait_while_for(&mut done, |done| !*done, limit);
        *done
    }
}

impl Run {
    fn new(id: RunId, rules: RunOptions, coordinator: &Arc<Peer>) -> Self {
        Self {
            id,
            coordinator: Mutex::new(Coordinator::of(coordinator)),
            rules,
            table: ShardTable::default(),
            admission: Arc::new(Admission::new(rules)),
            learning_rate: Mutex::default(),
            // Asking takes a dozen system calls, so not at every push.
            threads: std::thread::available_parallelism()
                .map_or(1, usize::from)
                .min(THREADS_MAX),
            update_lock: RwLock::default(),
        }
    }

    /// Makes `peer` the coordinator's connection from now on.
    pub(super) fn claim(&self, peer: &Arc<Peer>) {
        *self.coordinator.lock() = Coordinator::of(peer);
    }

    fn connected_coordinator(&self) -> Option<Arc<Peer>> {
        self.coordinator.lock().peer.upgrade()
    }

    pub(super) fn learning_rate(&self) -> Option<f64> {
        *self.learning_rate.lock()
    }

    pub(super) fn set_learning_rate(&self, learning_rate: Option<f64>) {
        *self.learning_rate.lock() = learning_rate;
    }

    /// The terms of an update.
    pub(super) fn terms(&self, id: Option<UpdateKey>, base: Option<u64>) -> UpdateTerms {
        UpdateTerms {
            id,
            low_water: self.admission.low_water(),
            base,
            synchronous: self.rules.synchronous,
            learning_rate: self.learning_rate(),
        }
    }

    /// All closures below are finished.
    pub(super) fn finished_below(&self, closure: u64) {
        if self.admission.finished_below(closure) {
            for shard in self.table.shards() {
                shard.forget_below(closure);
            }
        }
    }

    /// Decides about an update of these shards, and keeps their place for it; whether some of them
    /// have had it already. That is decided too: it was when they were given it.
    pub(super) async fn prepare(
        self: &Arc<Self>,
        key: UpdateKey,
        parts: Vec<(Arc<Shard>, Option<u64>)>,
        peer: &Arc<Peer>,
    ) -> Result<bool> {
        let Some(bound) = self.admission.refuse_beyond() else {
            return Err(PsError::invalid("prepare: this run refuses no gradient"));
        };
        let parts = Arc::new(parts);
        let decide = || {
            let (run, parts, peer) = (self.clone(), parts.clone(), peer.clone());
            blocking(move || run.decide(key, &parts, bound, &peer))
        };
        self.admission.until("push", bound, key.0, decide).await
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
            wants.push(UpdateTarget {
                shard: shard.spec.id,
                version,
                base: shard.base(*base)?,
            });
        }
        match self.admission.decide(key, &wants, bound, peer) {
            Decision::Decided => Ok(Some(false)),
            Decision::Wait => Ok(None),
            Decision::Stale { shard, lag } => Err(PsError::Stale {
                name: self.table.shard(shard)?.name().to_string(),
                lag,
                bound,
            }),
        }
    }

    /// Keeps the shards as they are.
    pub(super) fn closed(&self) -> RwLockWriteGuard<'_, ()> {
        self.update_lock.write()
    }

    /// Keeps away what needs the shards as they are.
    pub(super) fn open(&self) -> RwLockReadGuard<'_, ()> {
        self.update_lock.read()
    }
}
