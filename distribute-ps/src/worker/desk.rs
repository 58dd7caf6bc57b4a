//! What lies between the coordinator's stream and the thread that runs steps.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tonic::Status;

use super::context::{Engagement, WorkerContext};
use super::failure;
use super::generated::{Execute, Outcome, Report, outcome, report};
use crate::error::{PsError, Result};
use crate::update::RunId;

/// The most closures that lie here. The coordinator sends the next one when it has the result of
/// the last; more come together only when it dials again while a step of the stream before runs.
const JOBS_MAX: usize = 4;

/// How many reports may wait to be sent.
pub(super) const REPORTS: usize = 16;

pub(super) type Reports = mpsc::Sender<Result<Report, Status>>;

/// A closure to run.
struct Job {
    engagement: Arc<Engagement>,
    execute: Execute,
    cancelled: Arc<AtomicBool>,
    reports: Reports,
}

struct State {
    jobs: VecDeque<Job>,
    /// The stream that counts, and its run.
    stream: Option<(u64, RunId)>,
    last_stream: u64,
    /// Since when there is no stream.
    alone: Instant,
    engagement: Option<Arc<Engagement>>,
    /// What earlier coordinators left. The thread of the steps drops it, which may block.
    retired: Vec<Arc<Engagement>>,
    end: Option<Result<()>>,
}

/// See the module.
pub(super) struct Desk {
    state: Mutex<State>,
    changed: Condvar,
    result_max_bytes: usize,
    /// How long the worker waits for a coordinator.
    patience: Duration,
}

impl Desk {
    pub(super) fn new(result_max_bytes: usize, patience: Duration) -> Self {
        Self {
            state: Mutex::new(State {
                jobs: VecDeque::new(),
                stream: None,
                last_stream: 0,
                alone: Instant::now(),
                engagement: None,
                retired: Vec::new(),
                end: None,
            }),
            changed: Condvar::new(),
            result_max_bytes,
            patience,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code of others runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A coordinator begins a stream, or dials again; `engage` makes what belongs to a new run.
    pub(super) fn attach(
        &self,
        run: RunId,
        engage: impl FnOnce() -> Engagement,
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
        let same = state.engagement.as_ref().is_some_and(|it| it.run == run);
        if !same {
            let before = state.engagement.replace(Arc::new(engage()));
            state.retired.extend(before);
        }
        state.last_stream += 1;
        let id = state.last_stream;
        state.stream = Some((id, run));
        self.changed.notify_all();
        Ok(id)
    }

    /// A stream has ended.
    pub(super) fn detach(&self, stream: u64) {
        let mut state = self.state();
        if state.stream.is_some_and(|(id, _)| id == stream) {
            state.stream = None;
            state.alone = Instant::now();
        }
        self.changed.notify_all();
    }

    /// A closure of this stream. It runs when those before it have ended, unless the flag is set
    /// by then.
    pub(super) fn put(
        &self,
        stream: u64,
        execute: Execute,
        cancelled: Arc<AtomicBool>,
        reports: Reports,
    ) -> Result<(), Status> {
        let mut state = self.state();
        let Some(engagement) = state.engagement.clone() else {
            return Err(Status::internal("a closure without a coordinator"));
        };
        if state.stream.is_none_or(|(id, _)| id != stream) {
            return Err(Status::aborted("the coordinator has begun another stream"));
        }
        if state.jobs.len() >= JOBS_MAX {
            return Err(Status::resource_exhausted(
                "more closures at once than a coordinator sends",
            ));
        }
        state.jobs.push_back(Job {
            engagement,
            execute,
            cancelled,
            reports,
        });
        self.changed.notify_all();
        Ok(())
    }

    /// The worker ends after the closure that runs.
    pub(super) fn end(&self, how: Result<()>) {
        self.state().end.get_or_insert(how);
        self.changed.notify_all();
    }

    /// Runs closures on this thread, one after the other, until the worker ends.
    pub(super) fn work(&self) -> Result<()> {
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
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                self.run(job);
                continue;
            }
            let left = match state.stream {
                Some(_) => self.patience,
                None => self.patience.saturating_sub(state.alone.elapsed()),
            };
            if left.is_zero() {
                return Err(PsError::Deadline {
                    op: "serve",
                    waited: self.patience,
                    reason: "no coordinator has come (back); start the chief, or raise \
                             `WorkerOptions::coordinator_timeout`"
                        .to_string(),
                });
            }
            let waited = self.changed.wait_timeout(state, left);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Drops what is left of coordinators, on a thread that may block.
    pub(super) fn forget(&self) {
        let mut state = self.state();
        let jobs = std::mem::take(&mut state.jobs);
        let retired = std::mem::take(&mut state.retired);
        let engagement = state.engagement.take();
        drop(state);
        drop((jobs, retired, engagement));
    }

    /// One closure, from its arguments to its report.
    fn run(&self, job: Job) {
        let closure = job.execute.closure;
        let outcome = match self.result(&job) {
            Ok(value) => outcome::Outcome::Value(value.into()),
            Err(error) => {
                tracing::info!(closure, step = job.execute.step, %error, "the closure failed");
                outcome::Outcome::Failure(failure::encode(&error).into())
            }
        };
        let report = Report {
            report: Some(report::Report::Outcome(Outcome {
                closure,
                outcome: Some(outcome),
            })),
        };
        // There is room; and when the stream has ended, the closure runs elsewhere.
        let _ = job.reports.try_send(Ok(report));
    }

    fn result(&self, job: &Job) -> Result<Vec<u8>> {
        let execute = &job.execute;
        let step = job.engagement.registry.find(&execute.step)?;
        let datasets = execute.datasets.iter();
        let datasets: BTreeMap<String, u64> = datasets
            .map(|dataset| (dataset.name.clone(), dataset.generation))
            .collect();
        let context = WorkerContext::new(
            job.engagement.clone(),
            execute.closure,
            execute.step.as_str().into(),
            datasets,
            job.cancelled.clone(),
        );
        if job.cancelled.load(Ordering::Relaxed) {
            return Err(PsError::Cancelled);
        }
        // What a panicking step held of the worker is built anew (`Held`).
        let call = || (step.call)(&context, &execute.arguments);
        let result = catch_unwind(AssertUnwindSafe(call))
            .unwrap_or_else(|payload| Err(PsError::panicked(&*payload)))?;
        match result.len() > self.result_max_bytes {
            true => Err(PsError::invalid(format!(
                "the result of step `{}` has {} bytes, the limit is {}; return less, or raise \
                 `WorkerOptions::max_message_bytes` and `CoordinatorOptions::max_message_bytes`",
                execute.step,
                result.len(),
                self.result_max_bytes
            ))),
            false => Ok(result),
        }
    }
}
