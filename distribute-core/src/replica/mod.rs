//! What a step sees of its replica: [`ReplicaContext`].

mod again;
mod calls;
mod captured;
mod devices;
mod differentiable;
mod gradients;
mod host;
mod link;
mod local_exchange;
mod log;
mod peers;
mod place;
mod rng;
mod threads;
mod turns;
mod workers;

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::burn_internals::capture::CaptureBackend;
use burn::tensor::{Device, Int, Tensor};
use distribute_collectives::ReduceOp;

use captured::Captured;
pub(crate) use devices::Devices;
pub(crate) use host::{Alone, HostPeers};
pub(crate) use link::Link;
pub(crate) use local_exchange::LocalExchange;
pub(crate) use log::Log;
pub(crate) use peers::Peers;
pub use place::{Replica, VariablePlacement};
pub use rng::ReplicaRng;
pub(crate) use threads::Threads;
pub(crate) use turns::{Turn, Turns};
pub(crate) use workers::Workers;

use crate::gradients::Watched;
use crate::nest::different_structure;
use crate::notes::StepNotes;
use crate::random::{OwnRandom, RandomStream};
use crate::trace::Trace;
use crate::{Error, Nest, Result, WorkerGroup};

/// The replica a step is running on (TensorFlow: `tf.distribute.ReplicaContext`).
///
/// Only a step is handed one, so the operations that need all replicas to take part cannot be
/// called from anywhere else. (A [`SyncBatchNorm`](crate::SyncBatchNorm) finds it by the thread of
/// the step, and is called as burn's layer.) All replicas must make the same cross-replica calls
/// (`all_reduce`, `all_gather`, `broadcast`, `merge_call`) in the same order; a replica that does
/// not is named in the error that the others get.
pub struct ReplicaContext {
    replica: Replica,
    local_id: usize,
    num_local: usize,
    num_replicas: usize,
    placement: VariablePlacement,
    peers: Arc<dyn Peers>,
    /// Rows of tables whose gradients are requested besides a model's.
    watched: Mutex<Vec<Watched>>,
    notes: Arc<StepNotes>,
    /// The replica's device without autodiff.
    plain_device: Device,
    /// Whether the step evaluates, without autodiff.
    is_evaluated: AtomicBool,
    /// A context belongs to the thread of its replica.
    not_sync: PhantomData<Cell<()>>,
}

/// A replica's place among the others.
pub(crate) struct ReplicaCounts {
    /// Its index in its process.
    pub(crate) local_id: usize,
    /// The number of replicas of its process.
    pub(crate) num_local: usize,
    /// The number of replicas in all.
    pub(crate) num_replicas: usize,
}

impl ReplicaCounts {
    fn alone_in_process(num_replicas: usize) -> Self {
        Self {
            local_id: 0,
            num_local: 1,
            num_replicas,
        }
    }
}

impl ReplicaContext {
    /// The context of a strategy with one replica.
    pub(crate) fn alone(replica: &Replica) -> Self {
        Self::new(
            replica,
            ReplicaCounts::alone_in_process(1),
            VariablePlacement::Mirrored,
            Arc::new(Alone),
        )
    }

    /// The context of a step that is captured for all replicas.
    pub(crate) fn captured(
        replica: &Replica,
        trace: &Arc<Trace>,
        workers: Option<&WorkerGroup>,
    ) -> Self {
        let mut replica = replica.clone();
        replica.device = trace.device().clone();
        let counts = ReplicaCounts::alone_in_process(trace.num_replicas());
        let peers = Captured {
            trace: Arc::clone(trace),
            workers: workers.cloned(),
        };
        Self::new(
            &replica,
            counts,
            VariablePlacement::Mirrored,
            Arc::new(peers),
        )
    }

    /// The context of one replica of several.
    pub(crate) fn new(
        replica: &Replica,
        counts: ReplicaCounts,
        placement: VariablePlacement,
        peers: Arc<dyn Peers>,
    ) -> Self {
        let ReplicaCounts {
            local_id,
            num_local,
            num_replicas,
        } = counts;
        Self {
            replica: replica.clone(),
            local_id,
            num_local,
            num_replicas,
            placement,
            peers,
            watched: Mutex::default(),
            notes: Arc::default(),
            plain_device: replica.device.clone().without_autodiff(),
            is_evaluated: AtomicBool::new(false),
            not_sync: PhantomData,
        }
    }

    /// This replica's id among all replicas in sync, from 0
    /// (TensorFlow: `replica_id_in_sync_group`).
    ///
    /// In a step that is compiled for several replicas there is no such number: `run` returns an
    /// error, and [`replica_id_tensor`](Self::replica_id_tensor) is what can be used.
    pub fn replica_id(&self) -> usize {
        if let Some(trace) = self.trace() {
            trace.use_replica_id();
        }
        self.replica.id
    }

    /// This replica's id as a tensor of one element, also in a compiled step.
    pub fn replica_id_tensor(&self) -> Tensor<1, Int> {
        match self.trace() {
            Some(trace) => Tensor::from_primitive::<CaptureBackend>(trace.replica_id().0),
            None => Tensor::from_data([self.replica.id as i64], self.device()),
        }
    }

    /// What the step knows of its batch, and has noted of its losses.
    pub fn notes(&self) -> &StepNotes {
        &self.notes
    }

    pub(crate) fn notes_handle(&self) -> &Arc<StepNotes> {
        &self.notes
    }

    /// The capture that this step is part of.
    pub(crate) fn trace(&self) -> Option<&Arc<Trace>> {
        self.peers.capture()
    }

    /// Refuses a call that a step which is compiled has no counterpart for.
    pub(crate) fn refuse_captured(&self, what: &str) -> Result<()> {
        match self.trace() {
            None => Ok(()),
            Some(_) => Err(Error::not_compilable(
                format!("`{what}`"),
                "return the value from the step and call the strategy's `gather` or `reduce`, or \
                 use `all_reduce`",
            )),
        }
    }

    /// How the other replicas are reached.
    pub(crate) fn peers(&self) -> &dyn Peers {
        &*self.peers
    }

    pub(crate) fn peers_handle(&self) -> &Arc<dyn Peers> {
        &self.peers
    }

    /// Returns the failure of a call that could not return it.
    pub(crate) fn check_noted(&self) -> Result<()> {
        self.notes.failure().map_or(Ok(()), Err)
    }

    /// This replica's index in its process.
    pub fn local_id(&self) -> usize {
        self.local_id
    }

    /// The number of replicas whose gradients are summed, over all workers.
    pub fn num_replicas_in_sync(&self) -> usize {
        self.num_replicas
    }

    /// burn's device of this replica: with autodiff, but in a step that evaluates.
    ///
    /// A step evaluates if it is passed states and all of them are shared (`&state`). Its models,
    /// its batch and what it makes here then have no autodiff. A step that is compiled is captured
    /// with autodiff, of which a program that asks for no gradient has nothing.
    pub fn device(&self) -> &Device {
        if self.is_evaluated.load(Ordering::Relaxed) {
            &self.plain_device
        } else {
            &self.replica.device
        }
    }

    /// From now on the step has no autodiff.
    pub(crate) fn evaluation(&self) -> Evaluation<'_> {
        self.is_evaluated.store(true, Ordering::Relaxed);
        Evaluation(&self.is_evaluated)
    }

    /// Where training states keep their variables under this strategy.
    pub fn variable_placement(&self) -> VariablePlacement {
        self.placement
    }

    /// A random stream of this replica's own for one step.
    ///
    /// The stream depends on `seed`, `step` and the replica id alone: the same in every run and
    /// after a restart, and different on every replica. In a step that is compiled only
    /// [`dropout`](crate::dropout) can use it: the compiled program draws fresh numbers in each
    /// step; drawing from it on the host is an error of that step. What burn draws itself follows
    /// from [`seed`](Self::seed).
    #[track_caller]
    pub fn rng(&self, seed: u64, step: u64) -> ReplicaRng {
        let Some(trace) = self.trace() else {
            return ReplicaRng::new(seed, step, self.replica.id as u64);
        };
        // The program's random numbers are others in every step and on every replica; the program
        // itself is not.
        trace.use_step_for_random_numbers();
        ReplicaRng::captured(seed, trace, Location::caller())
    }

    /// Seeds burn's own generator for the rest of the step with a stream of this replica, which
    /// depends on `seed`, `step` and the replica id alone: what burn's `Dropout` and
    /// `Tensor::random` draw is then the same in every run, and different on every replica.
    ///
    /// The generator is one per process, so replicas of a process wait for each other here and
    /// compute one at a time until the step calls [`gradient`](Self::gradient) or waits for other
    /// replicas; each call makes the numbers after it a new part of the stream. A step that is
    /// handed a [`TrainState`](crate::TrainState) whose model has a `Dropout` does so by itself,
    /// see [`TrainState::random_seed`](crate::TrainState::random_seed). In a step that is compiled
    /// it does nothing: the program draws its own numbers.
    pub fn seed(&self, seed: u64, step: u64) {
        if self.trace().is_none() {
            let stream = RandomStream {
                seed,
                step,
                micro_batch: 0,
                is_chosen: true,
            };
            crate::random::begin_random(OwnRandom::new(self.device(), self.replica.id, stream));
        }
    }

    /// Reduces a value over all replicas; every replica gets the result
    /// (TensorFlow: `ReplicaContext.all_reduce`). `Mean` divides by the number of replicas.
    ///
    /// Blocks until all replicas have called it.
    ///
    /// # Errors
    /// [`Error::Shape`] on every replica if the values' shapes differ, another replica's failure,
    /// [`Error::DType`] for the mean of integers in an integer tensor, and for bool.
    pub fn all_reduce<T: Nest>(&self, op: ReduceOp, mut value: T) -> Result<T> {
        self.check_noted()?;
        self.peers.all_reduce(op, &mut value)?;
        Ok(value)
    }

    /// [`all_reduce`](Self::all_reduce) of a tensor that gradients flow through: the gradient of
    /// the input is the all-reduce of the result's gradient with the same operation.
    ///
    /// The backward pass communicates too, so every replica must use the result in its loss, or
    /// none. SUM and MEAN only.
    ///
    /// # Errors
    /// As `all_reduce`; [`Error::InvalidArgument`] for other operations and on devices other than
    /// the CPU. A failure in the backward pass is returned by [`gradient`](Self::gradient), or at
    /// the end of the step.
    pub fn all_reduce_tensor<const D: usize>(
        &self,
        op: ReduceOp,
        mut tensor: Tensor<D>,
    ) -> Result<Tensor<D>> {
        self.check_noted()?;
        self.peers.all_reduce_tensor(op, &mut tensor)?;
        Ok(tensor)
    }

    /// Concatenates a value over all replicas along `axis`, in replica order; every replica gets
    /// the result (TensorFlow: `ReplicaContext.all_gather`). Sizes along the axis may differ.
    ///
    /// Blocks until all replicas have called it.
    ///
    /// # Errors
    /// [`Error::Shape`] if other dimensions differ, [`Error::Axis`] for scalars and axes out of
    /// range (negative ones too), [`Error::DType`] for bool, and another replica's failure.
    pub fn all_gather<T: Nest>(&self, mut value: T, axis: i64) -> Result<T> {
        self.check_noted()?;
        self.peers.all_gather(&mut value, axis)?;
        Ok(value)
    }

    /// Gives every replica the value of replica `root`.
    ///
    /// Blocks until all replicas have called it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such replica; another replica's failure.
    pub fn broadcast<T: Nest>(&self, root: usize, mut value: T) -> Result<T> {
        self.check_noted()?;
        if root >= self.num_replicas {
            return Err(Error::invalid(format!(
                "broadcast from replica {root}, but there are {} replicas",
                self.num_replicas
            )));
        }
        self.peers.broadcast(&mut value, root)?;
        Ok(value)
    }

    /// Exchanges whole values between the replicas of this process; `join` runs once per process
    /// and may exchange more with other workers. `op` and `detail` (a root, an
    /// axis, a variable's number) say which call it is; replicas that differ in them all get an
    /// error instead of each other's values.
    pub(crate) fn exchange<T: Send + 'static, R: Send + 'static>(
        &self,
        op: &'static str,
        detail: i64,
        value: T,
        join: impl FnOnce(Vec<T>) -> Result<Vec<R>>,
    ) -> Result<R> {
        self.refuse_captured(op)?;
        self.check_noted()?;
        let Some(exchange) = self.peers.local_exchange(op, detail)? else {
            let results = join(vec![value])?;
            crate::error::check_count("the result of a merge_call", 1, results.len())?;
            return results.into_iter().next().ok_or_else(different_structure);
        };
        let _paused = turns::pause(self.peers.turn());
        exchange.exchange(op, self.local_id, value, join)
    }

    /// The replicas of this process.
    pub(crate) fn num_local(&self) -> usize {
        self.num_local
    }
}

/// A step that evaluates; what is dropped is its end.
pub(crate) struct Evaluation<'a>(&'a AtomicBool);

impl Drop for Evaluation<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl fmt::Debug for ReplicaContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplicaContext")
            .field("replica", &self.replica)
            .field("num_replicas", &self.num_replicas)
            .finish_non_exhaustive()
    }
}
