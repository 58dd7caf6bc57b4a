//! `bench parameter-server`: images per second of workers whose weights are on parameter servers,
//! beside as many processes that train alone; all of them processes of their own.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::tensor::ElementConversion;
use clap::Args;
use distribute_core::{Adam, Error, Result, TrainState};
use distribute_data::{AverageLoss, sparse_categorical_crossentropy};
use distribute_ps::{
    ClusterCoordinator, CoordinatorOptions, ParameterServer, PsError, RemoteValue, ServerOptions,
    StepRegistry, WorkerContext, WorkerOptions, WorkerServer,
};

use super::contenders::{BATCHES, Cnn, Contender, HandWritten, LEARNING_RATE, Trained, batches};
use super::cpu_time::cpu_time_of;
use super::train::{Comparison, compare};
use super::workers::Workers;
use super::{BenchOutput, workers};
use crate::events::line;
use crate::failure::Failure;

const STEP: &str = "train";
/// Closures per worker that are scheduled and have not ended.
const AHEAD: usize = 2;

/// Options of `bench parameter-server`.
#[derive(Debug, Args)]
pub(crate) struct ParameterServerArgs {
    /// Images per step of one worker
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// Worker processes, and processes that train alone beside them
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Parameter servers
    #[arg(long, default_value_t = 1)]
    servers: usize,
    /// Rounds; every round measures every competitor once
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds per competitor and round
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// How results are printed
    #[arg(long, value_enum, default_value_t = BenchOutput::Text)]
    output: BenchOutput,
    /// What this process is, started by the command itself
    #[arg(long, hide = true)]
    role: Option<Role>,
}

/// What a process of the benchmark does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Role {
    Server,
    Worker,
    Alone,
}

pub(super) fn run(args: &ParameterServerArgs) -> Result<(), Failure> {
    if args.batch_size == 0 || args.rounds == 0 || args.workers == 0 || args.servers == 0 {
        return Err(Failure::usage(
            "--batch-size, --rounds, --workers and --servers must be at least 1",
        ));
    }
    match args.role {
        Some(Role::Alone) => return workers::serve_steps(HandWritten::new(args.batch_size)),
        Some(Role::Server) => return serve_variables(),
        Some(Role::Worker) => return serve_closures(args.batch_size),
        None => {}
    }
    let seconds = Duration::try_from_secs_f64(args.seconds)
        .map_err(|_| Failure::usage("--seconds must be a positive number"))?;
    let alone = ["bench", "parameter-server", "--role", "alone"];
    let mut contenders: Vec<Box<dyn Contender>> = vec![
        Box::new(Workers::alone(args.workers, args.batch_size, &alone)?),
        Box::new(Job::start(args)?),
    ];
    compare(
        &mut contenders,
        &Comparison {
            bench: "parameter-server",
            batch_size: args.batch_size,
            rounds: args.rounds,
            seconds,
            output: args.output,
        },
    )
}

/// The steps of all processes of the job.
fn registry(batch_size: usize) -> Result<StepRegistry, PsError> {
    let mut registry = StepRegistry::new();
    let state = registry.state("model", |device| {
        TrainState::new(Cnn::new(device), Adam::new(LEARNING_RATE))
    })?;
    let data = registry.resource("batches", move |worker: &WorkerContext| {
        let device = distribute_core::LogicalDevice::cpu(0).burn_device();
        Ok(batches(&device, batch_size, worker.worker_index()))
    })?;
    registry.step(STEP, move |worker: &WorkerContext, (number,): (usize,)| {
        let batch = worker.resource(&data)?[number % BATCHES].clone();
        worker.run(&state, batch, |ctx, (state, (x, y))| {
            let per_example = sparse_categorical_crossentropy(state.model.forward(x), y);
            let loss = AverageLoss::new()
                .global_batch_size(batch_size)
                .of(ctx, per_example)?
                + state.model.l2();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(loss.into_scalar::<f32>().elem::<f32>())
        })
    })?;
    Ok(registry)
}

fn serve_variables() -> Result<(), Failure> {
    let server = ParameterServer::bind("127.0.0.1:0", ServerOptions::default())?;
    line(&server.address().to_string())?;
    server.wait(None)?;
    Ok(())
}

fn serve_closures(batch_size: usize) -> Result<(), Failure> {
    let registry = Arc::new(registry(batch_size)?);
    let server = WorkerServer::bind("127.0.0.1:0", registry, WorkerOptions::default())?;
    line(&server.address().to_string())?;
    Ok(server.serve()?)
}

/// A process of the job; killed when it is dropped.
struct Process {
    child: Child,
    address: String,
    /// Held open: a process whose input ends is not told anything by it.
    _input: ChildStdin,
    _output: BufReader<ChildStdout>,
}

impl Process {
    fn start(role: &str, batch_size: usize) -> Result<Self> {
        let program = std::env::current_exe().map_err(Error::step)?;
        let mut child = Command::new(program)
            .args(["bench", "parameter-server", "--role", role, "--batch-size"])
            .arg(batch_size.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(Error::step)?;
        let missing = || Error::invalid("a process without standard input and output");
        let input = child.stdin.take().ok_or_else(missing)?;
        let mut output = BufReader::new(child.stdout.take().ok_or_else(missing)?);
        let mut address = String::new();
        output.read_line(&mut address).map_err(Error::step)?;
        Ok(Self {
            child,
            address: address.trim().to_string(),
            _input: input,
            _output: output,
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended, as the coordinator told it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A coordinator, in this process, with its workers and servers.
struct Job {
    coordinator: ClusterCoordinator,
    processes: Vec<Process>,
    workers: usize,
    scheduled: usize,
}

impl Job {
    fn start(args: &ParameterServerArgs) -> Result<Self> {
        let start = |role| move |_| Process::start(role, args.batch_size);
        let servers = (0..args.servers).map(start("server"));
        let servers = servers.collect::<Result<Vec<_>>>()?;
        let workers = (0..args.workers).map(start("worker"));
        let workers = workers.collect::<Result<Vec<_>>>()?;
        let addresses = |of: &[Process]| of.iter().map(|it| it.address.clone()).collect();
        let (of_workers, of_servers): (Vec<String>, Vec<String>) =
            (addresses(&workers), addresses(&servers));
        let registry = Arc::new(registry(args.batch_size)?);
        let options = CoordinatorOptions::default();
        let coordinator = ClusterCoordinator::connect(&of_workers, &of_servers, registry, options)?;
        Ok(Self {
            coordinator,
            processes: servers.into_iter().chain(workers).collect(),
            workers: args.workers,
            scheduled: 0,
        })
    }

    fn cpu(&self) -> Option<Duration> {
        let others = self.processes.iter().map(|process| process.child.id());
        let all = others.chain([std::process::id()]).map(cpu_time_of);
        all.sum()
    }

    /// Keeps all workers busy for this time, and waits for what runs then.
    fn steps(&mut self, time: Duration) -> Result<Trained, PsError> {
        let (started, before) = (Instant::now(), self.cpu());
        let mut running: VecDeque<RemoteValue> = VecDeque::new();
        let mut trained = Trained::default();
        loop {
            while started.elapsed() < time && running.len() < AHEAD * self.workers {
                running.push_back(self.coordinator.schedule(STEP, (self.scheduled,))?);
                self.scheduled += 1;
            }
            if running.is_empty() {
                break;
            }
            let ended = self.coordinator.wait_any(&running)?;
            if let Some(value) = running.remove(ended) {
                trained.loss = value.fetch()?;
                trained.steps += 1;
            }
        }
        trained.steps_per_s =
            trained.steps as f64 / started.elapsed().as_secs_f64() / self.workers as f64;
        trained.steps /= self.workers;
        trained.cpu = self.cpu().zip(before).map(|(after, before)| after - before);
        Ok(trained)
    }
}

impl Contender for Job {
    fn name(&self) -> &'static str {
        "parameter-server"
    }

    fn replicas(&self) -> usize {
        self.workers
    }

    fn train_for(&mut self, time: Duration) -> Result<Trained> {
        // At least one step of each worker.
        Ok(self.steps(time.max(Duration::from_millis(1)))?)
    }
}
