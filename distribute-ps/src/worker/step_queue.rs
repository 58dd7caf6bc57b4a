//! What lies between the coordinator's stream and the thread that runs steps.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use distribute_core::collectives::Interruption;
use tokio::sync::mpsc;
use tonic::Status;

use super::context::{RunSession, WorkerContext};
use super::generated::{Execute, Outcome, Ping, Report, outcome, report};
use crate::error::{PsError, Result};
use crate::server::with_refusal;
use crate::update::RunId;
use crate::wire_error;

/// The most closures that lie here. The coordinator sends the next one when it has the result of
/// the last; more come together only when it dials again while a step of the stream before runs.
const QUEUED_MAX: usize = 4;

/// How many reports may wait to be sent.
pub(super) const REPORTS: usize = 16;

/// After an interruption: how often the coordinator is asked for a sign of life, and how long it
/// may take.
const POLL_INTERVAL: Duration = Duration::from_millis(150);
const SILENT_AFTER: Duration = Duration::from_millis(800);

pub(super) type Reports = mpsc::Sender<Result<Report, Status>>;

/// How long a worker waits for coordinators.
#[derive(Debug, Clone, Default)]
pub(super) struct CoordinatorTimeouts {
    /// The worker's number, and its coordinator in messages.
    pub(super) worker: usize,
    pub(super) chief: String,
    /// For the first one.
    pub(super) first: Duration,
    /// For another one when that has gone.
    pub(super) orphan: Duration,
    /// Ends both, and the wait for one that is connected but gives no sign of life.
    pub(super) interruption: Interruption,
}

/// A step that runs, for messages.
struct RunningStep {
    step: String,
    closure: u64,
    since: Instant,
}

/// A closure to run.
struct QueuedClosure {
    session: Arc<RunSession>,
    execute: Execute,
    cancelled: Arc<AtomicBool>,
    reports: Reports,
}

struct State {
    queued: VecDeque<QueuedClosure>,
    /// The stream that counts, and its run.
    stream: Option<(u64, RunId)>,
    last_stream: u64,
    /// When the coordinator was last heard of, and what it can be asked through.
    last_received: Instant,
    reports: Option<Reports>,
    /// Since when it is asked.
    asked: Option<Instant>,
    /// The address that the last stream came from.
    coordinator: Option<String>,
    /// Since when there is no stream.
    detached_since: Instant,
    running: Option<RunningStep>,
    session: Option<Arc<RunSession>>,
    /// What earlier coordinators left. The thread of the steps drops it, which may block.
    retired: Vec<Arc<RunSession>>,
    end: Option<Result<()>>,
    /// Why this worker does not fit its coordinator: it ends with its stream.
    refusal: Option<PsError>,
}

impl State {
    /// Ends the worker. The first way counts, but that it does not fit counts more.
    fn end(&mut self, result: Result<()>) {
        let result = self.refusal.clone().map_or(result, Err);
        self.end.get_or_insert(result);
    }
}

/// See the module.
pub(super) struct StepQueue {
    state: Mutex<State>,
    changed: Condvar,
    /// Of arguments and results.
    pub(super) max_message_bytes: usize,
    pub(super) timeouts: CoordinatorTimeouts,
}

impl StepQueue {
    pub(super) fn new(max_message_bytes: usize, timeouts: CoordinatorTimeouts) -> Self {
        Self {
            state: Mutex::new(State {
                queued: VecDeque::new(),
                stream: None,
                last_stream: 0,
                last_received: Instant::now(),
                reports: None,
                asked: None,
                coordinator: None,
                detached_since: Instant::now(),
                running: None,
                session: None,
                retired: Vec::new(),
                end: None,
                refusal: None,
            }),
            changed: Condvar::new(),
            max_message_bytes,
            timeouts,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code of others runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A coordinator at `remote` begins a stream, or dials again; `new_session` makes what belongs
    /// to a new run. While a step of an earlier stream runs it is turned away: a closure that it
    /// sent would wait for that step, however long it takes, instead of running elsewhere.
    pub(super) fn attach(
        &self,
        run: RunId,
        remote: String,
        new_session: impl FnOnce() -> RunSession,
    ) -> Result<u64, Status> {
        let mut state = self.state();
        if let Some((_, other)) = state.stream
            && other != run
        {
            return Err(Status::failed_precondition(format!(
                "it works for another coordinator (run {other}); wait until that one has ended"
            )));
        }
        if state.end.is_some() {
            return Err(Status::failed_precondition("it is about to end"));
        }
        if let Some(RunningStep {
            step,
            closure,
            since,
        }) = &state.running
        {
            return Err(Status::failed_precondition(format!(
                "closure {closure} (step `{step}`) of an earlier connection still runs there, \
                 since {:.1?}; if it never ends, restart the worker",
                since.elapsed()
            )));
        }
        let same = state.session.as_ref().is_some_and(|it| it.run == run);
        if !same {
            let before = state.session.replace(Arc::new(new_session()));
            state.retired.extend(before);
        }
        // The closures of an earlier stream, whose results are of no use.
        state.queued.clear();
        state.last_stream += 1;
        let id = state.last_stream;
        state.stream = Some((id, run));
        state.coordinator = Some(remote);
        state.last_received = Instant::now();
        state.reports = None;
        self.changed.notify_all();
        Ok(id)
    }

    /// What the coordinator of this stream can be asked through.
    pub(super) fn set_reports(&self, stream: u64, reports: Reports) {
        let mut state = self.state();
        if state.stream.is_some_and(|(id, _)| id == stream) {
            state.reports = Some(reports);
        }
    }

    /// The coordinator has said something.
    pub(super) fn note_received(&self, stream: u64) {
        let mut state = self.state();
        if state.stream.is_some_and(|(id, _)| id == stream) {
            state.last_received = Instant::now();
        }
    }

    /// A stream has ended.
    pub(super) fn detach(&self, stream: u64) {
        let mut state = self.state();
        if state.stream.is_some_and(|(id, _)| id == stream) {
            state.stream = None;
            state.reports = None;
            state.queued.clear();
            state.detached_since = Instant::now();
            if state.refusal.is_some() {
                state.end(Ok(()));
            }
        }
        self.changed.notify_all();
    }

    /// The worker does not fit the coordinator whose stream has begun. It ends when the
    /// coordinator, which has the same reason to, has ended the stream.
    pub(super) fn refuse(&self, error: PsError) {
        self.state().refusal.get_or_insert(error);
    }

    /// A closure of this stream. It runs when those before it have ended, unless the flag is set
    /// by then.
    pub(super) fn push(
        &self,
        stream: u64,
        execute: Execute,
        cancelled: Arc<AtomicBool>,
        reports: Reports,
    ) -> Result<(), Status> {
        let mut state = self.state();
        let Some(session) = state.session.clone() else {
            return Err(Status::internal("a closure without a coordinator"));
        };
        if state.stream.is_none_or(|(id, _)| id != stream) {
            return Err(Status::aborted("the coordinator has begun another stream"));
        }
        if state.queued.len() >= QUEUED_MAX {
            return Err(Status::resource_exhausted(
                "more closures at once than a coordinator sends",
            ));
        }
        state.queued.push_back(QueuedClosure {
            session,
            execute,
            cancelled,
            reports,
        });
        self.changed.notify_all();
        Ok(())
    }

    /// Has the thread of the steps look again.
    pub(super) fn wake(&self) {
        // Under the lock, so that it does not miss it between its look and its sleep.
        let state = self.state();
        self.changed.notify_all();
        drop(state);
    }

    /// The worker ends after the closure that runs.
    pub(super) fn end(&self, result: Result<()>) {
        self.state().end(result);
        self.changed.notify_all();
    }

    /// The worker ends, as a coordinator says that has no stream now.
    pub(super) fn end_run(&self, run: RunId, result: Result<()>) -> Result<(), Status> {
        let mut state = self.state();
        if let Some(other) = state.session.as_ref().filter(|it| it.run != run) {
            return Err(Status::failed_precondition(format!(
                "it works in another run ({})",
                other.run
            )));
        }
        state.end(result);
        self.changed.notify_all();
        Ok(())
    }

    /// Runs closures on this thread, one after the other, until the worker ends. `refused` is what
    /// is known of processes that were turned away.
    pub(super) fn run_closures(&self, refused: impl Fn() -> Option<String>) -> Result<()> {
        loop {
            let mut state = self.state();
            let retired = std::mem::take(&mut state.retired);
            if !retired.is_empty() {
                drop(state);
                drop(retired);
                continue;
            }
            if let Some(end) = &state.end {
                return end.clone();
            }
            if let Some(next) = state.queued.pop_front() {
                state.running = Some(RunningStep {
                    step: next.execute.step.clone(),
                    closure: next.execute.closure,
                    since: Instant::now(),
                });
                drop(state);
                self.run(next);
                continue;
            }
            let left = match state.stream {
                Some(_) if self.timeouts.interruption.is_raised() => {
                    self.ping_coordinator(&mut state)?
                }
                // Woken by whatever happens.
                Some(_) => Duration::from_secs(3600),
                None => self.time_left(&state, &refused)?,
            };
            let waited = self.changed.wait_timeout(state, left);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// The worker was told to end, and does so with its coordinator, as long as that lives. Returns
    /// when to look again.
    fn ping_coordinator(&self, state: &mut State) -> Result<Duration> {
        let since = *state.asked.get_or_insert_with(Instant::now);
        if state.last_received.max(since).elapsed() > SILENT_AFTER {
            let silence = state.last_received.elapsed();
            let chief = &self.timeouts.chief;
            return Err(PsError::Interrupted {
                task: format!("worker {}", self.timeouts.worker),
                what: format!("{chief}, which has given no sign of life for {silence:.1?}"),
                waited: since.elapsed(),
            });
        }
        // Leaves room for what is more important.
        let reports = state.reports.as_ref();
        if let Some(reports) = reports.filter(|it| it.capacity() > REPORTS / 2) {
            let report = Some(report::Report::Ask(Ping::default()));
            let _ = reports.try_send(Ok(Report { report }));
        }
        Ok(POLL_INTERVAL)
    }

    /// How long the worker goes on without a coordinator.
    fn time_left(&self, state: &State, refused: impl Fn() -> Option<String>) -> Result<Duration> {
        let CoordinatorTimeouts {
            worker,
            chief,
            first,
            orphan,
            interruption,
        } = &self.timeouts;
        let task = format!("worker {worker}");
        let waited = state.detached_since.elapsed();
        let limit = match state.coordinator {
            None => *first,
            Some(_) => *orphan,
        };
        if interruption.is_raised() {
            let what = format!("{chief}{}", with_refusal(refused()));
            return Err(PsError::Interrupted { task, what, waited });
        }
        match (limit.checked_sub(waited), &state.coordinator) {
            (Some(left), _) if !left.is_zero() => Ok(left),
            (_, None) => Err(PsError::NoCoordinator {
                task,
                chief: chief.clone(),
                waited,
                option: "WorkerOptions::coordinator_timeout",
                refused: with_refusal(refused()),
            }),
            (_, Some(remote)) => Err(PsError::CoordinatorLost {
                task,
                chief: format!("{chief} (connected from {remote})"),
                waited,
                option: "WorkerOptions::orphan_timeout",
                refused: with_refusal(refused()),
            }),
        }
    }

    /// Drops what is left of coordinators, on a thread that may block.
    pub(super) fn drop_retired(&self) {
        let mut state = self.state();
        let queued = std::mem::take(&mut state.queued);
        let retired = std::mem::take(&mut state.retired);
        let session = state.session.take();
        drop(state);
        drop((queued, retired, session));
    }

    /// One closure, from its arguments to its report.
    fn run(&self, next: QueuedClosure) {
        let closure = next.execute.closure;
        let outcome = match self.result(&next) {
            Ok(value) => outcome::Outcome::Value(value.into()),
            Err(error) => {
                tracing::info!(closure, step = next.execute.step, %error, "the closure failed");
                outcome::Outcome::Failure(wire_error::encode(&error).into())
            }
        };
        let report = Report {
            report: Some(report::Report::Outcome(Outcome {
                closure,
                outcome: Some(outcome),
            })),
        };
        // Before the coordinator can know, so that it is not turned away because of this step.
        let mut state = self.state();
        state.running = None;
        // Coordinators were turned away because of it.
        state.detached_since = Instant::now();
        drop(state);
        // There is room; and when the stream has ended, the closure runs elsewhere.
        let _ = next.reports.try_send(Ok(report));
    }

    fn result(&self, next: &QueuedClosure) -> Result<Vec<u8>> {
        let execute = &next.execute;
        let step = next.session.registry.runner(&execute.step)?;
        let datasets = execute.datasets.iter();
        let datasets: BTreeMap<String, u64> = datasets
            .map(|dataset| (dataset.name.clone(), dataset.renewals))
            .collect();
        let context = WorkerContext::new(
            next.session.clone(),
            execute.closure,
            execute.step.as_str().into(),
            datasets,
            next.cancelled.clone(),
        );
        if next.cancelled.load(Ordering::Relaxed) {
            return Err(PsError::Cancelled);
        }
        // What a panicking step held of the worker is built anew (`ResourceGuard`).
        let call = || step(&context, &execute.arguments);
        let result = catch_unwind(AssertUnwindSafe(call))
            .unwrap_or_else(|payload| Err(PsError::panicked(&*payload)))?;
        let limit = self.max_message_bytes.min(next.session.result_max_bytes);
        match result.len() > limit {
            true => Err(PsError::invalid(format!(
                "the result of step `{}` has {} bytes, the limit is {limit}; return less, or raise \
                 `WorkerOptions::max_message_bytes` and `CoordinatorOptions::max_message_bytes`",
                execute.step,
                result.len(),
            ))),
            false => Ok(result),
        }
    }
}
