//! One binary that is coordinator, worker or server by its role.
//!
//! The same program is started as every task of the cluster; `TF_CONFIG` says which one a process
//! is. [`Program`] registers steps, datasets and resources in all of them, and
//! [`run`](Program::run) is the rest of the process' life:
//!
//! | role | `run` |
//! |---|---|
//! | `chief` | calls the closure with a connected [`ClusterCoordinator`], then ends the job |
//! | `worker` | runs the coordinator's closures until it is done |
//! | `ps` | holds variables until the coordinator is done |
//! | `evaluator` | calls what [`Program::evaluator`] was given |
//!
//! ```no_run
//! use distribute_ps::{ClusterCoordinator, Program, WorkerContext};
//!
//! let mut program = Program::new();
//! program.step("square", |_: &WorkerContext, x: f64| Ok(x * x));
//! program.run(|coordinator: &ClusterCoordinator| {
//!     let value = coordinator.schedule("square", 3.0_f64)?;
//!     assert_eq!(value.fetch::<f64>()?, 9.0);
//!     Ok(())
//! })?;
//! # Ok::<(), distribute_ps::PsError>(())
//! ```

mod roles;
mod tables;

use std::sync::Arc;

use burn::module::Module;
use distribute_core::cluster::{
    Cluster, ClusterResolver, ProcessEnvironment, TaskType, TfConfigResolver,
};
use distribute_core::collectives::control::security::Security;
use distribute_core::{Configuration, Device, InputContext, Nest, Replicate, TrainState};
use distribute_fit::{Objective, StepContext};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::coordinator::{ClusterCoordinator, CoordinatorOptions};
use crate::error::{PsError, Result};
use crate::fit::{self, Training, TrainingData};
use crate::server::ServerOptions;
use crate::strategy::ParameterServerStrategy;
use crate::worker::{
    PerWorkerDataset, Resource, SharedState, SharedValue, StepRegistry, WorkerContext,
    WorkerOptions,
};

type Evaluator = Box<dyn FnOnce(&Cluster) -> Result<()>>;

/// A program that is coordinator, worker or parameter server by its role in the cluster. See
/// [`program`](self).
#[derive(Default)]
pub struct Program {
    registry: StepRegistry,
    /// The first thing that was registered wrongly; `run` returns it.
    wrong: Option<PsError>,
    evaluator: Option<Evaluator>,
    security: Option<Security>,
    coordinator: CoordinatorOptions,
    worker: WorkerOptions,
    server: ServerOptions,
}

impl Program {
    /// A program without steps.
    pub fn new() -> Self {
        Self::default()
    }

    /// What was registered; in place of what is wrong a handle that is never used.
    fn or_wrong<T>(&mut self, made: Result<T>, otherwise: impl FnOnce() -> T) -> T {
        made.unwrap_or_else(|error| {
            self.wrong.get_or_insert(error);
            otherwise()
        })
    }

    /// The handle of what is registered.
    fn registered<T, K>(
        &mut self,
        name: impl Into<String>,
        register: impl FnOnce(&mut StepRegistry, String) -> Result<Resource<T, K>>,
    ) -> Resource<T, K> {
        let name = name.into();
        let made = register(&mut self.registry, name.clone());
        self.or_wrong(made, || Resource::unregistered(name))
    }

    /// Registers a step: [`StepRegistry::step`]. What is wrong with it, such as a name that is
    /// registered already, is the error of [`run`](Self::run).
    pub fn step<A, R, F>(&mut self, name: impl Into<String>, step: F) -> &mut Self
    where
        A: DeserializeOwned + 'static,
        R: Serialize,
        F: Fn(&WorkerContext, A) -> Result<R> + Send + Sync + 'static,
    {
        let made = self.registry.step(name, step);
        self.or_wrong(made, || ());
        self
    }

    /// Registers a value that each worker builds for itself: [`StepRegistry::resource`]. What is
    /// wrong with it is the error of [`run`](Self::run).
    pub fn resource<T, F>(&mut self, name: impl Into<String>, build: F) -> Resource<T>
    where
        T: Send + 'static,
        F: Fn(&WorkerContext) -> Result<T> + Send + Sync + 'static,
    {
        self.registered(name, |registry, name| registry.resource(name, build))
    }

    /// Registers a dataset by the function that makes a worker's iterator of it:
    /// [`StepRegistry::dataset`]. What is wrong with it is the error of [`run`](Self::run).
    pub fn dataset<B, I, F>(&mut self, name: impl Into<String>, iterator: F) -> PerWorkerDataset<B>
    where
        B: Send + 'static,
        I: IntoIterator<Item = Result<B>>,
        I::IntoIter: Send + 'static,
        F: Fn(InputContext) -> Result<I> + Send + Sync + 'static,
    {
        self.registered(name, |registry, name| registry.dataset(name, iterator))
    }

    /// Registers a training state: [`StepRegistry::state`]. What is wrong with it is the error of
    /// [`run`](Self::run).
    pub fn state<T, F>(&mut self, name: impl Into<String>, build: F) -> SharedState<T>
    where
        T: Replicate + Send + 'static,
        F: Fn(&Device) -> T + Send + Sync + 'static,
    {
        self.registered(name, |registry, name| registry.state(name, build))
    }

    /// Registers a value with variables on the parameter servers: [`StepRegistry::shared`]. What is
    /// wrong with it is the error of [`run`](Self::run).
    pub fn shared<T, F>(&mut self, name: impl Into<String>, build: F) -> SharedValue<T>
    where
        T: Send + 'static,
        F: Fn(&ParameterServerStrategy) -> Result<T> + Send + Sync + 'static,
    {
        self.registered(name, |registry, name| registry.shared(name, build))
    }

    /// Registers a training run: [`StepRegistry::training`]. What is wrong with it is the error of
    /// [`run`](Self::run).
    pub fn training<M, B, D, F>(
        &mut self,
        name: impl Into<String>,
        state: &SharedState<TrainState<M>>,
        data: D,
        objective: F,
    ) -> Training<M, B>
    where
        M: Module + Sync + 'static,
        B: Nest + Send + 'static,
        D: Fn(&ParameterServerStrategy) -> distribute_core::Result<TrainingData<B>>
            + Send
            + Sync
            + 'static,
        F: Fn(&StepContext<'_>, &M, B) -> distribute_core::Result<Objective>
            + Send
            + Sync
            + 'static,
    {
        let name = name.into();
        let made = self.registry.training(name.clone(), state, data, objective);
        self.or_wrong(made, || {
            let data = Resource::unregistered(fit::data_name(&name));
            Training::new(name, state.clone(), data)
        })
    }

    /// Adds settings that coordinator and workers must have the same:
    /// [`StepRegistry::configuration`].
    pub fn configuration(&mut self, settings: &Configuration) -> &mut Self {
        self.registry.configuration(settings);
        self
    }

    /// What a process with the role `evaluator` does. It is not waited for.
    pub fn evaluator(&mut self, body: impl FnOnce(&Cluster) -> Result<()> + 'static) -> &mut Self {
        self.evaluator = Some(Box::new(body));
        self
    }

    /// Token and certificates of all connections. Without this call the token is that of the
    /// environment variable `DISTRIBUTE_JOB_TOKEN`, if it is set, as the launcher sets it.
    pub fn security(&mut self, security: Security) -> &mut Self {
        self.security = Some(security);
        self
    }

    /// Limits and deadlines of the coordinator.
    pub fn coordinator_options(&mut self, options: CoordinatorOptions) -> &mut Self {
        self.coordinator = options;
        self
    }

    /// Limits and deadlines of the workers.
    pub fn worker_options(&mut self, options: WorkerOptions) -> &mut Self {
        self.worker = options;
        self
    }

    /// Limits of the parameter servers.
    pub fn server_options(&mut self, options: ServerOptions) -> &mut Self {
        self.server = options;
        self
    }

    /// Does what this process' role in `TF_CONFIG` is, and blocks until the job is done. `body` is
    /// called on the chief only, in one process of the cluster.
    ///
    /// The job ends with the chief: when `body` returns, workers and servers end too, and their
    /// `run` returns. If it returned an error, the workers' `run` is
    /// [`PsError::CoordinatorFailed`]. If its process dies, workers and servers wait
    /// `orphan_timeout` (5 minutes, [`WorkerOptions`], [`ServerOptions`]) for a chief that was
    /// started again, with which they begin a new run, and then end with
    /// [`PsError::CoordinatorLost`].
    ///
    /// # Errors
    /// The errors of `body`. What was registered wrongly; [`PsError::Role`] if the cluster has no
    /// chief, worker or ps, or this process no role in it; the errors of
    /// [`ClusterCoordinator::connect`], [`WorkerServer::serve`](crate::worker::WorkerServer::serve)
    /// and [`ParameterServer::bind`](crate::ParameterServer::bind).
    pub fn run(self, body: impl FnOnce(&ClusterCoordinator) -> Result<()>) -> Result<()> {
        self.run_in(&TfConfigResolver::new(ProcessEnvironment), body)
    }

    /// [`run`](Self::run) in the cluster that a resolver describes.
    ///
    /// # Errors
    /// As `run`.
    pub fn run_in(
        mut self,
        resolver: &dyn ClusterResolver,
        body: impl FnOnce(&ClusterCoordinator) -> Result<()>,
    ) -> Result<()> {
        if let Some(error) = self.wrong.take() {
            return Err(error);
        }
        let cluster = roles::resolve(resolver)?;
        let security = match self.security.take() {
            Some(security) => security,
            None => roles::security_of_environment()?,
        };
        let registry = Arc::new(std::mem::take(&mut self.registry));
        match cluster.task_type() {
            TaskType::Chief => {
                self.coordinator.security = security;
                roles::coordinate(&cluster, registry, self.coordinator, body)
            }
            TaskType::Worker => {
                self.worker.security = security;
                roles::work(&cluster, registry, self.worker)
            }
            TaskType::ParameterServer => {
                self.server.security = security;
                roles::hold(&cluster, self.server)
            }
            TaskType::Evaluator => match self.evaluator.take() {
                Some(evaluator) => evaluator(&cluster),
                None => Err(PsError::Role {
                    what: "this process is the evaluator, and the program has none; give it one \
                           by `Program::evaluator`, or start none"
                        .to_string(),
                }),
            },
        }
    }
}
