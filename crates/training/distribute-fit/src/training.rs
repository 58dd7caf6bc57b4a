//! How a training run is asked for.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use burn::module::Module;
use distribute_core::BatchSource;
use distribute_core::checkpoint::Checkpoint;
use distribute_core::{Error, Mirrored, Result, Strategy, TrainState, setters};

use super::control::{Callbacks, Run};
use super::local::Local;
use super::meter::Meter;
use super::ranks::{self, Ranks};
use super::remote::{Remote, RemoteSteps, accumulates};
use super::session::{Engine, Session};
use super::{Callback, History, Mode, Objective, Position, Progress, StepContext, worker_sync};

/// A training run (Keras: `Model.fit`).
///
/// On the hot path there is one `run` of the strategy per batch, as in a hand-written loop, and
/// one small reduction of the losses, which is put off until a callback asks for them.
///
/// The loss that is reported for an epoch is the mean over its examples, as they were seen during
/// training (the weights change meanwhile): every batch's loss is multiplied by what it was
/// divided by, and the sum divided by the number of examples, so that a short last batch counts
/// for what it has. Regularization is averaged over the batches, weighted by their examples.
#[must_use]
pub struct Fit<'a, S: ?Sized> {
    strategy: &'a S,
    epochs: usize,
    max_steps: Option<u64>,
    seed: u64,
    checkpoint: Option<Checkpoint>,
    compare_ranks: Duration,
    check_replicas: Option<u64>,
    recompute: Option<u64>,
    callbacks: Vec<Box<dyn Callback + 'a>>,
}

impl<'a, S: Strategy + ?Sized> Fit<'a, S> {
    /// A run of one epoch.
    pub fn new(strategy: &'a S) -> Self {
        Self {
            strategy,
            epochs: 1,
            max_steps: None,
            seed: 0,
            checkpoint: None,
            compare_ranks: ranks::EVERY,
            check_replicas: None,
            recompute: None,
            callbacks: Vec::new(),
        }
    }

    setters! { self;
        /// The epoch to end before: the number of epochs, also those before a resume.
        epochs(epochs: usize) => epochs = epochs;

        /// Ends training when the state has made this many optimizer steps in all, also those
        /// before a resume. The epoch that is cut short is validated and reported as far as it
        /// went.
        max_steps(steps: impl Into<Option<u64>>) => max_steps = steps.into();

        /// The seed behind [`StepContext::rng`]; also written to checkpoints. (The order of the
        /// data depends on the data source's own seed.)
        seed(seed: u64) => seed = seed;

        /// Continues the run that wrote this checkpoint: [`run`](Self::run) restores the training
        /// state, the position in the data and the callbacks' states from it.
        resume_from(checkpoint: impl Into<Option<Checkpoint>>) => checkpoint = checkpoint.into();

        /// How often several workers compare how long their steps take (2 s by default; zero:
        /// never), the same on all. If one of them computes, or waits for its data, for much longer
        /// than the others during several of these intervals, it and worker 0 say so once in the
        /// log: `rank 5 on host b computes 1.8 x as long as the median since step 1200`, and again
        /// when it has recovered. One small exchange each time is all that it costs.
        compare_ranks(every: Duration) => compare_ranks = every;

        /// Compares the state of all replicas after every `steps`-th update, as
        /// [`check_same_state`](crate::check_same_state) does: a bit that has changed in the memory
        /// of one of them, or on its way there, makes it go on with other weights. A difference
        /// ends the run on all workers with [`FitError::Diverged`](super::FitError::Diverged), and
        /// nothing of it is saved. Without it they are compared before every save and at the end.
        /// 0 counts as 1; with one replica there is nothing to compare.
        ///
        /// Each time every worker reads parameters and slots of its replicas, computes their
        /// checksums, and the workers exchange one number for each replica.
        check_replicas(steps: impl Into<Option<u64>>) => check_replicas = steps.into();

        /// In every `steps`-th update another replica, of another worker where there is one,
        /// computes the gradients of one replica again and compares the bits, before they are
        /// summed: a wrong gradient would be in the weights of all replicas, and in no comparison
        /// of these. The replicas are checked in turn, see
        /// [`Recomputation`](distribute_core::Recomputation). A difference ends the run on all
        /// workers, with [`Error::WrongGradient`], before the update, and nothing is saved. 0
        /// counts as 1; with one replica there is nothing to compare.
        ///
        /// The batch is read anew ([`BatchSource::replica_batch`]), so that an error in it is found
        /// as well. The objective is called again with the same arguments and random numbers, and
        /// must give the same. The check takes the time of one more forward and backward pass of
        /// one replica, for which the others wait.
        recompute(steps: impl Into<Option<u64>>) => recompute = steps.into();
    }

    /// Adds a callback. Pass `&mut callback` to look at it after the run.
    pub fn callback(mut self, callback: impl Callback + 'a) -> Self {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// Trains. Blocks until the end.
    ///
    /// # Errors
    /// The errors of the data source, the objective, the replicas and the callbacks; training ends
    /// with the first. [`FitError::Resume`](super::FitError::Resume) if the checkpoint is not from
    /// a run like this one, [`FitError::NoExamples`](super::FitError::NoExamples) for an empty
    /// epoch.
    pub fn run<M, D, F>(
        self,
        state: &mut Mirrored<TrainState<M>>,
        train: &D,
        objective: F,
    ) -> Result<History>
    where
        M: Module + Sync + 'static,
        D: BatchSource + ?Sized,
        F: Fn(&StepContext<'_>, &M, D::Batch) -> Result<Objective> + Sync,
    {
        let engine = Local {
            train,
            validation: None,
            objective,
        };
        self.run_on(state, engine)
    }

    /// [`run`](Self::run) that validates after every epoch (Keras: `validation_data`).
    ///
    /// # Errors
    /// As `run`, and the errors of the validation data.
    pub fn run_with_validation<M, D, F>(
        self,
        state: &mut Mirrored<TrainState<M>>,
        train: &D,
        validation: &dyn BatchSource<Batch = D::Batch>,
        objective: F,
    ) -> Result<History>
    where
        M: Module + Sync + 'static,
        D: BatchSource + ?Sized,
        F: Fn(&StepContext<'_>, &M, D::Batch) -> Result<Objective> + Sync,
    {
        let engine = Local {
            train,
            validation: Some(validation),
            objective,
        };
        self.run_on(state, engine)
    }

    /// [`run`](Self::run) with the steps in other processes: each batch of the data is trained on
    /// once, where `steps` has it run, and epochs, losses, metrics, callbacks and checkpoints are
    /// the same as in `run`. With parameter servers `ClusterCoordinator::fit` calls this.
    ///
    /// The steps of several workers end in any order; callbacks hear of them in the order of the
    /// batches, and a checkpoint's position is the first batch that they were not told about. A
    /// resumed run repeats what others had done beyond it, at most
    /// [`RemoteSteps`]' lead. Validation is done by the same processes, between epochs.
    ///
    /// # Errors
    /// As `run`; the errors of `steps`;
    /// [`Error::InvalidArgument`](distribute_core::Error::InvalidArgument) for a state with
    /// [`TrainState::accumulate`], as a worker that is lost would take the gradients of its
    /// micro-batches with it, and for [`check_replicas`](Self::check_replicas)
    /// and [`recompute`](Self::recompute).
    pub fn run_remotely<M>(
        self,
        state: &mut Mirrored<TrainState<M>>,
        steps: &mut dyn RemoteSteps,
    ) -> Result<History>
    where
        M: Module + Sync + 'static,
    {
        if state.host_metadata().accumulation().1 > 1 {
            return Err(accumulates());
        }
        if self.check_replicas.or(self.recompute).is_some() {
            return Err(Error::invalid(
                "check_replicas and recompute compare several replicas, and steps that run \
                 elsewhere have one each: leave them out",
            ));
        }
        self.run_on(state, Remote::new(steps))
    }

    fn run_on<M, E>(self, state: &mut Mirrored<TrainState<M>>, mut engine: E) -> Result<History>
    where
        M: Module + Sync + 'static,
        E: Engine<M>,
    {
        let host = state.host_metadata();
        let (step, learning_rate) = (host.step(), host.learning_rate());
        let strategy = self.strategy.handle();
        let run = Run {
            strategy: Arc::clone(&strategy),
            progress: Progress {
                position: Position::default(),
                step,
                epochs: self.epochs,
                batches_per_epoch: engine.batches(Mode::Train),
                has_validation: engine.has_validation(),
                validation_batches: 0,
                validation_batches_in_all: engine.batches(Mode::Evaluate),
            },
            max_steps: self.max_steps,
            step_before: step,
            meter: Meter::new(&strategy),
            learning_rate,
            last_learning_rate: learning_rate,
            seed: self.seed,
            global_batch_size: engine.global_batch_size(),
            all_replicas: [strategy.num_replicas_in_sync()].into(),
            check_replicas: self.check_replicas,
            recompute: self.recompute,
            same_at: None,
            stop: None,
            failure: None,
            failed: None,
            all_end: false,
            ranks: Ranks::new(strategy.workers(), self.compare_ranks),
            compare_ranks: self.compare_ranks,
            data: engine.saved_data(),
        };
        let mut session = Session {
            state,
            callbacks: Callbacks::new(self.callbacks),
            run,
        };
        let outcome = session
            .start(self.checkpoint.as_ref())
            .and_then(|()| session.train(&mut engine));
        if let Some(workers) = strategy.workers() {
            workers.clear_stop();
            workers.release();
        }
        if session.run.all_end {
            // An abort could meet another worker before it is done.
            outcome
        } else {
            worker_sync::or_abort(&*strategy, outcome)
        }
    }
}

impl<S: fmt::Debug + ?Sized> fmt::Debug for Fit<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fit")
            .field("strategy", &self.strategy)
            .field("epochs", &self.epochs)
            .field("max_steps", &self.max_steps)
            .field("seed", &self.seed)
            .field("callbacks", &self.callbacks.len())
            .finish_non_exhaustive()
    }
}
