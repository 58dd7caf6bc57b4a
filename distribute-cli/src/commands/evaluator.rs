//! The evaluator of a cluster: measures the checkpoints that the workers save, beside them
//! (Keras: `SidecarEvaluator`).

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use distribute_core::checkpoint::{self, Checkpoint, CheckpointError, Entry};
use distribute_core::{
    Configuration, DefaultStrategy, Error, Mirrored, Policy, Sgd, StrategyExt, TrainState,
};
use distribute_data::fit::{Evaluation, averaged_weights, evaluate, json_number, restore_weights};
use distribute_data::tensorboard::EventWriter;
use distribute_data::{Batching, DistributedDataset, StrategyDataExt};
use serde_json::json;

use super::restore::same_model;
use crate::configuration::{data_settings, same_as_stored};
use crate::data::{Classified, Data};
use crate::events;
use crate::failure::Failure;
use crate::flags::{OutputFormat, TrainArgs};
use crate::notes::note;
use crate::objective::objective;
use crate::signals::Signals;
use crate::task::Task;
use distribute_keras::Model;

/// How often the directory is looked at: file systems that several hosts share tell nobody what is
/// new.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Examples of one forward pass.
const BATCH_SIZE: usize = 128;

/// Follows the directory until it is told to end (SIGTERM, Ctrl-C), then measures what is newest,
/// so that the last checkpoint is never left out.
pub(super) fn run(args: &TrainArgs, signals: &Signals) -> Result<(), Failure> {
    let Some(directory) = &args.files.checkpoint_dir else {
        return Err(Failure::usage(
            "this process is the evaluator of its cluster: it needs --checkpoint-dir, the \
             directory that the chief saves into",
        ));
    };
    let mut evaluator = Evaluator::new(args)?;
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

/// The newest checkpoint if it is newer than `seen`.
fn newer(directory: &Path, seen: Option<u64>) -> Result<Option<Checkpoint>, Failure> {
    let newest = match checkpoint::latest(directory) {
        Ok(newest) => newest.found,
        // The chief has not made it yet, or saves faster than this process reads: there is another
        // look.
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
        // The chief has removed it since: there is a newer one, or will be.
        Err(_) if !entry.path.exists() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

struct Evaluator {
    strategy: DefaultStrategy,
    task: Task,
    /// What its data is; that of the checkpoints must be the same.
    configuration: Configuration,
    state: Mirrored<TrainState<Model>>,
    data: DistributedDataset<Data>,
    log: Option<EventWriter>,
    output: OutputFormat,
    /// The step of the last checkpoint that was measured.
    seen: Option<u64>,
}

impl Evaluator {
    fn new(args: &TrainArgs) -> Result<Self, Failure> {
        let (task, data) = Task::from_args(args, None)?;
        let strategy = DefaultStrategy::new();
        let state = strategy.try_scope(|device| {
            // The optimizer is never asked.
            Ok(task.state(Arc::new(Sgd::new(0.0)), args.training.seed, device)?)
        })?;
        let configuration = data_settings(&task, &data)?;
        let examples = Classified::weighted(data.test);
        let data = strategy.distribute_dataset(examples, Batching::per_replica(BATCH_SIZE))?;
        let log = match &args.files.log_dir {
            Some(directory) => {
                let writer = EventWriter::create(directory.join("evaluator"));
                Some(writer.map_err(Error::from)?)
            }
            None => None,
        };
        let output = args.general.output;
        Ok(Self {
            strategy,
            task,
            configuration,
            state,
            data,
            log,
            output,
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
        let found = evaluate(
            &self.strategy,
            &self.state,
            &self.data,
            objective(Policy::float32(), self.task.loss),
        )?;
        let step = checkpoint.metadata.step;
        self.seen = Some(step);
        self.write(step, &found)?;
        let accuracy = found.logs.get("accuracy").unwrap_or(f64::NAN);
        let loss = found.logs.loss();
        events::line(&match self.output {
            OutputFormat::Json => events::object([
                ("event", json!("evaluation")),
                ("step", json!(step)),
                ("examples", json!(found.examples)),
                ("loss", json_number(loss)),
                ("accuracy", json_number(accuracy)),
            ]),
            OutputFormat::Text => {
                format!("step {step}: test accuracy {accuracy:.4}, test loss {loss:.4}")
            }
        })
    }

    /// Keras' tags, so that the curves stand beside those of its users.
    fn write(&mut self, step: u64, found: &Evaluation) -> Result<(), Failure> {
        let Some(log) = &mut self.log else {
            return Ok(());
        };
        let now = SystemTime::now();
        let mut write = || {
            for (name, value) in found.logs.iter() {
                let value = value as f32;
                log.scalar(
                    &format!("evaluation_{name}_vs_iterations"),
                    value,
                    step,
                    now,
                )?;
            }
            log.flush()
        };
        write().map_err(|error| Error::from(error).into())
    }
}
