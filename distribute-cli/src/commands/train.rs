//! `train`: from flags to a trained model.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use distribute_cli::model::Sequential;
use distribute_core::checkpoint::weights_sha256;
use distribute_core::cluster::{Cluster, TaskType};
use distribute_core::fit::callbacks::{
    HistoryFile, Interrupt, ModelCheckpoint, ProgressBar, TensorBoard, TerminateOnNan,
};
use distribute_core::fit::{
    Callback, Control, Fit, History, Outcome, RunInfo, evaluate, json_number,
};
use distribute_core::{
    Configuration, Error, Mirrored, Strategy, StrategyExt, TrainState, WorkerGroup,
};
use distribute_data::readers::{Examples, TrainTest};
use distribute_data::{Batching, DistributedDataset, StrategyDataExt};
use serde_json::json;

use super::restore::same_model;
use super::start::Start;
use crate::args::{OutputFormat, StrategyName, TrainArgs};
use crate::configuration;
use crate::data::{Classified, Data};
use crate::events::{self, JsonEpochs, StepLines};
use crate::failure::Failure;
use crate::objective::objective;
use crate::signals::Signals;
use crate::strategies::{device_names, replica_count, strategy, worker_devices};
use crate::task::{Task, optimizer};
use crate::tpu::{self, Ahead, Tpu};

/// A model of more is a mistake in a file; its memory would end the program.
const MAX_PARAMETERS: usize = 1 << 31;

/// Replicas' batches are never larger than this by default.
const MAX_BATCH_SIZE: usize = 64;
/// By default an epoch has at least so many steps, so that small data sets train well too.
const MIN_STEPS: usize = 20;
/// Older checkpoints are removed once a newer one is safe.
const CHECKPOINTS_KEPT: usize = 5;
/// How often the loss is looked at for NaN, in steps; looking waits for the step.
const NAN_CHECK_STEPS: usize = 50;

/// Everything a run needs.
pub(super) struct Run {
    pub(super) args: TrainArgs,
    pub(super) task: Task,
    pub(super) data: TrainTest,
    pub(super) strategy: Arc<dyn Strategy>,
    /// The names of the replicas' devices.
    pub(super) devices: Vec<String>,
    /// Examples of a step, over all replicas.
    pub(super) global_batch: usize,
    /// What decides the result, for the checkpoints; empty without them.
    pub(super) configuration: Configuration,
    pub(super) epochs: usize,
    /// What there is to say about the cluster.
    pub(super) cluster: Vec<String>,
    /// Workers that train for themselves, where there is no group of equal ones.
    pub(super) workers: Option<usize>,
}

pub(super) type Batches = DistributedDataset<Data>;
type State = Mirrored<TrainState<Sequential>>;

pub(crate) fn run(args: TrainArgs) -> Result<(), Failure> {
    let signals = Signals::catch()?;
    let done = train(args, &signals);
    signals.outcome(done)
}

fn train(mut args: TrainArgs, signals: &Signals) -> Result<(), Failure> {
    if args.strategy == StrategyName::ParameterServer {
        return super::parameter_server::run(args, signals);
    }
    args.servers.refuse_without_servers()?;
    let worker = Worker::of(&args)?;
    if worker.as_ref().is_some_and(Worker::is_evaluator) {
        return super::evaluator::run(&args, signals);
    }
    let worker = worker.map(|worker| worker.join_workers(&args, signals));
    let worker = worker.transpose()?;
    let group = worker.as_ref().and_then(|(strategy, _)| strategy.workers());
    let group = group.cloned();
    if let Some(group) = &group {
        group.agree_on(&configuration::flags(&args))?;
    }
    let start = match &worker {
        Some((strategy, _)) => Start::of_worker(&args.files, &**strategy)?,
        None => Start::new(&args.files)?,
    };
    start.complete(&mut args.training);
    let (task, data) = Task::from_args(&args)?;
    if let Some((path, checkpoint)) = &start.checkpoint {
        same_model(checkpoint, path, &task)?;
    }
    let tpu = match args.strategy {
        StrategyName::Tpu => Some(Tpu::open(&args.tpu, &args.devices, args.general.verbose)?),
        _ => args.tpu.refuse_without_tpu().map(|()| None)?,
    };
    let ready = worker.or_else(|| tpu.as_ref().map(|tpu| (tpu.strategy(), tpu.description())));
    // Before the replicas' threads are started.
    let replicas = match &ready {
        Some((strategy, _)) => strategy.num_replicas_in_sync(),
        None => replica_count(args.strategy, &args.devices)?,
    };
    check_sizes(&task, &data, replicas)?;
    let (strategy, mut cluster) = match ready {
        Some(ready) => ready,
        None => (strategy(args.strategy, &args.devices)?, Vec::new()),
    };
    let batch = GlobalBatch::new(args.data.batch_size, replicas, data.train.len(), &start)?;
    cluster.extend(batch.note);
    if let Some(group) = &group {
        let contents = configuration::contents(&task, &data, batch.share)?;
        group.agree_on(&contents)?;
    }
    let configuration = start.configuration(&args, &task, &data, batch.examples)?;
    let run = Run {
        global_batch: batch.examples,
        configuration,
        cluster,
        workers: None,
        epochs: epochs(&args, &task),
        args,
        task,
        data,
        devices: match &tpu {
            Some(tpu) => tpu.device_names(),
            None => device_names(&*strategy),
        },
        strategy,
    };
    match tpu {
        Some(Tpu::Topology(ahead)) => run.compile(&ahead),
        _ => run.train(start, signals),
    }
}

/// The epochs that were asked for, or the data set's default.
pub(super) fn epochs(args: &TrainArgs, task: &Task) -> usize {
    let default = task.dataset.default_epochs();
    args.training.epochs.unwrap_or(default)
}

/// Refuses what no memory holds, and examples that do not fit each other or the replicas.
pub(super) fn check_sizes(task: &Task, data: &TrainTest, replicas: usize) -> Result<(), Failure> {
    let parameters = task.plan.parameters();
    if parameters > MAX_PARAMETERS {
        return Err(Failure::refused(format!(
            "the model {} has more than {MAX_PARAMETERS} parameters; with gradients and optimizer \
             state that is over 32 GiB a replica: make its layers smaller",
            task.model_name()
        )));
    }
    if data.test.feature_shape() != data.train.feature_shape() {
        return Err(Failure::refused(format!(
            "{}: the training examples have the shape {:?}, the test examples {:?}; both must be \
             alike",
            task.dataset,
            data.train.feature_shape(),
            data.test.feature_shape()
        )));
    }
    if data.train.len() < replicas {
        return Err(Failure::refused(format!(
            "{} has {} training examples for {replicas} replicas; use --replicas {} or fewer",
            task.dataset,
            data.train.len(),
            data.train.len()
        )));
    }
    Ok(())
}

/// The largest power of two up to 64 that gives an epoch at least 20 steps.
fn default_batch_size(examples: usize, replicas: usize) -> usize {
    let most = (examples / (MIN_STEPS * replicas)).clamp(1, MAX_BATCH_SIZE);
    1 << most.ilog2()
}

impl Run {
    fn train(&self, start: Start, signals: &Signals) -> Result<(), Failure> {
        let mut state = self.state()?;
        let (train, test) = (self.train_data()?, self.test_data()?);
        let (history, saved) = self.supervise(start, signals, |fit| {
            fit.run(&mut state, &train, Some(&test), objective)
        })?;
        self.finish(&history, &state, &test, saved)
    }

    /// Has somebody train, with everything that is to be watched, written and saved; says which
    /// checkpoint is the newest then.
    pub(super) fn supervise(
        &self,
        mut start: Start,
        signals: &Signals,
        train: impl FnOnce(Fitting<'_>) -> distribute_core::Result<History>,
    ) -> Result<(History, Option<PathBuf>), Failure> {
        start.hold(&self.args.files)?;
        let (path, checkpoint) = start.checkpoint.unzip();
        let continued = checkpoint.as_ref().map(|saved| saved.metadata.step);
        let mut saver = start.saver.map(|saver| self.describe(saver));
        let mut fit = Fit::new(&*self.strategy)
            .epochs(self.epochs)
            .max_steps(self.args.training.steps)
            .seed(self.args.training.seed)
            .resume_from(checkpoint)
            .callback(Interrupt::new(signals.flag()))
            .callback(signals.training(self.needs_others()))
            .callback(TerminateOnNan::every_batches(NAN_CHECK_STEPS))
            .callback(StepLines {
                every: self.args.files.log_steps,
                reports: self.reports(),
                output: self.args.general.output,
            });
        if self.reports() {
            fit = self.reporting(
                fit.callback(self.announcement(continued)),
                continued.is_none(),
            )?;
        }
        if let Some(saver) = &mut saver {
            fit = fit.callback(saver);
        }
        let history = train(fit)?;
        signals.trained();
        let saved = saver.as_ref().and_then(ModelCheckpoint::last_saved);
        // Nothing newer than what the run began with.
        let began_with = path.filter(|_| self.reports());
        let saved = saved.map(|saved| saved.entry.path.clone()).or(began_with);
        Ok((history, saved))
    }

    /// Whether the first step waits for others, or for a compiler.
    fn needs_others(&self) -> bool {
        let strategy = &self.strategy;
        self.workers.is_some() || strategy.workers().is_some() || strategy.tracer().is_some()
    }

    /// Whether this process says how training goes: of several workers the chief does.
    fn reports(&self) -> bool {
        let workers = self.strategy.workers();
        workers.is_none_or(WorkerGroup::is_chief)
    }

    /// The callbacks that show and write how training goes. A run that begins replaces the logs of
    /// one before.
    fn reporting<'a>(&self, fit: Fitting<'a>, begins: bool) -> Result<Fitting<'a>, Failure> {
        let fit = match self.args.general.output {
            OutputFormat::Text if io::stderr().is_terminal() => fit.callback(ProgressBar::new()),
            OutputFormat::Text => fit.callback(ProgressBar::plain(events::Notes)),
            OutputFormat::Json => fit.callback(JsonEpochs),
        };
        let Some(directory) = &self.args.files.log_dir else {
            return Ok(fit);
        };
        if begins {
            events::remove_curves(directory)?;
        }
        Ok(fit
            .callback(TensorBoard::new(directory)?)
            .callback(HistoryFile::json_lines(directory.join("history.jsonl")))
            .callback(HistoryFile::csv(directory.join("history.csv"))))
    }

    fn state(&self) -> Result<State, Failure> {
        Ok(self.strategy.try_scope(|device| {
            let optimizer = optimizer(&self.args.training);
            self.task
                .state(optimizer, self.args.training.seed, device)
                .map_err(Error::step)
        })?)
    }

    pub(super) fn train_data(&self) -> Result<Batches, Failure> {
        let batching = Batching::global(self.global_batch).shuffle(self.args.training.seed);
        self.batches(&self.data.train, batching)
    }

    pub(super) fn test_data(&self) -> Result<Batches, Failure> {
        self.batches(&self.data.test, Batching::global(self.global_batch))
    }

    /// Compiled steps need batches of one size, so short ones are filled up with what weighs
    /// nothing.
    fn batches(&self, examples: &Examples, batching: Batching) -> Result<Batches, Failure> {
        let examples = Classified::weighted(examples.clone());
        let batching = batching.pad_remainder(self.strategy.tracer().is_some());
        Ok(self.strategy.distribute_dataset(examples, batching)?)
    }

    /// Compiles the step that training would make, and ends.
    fn compile(&self, ahead: &Ahead) -> Result<(), Failure> {
        let (mut state, train) = (self.state()?, self.train_data()?);
        let fit = Fit::new(&*self.strategy).epochs(1).max_steps(Some(1));
        let ended = fit.run(&mut state, &train, None, objective);
        match (ahead.report()?, ended) {
            // That there is nothing to run it on is how it ends.
            (Some(report), _) => tpu::print(&report, self.args.general.output),
            (None, Err(error)) => Err(tpu::not_compiled(error)),
            (None, Ok(_)) => Err(Failure::failed("training made no step to compile")),
        }
    }

    /// Every checkpoint says what it is of.
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

    /// What is said once nothing can be refused any more.
    fn announcement(&self, continued: Option<u64>) -> Announcement {
        let optimizer = optimizer(&self.args.training);
        let replicas = self.strategy.num_replicas_in_sync();
        let (global, share) = (self.global_batch, self.global_batch.div_ceil(replicas));
        let parameters = self.task.plan.parameters();
        let (train, test) = (self.data.train.len(), self.data.test.len());
        if self.args.general.output == OutputFormat::Json {
            let event = events::object([
                ("event", json!("start")),
                ("step", json!(continued.unwrap_or(0))),
                ("strategy", json!(self.strategy.name())),
                (
                    "workers",
                    json!(
                        self.workers
                            .unwrap_or(self.strategy.input_context().num_input_pipelines)
                    ),
                ),
                ("replicas", json!(replicas)),
                ("devices", json!(self.devices)),
                ("model", json!(self.task.model_name())),
                ("parameters", json!(parameters)),
                ("dataset", json!(self.task.dataset.to_string())),
                ("train_examples", json!(train)),
                ("test_examples", json!(test)),
                ("batch_size", json!(share)),
                ("global_batch_size", json!(global)),
                ("epochs", json!(self.epochs)),
                ("optimizer", json!(optimizer.name())),
                ("learning_rate", json!(optimizer.learning_rate())),
                ("seed", json!(self.args.training.seed)),
            ]);
            return Announcement {
                event: Some(event),
                notes: self
                    .cluster
                    .iter()
                    .cloned()
                    .chain(self.device_reduction())
                    .chain(self.short_batch(global))
                    .collect(),
            };
        }
        let mut notes = vec![
            format!(
                "{} ({parameters} parameters) on {}: {train} training and {test} test examples",
                self.task.model_name(),
                self.task.dataset
            ),
            match self.workers {
                Some(workers) => format!(
                    "{} strategy with {workers} workers: {global} examples a step of one worker",
                    self.strategy.name()
                ),
                None => format!(
                    "{} strategy on {}: {share} examples a step each, {global} together",
                    self.strategy.name(),
                    self.places(),
                ),
            },
        ];
        notes.extend(self.cluster.iter().cloned());
        notes.extend(self.device_reduction());
        notes.extend(self.short_batch(global));
        notes.extend(continued.map(|step| format!("continuing after step {step}")));
        Announcement { event: None, notes }
    }

    /// How gradients of GPUs are reduced, and why so.
    fn device_reduction(&self) -> Vec<String> {
        let told = self.strategy.device_reduction().into_iter();
        told.map(String::from).collect()
    }

    /// `cpu:0, cpu:1`, `cpu:0 to cpu:63`, or how many replicas on how many workers.
    fn places(&self) -> String {
        match self.strategy.workers() {
            None => listed(&self.devices),
            Some(workers) => format!(
                "{} replicas of {} workers",
                workers.num_replicas(),
                workers.num_workers()
            ),
        }
    }

    /// What becomes of a batch size beyond the data: as in TensorFlow, one short batch.
    fn short_batch(&self, global: usize) -> Option<String> {
        let examples = self.data.train.len();
        (global > examples).then(|| {
            format!(
                "all {examples} training examples are one short batch, so an epoch is one step; \
                 its loss is divided by {global}, use a smaller --batch-size for more steps"
            )
        })
    }

    /// The last line, or why there is none.
    pub(super) fn finish(
        &self,
        history: &History,
        state: &State,
        test: &Batches,
        saved: Option<PathBuf>,
    ) -> Result<(), Failure> {
        let step = state.primary().step();
        match &history.outcome {
            Outcome::Interrupted => return Err(self.interrupted(step, saved.as_deref())),
            Outcome::NotFinite { .. } => return Err(Failure::failed(&history.outcome)),
            _ => {}
        }
        // Nothing was left to train when a finished run is resumed.
        let (logs, trained) = match history.epochs.last() {
            Some(record) => (record.logs.clone(), true),
            None => (
                evaluate(&*self.strategy, state, test, objective)?.logs,
                false,
            ),
        };
        if !trained && self.reports() {
            events::note(&self.nothing_left(&history.outcome, step));
        }
        let value = |names: [&str; 2]| names.iter().find_map(|name| logs.get(name));
        let (loss, accuracy) = (
            value(["val_loss", "loss"]),
            value(["val_accuracy", "accuracy"]),
        );
        let tensors = state.primary().to_tensors()?;
        let weights = tensors
            .iter()
            .filter(|(name, _)| name.starts_with("model/"));
        let hash = weights_sha256(weights)?;
        if let Some(workers) = self
            .strategy
            .workers()
            .filter(|workers| !workers.is_chief())
        {
            // On standard error: what a job gives is what its chief writes.
            events::note(&format!(
                "worker {}: {step} steps; weights {hash}",
                workers.index()
            ));
            return Ok(());
        }
        if self.args.general.output == OutputFormat::Json {
            let number = |value: Option<f64>| json!(value.map(json_number));
            let event = events::object([
                ("event", json!("done")),
                ("loss", number(logs.get("loss").filter(|_| trained))),
                ("val_loss", number(loss)),
                ("val_accuracy", number(accuracy)),
                ("steps", json!(step)),
                ("weights_sha256", json!(hash)),
            ]);
            return events::line(&event);
        }
        events::line(&format!(
            "test accuracy {:.4}, test loss {:.4} after {step} steps; weights {hash}",
            accuracy.unwrap_or(f64::NAN),
            loss.unwrap_or(f64::NAN)
        ))
    }
}

impl Run {
    /// Why a run that continues ends at once, and how to go on.
    fn nothing_left(&self, outcome: &Outcome, step: u64) -> String {
        let (done, flag) = match outcome {
            Outcome::MaxSteps => (format!("all {step} steps"), "--steps"),
            _ => (format!("all {} epochs", self.epochs), "--epochs"),
        };
        format!(
            "nothing was left to train: {done} were done before; give a larger {flag} to train on"
        )
    }

    fn interrupted(&self, step: u64, saved: Option<&Path>) -> Failure {
        match (saved, &self.args.files.checkpoint_dir) {
            (Some(path), _) => Failure::preempted(format!(
                "interrupted after step {step}, saved {}; continue with {}",
                path.display(),
                match self.args.files.restartable || self.args.files.resume {
                    true => "the same command",
                    false => "--restartable",
                }
            )),
            (None, Some(_)) if step == 0 => Failure::preempted(
                "interrupted before the first step; there was nothing to save yet".to_string(),
            ),
            (None, Some(directory)) if !self.reports() => Failure::preempted(format!(
                "interrupted after step {step}, the chief saved into {}",
                directory.display()
            )),
            _ => Failure::failed(format!(
                "interrupted after step {step}, nothing was saved; use --checkpoint-dir to be \
                 able to continue"
            )),
        }
    }
}

/// Names one after the other; of many long ones the first and the last.
fn listed(devices: &[String]) -> String {
    const LENGTH_MAX: usize = 200;
    match devices {
        [first, .., last] if devices.join(", ").len() > LENGTH_MAX => format!("{first} to {last}"),
        all => all.join(", "),
    }
}

/// The run while callbacks are added to it.
pub(super) type Fitting<'a> = Fit<'a, dyn Strategy>;

/// This process' place in a cluster.
struct Worker {
    cluster: Option<Cluster>,
    found: String,
}

impl Worker {
    /// `None` for strategies of one process.
    fn of(args: &TrainArgs) -> Result<Option<Self>, Failure> {
        if args.strategy != StrategyName::MultiWorker {
            return args.cluster.refuse_without_workers().map(|()| None);
        }
        let (detected, cluster) = args.cluster.resolve()?;
        let found = detected.to_string();
        Ok(Some(Self { cluster, found }))
    }

    fn is_evaluator(&self) -> bool {
        let task = self.cluster.as_ref().map(Cluster::task_type);
        task == Some(TaskType::Evaluator)
    }

    /// The strategy, once the other workers are there, and what to say about it.
    fn join_workers(
        self,
        args: &TrainArgs,
        signals: &Signals,
    ) -> Result<(Arc<dyn Strategy>, Vec<String>), Failure> {
        let devices = worker_devices(&args.devices)?;
        let strategy = args
            .cluster
            .strategy(devices, self.cluster, signals.interruption())?;
        let mut notes: Vec<String> = self.found.lines().map(str::to_string).collect();
        if let Some(workers) = strategy.workers() {
            notes.push(workers.describe().to_string());
        }
        Ok((Arc::new(strategy), notes))
    }
}

/// How many examples a step has.
pub(super) struct GlobalBatch {
    pub(super) examples: usize,
    /// Of one replica, as it was asked for or follows from the data.
    pub(super) share: usize,
    note: Option<String>,
}

impl GlobalBatch {
    /// A run that continues keeps its global batches, with however many replicas, unless another
    /// size is asked for (which is then refused).
    pub(super) fn new(
        asked: Option<usize>,
        replicas: usize,
        examples: usize,
        start: &Start,
    ) -> Result<Self, Failure> {
        let share = asked.unwrap_or_else(|| default_batch_size(examples, replicas));
        let new = Self {
            examples: share.saturating_mul(replicas),
            share,
            note: None,
        };
        let Some((_, checkpoint)) = &start.checkpoint else {
            return Ok(new);
        };
        let run = RunInfo::of(checkpoint)?;
        let (Some(global), Some(before)) = (run.global_batch_size, run.replicas) else {
            return Ok(new);
        };
        if asked.is_some_and(|asked| asked.saturating_mul(before) != global) {
            return Ok(new);
        }
        let note = (before != replicas).then(|| {
            format!(
                "continuing a run of {before} replicas with {replicas}: {global} examples a step \
                 together as before, {} each",
                global.div_ceil(replicas)
            )
        });
        Ok(Self {
            examples: global,
            share,
            note,
        })
    }
}

/// Says what is trained, as soon as the run has accepted its checkpoint.
#[derive(Debug)]
struct Announcement {
    event: Option<String>,
    notes: Vec<String>,
}

impl Callback for Announcement {
    fn on_train_begin(&mut self, _: &mut Control<'_>) -> distribute_core::Result<()> {
        for note in &self.notes {
            events::note(note);
        }
        match &self.event {
            Some(event) => events::line(event).map_err(|failure| Error::step(failure.to_string())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::default_batch_size;

    #[test]
    fn the_default_batch_leaves_enough_steps() {
        assert_eq!(default_batch_size(1_438, 2), 32);
        assert_eq!(default_batch_size(1_438, 64), 1);
        assert_eq!(default_batch_size(60_000, 2), 64);
        assert_eq!(default_batch_size(5, 2), 1);
    }
}
