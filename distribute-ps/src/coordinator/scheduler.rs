//! What the callers' threads and the connections to the workers share.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use distribute_core::Configuration;
use distribute_net::compute_clock::{ComputeClock, ComputeInstant};
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::{Notify, watch};

use super::options::CoordinatorOptions;
use super::queue::{ClosureQueue, LostOutcome, Refusal, TakenClosure};
use super::remote_value::{RemoteValue, Slot};
use super::server_notice::{LostClosure, ServerNotice};
use crate::error::{PsError, Result};
use crate::rpc::clock::new_clock;
use crate::update::{RunId, StalenessPolicy};

/// How many closures that have ended are remembered for the servers; the mark below which all have
/// ended covers the others.
const ENDED_MAX: usize = 1024;

/// The longest [`CoordinatorOptions::cancel_timeout`] of a coordinator that was told to end.
const INTERRUPTED_CANCEL_TIMEOUT: Duration = Duration::from_millis(300);

/// The re-check interval of unbounded waits, before they look again.
const RECHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// What is left of a limit; nothing if it is over.
fn time_left(limit: Duration, since: Instant) -> Option<Duration> {
    let left = limit.saturating_sub(since.elapsed());
    (!left.is_zero()).then_some(left)
}

/// One call of a step, as it was scheduled.
#[derive(Debug)]
pub(super) struct Closure {
    pub(super) step: Arc<str>,
    pub(super) arguments: Bytes,
    pub(super) datasets: BTreeMap<String, u64>,
    /// Gone when the caller has dropped every handle of the result.
    slot: Weak<Slot>,
}

impl Closure {
    pub(super) fn end(&self, outcome: Result<Bytes>) {
        if let Some(slot) = self.slot.upgrade() {
            slot.set(outcome);
        }
    }
}

/// What all connections watch.
#[derive(Debug, Clone, Default)]
pub(super) struct StopSignals {
    /// Closures with a smaller id are to stop.
    pub(super) cancelled_below: u64,
    /// The coordinator ends: why it gave up, or empty.
    pub(super) finish: Option<String>,
}

/// A worker as the coordinator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerStatus {
    /// The worker runs closures, or waits for one.
    Connected,
    /// The worker cannot be reached: it has not started yet, or it was lost. The text says why.
    Absent(String),
    /// The process is not a worker of this job: another token, version or program. The text
    /// says why.
    Refused(String),
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) queue: ClosureQueue<Arc<Closure>, PsError>,
    workers: Vec<WorkerStatus>,
    /// How often each dataset was made anew.
    datasets: BTreeMap<String, u64>,
    /// Since when no worker is connected.
    without_workers: Option<ComputeInstant>,
    /// When the last closure ended.
    progress: ComputeInstant,
    ended: u64,
    /// What the servers are to be told.
    notice: ServerNotice,
    /// Whether they get no more orders.
    is_silent: bool,
}

impl State {
    fn late(&self, op: &'static str, waited: Duration, advice: &str) -> PsError {
        let (queued, running) = (self.queue.queued(), self.queue.running().count());
        let reason = format!("{queued} closures wait, {running} run{advice}");
        PsError::Deadline { op, waited, reason }
    }
}

#[derive(Debug)]
pub(super) struct Scheduler {
    pub(super) run: RunId,
    pub(super) options: CoordinatorOptions,
    pub(super) addresses: Vec<String>,
    pub(super) parameter_servers: Vec<String>,
    pub(super) steps: Vec<String>,
    pub(super) configuration: Configuration,
    /// The clock of the thread that drives the connections.
    pub(super) clock: Arc<ComputeClock>,
    state: Mutex<State>,
    /// Anything that a waiting caller may want to know.
    changed: Condvar,
    /// There is something that the servers should know at once.
    notice_ready: Condvar,
    /// A closure is there to be taken.
    work: Notify,
    pub(super) stop_signals: watch::Sender<StopSignals>,
}

impl Scheduler {
    pub(super) fn new(
        run: RunId,
        options: CoordinatorOptions,
        addresses: Vec<String>,
        parameter_servers: Vec<String>,
        steps: Vec<String>,
        configuration: Configuration,
    ) -> Self {
        let clock = new_clock();
        let absent = WorkerStatus::Absent("it has not been reached yet".to_string());
        let state = State {
            queue: ClosureQueue::new(options.queue_limits()),
            workers: vec![absent; addresses.len()],
            datasets: BTreeMap::new(),
            without_workers: Some(clock.now()),
            progress: clock.now(),
            ended: 0,
            notice: ServerNotice::default(),
            is_silent: parameter_servers.is_empty(),
        };
        Self {
            run,
            options,
            addresses,
            parameter_servers,
            steps,
            configuration,
            clock,
            state: Mutex::new(state),
            changed: Condvar::new(),
            notice_ready: Condvar::new(),
            work: Notify::new(),
            stop_signals: watch::Sender::new(StopSignals::default()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code of others runs under the lock.
        self.state.lock()
    }

    // What callers do.

    /// Queues a closure, when there is room.
    pub(super) fn schedule(&self, step: &str, arguments: Bytes) -> Result<RemoteValue> {
        let begun = self.clock.now();
        let step: Arc<str> = step.into();
        let slot = Arc::new(Slot::default());
        let push = |state: &mut State| {
            let closure = Closure {
                step: step.clone(),
                arguments: arguments.clone(),
                datasets: state.datasets.clone(),
                slot: Arc::downgrade(&slot),
            };
            match state.queue.push(arguments.len(), |_| Arc::new(closure)) {
                Ok(closure) => Some(Ok(closure)),
                Err(Refusal::Stopped) => Some(Err(PsError::Stopped)),
                Err(Refusal::Failing | Refusal::Full) => None,
            }
        };
        let limit = self.options.schedule_timeout;
        let left = |state: &State| {
            let since = [state.progress, begun].map(|since| self.clock.elapsed(since));
            let left = limit.saturating_sub(since[0].min(since[1]));
            (!left.is_zero()).then_some(left).ok_or_else(|| {
                let advice = ", and none has ended; look at the workers, or raise \
                              `CoordinatorOptions::schedule_timeout`";
                state.late("schedule", limit, advice)
            })
        };
        let closure = self.wait(push, left)?;
        self.work.notify_one();
        Ok(RemoteValue {
            closure,
            step,
            slot,
        })
    }

    /// Waits until a look finds something, for as long as `left` says. Errors surface meanwhile.
    fn wait<T>(
        &self,
        mut look: impl FnMut(&mut State) -> Option<Result<T>>,
        left: impl Fn(&State) -> Result<Duration>,
    ) -> Result<T> {
        let mut state = self.surface_error()?;
        loop {
            if let Some(found) = look(&mut state) {
                return found;
            }
            let left = left(&state)?;
            self.changed.wait_for(&mut state, left);
            if state.queue.is_failing() {
                drop(state);
                state = self.surface_error()?;
            }
        }
    }

    /// Waits until everything that was scheduled before has ended.
    pub(super) fn join(&self, timeout: Option<Duration>) -> Result<()> {
        let begun = Instant::now();
        let mut cutoff = None;
        let has_ended = |state: &mut State| {
            let cutoff = *cutoff.get_or_insert(state.queue.next_id());
            (state.queue.first_unfinished() >= cutoff).then_some(Ok(()))
        };
        self.wait(has_ended, |state| match timeout {
            None => Ok(RECHECK_INTERVAL),
            Some(limit) => {
                let late = || state.late("join", begun.elapsed(), "");
                time_left(limit, begun).ok_or_else(late)
            }
        })
    }

    /// Waits until one of the closures has ended.
    pub(super) fn wait_any<'a>(
        &self,
        values: impl IntoIterator<Item = &'a RemoteValue> + Clone,
    ) -> Result<usize> {
        if values.clone().into_iter().next().is_none() {
            return Err(PsError::invalid(
                "wait_any: there is no closure to wait for",
            ));
        }
        // Under the lock: closures end under it.
        let ended = |_: &mut State| values.clone().into_iter().position(RemoteValue::is_ready);
        self.wait(|state| ended(state).map(Ok), |_| Ok(RECHECK_INTERVAL))
    }

    /// Whether nothing is queued and nothing runs.
    pub(super) fn done(&self) -> Result<bool> {
        Ok(self.surface_error()?.queue.is_idle())
    }

    /// Counts one more renewal of a dataset.
    pub(super) fn renew_dataset(&self, name: &str) -> Result<()> {
        let mut state = self.surface_error()?;
        *state.datasets.entry(name.to_string()).or_default() += 1;
        Ok(())
    }

    /// Returns the lock when no error waits. Otherwise cancels everything, waits until nothing
    /// runs, and returns the error; the queue is as new then.
    fn surface_error(&self) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        while state.queue.is_cancelling() {
            // Another call surfaces the error.
            self.changed.wait(&mut state);
        }
        let Some(cancelled) = state.queue.begin_cancelling() else {
            return Ok(state);
        };
        for closure in cancelled {
            closure.end(Err(PsError::Cancelled));
        }
        self.cancel_running(&mut state);
        let begun = self.clock.now();
        loop {
            if let Some(error) = state.queue.end_cancelling() {
                self.changed.notify_all();
                return Err(error);
            }
            let waited = self.clock.elapsed(begun);
            let left = self.cancel_timeout().saturating_sub(waited);
            if left.is_zero() {
                self.give_up_running(&mut state);
            } else {
                self.changed.wait_for(&mut state, left);
            }
        }
    }

    /// How long closures that were told to stop are waited for: when something has failed and the
    /// coordinator was told to end as well, not long.
    fn cancel_timeout(&self) -> Duration {
        let limit = self.options.cancel_timeout;
        if self.options.interruption.is_raised() {
            limit.min(INTERRUPTED_CANCEL_TIMEOUT)
        } else {
            limit
        }
    }

    /// Does not wait any longer for closures that were told to stop.
    fn give_up_running(&self, state: &mut State) {
        let running: Vec<_> = state
            .queue
            .running()
            .map(|(id, c)| (id, c.clone()))
            .collect();
        for (id, closure) in running {
            state.queue.finished(id);
            closure.end(Err(PsError::Cancelled));
        }
        self.cancel_running(state);
    }

    /// Wakes all connections. One that hears of it late, when it has a newer closure, must not
    /// cancel that.
    fn cancel_running(&self, state: &mut State) {
        let next = state.queue.next_id();
        self.stop_signals
            .send_modify(|stop_signals| stop_signals.cancelled_below = next);
        state.notice.cancelled_below = Some(next);
        self.notice_ready.notify_all();
    }

    /// Waits until a worker is connected, or one is there that cannot be used.
    pub(super) fn wait_for_worker(&self) -> Result<()> {
        let begun = self.clock.now();
        let limit = self.options.connect_timeout;
        let look = |state: &mut State| {
            if state.workers.contains(&WorkerStatus::Connected) {
                return Some(Ok(()));
            }
            let is_raised = self.options.interruption.is_raised();
            is_raised.then(|| Err(self.interrupted(state, self.clock.elapsed(begun))))
        };
        self.wait(look, |state| {
            let left = limit.saturating_sub(self.clock.elapsed(begun));
            let left = (!left.is_zero()).then_some(left);
            left.ok_or_else(|| self.no_workers_error(state, limit))
        })
    }

    /// Everything that has not run is cancelled, and nothing is taken any more.
    pub(super) fn stop(&self, failure: String) {
        let mut state = self.state();
        for closure in state.queue.stop() {
            closure.end(Err(PsError::Cancelled));
        }
        self.changed.notify_all();
        drop(state);
        self.stop_signals
            .send_modify(|stop_signals| stop_signals.finish = Some(failure));
    }

    /// Nothing runs or will run for this coordinator any more.
    pub(super) fn abandon(&self) {
        let mut state = self.state();
        let queued = state.queue.stop();
        let running = state.queue.running().map(|(_, closure)| closure.clone());
        for closure in running.chain(queued) {
            closure.end(Err(PsError::Cancelled));
        }
    }

    // What everybody may ask.

    pub(super) fn worker_statuses(&self) -> Vec<WorkerStatus> {
        self.state().workers.clone()
    }

    /// What the servers should know: as soon as something cannot wait, else after so long. `None`
    /// at the end.
    pub(super) fn wait_for_notice(&self, limit: Duration) -> Option<ServerNotice> {
        let begun = Instant::now();
        let mut state = self.state();
        loop {
            if state.is_silent {
                return None;
            }
            let left = limit.saturating_sub(begun.elapsed());
            if state.notice.is_urgent() || left.is_zero() {
                let mut notice = std::mem::take(&mut state.notice);
                notice.first_unfinished = state.queue.first_unfinished();
                return Some(notice);
            }
            self.notice_ready.wait_for(&mut state, left);
        }
    }

    /// The servers get no notices any more.
    pub(super) fn stop_notices(&self) {
        self.state().is_silent = true;
        self.notice_ready.notify_all();
    }

    /// Whether workers wait for each other's updates at the servers.
    fn is_waited_for(&self) -> bool {
        let staleness = self.options.run.staleness;
        staleness.is_some_and(|it| it.policy == StalenessPolicy::Wait)
    }

    pub(super) fn ended(&self) -> u64 {
        self.state().ended
    }

    // What connections do.

    /// The next closure for a worker that has none.
    pub(super) async fn take(&self) -> TakenClosure<Arc<Closure>> {
        loop {
            let notified = self.work.notified();
            tokio::pin!(notified);
            // From here on nothing is missed.
            notified.as_mut().enable();
            let handed = {
                let mut state = self.state();
                let handed = state.queue.take();
                if handed.is_some() && state.queue.queued() > 0 {
                    // One notification may have stood for several closures.
                    self.work.notify_one();
                }
                handed
            };
            if let Some(handed) = handed {
                self.changed.notify_all();
                return handed;
            }
            notified.await;
        }
    }

    /// A closure has ended, well or not.
    pub(super) fn closure_ended(&self, id: u64, closure: &Closure, outcome: Result<Bytes>) {
        let mut state = self.state();
        // Before anybody can see that it has ended.
        closure.end(outcome.clone());
        // Also of one that went well: it may have pulled where it had nothing to push.
        if self.is_waited_for() && state.notice.ended.len() < ENDED_MAX {
            state.notice.ended.push(id);
            self.notice_ready.notify_all();
        }
        match outcome {
            Ok(_) => state.queue.finished(id),
            Err(error) => state.queue.failed(id, error),
        };
        state.progress = self.clock.now();
        state.ended += 1;
        self.changed.notify_all();
    }

    /// The worker of a closure was lost, or says that it does not reach a server. The servers are
    /// asked first where that is so: an accusation that they answer costs the worker alone.
    pub(super) fn closure_lost(&self, lost: LostClosure) {
        let mut state = self.state();
        let asks = self.is_waited_for() || lost.accusation.is_some();
        if asks && !state.is_silent {
            state.notice.lost.push(lost);
            self.notice_ready.notify_all();
            return;
        }
        drop(state);
        self.requeue(lost);
    }

    /// A closure whose worker was lost goes to another one.
    pub(super) fn requeue(&self, lost: LostClosure) {
        let LostClosure {
            closure: id,
            worker,
            reason,
            accusation,
        } = lost;
        let mut state = self.state();
        match state.queue.lost(id) {
            LostOutcome::Requeued => self.work.notify_one(),
            LostOutcome::Cancelled(closure) => {
                closure.end(Err(accusation.unwrap_or(PsError::Cancelled)));
            }
            LostOutcome::GivenUp(closure) => {
                let error = accusation.unwrap_or_else(|| PsError::LostTooOften {
                    step: closure.step.to_string(),
                    closure: id,
                    attempts: self.options.max_attempts,
                    worker,
                    reason,
                });
                closure.end(Err(error.clone()));
                state.queue.failed(id, error);
            }
            LostOutcome::Unknown => {}
        }
        self.changed.notify_all();
    }

    /// Whether a closure that a worker runs still counts as running.
    pub(super) fn is_wanted(&self, id: u64) -> bool {
        self.state()
            .queue
            .running()
            .any(|(running, _)| running == id)
    }

    /// What is known of a worker now.
    pub(super) fn set_status(&self, worker: usize, status: WorkerStatus) {
        let mut state = self.state();
        if let WorkerStatus::Refused(reason) = &status
            && state.workers.get(worker) != Some(&status)
        {
            let address = self.addresses.get(worker).cloned().unwrap_or_default();
            state.queue.fail(PsError::Refused {
                address,
                reason: format!("worker {worker}: {reason}"),
            });
        }
        if let Some(place) = state.workers.get_mut(worker) {
            *place = status;
        }
        let attended = state.workers.contains(&WorkerStatus::Connected);
        state.without_workers = if attended {
            None
        } else {
            Some(state.without_workers.unwrap_or_else(|| self.clock.now()))
        };
        self.changed.notify_all();
    }

    /// An error that belongs to no closure.
    pub(super) fn fail(&self, error: PsError) {
        self.state().queue.fail(error);
        self.changed.notify_all();
    }

    /// Gives up when there is work but no worker for too long.
    pub(super) fn check_workers(&self) {
        let mut state = self.state();
        let limit = self.options.worker_recovery_timeout;
        let Some(since) = state.without_workers else {
            return;
        };
        // Also when an error waits to surface: a caller may wait for a result first.
        let is_raised = self.options.interruption.is_raised();
        let waited = self.clock.elapsed(since);
        if (waited < limit && !is_raised) || state.queue.is_idle() {
            return;
        }
        let error = if is_raised {
            self.interrupted(&state, waited)
        } else {
            self.no_workers_error(&state, waited)
        };
        for closure in state.queue.clear() {
            closure.end(Err(error.clone()));
        }
        state.queue.fail(error);
        self.changed.notify_all();
    }

    /// Wakes all waiting threads to check again.
    pub(super) fn wake(&self) {
        // Under the lock, so that no thread misses it between its check and its sleep.
        let state = self.state();
        self.changed.notify_all();
        drop(state);
    }

    fn interrupted(&self, state: &State, waited: Duration) -> PsError {
        PsError::Interrupted {
            task: "the coordinator".to_string(),
            what: format!("a worker ({})", self.described(state)),
            waited,
        }
    }

    fn no_workers_error(&self, state: &State, waited: Duration) -> PsError {
        let workers = self.described(state);
        PsError::NoWorkers { waited, workers }
    }

    /// What is known of each worker.
    fn described(&self, state: &State) -> String {
        let described = state.workers.iter().zip(&self.addresses).enumerate();
        let described = described.take(8).map(|(worker, (status, address))| {
            let reason = match status {
                WorkerStatus::Connected => "connected",
                WorkerStatus::Absent(reason) | WorkerStatus::Refused(reason) => reason,
            };
            format!("worker {worker} at {address}: {reason}")
        });
        described.collect::<Vec<_>>().join("; ")
    }
}
