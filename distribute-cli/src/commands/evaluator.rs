//! The evaluator of a cluster: measures the checkpoints that the workers save, beside them
//! (Keras: `SidecarEvaluator`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use distribute_classifier::{Classified, Data, LossName, Task, objective, stored_loss};
use distribute_core::checkpoint::{self, Checkpoint, CheckpointError, Entry};
use distribute_core::{
    Configuration, DefaultStrategy, Error, Mirrored, Policy, Sgd, StrategyExt, TrainState,
};
use distribute_data::{Batching, DistributedDataset, StrategyDataExt};
use distribute_fit::tensorboard::{EventWriter, remove_points};
use distribute_fit::{Evaluation, averaged_weights, evaluate, json_number, restore_weights};
use serde_json::json;

use super::restore::same_model;
use super::start::goes_on;
use crate::configuration::{data_settings, same_as_stored};
use crate::events::{self, EventName, Told};
use crate::failure::Failure;
use crate::flags::{FileArgs, OutputFormat, TrainArgs};
use crate::notes::note;
use crate::signals::Signals;
use crate::task;
use distribute_keras::Model;

/// Interval at which the directory is checked: shared file systems do not notify about new files.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Examples of one forward pass.
const BATCH_SIZE: usize = 128;

/// Watches the directory until a signal (SIGTERM, Ctrl-C), then measures the newest checkpoint, so
/// that the last one is never missed.
pub(super) fn run(args: &TrainArgs, signals: &Signals) -> Result<(), Failure> {
    let Some(directory) = &args.files.checkpoint_dir else {
        return Err(Failure::usage(
            "this process is the evaluator of its cluster: it needs --checkpoint-dir, the \
             directory that the chief saves into",
        ));
    };
    // A directory into which the chief cannot save is refused here, too.
    checkpoint::check_not_inside(directory)?;
    let mut evaluator = Evaluator::new(args)?;
    if let Some(unused) = unused(args) {
        note(&unused);
    }
    signals.serve();
    note(&format!("evaluator: following {}", directory.display()));
    loop {
        let last = signals.was_raised();
        if let Some(checkpoint) = newer(directory, evaluator.seen)? {
            evaluator.measure(&checkpoint, directory)?;
        } else if !last {
            // The signal wakes this thread.
            std::thread::park_timeout(POLL_INTERVAL);
        }
        if last {
            return match evaluator.seen {
                Some(_) => Ok(()),
                None => Err(Failure::failed(format!(
                    "evaluator: ended before there was a checkpoint in {}",
                    directory.display()
                ))),
            };
        }
    }
}

/// A message about flags for outputs that only training tasks write: all tasks of a job get the
/// same flags.
fn unused(args: &TrainArgs) -> Option<String> {
    let (files, observing) = (&args.files, &args.observing);
    let given = [
        ("--trace", observing.trace.is_some()),
        ("--metrics-addr", observing.metrics_addr.is_some()),
        ("--compare-ranks", observing.compare_ranks.is_some()),
        #[cfg(feature = "otlp")]
        ("--otlp-endpoint", observing.otlp_endpoint.is_some()),
        ("--log-bits", files.log_bits.is_some()),
        ("--log-histograms", files.log_histograms.is_some()),
        ("--flight-records", args.cluster.flight_records.is_some()),
    ];
    let given: Vec<&str> = given
        .iter()
        .filter(|(_, given)| *given)
        .map(|(flag, _)| *flag)
        .collect();
    let text = format!("evaluator: {}: for the tasks that train", given.join(", "));
    (!given.is_empty()).then_some(text)
}

/// The file of the curves, if requested. If it cannot be created beside a continued run, there is
/// none.
fn log(files: &FileArgs) -> Result<Option<EventWriter>, Failure> {
    let Some(directory) = &files.log_dir else {
        return Ok(None);
    };
    match EventWriter::create(directory.join(CURVES)) {
        Ok(writer) => Ok(Some(writer)),
        Err(error) if goes_on(files)? => {
            note(&format!(
                "warning: {error}; the evaluator goes on without --log-dir"
            ));
            Ok(None)
        }
        Err(error) => Err(Error::from(error).into()),
    }
}

/// The newest checkpoint if it is newer than `seen`.
fn newer(directory: &Path, seen: Option<u64>) -> Result<Option<Checkpoint>, Failure> {
    let newest = match checkpoint::latest(directory) {
        Ok(newest) => newest.found,
        // The chief has not created it yet, or saves faster than this process reads: try again
        // later.
        Err(CheckpointError::Missing { .. } | CheckpointError::Changing { .. }) => {
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    let is_newer = |entry: &Entry| seen.is_none_or(|seen| entry.step > seen);
    let Some((entry, _)) = newest.filter(|(entry, _)| is_newer(entry)) else {
        return Ok(None);
    };
    match checkpoint::load(&entry.path) {
        Ok(checkpoint) => Ok(Some(checkpoint)),
        // The chief has removed it since: there is or will be a newer one.
        Err(_) if !entry.path.exists() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The folder of the curves in the log directory.
const CURVES: &str = "evaluator";
/// Prefix and suffix of the tags.
const TAG: (&str, &str) = ("evaluation_", "_vs_iterations");

struct Evaluator {
    strategy: DefaultStrategy,
    task: Task,
    /// The identity of its data, which must be the same in the checkpoints.
    configuration: Configuration,
    state: Mirrored<TrainState<Model>>,
    data: DistributedDataset<Data>,
    log: Option<EventWriter>,
    log_dir: Option<PathBuf>,
    output: OutputFormat,
    told: Told,
    /// The loss from the flag; `None` for the loss of the checkpoints.
    loss: Option<LossName>,
    /// The step of the last checkpoint that was measured.
    seen: Option<u64>,
}

impl Evaluator {
    fn new(args: &TrainArgs) -> Result<Self, Failure> {
        let (task, data) = task::opened(args, None)?;
        let strategy = DefaultStrategy::new();
        let state = strategy.try_scope(|device| {
            // The optimizer is never asked.
            Ok(task.state(Arc::new(Sgd::new(0.0)), args.training.seed, device)?)
        })?;
        let configuration = data_settings(&task, &data)?;
        let examples = Classified::weighted(data.test);
        let data = strategy.distribute_dataset(examples, Batching::per_replica(BATCH_SIZE))?;
        let log = log(&args.files)?;
        let log_dir = args.files.log_dir.clone();
        let output = args.general.output;
        Ok(Self {
            strategy,
            task,
            configuration,
            state,
            data,
            log,
            log_dir,
            output,
            told: Told::of("the evaluator"),
            loss: args.training.loss_of_all(),
            seen: None,
        })
    }

    fn measure(&mut self, checkpoint: &Checkpoint, directory: &Path) -> Result<(), Failure> {
        same_model(checkpoint, directory, &self.task)?;
        same_as_stored(
            &self.configuration,
            &checkpoint.metadata,
            directory,
            &self.task,
        )?;
        restore_weights(&mut self.state, &averaged_weights(checkpoint.clone())?)?;
        let loss = self
            .loss
            .unwrap_or_else(|| stored_loss(&checkpoint.metadata));
        self.task.loss = loss;
        let found = evaluate(
            &self.strategy,
            &self.state,
            &self.data,
            objective(Policy::float32(), self.task.measured()),
        )?;
        let step = checkpoint.metadata.step;
        self.write(step, &found);
        self.seen = Some(step);
        let loss = found.logs.loss();
        let metrics = found.logs.iter().filter(|(name, _)| *name != "loss");
        self.told.line(&match self.output {
            OutputFormat::Json => events::event(
                EventName::Evaluation,
                [
                    ("step", json!(step)),
                    ("examples", json!(found.examples)),
                    ("loss", json_number(loss)),
                ]
                .into_iter()
                .chain(metrics.map(|(name, value)| (name, json_number(value)))),
            ),
            OutputFormat::Text => {
                let metrics: String = metrics
                    .map(|(name, value)| format!("test {name} {value:.4}, "))
                    .collect();
                format!("step {step}: {metrics}test loss {loss:.4}")
            }
        });
        Ok(())
    }

    /// Uses Keras' tags, so that the curves can be compared. Values that an earlier evaluator has
    /// measured at this step and later are measured again. If a curve cannot be written, a warning
    /// says so, and the numbers are still printed.
    fn write(&mut self, step: u64, found: &Evaluation) {
        let Some(mut log) = self.log.take() else {
            return;
        };
        let now = SystemTime::now();
        let is_first = self.seen.is_none();
        let mut write = || {
            if let Some(directory) = self.log_dir.as_ref().filter(|_| is_first) {
                let (head, tail) = TAG;
                let is_own = |tag: &str| tag.starts_with(head) && tag.ends_with(tail);
                let is_obsolete = |tag: &str, at| is_own(tag) && at >= step;
                remove_points(directory.join(CURVES), is_obsolete)?;
            }
            for (name, value) in found.logs.iter() {
                let tag = format!("{}{name}{}", TAG.0, TAG.1);
                log.scalar(&tag, value as f32, step, now)?;
            }
            log.flush()
        };
        match write() {
            Ok(()) => self.log = Some(log),
            Err(error) => {
                note(&format!(
                    "warning: {error}; the evaluator goes on without it"
                ));
                log.discard();
            }
        }
    }
}
