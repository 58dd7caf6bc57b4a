//! `train`: from flags to a trained model.

use std::sync::Arc;

use distribute_core::checkpoint::Checkpoint;
use distribute_core::cluster::{Cluster, TaskType};
use distribute_core::collectives::Description;
use distribute_core::{Strategy, WorkerGroup};

use super::restore::same_model;
use super::start::{Start, goes_on};
use super::training::{GlobalBatch, Run, check_sizes, epochs};
use crate::configuration;
use crate::failure::Failure;
use crate::flags::{StrategyName, TrainArgs};
use crate::metrics::Metrics;
use crate::phases::{Phases, Trace};
use crate::schedule::{self, check_remainder};
use crate::signals::Signals;
use crate::strategies::{check_share, device_names, planned_devices, strategy, worker_devices};
use crate::task::{self, optimizer};
use crate::tpu::Tpu;

pub(super) fn run(args: TrainArgs, phases: &Phases) -> Result<(), Failure> {
    let signals = Signals::catch()?;
    let done = train(args, &signals, phases);
    signals.outcome(done)
}

fn train(args: TrainArgs, signals: &Signals, phases: &Phases) -> Result<(), Failure> {
    schedule::check(&args.training, args.strategy)?;
    args.validation.check()?;
    refuse_flags(&args)?;
    if args.dry_run {
        return super::dry_run::run(args);
    }
    if args.strategy == StrategyName::ParameterServer {
        return super::parameter_server::run(args, signals);
    }
    let worker = Worker::of(&args)?;
    if worker.as_ref().is_some_and(Worker::is_evaluator) {
        return super::evaluator::run(&args, signals);
    }
    let worker = worker
        .map(|worker| worker.join_workers(&args, signals))
        .transpose()?;
    let group = worker
        .as_ref()
        .and_then(|(strategy, _)| strategy.workers())
        .cloned();
    if let Some(group) = &group {
        group.agree_on(&configuration::flags(&args))?;
    }
    let goes_on = goes_on(&args.files)?;
    let trace = args
        .observing
        .trace
        .as_deref()
        .map(|path| Trace::start(phases, path, group.as_ref(), goes_on))
        .transpose()?;
    let metrics = Metrics::start(&args.observing, phases, group.as_ref(), goes_on)?;
    let done = train_as(worker, group, args, signals, metrics.as_ref());
    if let Some(trace) = trace {
        let together = done.as_ref().map_or_else(Failure::is_preemption, |()| true);
        trace.finish(together);
    }
    done
}

/// Refuses flags that the strategy does not use or support, also in a dry run.
fn refuse_flags(args: &TrainArgs) -> Result<(), Failure> {
    if args.strategy != StrategyName::Tpu {
        args.tpu.refuse_without_tpu()?;
    }
    args.checks.refuse_for(args.strategy)?;
    match args.strategy {
        StrategyName::ParameterServer => return super::parameter_server::refuse_flags(args),
        StrategyName::MultiWorker => args.cluster.check_files()?,
        _ => args.cluster.refuse_without_workers()?,
    }
    args.servers.refuse_without_servers()
}

/// Trains under the strategy of a worker that has joined the others, or of a single process.
fn train_as(
    worker: Option<Ready>,
    group: Option<WorkerGroup>,
    mut args: TrainArgs,
    signals: &Signals,
    metrics: Option<&Metrics>,
) -> Result<(), Failure> {
    let start = match &worker {
        Some((strategy, _)) => of_worker(&args, &**strategy)?,
        None => Start::new(&args.files)?,
    };
    start.complete(&mut args.training);
    start.complete_data(&mut args.data)?;
    let (mut task, data) = task::opened(&args, start.metadata())?;
    task::complete(&mut task, &mut args.training);
    start.complete_optimizer(&mut args.training);
    if let Some((path, checkpoint)) = &start.checkpoint {
        same_model(checkpoint, path, &task)?;
    }
    let tpu = match args.strategy {
        StrategyName::Tpu => Some(Tpu::open(&args.tpu, &args.devices, args.general.verbose)?),
        _ => None,
    };
    let ready = worker.or_else(|| tpu.as_ref().map(|tpu| (tpu.strategy(), tpu.description())));
    // Before the replicas' threads are started.
    let replicas = match &ready {
        Some((strategy, _)) => strategy.num_replicas_in_sync(),
        None => planned_devices(args.strategy, &args.devices)?.len(),
    };
    args.checks.refuse_alone(args.strategy, replicas)?;
    let workers = group.as_ref().map_or(1, WorkerGroup::num_workers);
    check_sizes(&task, &data, replicas, workers)?;
    let (strategy, mut cluster) = match ready {
        Some(ready) => ready,
        None => (strategy(args.strategy, &args.devices)?, Vec::new()),
    };
    let batch = GlobalBatch::new(args.data.batch_size, replicas, data.train.len(), &start)?;
    check_remainder(&args.training, data.train.len(), batch.examples)?;
    cluster.extend(batch.note);
    cluster.extend(start.recalled.as_ref().map(in_memory));
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
        metrics,
        epochs: epochs(&args, &task),
        optimizer: optimizer(&args.training)?,
        args,
        task,
        data,
        devices: match &tpu {
            Some(tpu) => tpu.device_names(),
            None => device_names(&*strategy),
        },
        strategy,
    };
    #[cfg(feature = "full")]
    if let Some(Tpu::Topology(ahead)) = &tpu {
        return run.compile(ahead);
    }
    run.train(start, signals)
}

/// The start of one of several workers: from the disk, or from the memory of the launchers.
fn of_worker(args: &TrainArgs, strategy: &dyn Strategy) -> Result<Start, Failure> {
    let mut start = Start::of_worker(&args.files, strategy)?;
    if args.cluster.replicate_state.is_some() {
        start.recall(strategy)?;
    }
    Ok(start)
}

fn in_memory(state: &Checkpoint) -> String {
    let step = state.metadata.step;
    format!("the state of step {step} was in memory of the workers that are left")
}

/// A strategy, and a description of its cluster.
type Ready = (Arc<dyn Strategy>, Vec<String>);

/// How the workers work together.
fn described(group: &Description) -> [String; 2] {
    let (ranks, transport) = (group.world_size, &group.transport);
    let (algorithm, order, generation) = (group.algorithm, group.order, group.generation);
    [
        format!("{ranks} ranks over {transport}, {order} order (generation {generation})"),
        format!("{algorithm} all-reduce: {}", group.reason),
    ]
}

/// This process' place in a cluster.
struct Worker {
    cluster: Option<Cluster>,
    found: String,
}

impl Worker {
    /// `None` for strategies of one process.
    fn of(args: &TrainArgs) -> Result<Option<Self>, Failure> {
        if args.strategy != StrategyName::MultiWorker {
            return Ok(None);
        }
        let (detected, cluster) = args.cluster.resolve()?;
        let found = detected.to_string();
        Ok(Some(Self { cluster, found }))
    }

    fn is_evaluator(&self) -> bool {
        let task = self.cluster.as_ref().map(Cluster::task_type);
        task == Some(TaskType::Evaluator)
    }

    /// The strategy, once the other workers are there.
    fn join_workers(self, args: &TrainArgs, signals: &Signals) -> Result<Ready, Failure> {
        let devices = worker_devices(&args.devices)?;
        if let Some(total) = args.cluster.total_replicas {
            check_share(
                total,
                self.cluster.as_ref().map_or(1, Cluster::worker_count),
            )?;
        }
        let per_device = args.devices.replicas_per_device;
        let strategy =
            args.cluster
                .strategy(devices, per_device, self.cluster, signals.interruption())?;
        let mut notes: Vec<String> = self.found.lines().map(str::to_string).collect();
        if let Some(workers) = strategy.workers() {
            notes.extend(described(&workers.describe()));
        }
        Ok((Arc::new(strategy), notes))
    }
}
