//! [`Fit`] with the steps on workers: epochs, metrics, callbacks and
//! checkpoints on the coordinator (Keras: `Model.fit` with a `ParameterServerStrategy`).
//!
//! The program registers state, data and objective together; the coordinator trains. Which batch
//! a step trains on is the coordinator's choice, so each batch of an epoch is trained on once
//! whatever becomes of the workers, and an epoch is an epoch of the data, as under every other
//! strategy. (In TensorFlow every worker goes through the data by itself.) Every worker must be
//! able to read every batch.
//!
//! ```no_run
//! use burn::nn::{Linear, LinearConfig};
//! use burn::tensor::Tensor;
//! use distribute_fit::{Fit, Objective, StepContext};
//! use distribute_core::{Adam, Result, TrainState};
//! # use distribute_core::{BatchSource, Batches};
//! # use distribute_ps::ParameterServerStrategy;
//! use distribute_ps::{ClusterCoordinator, Program, TrainingData};
//! # struct Points;
//! # impl Points { fn new(_: &ParameterServerStrategy) -> Self { Self } }
//! # impl BatchSource for Points {
//! #     type Batch = Tensor<2>;
//! #     fn batches_per_epoch(&self) -> Option<usize> { Some(1) }
//! #     fn global_batch_size(&self) -> Option<usize> { Some(1) }
//! #     fn epoch(&self, _: usize, _: usize) -> Result<Batches<'_, Tensor<2>>> {
//! #         Ok(Box::new(std::iter::empty()))
//! #     }
//! # }
//!
//! let mut program = Program::new();
//! let state = program.state("model", |device| {
//!     TrainState::new(LinearConfig::new(1, 1).init(device), Adam::new(1e-2))
//! });
//! let training = program.training(
//!     "triples",
//!     &state,
//!     // Any source of batches, such as a `DistributedDataset` of distribute-data.
//!     |strategy| Ok(TrainingData::new(Points::new(strategy))),
//!     |_: &StepContext<'_>, model: &Linear, x: Tensor<2>| {
//!         let error = model.forward(x.clone()) - x.clone() * 3.0;
//!         let examples = x.dims()[0];
//!         Ok(Objective::new(error.square().sum() / examples as f64).examples(examples))
//!     },
//! );
//! program.run(|coordinator: &ClusterCoordinator| {
//!     let fit = Fit::new(coordinator.strategy()?).epochs(10);
//!     let history = coordinator.fit(&training, fit)?;
//!     assert!(history.last_logs().loss() < 0.1);
//!     Ok(())
//! })?;
//! # Ok::<(), distribute_ps::PsError>(())
//! ```

mod steps;

use std::fmt;

use burn::module::Module;
use distribute_core::{BatchSource, Nest, Strategy, TrainState};
use distribute_fit::{Fit, History, Mode, Objective, RemoteTask, StepContext, StepReport};

use crate::coordinator::ClusterCoordinator;
use crate::error::{PsError, Result};
use crate::strategy::ParameterServerStrategy;
use crate::worker::{SharedState, SharedValue, StepRegistry, WorkerContext};
use steps::Steps;

type Source<B> = Box<dyn BatchSource<Batch = B> + Send>;

/// What a training run reads: training data, and data to validate on after every epoch.
pub struct TrainingData<B> {
    train: Source<B>,
    validation: Option<Source<B>>,
}

impl<B: Nest + Send> TrainingData<B> {
    /// Training data without validation.
    pub fn new(train: impl BatchSource<Batch = B> + Send + 'static) -> Self {
        Self {
            train: Box::new(train),
            validation: None,
        }
    }

    /// Adds data to validate on.
    #[must_use]
    pub fn validation(mut self, data: impl BatchSource<Batch = B> + Send + 'static) -> Self {
        self.validation = Some(Box::new(data));
        self
    }

    fn of(&self, mode: Mode) -> Option<&dyn BatchSource<Batch = B>> {
        match mode {
            Mode::Train => Some(&*self.train),
            _ => Some(&**self.validation.as_ref()?),
        }
    }
}

impl<B> fmt::Debug for TrainingData<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrainingData")
            .field("validates", &self.validation.is_some())
            .finish_non_exhaustive()
    }
}

/// A handle of what [`StepRegistry::training`] registered: what
/// [`ClusterCoordinator::fit`] trains.
pub struct Training<M, B> {
    name: String,
    state: SharedState<TrainState<M>>,
    data: SharedValue<TrainingData<B>>,
}

impl<M, B> Training<M, B> {
    pub(crate) fn new(
        name: String,
        state: SharedState<TrainState<M>>,
        data: SharedValue<TrainingData<B>>,
    ) -> Self {
        Self { name, state, data }
    }

    /// The registered name, which is also that of its step.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The state that is trained.
    pub fn state(&self) -> &SharedState<TrainState<M>> {
        &self.state
    }
}

impl<M, B> Clone for Training<M, B> {
    fn clone(&self) -> Self {
        Self::new(self.name.clone(), self.state.clone(), self.data.clone())
    }
}

impl<M, B> fmt::Debug for Training<M, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Training({:?})", self.name)
    }
}

/// The name of a training run's data.
pub(crate) fn data_name(name: &str) -> String {
    format!("{name}/data")
}

impl StepRegistry {
    /// Registers a training run: the state that is trained, its data, and the forward pass that
    /// gives an [`Objective`], as [`Fit::run`] takes it. `data` is called on the coordinator and
    /// on every worker, and must give the same batches everywhere.
    ///
    /// # Errors
    /// As [`step`](Self::step): steps have one space of names, resources and data another.
    pub fn training<M, B, D, F>(
        &mut self,
        name: impl Into<String>,
        state: &SharedState<TrainState<M>>,
        data: D,
        objective: F,
    ) -> Result<Training<M, B>>
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
        let data = self.shared(data_name(&name), move |strategy| {
            // Which batch a worker trains on is the coordinator's choice.
            Ok(data(&strategy.undivided())?)
        })?;
        let training = Training::new(name.clone(), state.clone(), data);
        let of_step = training.clone();
        self.step(name, move |worker: &WorkerContext, task| {
            of_step.run(worker, task, &objective)
        })?;
        Ok(training)
    }
}

impl<M: Module + Sync + 'static, B: Nest + Send + 'static> Training<M, B> {
    /// One step on a worker.
    fn run<F>(&self, worker: &WorkerContext, task: RemoteTask, objective: &F) -> Result<StepReport>
    where
        F: Fn(&StepContext<'_>, &M, B) -> distribute_core::Result<Objective> + Sync,
    {
        let data = worker.shared(&self.data)?;
        let missing = || PsError::OutOfRange {
            dataset: self.data.name().to_string(),
            worker: format!("worker {}", worker.worker_index()),
        };
        let source = data.of(task.mode()).ok_or_else(missing)?;
        let batch = source
            .batch(task.epoch(), task.batch())?
            .ok_or_else(missing)?;
        worker.check_cancelled()?;
        let mut state = worker.shared(&self.state)?;
        let batch = source.of_global_batch(batch);
        Ok(task.run(worker.strategy()?, &mut *state, batch, objective)?)
    }
}

impl ClusterCoordinator {
    /// Trains, with the steps on the workers, and validates there after every epoch. Blocks until
    /// the end.
    ///
    /// `fit` is a run as under any other strategy, with its epochs, callbacks and checkpoints. How
    /// updates of several workers interleave is a matter of timing, so with more than one worker
    /// two runs are not equal. See [`Fit::run_remotely`] for resuming.
    ///
    /// # Errors
    /// The errors of [`Fit::run_remotely`]; the errors of the step, with the worker that it failed
    /// on; [`PsError::Unavailable`] for a lost server; [`PsError::NoWorkers`].
    pub fn fit<S, M, B>(&self, training: &Training<M, B>, fit: Fit<'_, S>) -> Result<History>
    where
        S: Strategy + ?Sized,
        M: Module + Sync + 'static,
        B: Nest + Send + 'static,
    {
        let mut steps = self.with(&training.data, |data| {
            Ok(Steps::new(self, &training.name, data))
        })?;
        self.with(&training.state, |state| fit.run_remotely(state, &mut steps))
    }
}
