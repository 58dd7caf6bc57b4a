//! `train --strategy parameter-server`: this process is the chief, a worker, a server or the
//! evaluator of its cluster, and all of them get the same flags.

use std::sync::Arc;
use std::time::Duration;

use distribute_classifier::{Batch, Classified, Task, objective};
use distribute_core::cluster::{Cluster, ClusterResolver, TaskType};
use distribute_core::{Strategy, StrategyExt, TrainState};
use distribute_data::{Batching, StrategyDataExt};
use distribute_keras::Model;
use distribute_ps::{
    ClusterCoordinator, Program, PsError, ServerOptions, SharedState, Training, TrainingData,
    WorkerOptions,
};
use distribute_readers::TrainTest;

use super::restore::same_model;
use super::start::Start;
use super::training::{GlobalBatch, Run, check_sizes, epochs};
use crate::configuration;
use crate::failure::Failure;
use crate::flags::{TrainArgs, WireName};
use crate::schedule::check_remainder;
use crate::signals::Signals;
use crate::task::{self, optimizer};

/// The name under which all processes register the job.
const NAME: &str = "train";

/// Refuses flags that have no meaning if workers do not wait for each other.
pub(super) fn refuse_flags(args: &TrainArgs) -> Result<(), Failure> {
    args.cluster.refuse_collectives()?;
    let devices = &args.devices;
    let several = |count: Option<usize>| count.is_some_and(|count| count > 1);
    if several(devices.replicas)
        || several(devices.replicas_per_device)
        || devices.devices.len() > 1
    {
        return Err(Failure::usage(
            "a worker of --strategy parameter-server has one replica; start more workers",
        ));
    }
    if args.files.log_bits.is_some() {
        return Err(Failure::usage(
            "--log-bits is not for --strategy parameter-server: its workers do not wait for each \
             other, so no two runs have the same bits; leave it out or choose another strategy",
        ));
    }
    let observing = &args.observing;
    let given = [
        ("--trace", observing.trace.is_some()),
        ("--metrics-addr", observing.metrics_addr.is_some()),
        ("--compare-ranks", observing.compare_ranks.is_some()),
        #[cfg(feature = "otlp")]
        ("--otlp-endpoint", observing.otlp_endpoint.is_some()),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        Some((flag, _)) => Err(Failure::usage(format!(
            "{flag} is not for --strategy parameter-server, whose steps run in other processes \
             than the chief's; leave it out or choose another strategy"
        ))),
        None => Ok(()),
    }
}

/// Runs this process' role, and blocks until the job is done.
pub(super) fn run(args: TrainArgs, signals: &Signals) -> Result<(), Failure> {
    let (detected, cluster) = args.cluster.resolve()?;
    let resolver = &*detected.resolver;
    match cluster.as_ref().map(Cluster::task_type) {
        Some(TaskType::Evaluator) => super::evaluator::run(&args, signals),
        Some(TaskType::Chief) => {
            let found = detected.to_string();
            chief(args, resolver, &found, signals)
        }
        Some(TaskType::Worker) => worker(args, resolver, signals),
        // Without a cluster the program says what is missing.
        Some(TaskType::ParameterServer) | None => {
            let program = empty(&args, signals)?;
            signals.serve();
            ended(program.run_in(resolver, |_| Ok(())), signals)
        }
    }
}

/// A program with security and timeouts, but without anything to train.
fn empty(args: &TrainArgs, signals: &Signals) -> Result<Program, Failure> {
    let mut coordinator = args.servers.coordinator_options()?;
    let (mut worker, mut server) = (WorkerOptions::default(), ServerOptions::default());
    let bf16 = args.cluster.wire == Some(WireName::Bf16);
    (coordinator.client.bf16, worker.client.bf16) = (bf16, bf16);
    coordinator.interruption = signals.interruption();
    worker.interruption = signals.interruption();
    server.interruption = signals.interruption();
    if let Some(seconds) = args.cluster.rendezvous_timeout {
        let limit = Duration::from_secs(seconds);
        coordinator.connect_timeout = limit;
        coordinator.client.connect_timeout = limit;
        worker.coordinator_timeout = limit;
        worker.client.connect_timeout = limit;
        server.coordinator_timeout = limit;
    }
    let mut program = Program::new();
    program
        .security(args.cluster.security()?)
        .coordinator_options(coordinator)
        .worker_options(worker)
        .server_options(server);
    Ok(program)
}

/// The training, as all processes register it.
struct Job {
    state: SharedState<TrainState<Model>>,
    training: Training<Model, Batch>,
}

/// Registers the job. `global_batch` is the number of examples in a step of one worker.
fn register(
    program: &mut Program,
    args: &TrainArgs,
    task: &Task,
    data: &TrainTest,
    global_batch: usize,
) -> Result<Job, Failure> {
    let (optimizer, seed) = (optimizer(&args.training)?, args.training.seed);
    let options = args.training.optimizer_options();
    let drop_remainder = args.training.drop_remainder;
    let plan = task.plan.clone();
    let state = program.shared("model", move |strategy| {
        let state = strategy.try_scope(|device| {
            let model = Model::initialized(&plan, seed, device)?;
            let optimizer = model.constrained(&plan, Arc::clone(&optimizer))?;
            let state = TrainState::with_optimizer(model, optimizer);
            Ok(options.clipped(state))
        });
        state.map_err(PsError::from)
    });
    let (train, test) = (data.train.clone(), data.test.clone());
    let data = move |strategy: &distribute_ps::ParameterServerStrategy| {
        let batching = Batching::global(global_batch);
        let train = Classified::weighted(train.clone());
        let shuffled = batching.shuffle(seed).drop_remainder(drop_remainder);
        let train = strategy.distribute_dataset(train, shuffled)?;
        let test = strategy.distribute_dataset(Classified::weighted(test.clone()), batching)?;
        Ok(TrainingData::new(train).validation(test))
    };
    let training = program.training(
        NAME,
        &state,
        data,
        objective(args.training.precision.policy(), task.measured()),
    );
    Ok(Job { state, training })
}

fn worker(
    mut args: TrainArgs,
    resolver: &dyn ClusterResolver,
    signals: &Signals,
) -> Result<(), Failure> {
    let mut flags = configuration::flags(&args);
    let asks_rate = args.training.learning_rate.is_some();
    let (mut task, data) = task::opened(&args, None)?;
    task::complete(&mut task, &mut args.training);
    check_sizes(&task, &data, 1, 1)?;
    let batch = GlobalBatch::new(args.data.batch_size, 1, data.train.len(), &Start::default())?;
    check_remainder(&args.training, data.train.len(), batch.examples)?;
    if !asks_rate {
        // The servers get it from the chief, which may have it from a checkpoint.
        flags.leave(configuration::LEARNING_RATE);
    }
    let mut program = empty(&args, signals)?;
    program.configuration(&flags);
    program.configuration(&configuration::contents(&task, &data, batch.share)?);
    register(&mut program, &args, &task, &data, batch.examples)?;
    signals.serve();
    ended(program.run_in(resolver, |_| Ok(())), signals)
}

/// The result of a process that serves the chief.
fn ended(outcome: distribute_ps::Result<()>, signals: &Signals) -> Result<(), Failure> {
    match outcome {
        Err(error @ PsError::Role { .. }) => Err(Failure::usage(error)),
        // After a signal to all, the chief's result is the result of the job.
        Err(PsError::CoordinatorFailed { .. }) if signals.was_raised() => Ok(()),
        other => Ok(other?),
    }
}

fn chief(
    mut args: TrainArgs,
    resolver: &dyn ClusterResolver,
    found: &str,
    signals: &Signals,
) -> Result<(), Failure> {
    // From the flags: the workers do not read the checkpoint.
    let mut flags = configuration::flags(&args);
    let start = Start::new(&args.files)?;
    start.refuse_other_numbers(&args)?;
    // From the flags, too: the workers do not read the checkpoint.
    let (mut task, data) = task::opened(&args, None)?;
    if let Some((path, checkpoint)) = &start.checkpoint {
        same_model(checkpoint, path, &task)?;
    }
    start.complete(&mut args.training);
    task::complete(&mut task, &mut args.training);
    // What they are not asked for they get from here.
    let optimizer = optimizer(&args.training)?;
    flags.set(
        configuration::LEARNING_RATE,
        Some(optimizer.learning_rate()),
    );
    check_sizes(&task, &data, 1, 1)?;
    let batch = GlobalBatch::new(args.data.batch_size, 1, data.train.len(), &Start::default())?;
    check_remainder(&args.training, data.train.len(), batch.examples)?;
    start.refuse_other_batch(batch.examples)?;
    let own = start.configuration(&args, &task, &data, batch.examples)?;
    let mut program = empty(&args, signals)?;
    program.configuration(&flags);
    program.configuration(&configuration::contents(&task, &data, batch.share)?);
    let job = register(&mut program, &args, &task, &data, batch.examples)?;
    let mut failure = None;
    let outcome = program.run_in(resolver, |coordinator| {
        let trained = coordinator
            .strategy()
            .map_err(Failure::from)
            .and_then(|strategy| {
                let strategy: Arc<dyn Strategy> = Arc::new(strategy.undivided());
                let run = Run {
                    global_batch: batch.examples,
                    configuration: own,
                    cluster: described(coordinator, found),
                    epochs: epochs(&args, &task),
                    optimizer,
                    args,
                    task,
                    data,
                    devices: (0..coordinator.num_workers())
                        .map(|worker| format!("worker:{worker}"))
                        .collect(),
                    workers: Some(coordinator.num_workers()),
                    metrics: None,
                    strategy,
                };
                train(&run, coordinator, &job, start, signals)
            });
        trained.map_err(|failed| {
            let text = failed.to_string();
            failure = Some(failed);
            PsError::step(text)
        })
    });
    match failure {
        Some(failure) => Err(failure),
        None => ended(outcome, signals),
    }
}

fn train(
    run: &Run<'_>,
    coordinator: &ClusterCoordinator,
    job: &Job,
    start: Start,
    signals: &Signals,
) -> Result<(), Failure> {
    let (history, saved) = run.supervise(start, signals, |fit| {
        Ok(coordinator.fit(&job.training, fit)?)
    })?;
    let test = run.test_data()?;
    coordinator.with(&job.state, |state| {
        Ok(run.finish(&history, state, &test, saved))
    })?
}

/// A description of the cluster.
fn described(coordinator: &ClusterCoordinator, found: &str) -> Vec<String> {
    let servers = coordinator.variables().map_or(0, |it| it.num_servers());
    let mut lines: Vec<String> = found.lines().map(str::to_string).collect();
    lines.push(format!("{servers} parameter servers hold the weights"));
    lines
}
