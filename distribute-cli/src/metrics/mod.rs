//! `train --metrics-addr`: how a run goes, for Prometheus, or for a collector of OpenTelemetry.

#[cfg(feature = "otlp")]
mod otlp;
mod server;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use distribute_core::collectives::stragglers::{Shares, Standing};
use distribute_core::{Error, Result, WorkerGroup};
use distribute_fit::{Callback, Control, Outcome};

use self::server::Server;
use crate::cluster::restarts;
use crate::examples_seen::ExamplesSeen;
use crate::failure::Failure;
use crate::flags::ObservingArgs;
use crate::notes::note;
use crate::phases::Phases;

/// Interval at which the loss is read; reading waits for the step.
const LOSS_INTERVAL: Duration = Duration::from_secs(1);

/// The metrics: kind, name and help, as in docs/observing.md.
const METRICS: [(&str, &str, &str); 16] = [
    (
        "counter",
        "steps_total",
        "Updates so far, including updates before a resume.",
    ),
    ("gauge", "epoch", "The running epoch, from 1."),
    (
        "counter",
        "examples_total",
        "Examples of all workers since this start of the run.",
    ),
    (
        "gauge",
        "examples_per_second",
        "Examples per second in the last second.",
    ),
    ("gauge", "loss", "The average loss of the epoch so far."),
    (
        "counter",
        "skipped_steps_total",
        "Updates that were skipped because of the loss scale.",
    ),
    (
        "counter",
        "exchange_seconds_total",
        "Time of all threads in exchanges between replicas and workers.",
    ),
    (
        "counter",
        "waiting_seconds_total",
        "Time of all threads waiting for others, for a turn or for a batch.",
    ),
    ("gauge", "restarts", "How often the job was started before."),
    (
        "gauge",
        "rank_compute_share",
        "Part of a step in which this rank computes.",
    ),
    (
        "gauge",
        "rank_data_share",
        "Part of a step in which this rank waits for its data.",
    ),
    (
        "gauge",
        "rank_exchange_share",
        "Part of a step in which this rank moves data to and from other ranks.",
    ),
    (
        "gauge",
        "rank_waiting_share",
        "Part of a step in which this rank waits for other ranks.",
    ),
    (
        "gauge",
        "rank_time_ratio",
        "Time in which this rank computes or waits for its data, divided by the median rank's.",
    ),
    (
        "gauge",
        "rank_time_past_ratio",
        "The same time, divided by its own average before.",
    ),
    (
        "gauge",
        "rank_slow",
        "1 if this rank has been slow for long, else 0.",
    ),
];

/// The metrics of this process, which are published until this is dropped.
#[derive(Debug)]
pub(crate) struct Metrics {
    numbers: Arc<Numbers>,
    _server: Option<Server>,
    #[cfg(feature = "otlp")]
    _export: Option<otlp::Export>,
}

/// The values of the metrics.
#[derive(Debug)]
struct Numbers {
    worker: usize,
    restarts: u64,
    phases: Phases,
    training: Mutex<Training>,
}

/// The values that change with every step.
#[derive(Debug, Clone, Copy, Default)]
struct Training {
    steps: u64,
    epoch: usize,
    examples: u64,
    examples_per_second: f64,
    /// The examples when the rate was computed.
    examples_at_last: u64,
    loss: Option<f64>,
    skipped_steps: u64,
    /// How this rank compares with the others.
    standing: Option<Standing>,
}

impl Metrics {
    /// Listens, or begins to export; `None` if neither was requested. Worker `i` uses the requested
    /// port plus `i`, unless that is 0; all workers call it together.
    ///
    /// # Errors
    /// If the port is not available, or the endpoint is not a URL, on all workers; a run that
    /// `goes_on` only prints a warning.
    pub(crate) fn start(
        args: &ObservingArgs,
        phases: &Phases,
        workers: Option<&WorkerGroup>,
        goes_on: bool,
    ) -> std::result::Result<Option<Self>, Failure> {
        if !args.wants_metrics() {
            return Ok(None);
        }
        let worker = workers.map_or(0, WorkerGroup::index);
        let numbers = Arc::new(Numbers {
            worker,
            restarts: restarts()?,
            phases: phases.clone(),
            training: Mutex::default(),
        });
        let started = Self::of(args, numbers, goes_on);
        let metrics = match workers {
            Some(workers) => workers.or_abort(started)?,
            None => started?,
        };
        if let Some(server) = &metrics._server {
            note(&format!("metrics: http://{}/metrics", server.address()));
        }
        Ok(Some(metrics))
    }

    fn of(args: &ObservingArgs, numbers: Arc<Numbers>, goes_on: bool) -> Result<Self> {
        let serve = |asked| {
            let address = own_address(asked, numbers.worker)?;
            let shown = Arc::clone(&numbers);
            Server::start(address, move || shown.text())
        };
        let server = match args.metrics_addr.map(serve).transpose() {
            // A continued run is more important than its metrics.
            Err(error) if goes_on => {
                note(&format!(
                    "warning: {error}; training goes on without metrics"
                ));
                None
            }
            server => server?,
        };
        #[cfg(feature = "otlp")]
        let export = {
            let endpoint = args.otlp_endpoint.as_deref();
            let export = endpoint.map(|endpoint| otlp::Export::start(endpoint, &numbers));
            export.transpose()?
        };
        Ok(Self {
            numbers,
            _server: server,
            #[cfg(feature = "otlp")]
            _export: export,
        })
    }

    /// The callback that updates the metrics.
    pub(crate) fn follow(&self, seen: ExamplesSeen) -> impl Callback + use<> {
        Follower {
            numbers: Arc::clone(&self.numbers),
            seen,
            before: None,
            last: Instant::now(),
        }
    }

    /// For curves over the epochs: the seconds of exchanges and waits on all threads in each epoch,
    /// and its skipped updates.
    pub(crate) fn of_epochs(&self) -> impl FnMut() -> [(&'static str, f64); 3] + use<> {
        let numbers = Arc::clone(&self.numbers);
        let mut before = [0.0; 3];
        move || {
            let totals = numbers.phases.totals();
            let now = [
                totals.exchange.as_secs_f64(),
                totals.waiting.as_secs_f64(),
                numbers.training().skipped_steps as f64,
            ];
            let [exchange, waiting, skipped] = [0, 1, 2].map(|i| now[i] - before[i]);
            before = now;
            [
                ("exchange_seconds", exchange),
                ("waiting_seconds", waiting),
                ("skipped_steps", skipped),
            ]
        }
    }
}

/// Where this worker listens.
fn own_address(asked: SocketAddr, worker: usize) -> Result<SocketAddr> {
    if asked.port() == 0 {
        return Ok(asked);
    }
    let port = u16::try_from(worker).ok();
    let port = port.and_then(|worker| asked.port().checked_add(worker));
    let port = port.ok_or_else(|| {
        Error::invalid(format!(
            "--metrics-addr {asked}: there is no port {worker} above it for worker {worker}; give \
             a smaller one"
        ))
    })?;
    Ok(SocketAddr::new(asked.ip(), port))
}

impl Numbers {
    fn training(&self) -> MutexGuard<'_, Training> {
        self.training.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of each metric, if it has one yet.
    fn values(&self) -> [Option<f64>; METRICS.len()] {
        let training = *self.training();
        let totals = self.phases.totals();
        let standing = training.standing;
        let share = |of: fn(&Shares) -> f64| standing.map(|standing| of(&standing.shares));
        [
            Some(training.steps as f64),
            Some(training.epoch as f64),
            Some(training.examples as f64),
            Some(training.examples_per_second),
            training.loss,
            Some(training.skipped_steps as f64),
            Some(totals.exchange.as_secs_f64()),
            Some(totals.waiting.as_secs_f64()),
            Some(self.restarts as f64),
            share(|shares| shares.compute),
            share(|shares| shares.data),
            share(|shares| shares.exchange),
            share(|shares| shares.waiting),
            standing.map(|standing| standing.ratio),
            standing.and_then(|standing| standing.past_ratio),
            standing.map(|standing| f64::from(u8::from(standing.is_slow))),
        ]
    }

    /// In Prometheus' text format.
    fn text(&self) -> String {
        let mut text = String::new();
        for ((kind, name, help), value) in METRICS.iter().zip(self.values()) {
            let Some(value) = value.map(number) else {
                continue;
            };
            let worker = self.worker;
            // Writing into memory does not fail.
            let _ = write!(
                text,
                "# HELP distribute_{name} {help}\n# TYPE distribute_{name} {kind}\n\
                 distribute_{name}{{worker=\"{worker}\"}} {value}\n"
            );
        }
        text
    }
}

/// A number as Prometheus reads it.
fn number(value: f64) -> String {
    match value {
        value if value.is_nan() => "NaN".to_string(),
        value if value == f64::INFINITY => "+Inf".to_string(),
        value if value == f64::NEG_INFINITY => "-Inf".to_string(),
        value => value.to_string(),
    }
}

/// Updates the metrics after each step.
struct Follower {
    numbers: Arc<Numbers>,
    seen: ExamplesSeen,
    /// The examples before this run.
    before: Option<u64>,
    /// When the loss was read.
    last: Instant,
}

impl Follower {
    fn update(&mut self, run: &mut Control<'_>, is_end: bool) -> Result<()> {
        let progress = run.progress();
        let all = self.seen.until(progress.position);
        let examples = all - *self.before.get_or_insert(all);
        let since = self.last.elapsed();
        let loss = if since >= LOSS_INTERVAL || is_end {
            run.loss_so_far()?
        } else {
            None
        };
        let mut training = self.numbers.training();
        if since >= LOSS_INTERVAL || is_end {
            let new = examples - training.examples_at_last;
            training.examples_per_second = new as f64 / since.as_secs_f64().max(1e-9);
            training.examples_at_last = examples;
            training.loss = loss.or(training.loss);
            self.last = Instant::now();
        }
        training.steps = progress.step;
        training.epoch = (progress.position.epoch + 1).min(progress.epochs);
        training.examples = examples;
        training.skipped_steps = run.skipped_steps();
        training.standing = run.standings().get(self.numbers.worker).copied();
        Ok(())
    }
}

impl Callback for Follower {
    fn on_train_begin(&mut self, run: &mut Control<'_>) -> Result<()> {
        self.before = Some(self.seen.until(run.progress().position));
        self.last = Instant::now();
        self.update(run, false)
    }

    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        self.update(run, false)
    }

    fn on_train_end(&mut self, _: &Outcome, run: &mut Control<'_>) -> Result<()> {
        self.update(run, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_has_a_port_of_its_own() {
        let asked: SocketAddr = "127.0.0.1:9100".parse().unwrap();
        assert_eq!(own_address(asked, 3).unwrap().port(), 9103);
        let free: SocketAddr = "127.0.0.1:0".parse().unwrap();
        assert_eq!(own_address(free, 3).unwrap().port(), 0);
        let last: SocketAddr = "127.0.0.1:65535".parse().unwrap();
        assert!(own_address(last, 1).is_err());
    }

    #[test]
    fn numbers_are_written_as_prometheus_reads_them() {
        let all = [1.0, 0.25, f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(number);
        assert_eq!(all, ["1", "0.25", "NaN", "+Inf", "-Inf"]);
    }
}
