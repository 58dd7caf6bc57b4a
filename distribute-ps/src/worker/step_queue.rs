//! What lies between the coordinator's stream and the thread that runs steps.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::mpsc;

use super::MESSAGE_OVERHEAD_BYTES;
use super::context::{RunSession, WorkerContext};
use super::messages::{Execute, Report};
use super::registry::StepRegistry;
use crate::error::{PsError, Result};
use crate::rpc::message::framed;
use crate::rpc::{ConnectError, LastHeard};
use crate::server::{CoordinatorPresence, CoordinatorTimeouts};
use crate::update::RunId;
use crate::wire_error::sendable;

/// The most closures that lie here. The coordinator sends the next one when it has the result of
/// the last; more come together only when it dials again while a step of the stream before runs.
const QUEUED_MAX: usize = 4;

/// How many reports may wait to be sent.
pub(super) const REPORTS: usize = 16;

/// Where reports are sent to, as [`framed`] makes them.
pub(super) type Reports = mpsc::Sender<Bytes>;

/// Sends a report, if there is room and a receiver.
pub(super) fn report(reports: &Reports, report: &Report) {
    let _ = reports.try_send(framed(report).freeze());
}

/// A coordinator may try again later.
pub(super) fn later(reason: impl Into<String>) -> ConnectError {
    ConnectError::Unavailable(reason.into())
}

/// A step that runs.
struct RunningStep {
    step: String,
    closure: u64,
    since: Instant,
    cancelled: Arc<AtomicBool>,
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
    /// When its coordinator was last heard of.
    heard: Option<LastHeard>,
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
    pub(super) registry: Arc<StepRegistry>,
}

impl StepQueue {
    pub(super) fn new(
        max_message_bytes: usize,
        timeouts: CoordinatorTimeouts,
        registry: Arc<StepRegistry>,
    ) -> Self {
        Self {
            state: Mutex::new(State {
                queued: VecDeque::new(),
                stream: None,
                last_stream: 0,
                heard: None,
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
            registry,
        }
    }

    /// The largest message of the stream.
    pub(super) fn message_limit(&self) -> usize {
        self.max_message_bytes
            .saturating_add(MESSAGE_OVERHEAD_BYTES)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code of others runs under the lock.
        self.state.lock()
    }

    /// A coordinator at `remote` begins a stream, or dials again; `new_session` makes what belongs
    /// to a new run. While a step of an earlier stream runs it is turned away: a closure that it
    /// sent would wait for that step, however long it takes, instead of running elsewhere.
    pub(super) fn attach(
        &self,
        run: RunId,
        remote: String,
        new_session: impl FnOnce() -> RunSession,
    ) -> Result<u64, ConnectError> {
        let mut state = self.state();
        if let Some((_, other)) = state.stream
            && other != run
        {
            return Err(later(format!(
                "it works for another coordinator (run {other}); wait until that one has ended"
            )));
        }
        if state.end.is_some() {
            return Err(later("it is about to end"));
        }
        if let Some(RunningStep {
            step,
            closure,
            since,
            ..
        }) = &state.running
        {
            return Err(later(format!(
                "closure {closure} (step `{step}`) of an earlier connection still runs there, \
                 since {:.1?}; if it never ends, restart the worker",
                since.elapsed()
            )));
        }
        let same = state
            .session
            .as_ref()
            .is_some_and(|it| it.attach.run == run);
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
        state.heard = None;
        self.changed.notify_all();
        Ok(id)
    }

    /// When the coordinator of this stream was last heard of.
    pub(super) fn watch(&self, stream: u64, heard: LastHeard) {
        let mut state = self.state();
        if state.stream.is_some_and(|(id, _)| id == stream) {
            state.heard = Some(heard);
        }
    }

    /// A stream has ended.
    pub(super) fn detach(&self, stream: u64) {
        let mut state = self.state();
        if state.stream.is_some_and(|(id, _)| id == stream) {
            state.stream = None;
            state.heard = None;
            state.queued.clear();
            if let Some(running) = &state.running {
                // Its result is of no use any more.
                running.cancelled.store(true, Ordering::Relaxed);
            }
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

    /// A closure of this stream. It runs when those before it have ended, unless it is cancelled
    /// by then.
    pub(super) fn push(
        &self,
        stream: u64,
        execute: Execute,
        reports: Reports,
    ) -> Result<(), ConnectError> {
        let mut state = self.state();
        let Some(session) = state.session.clone() else {
            return Err(later("a closure without a coordinator"));
        };
        if state.stream.is_none_or(|(id, _)| id != stream) {
            return Err(later("the coordinator has begun another stream"));
        }
        if state.queued.len() >= QUEUED_MAX {
            return Err(later("more closures at once than a coordinator sends"));
        }
        state.queued.push_back(QueuedClosure {
            session,
            execute,
            cancelled: Arc::default(),
            reports,
        });
        self.changed.notify_all();
        Ok(())
    }

    /// What belongs to the coordinator of this stream.
    pub(super) fn session(&self, stream: u64) -> Result<Arc<RunSession>, ConnectError> {
        let state = self.state();
        let is_current = state.stream.is_some_and(|(id, _)| id == stream);
        let session = state.session.clone().filter(|_| is_current);
        session.ok_or_else(|| later("the coordinator has begun another stream"))
    }

    /// A closure of this stream is to stop as soon as it looks.
    pub(super) fn cancel(&self, stream: u64, closure: u64) {
        let state = self.state();
        if state.stream.is_none_or(|(id, _)| id != stream) {
            return;
        }
        let queued = state
            .queued
            .iter()
            .map(|it| (it.execute.closure, &it.cancelled));
        let running = state.running.iter().map(|it| (it.closure, &it.cancelled));
        for (_, cancelled) in queued.chain(running).filter(|(id, _)| *id == closure) {
            cancelled.store(true, Ordering::Relaxed);
        }
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
    pub(super) fn end_run(&self, run: RunId, result: Result<()>) -> Result<(), ConnectError> {
        let mut state = self.state();
        if let Some(other) = state.session.as_ref().filter(|it| it.attach.run != run) {
            return Err(later(format!(
                "it works in another run ({})",
                other.attach.run
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
                    cancelled: next.cancelled.clone(),
                });
                drop(state);
                self.run(next);
                continue;
            }
            let presence = match (state.stream, &state.coordinator) {
                (Some(_), _) => {
                    let silence = state.heard.as_ref().and_then(LastHeard::silence);
                    CoordinatorPresence::Connected(silence)
                }
                (None, Some(remote)) => CoordinatorPresence::Gone(remote.clone()),
                (None, None) => CoordinatorPresence::Awaited,
            };
            let waited = state.detached_since.elapsed();
            // Woken by whatever else happens.
            let left = self.timeouts.time_left(presence, waited, &refused)?;
            self.changed.wait_for(&mut state, left);
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
        let outcome = self.result(&next).map(Into::into).map_err(|error| {
            tracing::info!(closure, step = next.execute.step, %error, "the closure failed");
            sendable(&error)
        });
        // Before the coordinator can know, so that it is not turned away because of this step.
        let mut state = self.state();
        state.running = None;
        // Coordinators were turned away because of it.
        state.detached_since = Instant::now();
        drop(state);
        // There is room; and when the stream has ended, the closure runs elsewhere.
        report(&next.reports, &Report::Outcome { closure, outcome });
    }

    fn result(&self, next: &QueuedClosure) -> Result<Vec<u8>> {
        let execute = &next.execute;
        let step = &self.registry.find(&execute.step)?.call;
        let session = next.session.clone();
        let context = WorkerContext::new(session, execute, next.cancelled.clone());
        if next.cancelled.load(Ordering::Relaxed) {
            return Err(PsError::Cancelled);
        }
        // What a panicking step held of the worker is built anew (`ResourceGuard`).
        let call = || step(&context, &execute.arguments);
        let result = catch_unwind(AssertUnwindSafe(call))
            .unwrap_or_else(|payload| Err(PsError::panicked(&*payload)))?;
        let limit = self
            .max_message_bytes
            .min(next.session.attach.max_message_bytes);
        if result.len() > limit {
            Err(PsError::invalid(format!(
                "the result of step `{}` has {} bytes, the limit is {limit}; return less, or raise \
                 `WorkerOptions::max_message_bytes` and `CoordinatorOptions::max_message_bytes`",
                execute.step,
                result.len(),
            )))
        } else {
            Ok(result)
        }
    }
}
