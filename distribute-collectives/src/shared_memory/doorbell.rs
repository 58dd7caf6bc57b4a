//! Counters that members publish, and waiting for them.
//!
//! A member has one doorbell: a futex word that counts rings, and a word that says for which
//! counter of which member it waits (0: it does not). Waiting:
//!
//! 1. poll for some microseconds, when that helped lately; with more members than cores, yield the
//!    core between two looks;
//! 2. read the bell, say for what it waits, a full fence, look at the counter once more;
//! 3. sleep until the bell is no longer what was read in step 2.
//!
//! Publishing: write the counter, a full fence, then ring the members that wait for just this
//! counter of this member. The two fences make it impossible that the publisher sees no sleeper
//! waiting and the waiter sees the old counter. A ring between steps 2 and 3 changes the bell, so
//! the kernel refuses to sleep. The ringer resets the "waits for" word to 0, so that one
//! sleep costs one ring.
//!
//! A note of a failure (another thread of the same process) rings the same bell, so a sleeping
//! member looks at the failures at once.

use std::sync::Arc;
use std::time::Duration;

use crate::bookkeeping::RunningOperation;
use crate::error::{CollectiveError, Result};
use crate::failure::Failure;
use crate::phase;
use crate::shared_memory::layout::{Counter, Layout};
use crate::shared_memory::segment::Segment;
use crate::spin_policy::{SpinPolicy, poll_some};
use crate::status::GroupStatus;
use crate::sync::atomic::{Ordering, fence};
use crate::sync::{futex_wait, futex_wake};

/// How long a member polls before it sleeps: about as long as waking a process takes.
const SPIN: Duration = Duration::from_micros(30);

/// How long a member sleeps before it checks again without a ring. A process that is
/// stopped after it has published, but before it has rung for all, must not keep the others asleep
/// until their deadlines: they would look as late as the stopped one.
const RECHECK_INTERVAL: Duration = Duration::from_millis(100);

/// One member's view of the segment.
pub(crate) struct SegmentView {
    pub(crate) segment: Segment,
    pub(crate) layout: Layout,
    /// This member, from 0.
    pub(crate) me: usize,
    /// The rank of each member in the whole group, ascending.
    pub(crate) ranks: Vec<usize>,
    /// For the begin of operations, where the ranks may come at any time, and for the rest.
    pub(super) spin_policy: [SpinPolicy; 2],
}

/// An operation that waits: what it is, since when, and until when.
pub(crate) struct Operation<'a> {
    pub(crate) status: &'a Arc<GroupStatus>,
    pub(crate) running: RunningOperation,
    /// The other member of a point-to-point call: the only one that matters then.
    pub(crate) only_peer: bool,
}

/// In place of a member: the one that arrives last.
const LAST: usize = 0xfffe;

impl SegmentView {
    pub(crate) fn members(&self) -> usize {
        self.layout.members
    }

    /// All members but this one.
    pub(crate) fn peers(&self) -> impl Iterator<Item = usize> {
        let me = self.me;
        (0..self.members()).filter(move |member| *member != me)
    }

    /// How far a member is.
    pub(crate) fn counter(&self, member: usize, counter: Counter) -> u64 {
        let at = self.layout.counter(member, counter);
        self.segment.long(at).load(Ordering::Acquire)
    }

    /// Publishes this member's counter; what it wrote before is visible to who sees it. All members
    /// announce the same values, one after the other, and only the last one to reach a value rings:
    /// a rank that waits for all of them wakes once. (Of two that announce at the same time, the
    /// fences let at least one see both, and that one the sleepers too.)
    pub(crate) fn announce(&self, counter: Counter, value: u64) {
        let at = self.layout.counter(self.me, counter);
        self.segment.long(at).store(value, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.all_reached(counter, value) {
            self.ring_all(SegmentView::reason(LAST, counter));
        }
    }

    /// Whether every other member's counter is at least `value`.
    fn all_reached(&self, counter: Counter, value: u64) -> bool {
        self.peers()
            .all(|peer| self.counter(peer, counter) >= value)
    }

    fn ring_all(&self, reason: u32) {
        for peer in self.peers() {
            self.ring_if(peer, reason);
        }
    }

    /// Publishes that this member has begun operation `sequence`. Only the last one to do so rings,
    /// so that everybody wakes once.
    pub(crate) fn announce_arrival(&self, sequence: u64) {
        let is_last = self.count_arrival(sequence);
        // After the count, which lets the others go on: a member that is stopped between the two is
        // the only one that looks late. Before it, none would, and all would stand still.
        let at = self.layout.counter(self.me, Counter::Arrived);
        self.segment.long(at).store(sequence + 1, Ordering::Release);
        if is_last {
            fence(Ordering::SeqCst);
            self.ring_all(SegmentView::reason(LAST, Counter::Arrived));
        }
    }

    /// Counts this member's arrival; whether it is the last one.
    pub(super) fn count_arrival(&self, sequence: u64) -> bool {
        // Release: the last one, and who sees its count, sees what all others wrote before.
        let arrivals = self.segment.long(Layout::ARRIVALS);
        let before = arrivals.fetch_add(1, Ordering::AcqRel);
        before.wrapping_add(1) == self.all_arrived(sequence)
    }

    /// The number of arrivals when all members have begun operation `sequence`. No member begins
    /// the next one before, so the number says it all.
    fn all_arrived(&self, sequence: u64) -> u64 {
        (sequence + 1).wrapping_mul(self.members() as u64)
    }

    /// The other members that have not begun the operation; when all have, those that are behind
    /// the others in it: the member that all others wait for in the end.
    fn behind(&self, sequence: u64) -> Vec<usize> {
        let late = |member: &usize| self.counter(*member, Counter::Arrived) <= sequence;
        let missing: Vec<usize> = self.peers().filter(late).collect();
        if !missing.is_empty() {
            return missing;
        }
        let progress = |member: usize| {
            let steps = [Counter::Published, Counter::Reduced, Counter::Fetched];
            let count = |step: Counter| self.counter(member, step);
            steps.map(count).into_iter().fold(0, u64::wrapping_add)
        };
        let least = self.peers().map(progress).min();
        let is_least = |member: &usize| Some(progress(*member)) == least;
        self.peers().filter(is_least).collect()
    }

    /// Blocks until every member has begun the operation.
    pub(crate) fn wait_for_arrivals(&self, operation: &Operation<'_>) -> Result<()> {
        let arrivals = self.segment.long(Layout::ARRIVALS);
        let all = self.all_arrived(operation.running.header.sequence);
        let _wait = phase::wait();
        self.wait(operation, LAST, Counter::Arrived, || {
            arrivals.load(Ordering::Acquire) >= all
        })
    }

    /// What a member that waits for `counter` of `member` writes.
    fn reason(member: usize, counter: Counter) -> u32 {
        ((counter as u32) << 16) | (member as u32 + 1)
    }

    /// Rings a member that waits for this member's `counter`; the caller has published and fenced.
    pub(crate) fn ring_if_waiting(&self, peer: usize, counter: Counter) {
        self.ring_if(peer, SegmentView::reason(self.me, counter));
    }

    fn ring_if(&self, peer: usize, reason: u32) {
        let waiting = self.segment.word(self.layout.waiting(peer));
        let (ordering, none) = (Ordering::Relaxed, 0);
        if waiting.load(ordering) == reason
            && waiting
                .compare_exchange(reason, none, ordering, ordering)
                .is_ok()
        {
            self.ring(peer);
        }
    }

    /// Wakes a member, or keeps it from falling asleep.
    pub(crate) fn ring(&self, member: usize) {
        let bell = self.segment.word(self.layout.bell(member));
        bell.fetch_add(1, Ordering::SeqCst);
        futex_wake(bell);
    }

    /// Blocks until every other member's counter is at least `value`.
    pub(crate) fn wait_all(
        &self,
        operation: &Operation<'_>,
        counter: Counter,
        value: u64,
    ) -> Result<()> {
        self.wait(operation, LAST, counter, || {
            self.all_reached(counter, value)
        })
    }

    /// Blocks until `ready`, which `peer` makes true before it rings for `counter`.
    pub(crate) fn wait(
        &self,
        operation: &Operation<'_>,
        peer: usize,
        counter: Counter,
        ready: impl Fn() -> bool,
    ) -> Result<()> {
        let spin_policy = &self.spin_policy[usize::from(counter != Counter::Arrived)];
        let polled = || {
            if self.layout.may_spin {
                spin_policy.poll(SPIN, || poll_some(&ready))
            } else {
                spin_policy.poll_yielding(&ready)
            }
        };
        if ready() || polled() {
            return Ok(());
        }
        let bell = self.segment.word(self.layout.bell(self.me));
        let waiting = self.segment.word(self.layout.waiting(self.me));
        loop {
            let rings = bell.load(Ordering::SeqCst);
            waiting.store(SegmentView::reason(peer, counter), Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let done = ready();
            // What is there counts, even when the member that wrote it has gone since: also what
            // it wrote between the two looks, just before it went.
            let go_on = if done {
                Ok(())
            } else {
                operation
                    .check(self, peer)
                    .or_else(|lost| if ready() { Ok(()) } else { Err(lost) })
            };
            if done || go_on.is_err() {
                waiting.store(0, Ordering::SeqCst);
                return go_on;
            }
            let left = operation.running.left();
            if left == Some(Duration::ZERO) {
                waiting.store(0, Ordering::SeqCst);
                return Err(operation.time_out(self, peer));
            }
            let nap = left.map_or(RECHECK_INTERVAL, |left| left.min(RECHECK_INTERVAL));
            futex_wait(bell, rings, nap);
        }
    }
}

impl<'a> Operation<'a> {
    /// What waiting in the running operation needs.
    pub(crate) fn of(status: &'a Arc<GroupStatus>, running: &RunningOperation) -> Self {
        Operation {
            status,
            running: *running,
            only_peer: running.header.kind.is_point_to_point(),
        }
    }

    fn check(&self, shared: &SegmentView, peer: usize) -> Result<()> {
        self.status
            .check_peer(&self.running.header, shared.ranks.get(peer).copied())
    }

    /// Ends the operation on all ranks because its deadline has passed.
    fn time_out(&self, shared: &SegmentView, peer: usize) -> CollectiveError {
        let members = match peer {
            LAST => shared.behind(self.running.header.sequence),
            _ => vec![peer],
        };
        let ranks = members.iter().map(|member| shared.ranks[*member]).collect();
        let RunningOperation { header, begin, .. } = &self.running;
        let missing = self.status.to_blame(header, *begin, ranks);
        self.fail(self.running.timed_out(missing))
    }

    /// Ends this and every later operation on all ranks with the error.
    pub(crate) fn fail(&self, error: CollectiveError) -> CollectiveError {
        let sequence = self.running.header.sequence;
        self.status
            .record_failure(Failure::ended(error.clone(), sequence));
        error
    }
}
