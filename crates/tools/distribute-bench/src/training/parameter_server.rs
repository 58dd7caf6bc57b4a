//! Workers whose weights are on parameter servers as one competitor; all of them processes of
//! their own.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::tensor::ElementConversion;
use distribute_core::{Adam, Error, Result, TrainState};
use distribute_data::{AverageLoss, sparse_categorical_crossentropy};
use distribute_ps::{
    ClusterCoordinator, CoordinatorOptions, ParameterServer, PsError, RemoteValue, ServerOptions,
    StepRegistry, WorkerContext, WorkerOptions, WorkerServer,
};

use super::contenders::{BATCHES, Cnn, Contender, LEARNING_RATE, Trained, batches};
use super::cpu_time::cpu_time_of;

const STEP: &str = "train";
/// Closures per worker that are scheduled and have not ended.
const AHEAD: usize = 2;

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
    registry.step(STEP, move |worker: &WorkerContext, number: usize| {
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

/// A parameter server of a [`ParameterServerJob`]: writes its address to `output` and serves until
/// the job ends.
///
/// # Errors
/// The errors of the server, and an output that cannot be written.
pub fn serve_variables(output: impl Write) -> Result<()> {
    let server = ParameterServer::bind("127.0.0.1:0", ServerOptions::default())?;
    write_address(output, &server.address())?;
    server.wait(None)?;
    Ok(())
}

/// A worker of a [`ParameterServerJob`]: writes its address to `output` and runs steps until the
/// job ends.
///
/// # Errors
/// The errors of the worker, and an output that cannot be written.
pub fn serve_closures(batch_size: usize, output: impl Write) -> Result<()> {
    let registry = Arc::new(registry(batch_size)?);
    let server = WorkerServer::bind("127.0.0.1:0", registry, WorkerOptions::default())?;
    write_address(output, &server.address())?;
    Ok(server.serve()?)
}

fn write_address(mut output: impl Write, address: &impl Display) -> Result<()> {
    writeln!(output, "{address}")?;
    Ok(output.flush()?)
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
    fn start(arguments: &[&str], batch_size: usize) -> Result<Self> {
        let program = std::env::current_exe()?;
        let mut child = Command::new(program)
            .args(arguments)
            .args(["--batch-size", &batch_size.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let missing = || Error::invalid("a process without standard input and output");
        let input = child.stdin.take().ok_or_else(missing)?;
        let mut output = BufReader::new(child.stdout.take().ok_or_else(missing)?);
        let mut address = String::new();
        output.read_line(&mut address)?;
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

/// Processes of one kind, which are this program with other arguments.
#[derive(Debug, Clone, Copy)]
pub struct ProcessGroup<'a> {
    /// How many processes are started.
    pub count: usize,
    /// The arguments of each.
    pub arguments: &'a [&'a str],
}

/// A coordinator, in this process, with its workers and servers.
pub struct ParameterServerJob {
    coordinator: ClusterCoordinator,
    processes: Vec<Process>,
    workers: usize,
    scheduled: usize,
}

impl ParameterServerJob {
    /// Starts the processes: this program with these arguments and `--batch-size`. A server calls
    /// [`serve_variables`], a worker [`serve_closures`].
    ///
    /// # Errors
    /// Processes that cannot be started, and a cluster that does not come about.
    pub fn start(
        batch_size: usize,
        servers: ProcessGroup<'_>,
        workers: ProcessGroup<'_>,
    ) -> Result<Self> {
        let start = |group: ProcessGroup<'_>| {
            let processes = (0..group.count).map(|_| Process::start(group.arguments, batch_size));
            processes.collect::<Result<Vec<_>>>()
        };
        let count = workers.count;
        let (servers, workers) = (start(servers)?, start(workers)?);
        let addresses = |of: &[Process]| of.iter().map(|it| it.address.clone()).collect();
        let (of_workers, of_servers): (Vec<String>, Vec<String>) =
            (addresses(&workers), addresses(&servers));
        let registry = Arc::new(registry(batch_size)?);
        let options = CoordinatorOptions::default();
        let coordinator = ClusterCoordinator::connect(&of_workers, &of_servers, registry, options)?;
        Ok(Self {
            coordinator,
            processes: servers.into_iter().chain(workers).collect(),
            workers: count,
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
                running.push_back(self.coordinator.schedule(STEP, self.scheduled)?);
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

impl Contender for ParameterServerJob {
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
