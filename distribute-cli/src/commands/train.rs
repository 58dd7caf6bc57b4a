//! `train`: from flags to a trained model.

use std::sync::Arc;

use distribute_core::Strategy;
use distribute_core::cluster::{Cluster, TaskType};

use super::restore::same_model;
use super::start::Start;
use super::training::{GlobalBatch, Run, check_sizes, epochs};
use crate::configuration;
use crate::failure::Failure;
use crate::flags::{StrategyName, TrainArgs};
use crate::schedule;
use crate::signals::Signals;
use crate::strategies::{device_names, replica_count, strategy, worker_devices};
use crate::task::{Task, optimizer};
use crate::tpu::Tpu;

pub(super) fn run(args: TrainArgs) -> Result<(), Failure> {
    let signals = Signals::catch()?;
    let done = train(args, &signals);
    signals.outcome(done)
}

fn train(args: TrainArgs, signals: &Signals) -> Result<(), Failure> {
    schedule::check(&args.training, args.strategy)?;
    if args.strategy == StrategyName::ParameterServer {
        return super::parameter_server::run(args, signals);
    }
    args.servers.refuse_without_servers()?;
    let worker = Worker::of(&args)?;
    if worker.as_ref().is_some_and(Worker::is_evaluator) {
        return super::evaluator::run(&args, signals);
    }
    let worker = worker.map(|worker| worker.join_workers(&args, signals));
    train_as(worker.transpose()?, args, signals)
}

/// Trains under the strategy of a worker that has joined the others, or alone.
fn train_as(worker: Option<Ready>, mut args: TrainArgs, signals: &Signals) -> Result<(), Failure> {
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
    match tpu {
        Some(Tpu::Topology(ahead)) => run.compile(&ahead),
        _ => run.train(start, signals),
    }
}

/// A strategy, and what there is to say about its cluster.
type Ready = (Arc<dyn Strategy>, Vec<String>);

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

    /// The strategy, once the other workers are there.
    fn join_workers(self, args: &TrainArgs, signals: &Signals) -> Result<Ready, Failure> {
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
