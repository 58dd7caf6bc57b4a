//! When a closure may pull or push: the bound on staleness, and closures that have ended or were
//! cancelled.

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::error::{PsError, Result};
use crate::rpc::Peer;
use crate::server::clock::StalenessClock;
use crate::server::reservations::{Decision, Reservations, UpdateTarget};
use crate::update::{RunOptions, Staleness, StalenessPolicy, UpdateKey};

/// The calls that wait in a run, and what they wait for.
#[derive(Debug)]
pub(super) struct Admission {
    rules: RunOptions,
    low_water: AtomicU64,
    cancelled_below: AtomicU64,
    clock: Mutex<StalenessClock>,
    reservations: Mutex<Reservations>,
    moved: Arc<Notify>,
}

impl Admission {
    pub(super) fn new(rules: RunOptions) -> Self {
        Self {
            rules,
            low_water: AtomicU64::new(0),
            cancelled_below: AtomicU64::new(0),
            clock: Mutex::default(),
            reservations: Mutex::default(),
            moved: Arc::default(),
        }
    }

    /// All closures below are finished. Whether that is news.
    pub(super) fn finished_below(&self, closure: u64) -> bool {
        let is_news = self.low_water.fetch_max(closure, Ordering::AcqRel) < closure;
        if is_news {
            self.forget_below(closure);
        }
        is_news
    }

    /// All closures below are finished, as far as is known.
    pub(super) fn low_water(&self) -> u64 {
        self.low_water.load(Ordering::Acquire)
    }

    fn forget_below(&self, closure: u64) {
        self.clock.lock().forget_below(closure);
        self.reservations
            .lock()
            .release_closures(|held| held < closure);
        self.moved.notify_waiters();
    }

    /// All closures below are cancelled; those that wait here are let go.
    pub(super) fn cancelled_below(&self, closure: u64) {
        let before = self.cancelled_below.fetch_max(closure, Ordering::AcqRel);
        if before < closure {
            self.forget_below(closure);
        }
    }

    /// What a cancelled closure asks for is refused.
    fn check_wanted(&self, closure: u64) -> Result<()> {
        if closure < self.cancelled_below.load(Ordering::Acquire) {
            Err(PsError::Cancelled)
        } else {
            Ok(())
        }
    }

    /// The push of this closure will not come: pulls wait for it no longer.
    pub(super) fn abandon(&self, closure: u64) {
        self.clock.lock().forget(closure);
        self.reservations
            .lock()
            .release_closures(|held| held == closure);
        self.moved.notify_waiters();
    }

    /// The bound beyond which gradients are refused, if they are.
    pub(super) fn refuse_beyond(&self) -> Option<u64> {
        let staleness = self.rules.staleness?;
        (staleness.policy == StalenessPolicy::Refuse).then_some(staleness.bound)
    }

    /// Decides about an update; it is void when the connection that it came over has ended, and
    /// those that wait for it look again.
    pub(super) fn decide(
        &self,
        key: UpdateKey,
        wants: &[UpdateTarget],
        bound: u64,
        holder: &Arc<Peer>,
    ) -> Decision {
        holder.notify_at_end(&self.moved);
        self.reservations.lock().decide(key, wants, bound, holder)
    }

    /// The decided update is applied, or will not come: who waits for it looks again.
    pub(super) fn release(&self, key: UpdateKey) {
        if self.refuse_beyond().is_some() {
            self.reservations.lock().release(key);
            self.moved.notify_waiters();
        }
    }

    /// Waits until a closure may pull.
    pub(super) async fn wait_to_pull(&self, closure: u64) -> Result<()> {
        let may = |clock: &mut StalenessClock, bound| clock.pull(closure, bound);
        self.wait("pull", closure, may).await
    }

    /// Waits until a closure may push. Nothing of the push need be there yet.
    pub(super) async fn wait_to_push(self: &Arc<Self>, closure: u64) -> Result<PushTurn> {
        let mut counts = false;
        let may = |clock: &mut StalenessClock, bound| {
            counts = clock.let_push(closure, bound);
            counts
        };
        self.wait("push", closure, may).await?;
        let admission = counts.then(|| self.clone());
        Ok(PushTurn { admission, closure })
    }

    /// The place that was decided for an update.
    pub(super) fn decided(self: &Arc<Self>, key: UpdateKey) -> DecidedUpdate {
        let admission = self.clone();
        DecidedUpdate { admission, key }
    }

    async fn wait(
        &self,
        op: &'static str,
        closure: u64,
        mut try_it: impl FnMut(&mut StalenessClock, u64) -> bool,
    ) -> Result<()> {
        self.check_wanted(closure)?;
        let Some(Staleness {
            bound,
            policy: StalenessPolicy::Wait,
        }) = self.rules.staleness
        else {
            return Ok(());
        };
        // A closure that has ended blocks no other, and its updates are not applied.
        let has_ended = || closure < self.low_water();
        let attempt = || {
            let may = has_ended() || try_it(&mut self.clock.lock(), bound);
            ready(Ok(may.then_some(())))
        };
        self.until(op, bound, closure, attempt).await
    }

    /// Tries until there is something, for as long as a run lets its workers wait.
    pub(super) async fn until<T, F: Future<Output = Result<Option<T>>>>(
        &self,
        op: &'static str,
        bound: u64,
        closure: u64,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T> {
        let begin = Instant::now();
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            // From here on no notification is missed.
            moved.as_mut().enable();
            self.check_wanted(closure)?;
            if let Some(done) = attempt().await? {
                return Ok(done);
            }
            let left = self.rules.wait_timeout.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Err(PsError::StalenessTimeout {
                    op,
                    bound,
                    waited: begin.elapsed(),
                });
            }
            let _ = tokio::time::timeout(left, moved).await;
        }
    }
}

/// The turn of a push, which counts for the others until it is dropped.
#[derive(Debug)]
pub(super) struct PushTurn {
    /// `None` if no call waits.
    admission: Option<Arc<Admission>>,
    closure: u64,
}

impl PushTurn {
    /// The push was made.
    pub(super) fn done(mut self) {
        if let Some(admission) = self.admission.take() {
            admission.clock.lock().pushed(self.closure);
            admission.moved.notify_waiters();
        }
    }
}

impl Drop for PushTurn {
    /// It fails.
    fn drop(&mut self) {
        if let Some(admission) = self.admission.take() {
            admission.clock.lock().call_off(self.closure);
            admission.moved.notify_waiters();
        }
    }
}

/// The place of a decided update, which is free when this is dropped: the update is applied, or it
/// will not come like this again.
#[derive(Debug)]
pub(super) struct DecidedUpdate {
    admission: Arc<Admission>,
    key: UpdateKey,
}

impl Drop for DecidedUpdate {
    fn drop(&mut self) {
        self.admission.release(self.key);
    }
}
