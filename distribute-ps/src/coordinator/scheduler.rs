//! What the callers' threads and the connections to the workers share.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use distribute_core::Configuration;
use tokio::sync::{Notify, watch};

use super::options::CoordinatorOptions;
use super::queue::{ClosureQueue, LostOutcome, Refusal, TakenClosure};
use super::remote_value::{RemoteValue, Slot};
use super::server_notice::{LostClosure, ServerNotice};
use crate::error::{PsError, Result};
use crate::update::{RunId, StalenessPolicy};

/// How many closures that have ended are remembered for the servers; the mark below which all have
/// ended covers the others.
const ENDED_MAX: usize = 1024;

/// The longest [`CoordinatorOptions::cancel_timeout`] of a coordinator that was told to end.
const INTERRUPTED_CANCEL_TIMEOUT: Duration = Duration::from_millis(300);

/// One call of a step, as it was scheduled.
#[derive(Debug)]
pub(super) struct Closure {
    pub(super) step: Arc<str>,
    pub(super) arguments: Bytes,
    pub(super) datasets: Vec<(String, u64)>,
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
    without_workers: Option<Instant>,
    /// When the last closure ended.
    progress: Instant,
    ended: u64,
    /// What the servers are to be told.
    notice: ServerNotice,
    /// Whether nobody tells them anything any more.
    is_silent: bool,
}

#[derive(Debug)]
pub(super) struct Scheduler {
    pub(super) run: RunId,
    pub(super) options: CoordinatorOptions,
    pub(super) addresses: Vec<String>,
    pub(super) parameter_servers: Vec<String>,
    pub(super) steps: Vec<String>,
    pub(super) configuration: Configuration,
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
        (addresses, parameter_servers): (Vec<String>, Vec<String>),
        (steps, configuration): (Vec<String>, Configuration),
    ) -> Self {
        let absent = WorkerStatus::Absent("it has not been reached yet".to_string());
        let state = State {
            queue: ClosureQueue::new(options.queue_limits()),
            workers: vec![absent; addresses.len()],
            datasets: BTreeMap::new(),
            without_workers: Some(Instant::now()),
            progress: Instant::now(),
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
            state: Mutex::new(state),
            changed: Condvar::new(),
            notice_ready: Condvar::new(),
            work: Notify::new(),
            stop_signals: watch::Sender::new(StopSignals::default()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code of others runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, limit: Duration) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, limit);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    // What callers do.

    /// Queues a closure, when there is room.
    pub(super) fn schedule(&self, step: &str, arguments: Bytes) -> Result<RemoteValue> {
        let begun = Instant::now();
        let step: Arc<str> = step.into();
        let slot = Arc::new(Slot::default());
        let mut state = self.surface_error()?;
        loop {
            let datasets = state.datasets.clone().into_iter().collect();
            let closure = Closure {
                step: step.clone(),
                arguments: arguments.clone(),
                datasets,
                slot: Arc::downgrade(&slot),
            };
            match state.queue.push(arguments.len(), |_| Arc::new(closure)) {
                Ok(closure) => {
                    drop(state);
                    self.work.notify_one();
                    return Ok(RemoteValue {
                        closure,
                        step,
                        slot,
                    });
                }
                Err(Refusal::Stopped) => return Err(PsError::Stopped),
                Err(Refusal::Failing) => {
                    drop(state);
                    state = self.surface_error()?;
                }
                Err(Refusal::Full) => {
                    let since = state.progress.max(begun);
                    let limit = self.options.schedule_timeout;
                    let left = limit.saturating_sub(since.elapsed());
                    if left.is_zero() {
                        return Err(self.no_room_error(&state, limit));
                    }
                    state = self.wait(state, left);
                }
            }
        }
    }

    fn no_room_error(&self, state: &State, waited: Duration) -> PsError {
        let (queued, running) = (state.queue.queued(), state.queue.running().count());
        PsError::Deadline {
            op: "schedule",
            waited,
            reason: format!(
                "{queued} closures wait, {running} run, and none has ended; look at the workers, \
                 or raise `CoordinatorOptions::schedule_timeout`"
            ),
        }
    }

    /// Waits until everything that was scheduled before has ended.
    pub(super) fn join(&self, timeout: Option<Duration>) -> Result<()> {
        let begun = Instant::now();
        let mut state = self.surface_error()?;
        let cutoff = state.queue.next_id();
        while state.queue.first_unfinished() < cutoff {
            let left = timeout.map(|limit| limit.saturating_sub(begun.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(Self::unfinished(&state, begun.elapsed()));
            }
            state = self.wait(state, left.unwrap_or(Duration::from_secs(3600)));
            if state.queue.is_failing() {
                drop(state);
                state = self.surface_error()?;
            }
        }
        Ok(())
    }

    fn unfinished(state: &State, waited: Duration) -> PsError {
        let (queued, running) = (state.queue.queued(), state.queue.running().count());
        PsError::Deadline {
            op: "join",
            waited,
            reason: format!("{queued} closures wait and {running} run"),
        }
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
        let mut state = self.surface_error()?;
        loop {
            // Under the lock: closures end under it.
            if let Some(ended) = values.clone().into_iter().position(RemoteValue::is_ready) {
                return Ok(ended);
            }
            state = self.wait(state, Duration::from_secs(3600));
            if state.queue.is_failing() {
                drop(state);
                state = self.surface_error()?;
            }
        }
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
            state = self.wait(state, Duration::from_secs(3600));
        }
        let Some(cancellation) = state.queue.begin_cancelling() else {
            return Ok(state);
        };
        for closure in cancellation.queued {
            closure.end(Err(PsError::Cancelled));
        }
        self.cancel_running(&mut state);
        let begun = Instant::now();
        loop {
            if let Some(error) = state.queue.end_cancelling() {
                self.changed.notify_all();
                return Err(error);
            }
            let left = self.cancel_timeout().saturating_sub(begun.elapsed());
            if left.is_zero() {
                self.give_up_running(&mut state);
            } else {
                state = self.wait(state, left);
            }
        }
    }

    /// How long closures that were told to stop are waited for: when something has failed and the
    /// coordinator was told to end as well, not long.
    fn cancel_timeout(&self) -> Duration {
        let limit = self.options.cancel_timeout;
        match self.options.interruption.is_raised() {
            true => limit.min(INTERRUPTED_CANCEL_TIMEOUT),
            false => limit,
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
            state.queue.abandoned(id);
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
        let begun = Instant::now();
        let limit = self.options.connect_timeout;
        let mut state = self.state();
        loop {
            if state.queue.is_failing() {
                drop(state);
                return self.surface_error().map(drop);
            }
            if state.workers.contains(&WorkerStatus::Connected) {
                return Ok(());
            }
            if self.options.interruption.is_raised() {
                return Err(self.interrupted(&state, begun.elapsed()));
            }
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(self.no_workers_error(&state, limit));
            }
            state = self.wait(state, left);
        }
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
            let waited = self.notice_ready.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
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
        state.progress = Instant::now();
        state.ended += 1;
        self.changed.notify_all();
    }

    /// The worker of a closure was lost.
    pub(super) fn closure_lost(&self, closure: u64, worker: usize, reason: &str) {
        let lost = LostClosure {
            closure,
            worker,
            reason: reason.to_string(),
        };
        let mut state = self.state();
        if self.is_waited_for() && !state.is_silent {
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
        } = lost;
        let mut state = self.state();
        match state.queue.lost(id) {
            LostOutcome::Requeued => self.work.notify_one(),
            LostOutcome::Cancelled(closure) => closure.end(Err(PsError::Cancelled)),
            LostOutcome::GivenUp(closure) => {
                let error = PsError::LostTooOften {
                    step: closure.step.to_string(),
                    closure: id,
                    attempts: self.options.max_attempts,
                    worker,
                    reason,
                };
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
        state.without_workers = match attended {
            true => None,
            false => Some(state.without_workers.unwrap_or_else(Instant::now)),
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
        // Also when an error waits to surface: somebody may wait for a result first.
        let is_raised = self.options.interruption.is_raised();
        if (since.elapsed() < limit && !is_raised) || state.queue.is_idle() {
            return;
        }
        let error = match is_raised {
            true => self.interrupted(&state, since.elapsed()),
            false => self.no_workers_error(&state, since.elapsed()),
        };
        for closure in state.queue.clear() {
            closure.end(Err(error.clone()));
        }
        state.queue.fail(error);
        self.changed.notify_all();
    }

    /// Has whoever waits look again.
    pub(super) fn wake(&self) {
        // Under the lock, so that nobody misses it between a look and a sleep.
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
