//! Processes as one competitor: workers of `MultiWorkerMirroredStrategy` with a replica each, or
//! hand-written loops that share nothing.

use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use distribute_core::{Error, MultiWorkerMirroredStrategy, Result};
use distribute_launch::ReservedPorts;
use serde_json::{Value, json};

use super::contenders::{Contender, Steps, Trained, UnderStrategy};
use super::cpu_time::process_cpu_time;

const NAME: &str = "multi-worker";

/// The processes of a job. All train when they are told to.
pub struct Workers {
    name: &'static str,
    members: Vec<Member>,
    /// Whether each trains for itself, instead of waiting for the slowest.
    are_alone: bool,
    steps_per_s: f64,
}

struct Member {
    child: Child,
    orders: ChildStdin,
    results: BufReader<ChildStdout>,
}

impl Workers {
    /// `count` workers with batches of `batch_size` images: this program, started with these
    /// arguments, `--batch-size` and a TF_CONFIG. It calls [`serve_worker`].
    ///
    /// # Errors
    /// [`Error::Launch`] if there are no free ports, [`Error::Step`] if a process cannot be
    /// started.
    pub fn new(count: usize, batch_size: usize, arguments: &[&str]) -> Result<Self> {
        // Until all are ready, and so listen.
        let ports = ReservedPorts::new(count, Ipv4Addr::LOCALHOST.into())?;
        let members = (0..count).map(|index| {
            let config = json!({
                "cluster": { "worker": ports.addresses() },
                "task": { "type": "worker", "index": index },
            });
            Member::start(arguments, Some(&config), batch_size)
        });
        Self::ready(NAME, members.collect::<Result<_>>()?, false)
    }

    /// `count` processes that share nothing: this program, started with these arguments and
    /// `--batch-size`. It calls [`serve_steps`].
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn alone(count: usize, batch_size: usize, arguments: &[&str]) -> Result<Self> {
        let members = (0..count).map(|_| Member::start(arguments, None, batch_size));
        Self::ready("hand-written", members.collect::<Result<_>>()?, true)
    }

    fn ready(name: &'static str, members: Vec<Member>, are_alone: bool) -> Result<Self> {
        let mut workers = Self {
            name,
            members,
            are_alone,
            steps_per_s: 0.0,
        };
        // How fast they are, to know how many steps a time has.
        workers.train(4)?;
        Ok(workers)
    }

    fn train(&mut self, steps: usize) -> Result<Trained> {
        for member in &mut self.members {
            member.order(steps)?;
        }
        let mut all = Trained::default();
        let (mut slowest, mut cpu) = (0.0_f64, Some(Duration::ZERO));
        let mut rates = 0.0;
        for member in &mut self.members {
            let result = member.result()?;
            let seconds = result["seconds"].as_f64().unwrap_or(f64::NAN);
            slowest = slowest.max(seconds);
            rates += steps as f64 / seconds;
            let own = result["cpu_seconds"].as_f64();
            cpu = cpu
                .zip(own)
                .map(|(sum, own)| sum + Duration::from_secs_f64(own));
            let loss = result["loss"].as_f64().unwrap_or(f64::NAN) as f32;
            all.loss = loss;
        }
        self.steps_per_s = if self.are_alone {
            rates / self.members.len() as f64
        } else {
            steps as f64 / slowest
        };
        all.steps = steps;
        all.steps_per_s = self.steps_per_s;
        all.cpu = cpu;
        Ok(all)
    }
}

impl Contender for Workers {
    fn name(&self) -> &'static str {
        self.name
    }

    fn replicas(&self) -> usize {
        self.members.len()
    }

    fn train_for(&mut self, time: Duration) -> Result<Trained> {
        let steps = (self.steps_per_s * time.as_secs_f64()).round().max(1.0) as usize;
        self.train(steps)
    }
}

impl Member {
    fn start(arguments: &[&str], config: Option<&Value>, batch_size: usize) -> Result<Self> {
        let program = std::env::current_exe()?;
        let config = config.map(|config| ("TF_CONFIG", config.to_string()));
        let mut child = Command::new(program)
            .args(arguments)
            .args(["--batch-size", &batch_size.to_string()])
            .envs(config)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let missing = || Error::invalid("a worker process without standard input and output");
        let orders = child.stdin.take().ok_or_else(missing)?;
        let results = BufReader::new(child.stdout.take().ok_or_else(missing)?);
        Ok(Self {
            child,
            orders,
            results,
        })
    }

    fn order(&mut self, steps: usize) -> Result<()> {
        writeln!(self.orders, "{steps}")?;
        Ok(self.orders.flush()?)
    }

    /// Waits for its result; the end of the process ends this as well.
    fn result(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.results.read_line(&mut line)? == 0 {
            return Err(Error::invalid("a worker process has ended before its time"));
        }
        serde_json::from_str(&line).map_err(Error::step)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // Nothing of it is needed any more, and it may wait for others that never came.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A worker process: trains as many steps as each line of standard input says, and writes what
/// came of them to `output`. Ends with the input.
///
/// # Errors
/// The errors of the strategy, and input or output that cannot be used.
pub fn serve_worker(batch_size: usize, output: impl Write) -> Result<()> {
    let strategy = MultiWorkerMirroredStrategy::new()?;
    serve_steps(UnderStrategy::new(NAME, strategy, batch_size)?, output)
}

/// [`serve_worker`] with steps of one's own.
///
/// # Errors
/// The errors of a step, and input or output that cannot be used.
pub fn serve_steps(mut training: impl Steps, mut output: impl Write) -> Result<()> {
    for order in std::io::stdin().lock().lines() {
        let steps: usize = order?.trim().parse().map_err(Error::step)?;
        let (started, cpu) = (Instant::now(), process_cpu_time());
        let mut loss = f32::NAN;
        for _ in 0..steps {
            loss = training.step()?;
        }
        let cpu = process_cpu_time()
            .zip(cpu)
            .map(|(after, before)| after - before);
        let result = json!({
            "seconds": started.elapsed().as_secs_f64(),
            "cpu_seconds": cpu.map(|cpu| cpu.as_secs_f64()),
            "loss": loss,
        });
        writeln!(output, "{result}")?;
        output.flush()?;
    }
    Ok(())
}
