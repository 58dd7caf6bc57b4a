//! States of a program: built the same way in all its processes, and found by name.

use std::fmt;
use std::sync::Arc;

use burn::tensor::Device;
use distribute_core::partitioners::Partitioner;
use distribute_core::{Item, Mirrored, Nest, ReplicaContext, Replicate, StepArgs, StrategyExt};

use super::ParameterServerStrategy;
use crate::coordinator::ClusterCoordinator;
use crate::error::{PsError, Result};
use crate::worker::{Resource, StepRegistry, WorkerContext};

type Build<T> = dyn Fn(&Device) -> T + Send + Sync;

/// A worker's copy of a state, with the strategy that it belongs to.
struct Copy<T> {
    strategy: ParameterServerStrategy,
    state: Mirrored<T>,
}

/// A training state of a program, which steps capture. See [`Program::state`](crate::Program::state).
pub struct StateHandle<T> {
    name: Arc<str>,
    build: Arc<Build<T>>,
    copy: Resource<Copy<T>>,
}

impl<T: Replicate + Send + 'static> StateHandle<T> {
    pub(crate) fn new(name: &str, build: impl Fn(&Device) -> T + Send + Sync + 'static) -> Self {
        Self {
            name: name.into(),
            build: Arc::new(build),
            copy: Resource::named(format!("state/{name}")),
        }
    }

    /// Makes the state on the servers, with the values that are built here (coordinator). Before
    /// steps that use it are scheduled.
    ///
    /// # Errors
    /// [`PsError::VariableExists`] if it is there already, and those of the servers.
    pub fn create(&self, strategy: &ParameterServerStrategy) -> Result<Mirrored<T>> {
        Ok(strategy
            .named(&self.name)
            .scope(|device| (self.build)(device))?)
    }
}

impl<T> Clone for StateHandle<T> {
    fn clone(&self) -> Self {
        Self {
            name: Arc::clone(&self.name),
            build: Arc::clone(&self.build),
            copy: self.copy.clone(),
        }
    }
}

impl<T> fmt::Debug for StateHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StateHandle({:?})", self.name)
    }
}

impl StepRegistry {
    /// Registers a state, as [`Program::state`](crate::Program::state) does.
    ///
    /// # Errors
    /// As [`resource`](Self::resource).
    pub fn state<T, F>(&mut self, name: &str, build: F) -> Result<StateHandle<T>>
    where
        T: Replicate + Send + 'static,
        F: Fn(&Device) -> T + Send + Sync + 'static,
    {
        let handle = StateHandle::new(name, build);
        self.add_state(&handle)?;
        Ok(handle)
    }

    pub(crate) fn add_state<T>(&mut self, handle: &StateHandle<T>) -> Result<()>
    where
        T: Replicate + Send + 'static,
    {
        let (name, build) = (Arc::clone(&handle.name), Arc::clone(&handle.build));
        let added: Resource<Copy<T>> = self.resource(handle.copy.name(), move |worker| {
            let strategy = ParameterServerStrategy::of_worker(worker)?;
            let state = strategy.named(&name).scope(|device| build(device))?;
            Ok(Copy { strategy, state })
        })?;
        drop(added);
        Ok(())
    }
}

impl WorkerContext {
    /// Runs a step with a state, as [`run`](StrategyExt::run) does under other strategies: the
    /// newest values are pulled before, gradients are pushed as updates of this closure.
    ///
    /// # Errors
    /// The step's own, and those of the servers.
    pub fn run<T, A, R, F>(&self, handle: &StateHandle<T>, args: A, step: F) -> Result<R>
    where
        T: Replicate + Send + 'static,
        A: StepArgs,
        R: Nest + Send + 'static,
        F: for<'x> Fn(&ReplicaContext, (&'x mut T, Item<'x, A>)) -> distribute_core::Result<R>
            + Sync,
    {
        let mut copy = self.resource(&handle.copy)?;
        let Copy { strategy, state } = &mut *copy;
        let _closure = strategy.within_closure(self.updates());
        let results = strategy.run((state, args), step)?;
        let missing = || PsError::invalid("the step has no result");
        results.into_values().pop().ok_or_else(missing)
    }
}

impl ParameterServerStrategy {
    /// The strategy of a coordinator's program. With a partitioner large variables are cut.
    ///
    /// # Errors
    /// [`PsError::InvalidArgument`] without servers; [`PsError::System`] without random numbers.
    pub fn of_coordinator(
        coordinator: &ClusterCoordinator,
        partitioner: Option<Arc<dyn Partitioner>>,
    ) -> Result<Self> {
        let client = coordinator.variables()?.clone();
        Self::coordinator(client, coordinator.run_id(), partitioner)
    }

    /// The strategy of a worker, for [`StepRegistry::resource`].
    ///
    /// # Errors
    /// Those of [`WorkerContext::variables`].
    pub fn of_worker(worker: &WorkerContext) -> Result<Self> {
        let client = worker.variables()?.clone();
        Self::worker(client, worker.run_id(), worker.input_context())
    }
}
