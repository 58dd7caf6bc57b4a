//! The workers of a job, as one of them sees them: what happens between processes.
//!
//! A strategy with several workers has one [`WorkerGroup`] per process
//! ([`Strategy::workers`](crate::Strategy::workers)). All workers run the same program, so every
//! call of a group is made by all of them, in the same order; it blocks until they have, and ends
//! with an error that names who is missing.

mod agreement;
mod chief;
mod device;
pub(crate) mod encoding;
mod endpoint;
mod exchange;
mod shared_directory;
pub(crate) mod shares;

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use distribute_collectives::{
    AbortHandle, Communicator, CommunicatorExt, Description, Interruption, InterruptionHold, Order,
    Terms,
};

use agreement::Signal;
pub(crate) use chief::packs;
use endpoint::HeldUp;

use crate::communication::{CommunicationImplementation, CommunicationOptions};
use crate::sync::lock;
use crate::{DeviceReducer, Error, Result};

/// The workers of a job: worker `i` is the process with rank `i`, the chief is worker 0.
///
/// A cheap handle: clones are the same group.
#[derive(Clone)]
pub struct WorkerGroup {
    shared: Arc<Shared>,
}

struct Shared {
    communicator: Mutex<Box<dyn Communicator>>,
    held_up: HeldUp,
    abort: AbortHandle,
    index: usize,
    /// The id of the first replica of each worker, and the number of replicas at the end.
    first_replicas: Vec<usize>,
    /// How the replicas lie in the workers; `None` where workers' sums are combined in an order of
    /// their own.
    terms: Option<Terms>,
    /// How many replicas of this worker are combined with each other, part by part.
    parts: Vec<usize>,
    options: CommunicationOptions,
    signals: [Signal; 2],
    /// Ends the waits of the communicator.
    interruption: OnceLock<Interruption>,
    held: Mutex<Option<InterruptionHold>>,
    /// With the replicas 0 of the other workers, in the memory of their devices.
    device: OnceLock<Mutex<Box<dyn DeviceReducer>>>,
}

impl WorkerGroup {
    /// The group of the ranks of `communicator`, each with its number of replicas. All ranks call
    /// it together; a strategy with several processes makes one and returns it from
    /// [`Strategy::workers`](crate::Strategy::workers).
    ///
    /// # Errors
    /// A rank that was lost or does not come before the deadline.
    pub fn new(
        mut communicator: Box<dyn Communicator>,
        local_replicas: usize,
        options: CommunicationOptions,
    ) -> Result<Self> {
        let own = [i64::try_from(local_replicas).map_err(Error::internal)?];
        let counts = communicator.all_gather(&own)?;
        let mut first_replicas = vec![0];
        let mut replicas = 0_usize;
        for count in counts.values() {
            replicas += usize::try_from(*count).map_err(Error::internal)?;
            first_replicas.push(replicas);
        }
        let ring = options.implementation == CommunicationImplementation::Ring;
        let own_order = ring && communicator.describe().order == Order::Fast;
        let counts = first_replicas.windows(2).map(|pair| pair[1] - pair[0]);
        let terms = (!own_order).then(|| Terms::new(counts)).transpose()?;
        let parts = terms
            .as_ref()
            .map(|terms| terms.subtrees(communicator.rank()));
        let shared = Shared {
            abort: communicator.abort_handle(),
            index: communicator.rank(),
            communicator: Mutex::new(communicator),
            held_up: HeldUp::default(),
            first_replicas,
            parts: parts.unwrap_or_else(|| vec![local_replicas]),
            terms,
            options,
            signals: Default::default(),
            interruption: OnceLock::new(),
            held: Mutex::default(),
            device: OnceLock::new(),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Says what ends the waits of the communicator, which was made with it, so that training can
    /// [hold](Interruption::hold) it. The first one counts.
    #[must_use]
    pub fn interrupted_by(self, interruption: Interruption) -> Self {
        let _ = self.shared.interruption.set(interruption);
        self
    }

    /// From now on there is something to lose: an interruption ends waits only for workers that
    /// give no sign of life. A training loop calls it when it begins with what would have to be
    /// repeated.
    pub fn hold(&self) {
        let mut held = lock(&self.shared.held);
        if held.is_none() {
            *held = self.shared.interruption.get().map(Interruption::hold);
        }
    }

    /// From now on an interruption ends every wait again.
    pub fn release(&self) {
        *lock(&self.shared.held) = None;
    }

    /// This process' worker, from 0.
    pub fn index(&self) -> usize {
        self.shared.index
    }

    /// The number of workers.
    pub fn num_workers(&self) -> usize {
        self.shared.first_replicas.len() - 1
    }

    /// Whether this is worker 0, which writes what is written once: checkpoints, logs.
    pub fn is_chief(&self) -> bool {
        self.index() == 0
    }

    /// The number of replicas of all workers.
    pub fn num_replicas(&self) -> usize {
        self.shared.first_replicas[self.num_workers()]
    }

    /// The number of replicas of each worker.
    fn replica_counts(&self) -> impl Iterator<Item = usize> {
        let firsts = self.shared.first_replicas.windows(2);
        firsts.map(|pair| pair[1] - pair[0])
    }

    /// The replicas of the worker that has most.
    pub(crate) fn max_replicas(&self) -> usize {
        self.replica_counts().max().unwrap_or(0)
    }

    /// Whether all workers have equally many replicas.
    pub fn has_equal_workers(&self) -> bool {
        self.replica_counts()
            .all(|count| count == self.max_replicas())
    }

    /// Runs something that this worker does alone, before or between what all do together: if it
    /// fails, the others are told instead of waiting for this worker.
    ///
    /// # Errors
    /// The outcome's.
    pub fn or_abort<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|error| self.abort(&error.to_string()))
    }

    /// The id of the first replica of each worker, and the number of replicas.
    pub(crate) fn first_replicas(&self) -> &[usize] {
        &self.shared.first_replicas
    }

    /// The id of the first replica of this worker.
    pub(crate) fn first_replica(&self) -> usize {
        self.shared.first_replicas[self.index()]
    }

    /// How many replicas of this worker are combined with each other, before the replicas of other
    /// workers: the first part has the replicas from 0 on, the next one those after them.
    pub(crate) fn parts(&self) -> &[usize] {
        &self.shared.parts
    }

    pub(crate) fn options(&self) -> &CommunicationOptions {
        &self.shared.options
    }

    /// Returns when all workers have called it.
    ///
    /// # Errors
    /// A worker that was lost, ended the group or does not come before the deadline.
    pub fn barrier(&self) -> Result<()> {
        Ok(self.communicator().barrier()?)
    }

    /// How the workers exchange values, and why so.
    pub fn describe(&self) -> Description {
        self.communicator().describe()
    }

    /// Ends the running and every later call of all workers with an error that names this worker
    /// and the reason.
    pub fn abort(&self, reason: &str) {
        self.shared.abort.abort(reason);
    }
}

impl fmt::Debug for WorkerGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerGroup")
            .field("index", &self.index())
            .field("first_replicas", &self.shared.first_replicas)
            .finish_non_exhaustive()
    }
}
