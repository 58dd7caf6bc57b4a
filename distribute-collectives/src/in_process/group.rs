//! The meeting point of the ranks of one in-process group.
//!
//! An operation has two phases. In the first every rank *publishes* its header and its buffers
//! under the lock and waits. The last one compares the headers and *starts* the operation. In the
//! second phase the work, cut into blocks, is done by the ranks that claim them; when the last
//! block is done the operation is *completed* and all ranks return.
//!
//! Until the operation has started, a rank may withdraw (deadline, abort, lost peer): it takes its
//! buffers back under the lock. Once it has started no rank returns before it is completed: blocks
//! are pure memory work that neither blocks nor fails, so this wait is short and needs no deadline.

use std::time::Duration;

use crate::bookkeeping::RunningOperation;
use crate::communicator::AbortTarget;
use crate::error::{CollectiveError, Result};
use crate::failure::{Failure, Failures};
use crate::header::OperationHeader;
use crate::in_process::mailbox::{Mailbox, wait_for_change};
use crate::in_process::raw_buffer::RawBuffer;
use crate::operation::OperationKind;
use crate::options::GroupOptions;
use crate::phase;
use crate::spin_policy::{SpinPolicy, poll_some};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard, unpoisoned};

/// How long a rank polls before it sleeps: about as long as waking a thread takes. A meeting of
/// ranks that are all awake takes less than a microsecond, one that wakes them 10 to 50.
const SPIN: Duration = Duration::from_micros(50);

/// A counter on its own cache line, so that ranks which claim blocks do not slow each other down.
#[repr(align(128))]
struct Padded(AtomicUsize);

struct State {
    /// What each rank has published for the operation that has not started yet.
    headers: Vec<Option<OperationHeader>>,
    /// The published buffers; valid from a rank's publication to the completion.
    buffers: Vec<Vec<RawBuffer>>,
    failures: Failures,
    /// Ranks that sleep on `changed`; without any, no wake-up is needed.
    sleepers: usize,
}

/// The state that the endpoints of one group share.
pub(crate) struct Group {
    pub(crate) world_size: usize,
    pub(crate) options: GroupOptions,
    state: Mutex<State>,
    changed: Condvar,
    /// Number of operations that have started / are completed. Written under the lock.
    started: AtomicU64,
    completed: AtomicU64,
    /// The rank that started the running operation: the last one that called it.
    last: AtomicUsize,
    /// How often `failures` has changed: the cheap check while waiting.
    failure_count: AtomicU64,
    /// For segments; see [`mailbox`](Self::mailbox).
    mailboxes: Vec<Mailbox>,
    /// The next unclaimed block of each rank's share of the running operation.
    next_block: Vec<Padded>,
    /// Blocks of the running operation that are not done yet.
    remaining: AtomicUsize,
    /// Whether each rank can have a core, so that polling need not yield it.
    may_spin: bool,
    spin_policy: SpinPolicy,
}

impl Group {
    pub(crate) fn new(world_size: usize, options: GroupOptions) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Group {
            world_size,
            options,
            state: Mutex::new(State {
                headers: vec![None; world_size],
                buffers: (0..world_size).map(|_| Vec::new()).collect(),
                failures: Failures::default(),
                sleepers: 0,
            }),
            changed: Condvar::new(),
            started: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            last: AtomicUsize::new(0),
            failure_count: AtomicU64::new(0),
            mailboxes: (0..2 * world_size * world_size)
                .map(|_| Mailbox::default())
                .collect(),
            next_block: (0..world_size)
                .map(|_| Padded(AtomicUsize::new(0)))
                .collect(),
            remaining: AtomicUsize::new(0),
            may_spin: world_size <= cores,
            spin_policy: SpinPolicy::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The lock is never held across code that can panic half-way through a change.
        unpoisoned(self.state.lock())
    }

    /// Publishes this rank's part of an operation of `blocks` blocks and returns when all ranks
    /// have done so.
    ///
    /// After `Ok` the operation runs and [`wait_completed`](Self::wait_completed) must be called
    /// before the published buffers are touched or freed. After `Err` they are withdrawn.
    pub(crate) fn start(
        &self,
        rank: usize,
        header: &OperationHeader,
        blocks: usize,
        publish: impl FnOnce(&mut Vec<RawBuffer>),
    ) -> Result<()> {
        let running = RunningOperation::new(header, self.options.timeout);
        let mut state = self.lock();
        self.check(&mut state, header, None)?;
        state.buffers[rank].clear();
        publish(&mut state.buffers[rank]);
        state.headers[rank] = Some(*header);
        if state.headers.iter().all(Option::is_some) {
            return self.start_all(state, rank, header, blocks);
        }
        drop(state);
        let _wait = phase::wait();
        self.poll(|| {
            self.started.load(Ordering::Acquire) > header.sequence || self.failure_count() > 0
        });
        if self.started.load(Ordering::Acquire) > header.sequence {
            return Ok(());
        }
        self.sleep_until_started(rank, &running)
    }

    /// The last rank compares the headers and starts the operation.
    fn start_all(
        &self,
        mut state: MutexGuard<'_, State>,
        rank: usize,
        header: &OperationHeader,
        blocks: usize,
    ) -> Result<()> {
        let agreed = OperationHeader::agree(state.headers.iter().flatten())
            .and_then(|()| same_lengths(header, &state.buffers));
        if let Err(error) = agreed {
            return Err(self.withdraw(state, rank, error, header.sequence));
        }
        state.headers.fill(None);
        for next in &self.next_block {
            next.0.store(0, Ordering::Relaxed);
        }
        self.remaining.store(blocks, Ordering::Relaxed);
        if blocks == 0 {
            self.completed.store(header.sequence + 1, Ordering::Release);
        }
        self.last.store(rank, Ordering::Relaxed);
        self.started.store(header.sequence + 1, Ordering::Release);
        self.wake(state);
        Ok(())
    }

    /// The rank that came last to the running operation. Between this rank's
    /// [`start`](Self::start) and its next one, which the next operation needs.
    pub(crate) fn last(&self) -> usize {
        self.last.load(Ordering::Relaxed)
    }

    fn sleep_until_started(&self, rank: usize, running: &RunningOperation) -> Result<()> {
        let header = &running.header;
        let mut state = self.lock();
        loop {
            if self.started.load(Ordering::Acquire) > header.sequence {
                return Ok(());
            }
            if let Err(error) = self.check(&mut state, header, None) {
                return Err(self.withdraw(state, rank, error, header.sequence));
            }
            let left = running.left();
            if left == Some(Duration::ZERO) {
                let missing = (0..self.world_size).filter(|rank| state.headers[*rank].is_none());
                let error = running.timed_out(missing.collect());
                return Err(self.withdraw(state, rank, error, header.sequence));
            }
            state = self.sleep(state, left);
        }
    }

    /// Takes a rank's publication back, because the group has failed or fails with this error.
    fn withdraw(
        &self,
        mut state: MutexGuard<'_, State>,
        rank: usize,
        error: CollectiveError,
        from_sequence: u64,
    ) -> CollectiveError {
        state.headers[rank] = None;
        state.buffers[rank].clear();
        self.note_ended(&mut state, error.clone(), from_sequence);
        self.wake(state);
        error
    }

    /// Sleeps until something changes, at most for `left`.
    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        left: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        state.sleepers += 1;
        let mut state = wait_for_change(&self.changed, state, left);
        state.sleepers -= 1;
        state
    }

    /// Releases the lock, then wakes the sleeping ranks (so that they do not run into it).
    fn wake(&self, state: MutexGuard<'_, State>) {
        let sleepers = state.sleepers;
        drop(state);
        if sleepers > 0 {
            self.changed.notify_all();
        }
        if self.failure_count() > 0 {
            self.mailboxes.iter().for_each(Mailbox::notify);
        }
    }

    /// Changes whenever the group fails or a rank leaves; 0 while all is well.
    pub(crate) fn failure_count(&self) -> u64 {
        self.failure_count.load(Ordering::Acquire)
    }

    /// The mailbox for segments from one rank to another one. Point-to-point calls have their
    /// own, so that a `send` that was not received yet does not stand in the way of a collective
    /// operation.
    pub(crate) fn mailbox(&self, from: usize, to: usize, point_to_point: bool) -> &Mailbox {
        &self.mailboxes[(from * self.world_size + to) * 2 + usize::from(point_to_point)]
    }

    /// Polls for some microseconds, if that is likely to be worth it.
    pub(crate) fn poll(&self, ready: impl Fn() -> bool) {
        if ready() {
            return;
        }
        if self.may_spin {
            self.spin_policy.poll(SPIN, || poll_some(&ready))
        } else {
            self.spin_policy.poll_yielding(ready)
        };
    }

    /// Replaces the table's content by the published buffers of all ranks, rank 0 first.
    ///
    /// A rank that comes here after others have done all blocks may find what they published for
    /// the next operation; it gets no block to use it for, because that operation starts only with
    /// this rank. The memory is taken for what `rank` itself has published, the same number as the
    /// others, so that a late rank does not need more in some later operation.
    pub(crate) fn collect(&self, rank: usize, table: &mut Vec<RawBuffer>) {
        let state = self.lock();
        table.clear();
        table.reserve(state.buffers[rank].len() * self.world_size);
        for buffers in &state.buffers {
            table.extend_from_slice(buffers);
        }
    }

    /// Takes the next block of a rank's share of the running operation, if one is left.
    pub(crate) fn claim(&self, share: usize, blocks: usize) -> Option<usize> {
        let block = self.next_block[share].0.fetch_add(1, Ordering::Relaxed);
        (block < blocks).then_some(block)
    }

    /// Notes that one claimed block is done; the last one completes the operation.
    pub(crate) fn block_done(&self, sequence: u64) {
        // Release: what this rank wrote is visible to each rank that sees the completion. Acquire:
        // the rank that completes has seen what the others wrote.
        if self.remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
            let state = self.lock();
            self.completed.store(sequence + 1, Ordering::Release);
            self.wake(state);
        }
    }

    /// Blocks until every block of the operation is done.
    pub(crate) fn wait_completed(&self, sequence: u64) {
        let completed = || self.completed.load(Ordering::Acquire) > sequence;
        self.poll(completed);
        if completed() {
            return;
        }
        let mut state = self.lock();
        while !completed() {
            state = self.sleep(state, None);
        }
    }

    /// Whether the operation can still finish. A rank that left before it had finished this
    /// operation becomes the group's failure, so that all ranks name the same cause. Not in a
    /// point-to-point call: it says nothing of those between other ranks.
    fn check(
        &self,
        state: &mut State,
        header: &OperationHeader,
        peer: Option<usize>,
    ) -> Result<()> {
        let checked = state.failures.check(header, peer);
        checked.inspect_err(|error| {
            if !header.kind.is_point_to_point() {
                self.note_ended(state, error.clone(), header.sequence);
            }
        })
    }

    /// As `check`, for a rank that waits for a segment from or to `peer` until `is_ready`.
    pub(crate) fn check_waiting(
        &self,
        header: &OperationHeader,
        peer: usize,
        is_ready: impl Fn() -> bool,
    ) -> Result<()> {
        let mut state = self.lock();
        // Under the lock: what those that have left by now did before that is seen. It counts, also
        // when it was done after the caller had last looked.
        if is_ready() {
            return Ok(());
        }
        let result = self.check(&mut state, header, Some(peer));
        if result.is_err() {
            self.wake(state);
        }
        result
    }

    /// The failure that an operation would end with, without waiting and without changing anything.
    /// Of a completed operation: a rank panicked while it did its blocks.
    pub(crate) fn health(&self, header: &OperationHeader, peer: Option<usize>) -> Result<()> {
        if self.failure_count() == 0 {
            return Ok(());
        }
        self.lock().failures.check(header, peer)
    }

    /// Notes what `change` does to the failures.
    fn change(&self, state: &mut State, change: impl FnOnce(&mut Failures) -> bool) {
        if change(&mut state.failures) {
            self.failure_count.fetch_add(1, Ordering::Release);
        }
    }

    fn note_ended(&self, state: &mut State, error: CollectiveError, from_sequence: u64) {
        let failure = Failure::ended(error, from_sequence);
        self.change(state, |failures| failures.record(failure));
    }

    /// Ends operation `from_sequence` and all later ones with `error` on every rank.
    pub(crate) fn record_failure(&self, error: CollectiveError, from_sequence: u64) {
        let mut state = self.lock();
        self.note_ended(&mut state, error, from_sequence);
        self.wake(state);
    }

    /// Notes that a rank's endpoint has been dropped after `completed` operations.
    pub(crate) fn leave(&self, rank: usize, completed: u64, reason: &str) {
        let mut state = self.lock();
        self.change(&mut state, |failures| {
            failures.goodbye(rank, completed, reason.to_string())
        });
        self.wake(state);
    }
}

impl AbortTarget for Group {
    fn abort(&self, rank: usize, reason: &str) {
        let mut state = self.lock();
        self.change(&mut state, |failures| {
            failures.record_if_first(Failure::aborted(rank, reason))
        });
        self.wake(state);
    }
}

/// Compares the length of every buffer: the hash in the header is not enough to rely on where
/// memory safety depends on it. `all_gather` publishes inputs of any size.
fn same_lengths(header: &OperationHeader, buffers: &[Vec<RawBuffer>]) -> Result<()> {
    if header.kind == OperationKind::AllGather {
        return Ok(());
    }
    let lengths = |rank: usize| buffers[rank].iter().map(RawBuffer::len);
    match (1..buffers.len()).find(|&rank| !lengths(0).eq(lengths(rank))) {
        None => Ok(()),
        Some(rank) => {
            let what = "the lengths of the single buffers differ".to_string();
            Err(header.mismatch(0, rank, what))
        }
    }
}
