//! `train --dry-run`: describes a run, without any step and without its peers.

use distribute_classifier::Task;
use distribute_core::cluster::Cluster;
use distribute_core::optim::Optimizer;
use distribute_core::{LogicalDevice, replica_range};
use serde_json::{Value, json};

use super::restore::same_model;
use super::start::Start;
use super::training::{GlobalBatch, check_sizes, epochs};
use crate::events::{self, EventName};
use crate::failure::Failure;
use crate::flags::{OutputFormat, StrategyName, TrainArgs};
use crate::memory::{Memory, size};
use crate::notes::{note, wrapped};
use crate::schedule::{check_remainder, per_epoch, updates};
use crate::strategies::{check_share, of_replicas, planned_devices, worker_devices};
use crate::task::{self, optimizer};

/// Bytes of a number in weights, gradients and values between the layers.
const NUMBER: usize = 4;

/// The description of a run. Everything that `train` would refuse before it meets the other
/// processes is refused.
struct Plan {
    strategy: String,
    workers: usize,
    replicas: usize,
    devices: Vec<String>,
    model: String,
    parameters: usize,
    dataset: String,
    train_examples: usize,
    test_examples: usize,
    batch_size: usize,
    global_batch_size: usize,
    epochs: usize,
    steps_per_epoch: usize,
    /// The total number of updates, and the number in the checkpoint that the run continues.
    updates: u64,
    done: u64,
    optimizer: &'static str,
    learning_rate: f64,
    /// Bytes of this process, see [`memory`].
    state_bytes: usize,
    data_bytes: usize,
    step_bytes: usize,
    /// The memory that this process may use.
    memory: Option<Memory>,
}

/// The replicas of all workers; by default that many.
fn all_replicas(args: &TrainArgs, default: usize) -> Result<usize, Failure> {
    let replicas = args.cluster.total_replicas.unwrap_or(default);
    args.checks.refuse_alone(args.strategy, replicas)?;
    Ok(replicas)
}

pub(super) fn run(mut args: TrainArgs) -> Result<(), Failure> {
    if args.strategy == StrategyName::Tpu {
        return Err(Failure::usage(
            "--dry-run does not ask a TPU; use --compile-only, which says what a step costs there",
        ));
    }
    let (devices, workers) = places(&args)?;
    let replicas = all_replicas(&args, devices.len().saturating_mul(workers))?;
    let start = Start::new(&args.files)?;
    let is_served = args.strategy == StrategyName::ParameterServer;
    if is_served {
        start.refuse_other_numbers(&args)?
    } else {
        start.complete_data(&mut args.data)?
    }
    start.complete(&mut args.training);
    let stored = start.metadata().filter(|_| !is_served);
    let (mut task, data) = task::opened(&args, stored)?;
    task::complete(&mut task, &mut args.training);
    if args.general.output == OutputFormat::Text {
        task::start_notes(&task).for_each(|text| note(&text));
    }
    if let Some((path, checkpoint)) = &start.checkpoint {
        same_model(checkpoint, path, &task)?;
    }
    // Workers of parameter servers make independent steps, and do not read the checkpoint.
    let (together, nothing) = (if is_served { 1 } else { replicas }, Start::default());
    let trains_together = if is_served { 1 } else { workers };
    check_sizes(&task, &data, together, trains_together)?;
    let examples = data.train.len();
    let continued = if is_served { &nothing } else { &start };
    let batch = GlobalBatch::new(args.data.batch_size, together, examples, continued)?;
    if is_served {
        start.refuse_other_batch(batch.examples)?;
    }
    check_remainder(&args.training, examples, batch.examples)?;
    start.configuration(&args, &task, &data, batch.examples)?;
    let (optimizer, epochs) = (optimizer(&args.training)?, epochs(&args, &task));
    let share = batch.examples.div_ceil(together);
    let (state_bytes, step_bytes) = memory(&task, &*optimizer, args.strategy, devices.len(), share);
    let both = examples.saturating_add(data.test.len());
    let features = data.train.feature_shape().iter().product::<usize>();
    let plan = Plan {
        strategy: crate::configuration::name(args.strategy).unwrap_or_default(),
        workers,
        replicas,
        devices,
        model: task.model_name().to_string(),
        parameters: task.plan.parameters(),
        dataset: task.dataset.to_string(),
        train_examples: examples,
        test_examples: data.test.len(),
        batch_size: share,
        global_batch_size: batch.examples,
        epochs,
        steps_per_epoch: per_epoch(&args.training, examples, batch.examples)
            .div_ceil(batch.examples.max(1)),
        updates: updates(&args.training, epochs, examples, batch.examples),
        done: start.metadata().map_or(0, |metadata| metadata.step),
        optimizer: optimizer.name(),
        learning_rate: optimizer.learning_rate(),
        state_bytes,
        data_bytes: both.saturating_mul(features).saturating_mul(NUMBER),
        step_bytes,
        memory: Memory::of_this_process(),
    };
    match args.general.output {
        OutputFormat::Json => events::line(&plan.json()),
        OutputFormat::Text => events::line(&plan.text()),
    }
}

/// The devices of this process, and the number of training processes.
fn places(args: &TrainArgs) -> Result<(Vec<String>, usize), Failure> {
    let names = |devices: Vec<LogicalDevice>| -> Vec<String> {
        devices.iter().map(ToString::to_string).collect()
    };
    match args.strategy {
        StrategyName::MultiWorker | StrategyName::ParameterServer => {
            let (_, cluster) = args.cluster.resolve()?;
            let workers = cluster.as_ref().map_or(1, Cluster::worker_count).max(1);
            let rank = cluster.as_ref().and_then(Cluster::rank).unwrap_or(0);
            let replicas = match args.cluster.total_replicas {
                Some(total) => {
                    check_share(total, workers)?;
                    replica_range(total, workers, rank)?.len()
                }
                None => 1,
            };
            let unnamed = || (0..replicas).map(LogicalDevice::cpu).collect();
            let devices = worker_devices(&args.devices)?.unwrap_or_else(unnamed);
            let mut devices = of_replicas(devices, &args.devices);
            if args.cluster.total_replicas.is_some() {
                devices.truncate(replicas);
            }
            Ok((names(devices), workers))
        }
        strategy => Ok((names(planned_devices(strategy, &args.devices)?), 1)),
    }
}

/// Bytes of weights, gradients and optimizer state, and of the values between the layers in the
/// steps of all replicas: once for the forward and once for the backward pass, which every backend
/// needs.
fn memory(
    task: &Task,
    optimizer: &dyn Optimizer,
    strategy: StrategyName,
    replicas: usize,
    share: usize,
) -> (usize, usize) {
    let numbers = |count: usize| count.saturating_mul(NUMBER);
    let model = numbers(task.plan.parameters());
    let copies = match strategy {
        // Gradients and a copy to compute with for each replica, weights and slots once.
        StrategyName::CentralStorage => 2 * replicas + 1 + optimizer.slots().len(),
        _ => replicas.saturating_mul(2 + optimizer.slots().len()),
    };
    let values = task
        .plan
        .calls
        .iter()
        .map(|call| call.output.elements())
        .fold(task.plan.input().elements(), usize::saturating_add);
    let step = numbers(values.saturating_mul(2).saturating_mul(share));
    (model.saturating_mul(copies), step.saturating_mul(replicas))
}

impl Plan {
    /// Total bytes of this process.
    fn bytes(&self) -> usize {
        let bytes = self.state_bytes.saturating_add(self.data_bytes);
        bytes.saturating_add(self.step_bytes)
    }

    /// The free memory, compared with the needed memory.
    fn free(&self) -> Option<String> {
        let memory = self.memory.as_ref()?;
        let is_enough = self.bytes() as u64 <= memory.available;
        let verdict = if is_enough {
            ""
        } else {
            "; not enough: use a smaller --batch-size, fewer replicas or a smaller model"
        };
        Some(format!("            {}{verdict}", memory.text()))
    }

    fn text(&self) -> String {
        let bytes = self.bytes();
        let places = match self.workers {
            1 => self.devices.join(", "),
            workers => format!("{workers} workers, each with {}", self.devices.join(", ")),
        };
        let left = match self.done {
            0 => String::new(),
            done => format!(", {done} of them done"),
        };
        [
            "nothing is trained or written; without --dry-run would run:".to_string(),
            format!("model       {}, {} parameters", self.model, self.parameters),
            format!(
                "data        {}, {} training and {} test examples",
                self.dataset, self.train_examples, self.test_examples
            ),
            format!("strategy    {}, {} replicas", self.strategy, self.replicas),
            format!("devices     {places}"),
            format!(
                "batch       {} examples of a replica, {} of a step",
                self.batch_size, self.global_batch_size
            ),
            format!(
                "steps       {} an epoch, {} epochs, {} updates{left}",
                self.steps_per_epoch, self.epochs, self.updates
            ),
            format!(
                "optimizer   {}, learning rate {}",
                self.optimizer, self.learning_rate
            ),
            format!(
                "memory      at least {} of this process:",
                size(bytes as u64)
            ),
            format!(
                "            weights, gradients, optimizer  {}",
                size(self.state_bytes as u64)
            ),
            format!(
                "            values between the layers     {}",
                size(self.step_bytes as u64)
            ),
            format!(
                "            examples                       {}",
                size(self.data_bytes as u64)
            ),
        ]
        .into_iter()
        .chain(self.free().map(|text| wrapped(&text, 12)))
        .collect::<Vec<_>>()
        .join("\n")
    }

    fn json(&self) -> String {
        let memory = self.memory.as_ref();
        let fields: [(&str, Value); 21] = [
            ("strategy", json!(self.strategy)),
            ("workers", json!(self.workers)),
            ("replicas", json!(self.replicas)),
            ("devices", json!(self.devices)),
            ("model", json!(self.model)),
            ("parameters", json!(self.parameters)),
            ("dataset", json!(self.dataset)),
            ("train_examples", json!(self.train_examples)),
            ("test_examples", json!(self.test_examples)),
            ("batch_size", json!(self.batch_size)),
            ("global_batch_size", json!(self.global_batch_size)),
            ("epochs", json!(self.epochs)),
            ("steps_per_epoch", json!(self.steps_per_epoch)),
            ("updates", json!(self.updates)),
            ("updates_done", json!(self.done)),
            ("optimizer", json!(self.optimizer)),
            ("state_bytes", json!(self.state_bytes)),
            ("values_bytes", json!(self.step_bytes)),
            ("examples_bytes", json!(self.data_bytes)),
            (
                "memory_available_bytes",
                json!(memory.map(|memory| memory.available)),
            ),
            ("memory_limited_by", json!(memory.map(Memory::limited_by))),
        ];
        events::event(EventName::DryRun, fields)
    }
}
