//! Values whose variables live on the parameter servers: the coordinator makes them, workers find
//! them.

use distribute_core::{Device, Mirrored, Nest, PerReplica, ReplicaContext, Replicate, StrategyExt};
use parking_lot::Mutex;

use super::context::WorkerContext;
use super::registry::{Make, StepRegistry};
use super::resource::Resource;
use crate::error::{PsError, Result};
use crate::strategy::ParameterServerStrategy;

/// Marks handles of values with variables on the parameter servers.
#[derive(Debug)]
pub enum OnServers {}

/// A handle of a value that coordinator and workers build in the same way, with variables on the
/// parameter servers ([`StepRegistry::shared`]). Steps capture it.
pub type SharedValue<T> = Resource<T, OnServers>;

/// A handle of a training state on the parameter servers ([`StepRegistry::state`]).
pub type SharedState<T> = SharedValue<Mirrored<T>>;

impl StepRegistry {
    /// Registers a value with variables on the parameter servers: `build` is called with the
    /// [`ParameterServerStrategy`], once by [`ClusterCoordinator::connect`], where it makes the
    /// variables, and on each worker when a step first asks for the value, where it finds them.
    ///
    /// The first such value of a program has its variables under the names of checkpoints
    /// (`model/conv1.weight`), any further one under its own name in front. Embedding tables do not
    /// count.
    ///
    /// # Errors
    /// As [`step`](Self::step); resources, datasets and shared values have one space of names.
    ///
    /// [`ClusterCoordinator::connect`]: crate::ClusterCoordinator::connect
    pub fn shared<T, F>(&mut self, name: impl Into<String>, build: F) -> Result<SharedValue<T>>
    where
        T: Send + 'static,
        F: Fn(&ParameterServerStrategy) -> Result<T> + Send + Sync + 'static,
    {
        let name = name.into();
        let is_first = self.shared.len() == self.tables;
        let of_name = name.clone();
        let build = std::sync::Arc::new(move |strategy: &ParameterServerStrategy| {
            if is_first {
                build(strategy)
            } else {
                build(&strategy.named(&of_name))
            }
        });
        let on_worker = build.clone();
        let shared = Resource::new(&*name, move |worker| on_worker(worker.strategy()?));
        let shared = self.add(shared)?;
        let make: Box<Make> = Box::new(move |strategy| Ok(Box::new(build(strategy)?)));
        self.shared.push((name, make));
        Ok(shared)
    }

    /// Registers a training state: a model and its optimizer, whose parameters live on the
    /// parameter servers. Steps use it by [`WorkerContext::run`]. The initial values are those that
    /// `build` makes on the coordinator.
    ///
    /// # Errors
    /// As [`shared`](Self::shared).
    pub fn state<T, F>(&mut self, name: impl Into<String>, build: F) -> Result<SharedState<T>>
    where
        T: Replicate + Send + 'static,
        F: Fn(&Device) -> T + Send + Sync + 'static,
    {
        self.shared(name, move |strategy| {
            let state = strategy.scope(|device| build(device));
            state.map_err(PsError::from)
        })
    }
}

impl WorkerContext {
    /// This worker's copy of a shared value.
    ///
    /// # Errors
    /// As [`resource`](Self::resource); the errors of building it.
    pub fn shared<T: Send + 'static>(
        &self,
        shared: &SharedValue<T>,
    ) -> Result<super::ResourceGuard<'_, T>> {
        self.resource(shared)
    }

    /// Runs a training step on this worker's copy of a state: the newest parameters are pulled
    /// before, `apply_gradients` pushes gradients, which the servers apply once even if the closure
    /// runs again. The closure is the one of [`StrategyExt::run`] under any other strategy, with
    /// the state and one more argument, such as a batch.
    ///
    /// # Errors
    /// The errors of the step; [`PsError::Cancelled`] if the closure is to stop;
    /// [`PsError::Unavailable`] for a lost server.
    pub fn run<T, B, R, F>(&self, state: &SharedState<T>, batch: B, step: F) -> Result<R>
    where
        T: Replicate + Send + 'static,
        B: Send,
        R: Nest + Send + 'static,
        F: for<'x> Fn(&ReplicaContext, (&'x mut T, B)) -> distribute_core::Result<R> + Sync,
    {
        self.check_cancelled()?;
        let mut held = self.resource(state)?;
        let strategy = self.strategy()?;
        let batch = once(batch);
        only(strategy.run(&mut *held, |ctx, state| step(ctx, (state, batch()?)))?)
    }
}

/// Hands a value out, once.
pub(crate) fn once<B: Send>(value: B) -> impl Fn() -> distribute_core::Result<B> + Sync {
    let value = Mutex::new(Some(value));
    let twice = || distribute_core::Error::invalid("the strategy ran a step twice");
    move || value.lock().take().ok_or_else(twice)
}

/// The result of the only replica.
pub(crate) fn only<R>(results: PerReplica<R>) -> Result<R> {
    let missing = || PsError::invalid("the strategy ran no step");
    results.into_values().pop().ok_or_else(missing)
}
