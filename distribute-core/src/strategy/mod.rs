//! What a strategy is ([`Strategy`]) and what users call on it ([`StrategyExt`]).

mod central_storage;
mod default;
mod ext;
mod id;
mod layout;
mod merge;
mod mirrored;
mod multi_worker;
mod one_device;
pub(crate) mod reduce;
mod replica_threads;

use std::fmt;
use std::sync::Arc;

pub use central_storage::CentralStorageStrategy;
pub use default::{DefaultStrategy, current_strategy};
pub use ext::StrategyExt;
pub use id::StrategyId;
pub use mirrored::{MirroredStrategy, MirroredStrategyBuilder};
pub use multi_worker::{MultiWorkerMirroredStrategy, MultiWorkerMirroredStrategyBuilder};
pub use one_device::OneDeviceStrategy;
pub use replica_threads::{ReplicaThreads, ReplicaThreadsBuilder, run_on_calling_thread};

use crate::macros::forward;
use crate::remote::RemoteStore;
use crate::trace::Tracer;
use crate::{Error, ReplicaContext, Result, WorkerGroup};

pub use crate::replica::{Replica, VariablePlacement};

/// The work of one run: called once per local replica, on that replica's thread.
pub type ReplicaStep<'a> = &'a (dyn Fn(&ReplicaContext) -> Result<()> + Sync);

/// A way of distributing a step over replicas (TensorFlow: `tf.distribute.Strategy`).
///
/// This half of the interface is object safe, so that `Arc<dyn Strategy>` exists
/// ([`current_strategy`](crate::current_strategy) returns one); what users call, `run`, `reduce`,
/// `scope` and the like, is in [`StrategyExt`], which every strategy has. A strategy is a cheap
/// handle: cloning it gives another handle of the same replicas.
///
/// A strategy of another crate writes the four methods without a default; see the example
/// `own_strategy`. The others say what is special about it: workers, a store, a compiler.
pub trait Strategy: Send + Sync + fmt::Debug {
    /// Identity: values of one strategy cannot be used with another one. Made once, with the name
    /// on the command line and in messages: `mirrored`, `one-device`, ...
    fn id(&self) -> StrategyId;

    /// The replicas of this process, in replica order.
    fn replicas(&self) -> &[Replica];

    /// Another handle of this strategy.
    fn handle(&self) -> Arc<dyn Strategy>;

    /// Runs `step` once per local replica and waits for all of them; [`ReplicaThreads`] and
    /// [`run_on_calling_thread`] do.
    ///
    /// # Errors
    /// The first replica's own error, as [`Error::Replica`] or [`Error::ReplicaPanicked`]; the
    /// other replicas have been stopped by then.
    fn run_replicas(&self, step: ReplicaStep<'_>) -> Result<()>;

    /// The name of the [identity](Self::id).
    fn name(&self) -> &'static str {
        self.id().name()
    }

    /// The number of replicas whose gradients are summed, over all workers.
    fn num_replicas_in_sync(&self) -> usize {
        let local = || self.replicas().len();
        self.workers().map_or_else(local, WorkerGroup::num_replicas)
    }

    /// What an input pipeline of this process needs to know: one pipeline per worker.
    fn input_context(&self) -> InputContext {
        InputContext {
            num_input_pipelines: self.workers().map_or(1, WorkerGroup::num_workers),
            input_pipeline_id: self.workers().map_or(0, WorkerGroup::index),
            num_replicas_in_sync: self.num_replicas_in_sync(),
        }
    }

    /// Where a training state's variables live and who applies updates to them.
    fn variable_placement(&self) -> VariablePlacement {
        VariablePlacement::Mirrored
    }

    /// Whether variables made here are distributed. Not under strategies that never have more than
    /// one replica: there a variable is a plain value.
    fn distributes_variables(&self) -> bool {
        true
    }

    /// The workers of the job, if this process is one of several.
    fn workers(&self) -> Option<&WorkerGroup> {
        None
    }

    /// How gradients of GPUs are reduced, and why so, in a line each: between the replicas of this
    /// process, and between workers. Empty where there is nothing to tell: CPUs, or one replica.
    fn device_reduction(&self) -> Vec<&str> {
        Vec::new()
    }

    /// Where states and variables live, if not in this process.
    fn remote_store(&self) -> Option<&dyn RemoteStore> {
        None
    }

    /// What compiles steps and runs the programs, if this strategy does not run steps as they are.
    fn tracer(&self) -> Option<&dyn Tracer> {
        None
    }
}

/// A shared strategy is one, so that `Arc<dyn Strategy>` stands wherever a strategy of a known type
/// does.
impl<S: Strategy + ?Sized> Strategy for Arc<S> {
    forward! { self => **self;
        fn id() -> StrategyId;
        fn replicas() -> &[Replica];
        fn handle() -> Arc<dyn Strategy>;
        fn run_replicas(step: ReplicaStep<'_>) -> Result<()>;
        fn name() -> &'static str;
        fn num_replicas_in_sync() -> usize;
        fn input_context() -> InputContext;
        fn variable_placement() -> VariablePlacement;
        fn distributes_variables() -> bool;
        fn workers() -> Option<&WorkerGroup>;
        fn device_reduction() -> Vec<&str>;
        fn remote_store() -> Option<&dyn RemoteStore>;
        fn tracer() -> Option<&dyn Tracer>;
    }
}

/// The methods of a strategy that is a cheap handle with an `id`, of these replicas and with this
/// way to run a step on them.
macro_rules! handle_of {
    ($self:ident: $replicas:expr, $step:ident => $run:expr) => {
        fn replicas(&$self) -> &[Replica] {
            $replicas
        }

        fn id(&$self) -> StrategyId {
            $self.id.clone()
        }

        fn handle(&$self) -> Arc<dyn Strategy> {
            Arc::new($self.clone())
        }

        fn run_replicas(&$self, $step: ReplicaStep<'_>) -> Result<()> {
            $run
        }
    };
}
use handle_of;

/// Steps that were compiled may go on with another metric or variable than before.
pub(crate) fn used_outside(strategy: &(impl Strategy + ?Sized)) {
    if let Some(tracer) = strategy.tracer() {
        tracer.device().note_outside_use();
    }
}

/// What an input pipeline needs to know about the cluster
/// (TensorFlow: `tf.distribute.InputContext`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InputContext {
    /// The number of input pipelines: one per worker.
    pub num_input_pipelines: usize,
    /// This pipeline's index.
    pub input_pipeline_id: usize,
    /// The number of replicas over all workers.
    pub num_replicas_in_sync: usize,
}

impl Default for InputContext {
    fn default() -> Self {
        Self {
            num_input_pipelines: 1,
            input_pipeline_id: 0,
            num_replicas_in_sync: 1,
        }
    }
}

impl InputContext {
    /// The batch size of one replica for a global batch size, in examples
    /// (TensorFlow: `InputContext.get_per_replica_batch_size`).
    ///
    /// # Errors
    /// If the global batch does not divide evenly.
    pub fn per_replica_batch_size(&self, global_batch_size: usize) -> Result<usize> {
        if !global_batch_size.is_multiple_of(self.num_replicas_in_sync) {
            return Err(Error::invalid(format!(
                "the global batch size {global_batch_size} is not divisible by the {} replicas \
                 in sync",
                self.num_replicas_in_sync
            )));
        }
        Ok(global_batch_size / self.num_replicas_in_sync)
    }
}
