//! What a step costs beside its computation: one coordinator, one server and two workers, each a
//! process, beside two training loops that do not communicate.

use std::io::BufRead;
use std::sync::Arc;
use std::time::{Duration, Instant};

use distribute_bench::median;
use distribute_core::{Adam, TensorData, TrainState};
use distribute_ps::{
    ClusterCoordinator, CoordinatorOptions, Gradient, OptimizerSpec, RoundRobin, StepRegistry,
    VariableRef, VariableSpec, Versions, WorkerContext, WorkerOptions, WorkerServer,
};

use crate::cnn::{Batches, Cnn, HandWritten, LEARNING_RATE};
use crate::processes::{Process, Result, cpu_of, number};

/// The variables of `transport`: a convolution and two dense layers with their biases, and some.
const SHAPES: [&[usize]; 8] = [
    &[32, 1, 3, 3],
    &[32],
    &[5408, 64],
    &[64],
    &[64, 10],
    &[10],
    &[8, 8],
    &[8],
];
const WORKERS: usize = 2;

/// What a worker keeps between the steps of `transport`.
struct Transport {
    variables: Vec<VariableRef>,
    known: Vec<Versions>,
    values: Vec<TensorData>,
}

impl Transport {
    fn new(worker: &WorkerContext) -> distribute_ps::Result<Self> {
        let variables = (0..SHAPES.len()).map(|index| worker.variables()?.variable(&name(index)));
        Ok(Self {
            variables: variables.collect::<distribute_ps::Result<_>>()?,
            known: Vec::new(),
            values: SHAPES.map(|shape| filled(1e-3, shape)).to_vec(),
        })
    }

    fn step(&mut self, worker: &WorkerContext) -> distribute_ps::Result<()> {
        let client = worker.variables()?;
        let pulled = client.pull(&self.variables, &self.known, Some(worker.closure_id()))?;
        self.known = pulled.into_iter().map(|pulled| pulled.versions).collect();
        let gradients = self.variables.iter().zip(&self.values);
        let gradients = gradients.map(|(at, value)| (at.clone(), Gradient::Dense(value.clone())));
        let update = worker.next_update()?;
        client.push(update, gradients.collect(), &self.known)?;
        Ok(())
    }
}

fn name(index: usize) -> String {
    format!("transport/{index}")
}

fn filled(value: f32, shape: &[usize]) -> TensorData {
    TensorData::new(vec![value; shape.iter().product()], shape)
}

/// What all processes register.
fn registry() -> distribute_ps::Result<StepRegistry> {
    let mut registry = StepRegistry::new();
    registry.step("nothing", |_: &WorkerContext, (): ()| Ok(()))?;
    let transport = registry.resource("transport", Transport::new)?;
    registry.step("transport", move |worker: &WorkerContext, (): ()| {
        worker.resource(&transport)?.step(worker)
    })?;
    let batches = registry.resource("batches", |_| {
        Ok(Batches::new(&distribute_core::Device::flex().autodiff()))
    })?;
    let state = registry.state("model", |device| {
        device.seed(1);
        TrainState::new(Cnn::new(device), Adam::new(LEARNING_RATE))
    })?;
    registry.step("cnn", move |worker: &WorkerContext, (): ()| {
        let batch = worker.resource(&batches)?.next();
        worker.run(&state, batch, |ctx, (state, batch)| {
            let loss = state.model.loss(batch);
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(loss.into_scalar::<f32>())
        })
    })?;
    Ok(registry)
}

pub fn work() -> Result<()> {
    let server = WorkerServer::bind(
        "127.0.0.1:0",
        Arc::new(registry()?),
        WorkerOptions::default(),
    )?;
    println!("{}", server.address());
    Ok(server.serve()?)
}

/// Trains this many steps as it is told to, again and again.
pub fn alone() -> Result<()> {
    let mut training = HandWritten::new();
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        for _ in 0..line?.parse()? {
            training.step().ok_or("a step failed")?;
        }
        println!("done");
    }
    Ok(())
}

/// All processes.
struct Job {
    server: Process,
    workers: Vec<Process>,
    alone: Vec<Process>,
    coordinator: ClusterCoordinator,
}

/// Wall time, and processor time of coordinator, server and workers.
type Spent = (Duration, [Duration; 3]);

impl Job {
    fn start(kind: &str) -> Result<Self> {
        let server = Process::start(&["serve"])?;
        let start = |what: &'static str| (0..WORKERS).map(move |_| Process::start(&[what]));
        let workers: Vec<Process> = start("work").collect::<Result<_>>()?;
        let alone = match kind {
            "cnn" => start("alone").collect::<Result<_>>()?,
            _ => Vec::new(),
        };
        let addresses: Vec<&str> = workers.iter().map(|it| it.address.as_str()).collect();
        let coordinator = ClusterCoordinator::connect(
            &addresses,
            &[&server.address],
            Arc::new(registry()?),
            CoordinatorOptions::default(),
        )?;
        Ok(Self {
            server,
            workers,
            alone,
            coordinator,
        })
    }

    fn create_variables(&self) -> Result<()> {
        let client = self.coordinator.variables()?;
        let mut round_robin = RoundRobin::new(1)?;
        for (index, shape) in SHAPES.into_iter().enumerate() {
            let value = filled(0.5, shape);
            let spec = VariableSpec {
                name: name(index),
                shape: shape.to_vec(),
                dtype: value.dtype(),
                optimizer: Some(OptimizerSpec::of(&Adam::new(LEARNING_RATE))),
            };
            let variable = client.create(&spec, &round_robin.place(shape, 4, None)?)?;
            client.initialize(&variable, value)?;
        }
        Ok(())
    }

    fn cpu(&self) -> Result<[Duration; 3]> {
        let workers = self.workers.iter().map(Process::cpu).sum::<Result<_>>()?;
        Ok([cpu_of("self")?, self.server.cpu()?, workers])
    }

    /// This many steps of all workers together.
    fn together(&self, kind: &str, steps: usize) -> Result<Spent> {
        let (begin, before) = (Instant::now(), self.cpu()?);
        for _ in 0..steps {
            self.coordinator.schedule(kind, ())?;
        }
        self.coordinator.join()?;
        let (wall, after) = (begin.elapsed(), self.cpu()?);
        Ok((wall, std::array::from_fn(|at| after[at] - before[at])))
    }

    /// The same without communication.
    fn apart(&mut self, steps: usize) -> Result<Spent> {
        let cpu = |alone: &[Process]| alone.iter().map(Process::cpu).sum::<Result<Duration>>();
        let (begin, before) = (Instant::now(), cpu(&self.alone)?);
        for process in &mut self.alone {
            process.tell(&(steps / WORKERS).to_string())?;
        }
        for process in &mut self.alone {
            process.line()?;
        }
        let wall = begin.elapsed();
        let zero = Duration::ZERO;
        Ok((wall, [zero, zero, cpu(&self.alone)? - before]))
    }
}

/// Prints what one step of one worker took.
fn report(what: &str, steps: usize, (wall, cpu): &Spent) {
    let of_step = |time: &Duration| time.as_secs_f64() * 1e3 / steps as f64;
    let [chief, server, workers] = [0, 1, 2].map(|at| of_step(&cpu[at]));
    println!(
        "{what:9} {:7.3} ms a step of a worker; processor time: coordinator {chief:.3}, server \
         {server:.3}, worker {workers:.3}, together {:.3} ms",
        of_step(wall) * WORKERS as f64,
        chief + server + workers
    );
}

/// `[kind] [steps] [rounds]`
pub fn run(arguments: &[String]) -> Result<()> {
    let kind = arguments.first().map_or("transport", String::as_str);
    let (steps, rounds) = (number(arguments, 1, 400)?, number(arguments, 2, 5)?);
    let mut job = Job::start(kind)?;
    job.create_variables()?;
    job.together(kind, WORKERS * 10)?;
    let (mut walls, mut cpus) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let together = job.together(kind, steps)?;
        report(kind, steps, &together);
        if kind == "cnn" {
            let apart = job.apart(steps)?;
            report("alone", steps, &apart);
            let cpu = |spent: &Spent| spent.1.iter().sum::<Duration>().as_secs_f64();
            walls.push(apart.0.as_secs_f64() / together.0.as_secs_f64());
            cpus.push(cpu(&apart) / cpu(&together));
        }
    }
    if kind == "cnn" {
        let (wall, cpu) = (median(&walls), median(&cpus));
        println!("of the steps/s without communication: {wall:.3}; by processor time {cpu:.3}");
    }
    Ok(job.coordinator.finish()?)
}
