//! A training run, independent of the strategy: callbacks, outputs and checkpoints.

mod announcement;
mod outcome;
mod ranks;
mod sizes;

use std::io::{self, IsTerminal};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use distribute_classifier::{Batch, Classified, Data, Task, objective};
use distribute_core::optim::Optimizer;
use distribute_core::{Configuration, Mirrored, Strategy, StrategyExt, TrainState, WorkerGroup};
use distribute_data::{Batching, DistributedDataset, StrategyDataExt};
use distribute_fit::callbacks::{
    ApplyAverages, BitLog, HistoryFile, Interrupt, LearningRateScheduler, ModelCheckpoint,
    ProgressBar, ReplicateState, TerminateOnNan,
};
use distribute_fit::{Fit, History, Objective, StepContext};
use distribute_keras::Model;
use distribute_readers::{Examples, TrainTest};

pub(super) use self::sizes::{GlobalBatch, check_sizes, epochs};
use super::start::Start;
use crate::configuration;
use crate::events::{JsonEpochs, Rows, StepLines, Told};
use crate::examples_seen::ExamplesSeen;
use crate::failure::Failure;
use crate::flags::{OutputFormat, TrainArgs};
use crate::job_progress::JobProgress;
use crate::log_directory::LogDirectory;
use crate::metrics::Metrics;
use crate::notes::Notes;
use crate::schedule::{per_epoch, schedule, updates};
use crate::signals::Signals;
#[cfg(feature = "full")]
use crate::tpu::{self, Ahead};

/// Older checkpoints are removed once a newer one is safe.
const CHECKPOINTS_KEPT: usize = 5;
/// How often the loss is checked for NaN, in steps; the check waits for the step.
const NAN_CHECK_STEPS: usize = 50;

/// Whether a progress bar can use the terminal. The reader of a pipe may write the table into the
/// same terminal at any time (`| cat`, `| tee`), in the middle of a bar.
fn wants_bar() -> bool {
    let is_pipe = std::fs::metadata("/dev/stdout").is_ok_and(|out| out.file_type().is_fifo());
    io::stderr().is_terminal() && !is_pipe
}

/// Everything a run needs.
pub(super) struct Run<'a> {
    pub(super) args: TrainArgs,
    pub(super) task: Task,
    pub(super) optimizer: Arc<dyn Optimizer>,
    pub(super) data: TrainTest,
    pub(super) strategy: Arc<dyn Strategy>,
    /// The names of the replicas' devices.
    pub(super) devices: Vec<String>,
    /// Examples of a step, over all replicas.
    pub(super) global_batch: usize,
    /// The configuration for the checkpoints; empty without them.
    pub(super) configuration: Configuration,
    pub(super) epochs: usize,
    /// A description of the cluster.
    pub(super) cluster: Vec<String>,
    /// The number of independent workers, if there is no group of workers.
    pub(super) workers: Option<usize>,
    /// The metrics of the run.
    pub(super) metrics: Option<&'a Metrics>,
}

pub(super) type Batches = DistributedDataset<Data>;
type State = Mirrored<TrainState<Model>>;
type Computed = distribute_core::Result<Objective>;

/// The run while callbacks are added to it.
pub(super) type Fitting<'a> = Fit<'a, dyn Strategy>;

impl Run<'_> {
    pub(super) fn train(&self, start: Start, signals: &Signals) -> Result<(), Failure> {
        let mut state = self.state()?;
        let (train, test) = (self.train_data()?, self.test_data()?);
        let (history, saved) = self.supervise(start, signals, |fit| {
            fit.run_with_validation(&mut state, &train, &test, self.objective())
        })?;
        self.finish(&history, &state, &test, saved)
    }

    /// Runs `train` with all callbacks, and returns the newest checkpoint.
    pub(super) fn supervise(
        &self,
        mut start: Start,
        signals: &Signals,
        train: impl FnOnce(Fitting<'_>) -> distribute_core::Result<History>,
    ) -> Result<(History, Option<PathBuf>), Failure> {
        start.hold(&self.args.files)?;
        let (path, checkpoint) = start.take_resumed();
        let continued = checkpoint.as_ref().map(|saved| saved.metadata.step);
        // Locked until training has ended.
        let logs = match &self.args.files.log_dir {
            Some(directory) if self.reports() => {
                LogDirectory::hold(directory, continued.is_some())?
            }
            _ => None,
        };
        let mut saver = start.saver.map(|saver| self.describe(saver));
        let mut fit = Fit::new(&*self.strategy)
            .epochs(self.epochs)
            .max_steps(self.args.training.steps)
            .seed(self.args.training.seed)
            .resume_from(checkpoint)
            .compare_ranks(self.args.observing.compare_ranks())
            .check_replicas(self.args.checks.check_replicas)
            .recompute(self.args.checks.recompute)
            .callback(Interrupt::new(signals.flag()))
            .callback(signals.training(self.needs_others()))
            .callback(TerminateOnNan::every_batches(NAN_CHECK_STEPS))
            .callback(StepLines {
                every: self.args.files.log_steps,
                reports: self.reports(),
                output: self.args.general.output,
                told: Told::default(),
            });
        if let Some(metrics) = self.metrics {
            fit = fit.callback(metrics.follow(self.seen()));
        }
        fit = self.following(fit)?;
        if self.reports() {
            let fit_so_far = fit.callback(self.announcement(continued));
            fit = self.reporting(fit_so_far, logs.as_ref())?;
        }
        if let Some(saver) = &mut saver {
            fit = fit.callback(saver);
        }
        if let Some(memory) = start.memory {
            let every = self.args.cluster.replicate_state.unwrap_or(1);
            fit = fit.callback(ReplicateState::new(memory).every_steps(every));
        }
        let history = train(fit)?;
        signals.trained();
        let saved = saver.as_ref().and_then(ModelCheckpoint::last_saved);
        // No newer checkpoint than at the start of the run.
        let began_with = path.filter(|_| self.reports());
        let saved = saved.map(|saved| saved.entry.path.clone()).or(began_with);
        Ok((history, saved))
    }

    /// The callbacks for the learning rate, early stopping, and averages of the weights.
    fn following<'a>(&self, fit: Fitting<'a>) -> Result<Fitting<'a>, Failure> {
        let training = &self.args.training;
        let rate = self.optimizer.learning_rate();
        let examples = self.data.train.len();
        let updates = updates(training, self.epochs, examples, self.global_batch);
        let fit = match schedule(training, rate, updates)? {
            Some(schedule) => fit.callback(LearningRateScheduler::of(schedule)),
            None => fit,
        };
        let validation = &self.args.validation;
        let fit = match validation.plateau() {
            Some(plateau) => fit.callback(plateau),
            None => fit,
        };
        let fit = match validation.stopping() {
            Some(stopping) => fit.callback(stopping),
            None => fit,
        };
        Ok(match training.ema {
            Some(_) => fit.callback(ApplyAverages),
            None => fit,
        })
    }

    /// Whether the first step waits for others, or for a compiler.
    fn needs_others(&self) -> bool {
        let strategy = &self.strategy;
        self.workers.is_some() || strategy.workers().is_some() || strategy.tracer().is_some()
    }

    /// The counter of examples.
    fn seen(&self) -> ExamplesSeen {
        ExamplesSeen {
            global_batch: self.global_batch,
            per_epoch: per_epoch(
                &self.args.training,
                self.data.train.len(),
                self.global_batch,
            ),
        }
    }

    /// Whether this process reports the progress; of several workers only the chief does.
    fn reports(&self) -> bool {
        let workers = self.strategy.workers();
        workers.is_none_or(WorkerGroup::is_chief)
    }

    /// The callbacks that show and write the progress.
    fn reporting<'a>(
        &self,
        fit: Fitting<'a>,
        logs: Option<&LogDirectory>,
    ) -> Result<Fitting<'a>, Failure> {
        let fit = match JobProgress::for_launcher(self.seen()) {
            Some(progress) => fit.callback(progress),
            None => fit,
        };
        let fit = match self.args.general.output {
            OutputFormat::Text => {
                let bar = if wants_bar() {
                    ProgressBar::new()
                } else {
                    ProgressBar::plain(Notes)
                };
                fit.callback(bar.table_on(Rows::default()).quiet_end())
            }
            OutputFormat::Json => fit.callback(JsonEpochs::default()),
        };
        let fit = match &self.args.files.log_bits {
            Some(path) => fit.callback(BitLog::new(path)),
            None => fit,
        };
        let Some(logs) = logs else {
            return Ok(fit);
        };
        let directory = logs.path();
        let history = |name: &str| directory.join(name);
        let fit = fit
            .callback(HistoryFile::json_lines(history("history.jsonl")))
            .callback(HistoryFile::csv(history("history.csv")));
        let Some(board) = logs.curves()? else {
            return Ok(fit);
        };
        let files = &self.args.files;
        let board = board
            .every_steps(files.log_steps.unwrap_or(0))
            .histograms(files.log_histograms.unwrap_or(0));
        let board = match self.metrics {
            Some(metrics) => board.readings(metrics.of_epochs()),
            None => board,
        };
        Ok(fit.callback(board))
    }

    fn state(&self) -> Result<State, Failure> {
        let training = &self.args.training;
        Ok(self.strategy.try_scope(|device| {
            let optimizer = Arc::clone(&self.optimizer);
            let state = self.task.state(optimizer, training.seed, device)?;
            let state = training.optimizer_options().clipped(state);
            let state = state.with_loss_scale(training.precision.policy().loss_scale());
            Ok(state.accumulate_mean(training.accumulate.unwrap_or(1)))
        })?)
    }

    /// The forward pass of the run.
    pub(super) fn objective(
        &self,
    ) -> impl Fn(&StepContext<'_>, &Model, Batch) -> Computed + Clone + Sync + use<> {
        objective(self.args.training.precision.policy(), self.task.measured())
    }

    pub(super) fn train_data(&self) -> Result<Batches, Failure> {
        let training = &self.args.training;
        let batching = Batching::global(self.global_batch)
            .shuffle(training.seed)
            .drop_remainder(training.drop_remainder);
        self.batches(&self.data.train, batching)
    }

    pub(super) fn test_data(&self) -> Result<Batches, Failure> {
        self.batches(&self.data.test, Batching::global(self.global_batch))
    }

    /// Compiled steps need batches of one size, so short ones are padded with examples of weight 0.
    fn batches(&self, examples: &Examples, batching: Batching) -> Result<Batches, Failure> {
        let examples = Classified::weighted(examples.clone());
        let batching = batching.pad_remainder(self.strategy.tracer().is_some());
        Ok(self.strategy.distribute_dataset(examples, batching)?)
    }

    #[cfg(feature = "full")]
    /// Only compiles the step of the training.
    pub(super) fn compile(&self, ahead: &Ahead) -> Result<(), Failure> {
        let (mut state, train) = (self.state()?, self.train_data()?);
        let fit = Fit::new(&*self.strategy).epochs(1).max_steps(Some(1));
        let ended = fit.run(&mut state, &train, self.objective());
        match (ahead.report()?, ended) {
            // It always ends with this error, because there is no device to run the step.
            (Some(report), _) => tpu::print(&report, self.args.general.output),
            (None, Err(error)) => Err(tpu::not_compiled(error)),
            (None, Ok(_)) => Err(Failure::failed("training made no step to compile")),
        }
    }

    /// Every checkpoint contains the identity of its run.
    fn describe(&self, saver: ModelCheckpoint) -> ModelCheckpoint {
        let (key, mut extra) = self.task.to_extra();
        let (name, configuration) = configuration::to_extra(&self.configuration);
        extra[name] = configuration;
        let files = &self.args.files;
        let saver = match (files.checkpoint_steps, files.checkpoint_seconds) {
            (Some(steps), _) => saver.every_steps(steps),
            (None, Some(seconds)) => saver.every(Duration::from_secs(seconds)),
            (None, None) => saver,
        };
        saver
            .keep(CHECKPOINTS_KEPT)
            .model_name(self.task.model_name())
            .extra(key, extra)
    }
}
