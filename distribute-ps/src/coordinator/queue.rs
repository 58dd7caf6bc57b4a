//! The queue of closures as a state machine: no threads, no time, no input or output.
//!
//! TensorFlow's `_CoordinatedClosureQueue`, with three differences: a closure that comes back from
//! a lost worker goes to the front instead of the back, a [`join`](super::ClusterCoordinator::join)
//! waits for what was scheduled before it instead of keeping others from scheduling, and nothing
//! is handed out any more once an error surfaces.
//!
//! ```text
//!            push            take             finished
//! (caller) --------> queued --------> running ---------> finished
//!                     |  ^             |  |    failed
//!                     |  +-------------+  +------------> failed
//!                     |     lost       |
//!                     +----------------+---------------> cancelled
//!                        an error surfaces
//! ```
//!
//! The first failure is kept until a call surfaces it. That call cancels: what is queued at once,
//! what is running by asking for it, and the error is handed over when nothing runs any more.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How much may wait, and how often one closure is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueLimits {
    /// The most closures that wait for a worker.
    pub(crate) closures: usize,
    /// The most bytes of arguments that wait; one closure may always wait.
    pub(crate) bytes: usize,
    /// How many workers may be lost with a closure before it counts as the reason.
    pub(crate) attempts: u32,
}

/// Why a closure is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No room; try again after one was handed out.
    Full,
    /// An error must surface first.
    Failing,
    /// No more closures are taken, ever.
    Stopped,
}

/// A closure as a worker gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TakenClosure<C> {
    pub(crate) id: u64,
    /// 1 the first time.
    pub(crate) attempt: u32,
    pub(crate) payload: C,
}

/// What became of a closure whose worker was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LostOutcome<C> {
    /// The closure is the next to be handed out.
    Requeued,
    /// An error is waiting or surfacing, so it is not run again.
    Cancelled(C),
    /// The closure was lost too often: the caller decides on the error and calls
    /// [`ClosureQueue::failed`]. It still counts as running.
    GivenUp(C),
    /// The closure is not running (any more).
    Unknown,
}

#[derive(Debug)]
struct Entry<C> {
    id: u64,
    /// How often it was handed out.
    attempts: u32,
    bytes: usize,
    payload: C,
}

/// All closures that are neither finished nor failed nor cancelled.
#[derive(Debug)]
pub(crate) struct ClosureQueue<C, E> {
    limits: QueueLimits,
    next_id: u64,
    queued: VecDeque<Entry<C>>,
    queued_bytes: usize,
    running: BTreeMap<u64, Entry<C>>,
    /// The ids of `queued` and `running`.
    unfinished: BTreeSet<u64>,
    error: Option<E>,
    cancelling: bool,
    stopped: bool,
}

impl<C: Clone, E> ClosureQueue<C, E> {
    /// An empty queue; the first closure gets the id 1.
    pub(crate) fn new(limits: QueueLimits) -> Self {
        Self {
            limits,
            next_id: 1,
            queued: VecDeque::new(),
            queued_bytes: 0,
            running: BTreeMap::new(),
            unfinished: BTreeSet::new(),
            error: None,
            cancelling: false,
            stopped: false,
        }
    }

    /// The id that the next closure gets.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id
    }

    /// Appends a closure, made from its id; `bytes` is the size of its arguments.
    pub(crate) fn push(
        &mut self,
        bytes: usize,
        payload: impl FnOnce(u64) -> C,
    ) -> Result<u64, Refusal> {
        if self.stopped {
            return Err(Refusal::Stopped);
        }
        if self.is_failing() {
            return Err(Refusal::Failing);
        }
        let over = self.queued_bytes.saturating_add(bytes) > self.limits.bytes;
        if self.queued.len() >= self.limits.closures || (over && !self.queued.is_empty()) {
            return Err(Refusal::Full);
        }
        let id = self.next_id;
        self.next_id += 1;
        self.queued_bytes = self.queued_bytes.saturating_add(bytes);
        self.unfinished.insert(id);
        self.queued.push_back(Entry {
            id,
            attempts: 0,
            bytes,
            payload: payload(id),
        });
        Ok(id)
    }

    /// Hands out the next closure. As in TensorFlow closures go on after one has failed, until
    /// the error surfaces.
    pub(crate) fn take(&mut self) -> Option<TakenClosure<C>> {
        if self.cancelling || self.stopped {
            return None;
        }
        let mut entry = self.queued.pop_front()?;
        self.queued_bytes -= entry.bytes;
        entry.attempts += 1;
        let handed = TakenClosure {
            id: entry.id,
            attempt: entry.attempts,
            payload: entry.payload.clone(),
        };
        self.running.insert(entry.id, entry);
        Some(handed)
    }

    /// A running closure has ended well, or is not waited for by the call that cancels. False if it
    /// was not running.
    pub(crate) fn finished(&mut self, id: u64) -> bool {
        self.unfinished.remove(&id);
        self.running.remove(&id).is_some()
    }

    /// A running closure has ended with an error. Only the first error surfaces. False if it was
    /// not running.
    pub(crate) fn failed(&mut self, id: u64, error: E) -> bool {
        let ran = self.finished(id);
        if ran {
            self.fail(error);
        }
        ran
    }

    /// An error that belongs to no closure will surface, unless there is one already.
    pub(crate) fn fail(&mut self, error: E) {
        self.error.get_or_insert(error);
    }

    /// The worker of a running closure was lost.
    pub(crate) fn lost(&mut self, id: u64) -> LostOutcome<C> {
        let Some(entry) = self.running.get(&id) else {
            return LostOutcome::Unknown;
        };
        let hopeless = entry.attempts >= self.limits.attempts;
        let payload = entry.payload.clone();
        if self.is_failing() || self.stopped {
            self.finished(id);
            return LostOutcome::Cancelled(payload);
        }
        if hopeless {
            return LostOutcome::GivenUp(payload);
        }
        if let Some(entry) = self.running.remove(&id) {
            self.queued_bytes = self.queued_bytes.saturating_add(entry.bytes);
            self.queued.push_front(entry);
        }
        LostOutcome::Requeued
    }

    /// Whether an error waits or surfaces.
    pub(crate) fn is_failing(&self) -> bool {
        self.error.is_some() || self.cancelling
    }

    /// Whether a call is surfacing an error right now.
    pub(crate) fn is_cancelling(&self) -> bool {
        self.cancelling
    }

    /// The start of surfacing: the closures that were waiting, which are cancelled; `None` if there
    /// is no error or another call surfaces it. Workers of those that run must be asked to stop.
    pub(crate) fn begin_cancelling(&mut self) -> Option<Vec<C>> {
        if self.error.is_none() || self.cancelling {
            return None;
        }
        self.cancelling = true;
        Some(self.clear())
    }

    /// The end of surfacing: the error, when nothing runs any more. The queue is as new then.
    pub(crate) fn end_cancelling(&mut self) -> Option<E> {
        if !self.cancelling || !self.running.is_empty() {
            return None;
        }
        self.cancelling = false;
        self.error.take()
    }

    /// Takes no more closures; returns those that will not run.
    pub(crate) fn stop(&mut self) -> Vec<C> {
        self.stopped = true;
        self.clear()
    }

    /// Forgets what is queued, because it cannot run.
    pub(crate) fn clear(&mut self) -> Vec<C> {
        self.queued_bytes = 0;
        let queued = std::mem::take(&mut self.queued);
        let forget = |entry: Entry<C>| {
            self.unfinished.remove(&entry.id);
            entry.payload
        };
        queued.into_iter().map(forget).collect()
    }

    /// The running closures.
    pub(crate) fn running(&self) -> impl Iterator<Item = (u64, &C)> {
        self.running.iter().map(|(&id, entry)| (id, &entry.payload))
    }

    /// How many wait.
    pub(crate) fn queued(&self) -> usize {
        self.queued.len()
    }

    /// The oldest closure that is queued or running, else the next id. It never falls: updates of
    /// closures below it are applied, or never will be.
    pub(crate) fn first_unfinished(&self) -> u64 {
        self.unfinished.first().copied().unwrap_or(self.next_id)
    }

    /// Whether nothing is queued and nothing runs.
    pub(crate) fn is_idle(&self) -> bool {
        self.unfinished.is_empty()
    }
}

#[cfg(test)]
mod tests;
