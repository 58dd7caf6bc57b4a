//! Bounded mailboxes, which carry segments from one thread to another one.

use std::time::Duration;

use crate::buffer::in_words;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard, unpoisoned};
use crate::transport::SEGMENTS_IN_FLIGHT;

/// Waits until a rank has changed something, at most for `left`.
pub(super) fn wait_for_change<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    left: Option<Duration>,
) -> MutexGuard<'a, T> {
    match left {
        Some(left) => {
            let woken = changed.wait_timeout(guard, left);
            unpoisoned(woken).0
        }
        None => unpoisoned(changed.wait(guard)),
    }
}

/// A segment in a mailbox. Words, not bytes, so that it is aligned for every element type.
#[derive(Default)]
struct Frame {
    words: Vec<u64>,
    bytes: usize,
}

impl Frame {
    /// Makes room for a segment; keeps its memory for the next one.
    fn resize(&mut self, bytes: usize) -> &mut [u8] {
        self.bytes = bytes;
        in_words(&mut self.words, bytes)
    }

    fn as_bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.bytes]
    }
}

/// What is in a mailbox, under its lock.
#[derive(Default)]
pub(super) struct Slots {
    /// A ring; a frame that is being filled or read is taken out, without the lock.
    frames: [Frame; SEGMENTS_IN_FLIGHT],
    oldest: usize,
    pub(super) filled: usize,
    /// Sender and receiver that sleep on `changed`.
    sleepers: usize,
}

/// Carries segments from one rank to another one, in order. One sender, one receiver.
#[derive(Default)]
pub(crate) struct Mailbox {
    slots: Mutex<Slots>,
    changed: Condvar,
    /// Copy of `Slots::filled`, for polling.
    filled: AtomicUsize,
}

impl Mailbox {
    pub(super) fn lock(&self) -> MutexGuard<'_, Slots> {
        unpoisoned(self.slots.lock())
    }

    /// Lets sleeping ranks look again; called when the group fails.
    pub(crate) fn notify(&self) {
        self.wake(self.lock());
    }

    fn wake(&self, slots: MutexGuard<'_, Slots>) {
        self.filled.store(slots.filled, Ordering::Release);
        let sleepers = slots.sleepers;
        drop(slots);
        if sleepers > 0 {
            self.changed.notify_all();
        }
    }

    pub(super) fn sleep<'a>(
        &'a self,
        mut slots: MutexGuard<'a, Slots>,
        left: Option<Duration>,
    ) -> MutexGuard<'a, Slots> {
        slots.sleepers += 1;
        let mut slots = wait_for_change(&self.changed, slots, left);
        slots.sleepers -= 1;
        slots
    }
    /// How many segments wait, as of a moment ago.
    pub(super) fn filled(&self) -> usize {
        self.filled.load(Ordering::Acquire)
    }

    /// Puts a segment in, which `fill` writes without the lock. There is room.
    pub(super) fn put(
        &self,
        mut slots: MutexGuard<'_, Slots>,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) {
        let slot = (slots.oldest + slots.filled) % SEGMENTS_IN_FLIGHT;
        let mut frame = std::mem::take(&mut slots.frames[slot]);
        drop(slots);
        fill(frame.resize(bytes));
        let mut slots = self.lock();
        // The receiver may have moved on, but the next free slot is still this one.
        slots.frames[slot] = frame;
        slots.filled += 1;
        self.wake(slots);
    }

    /// Takes the oldest segment out, which `consume` reads without the lock. There is one; when it
    /// does not have this many bytes the error is its size, and the mailbox of no use any more.
    pub(super) fn take(
        &self,
        mut slots: MutexGuard<'_, Slots>,
        bytes: usize,
        consume: &mut dyn FnMut(&[u8]),
    ) -> Result<(), usize> {
        let slot = slots.oldest;
        let frame = std::mem::take(&mut slots.frames[slot]);
        drop(slots);
        if frame.bytes != bytes {
            return Err(frame.bytes);
        }
        consume(frame.as_bytes());
        let mut slots = self.lock();
        slots.frames[slot] = frame;
        slots.oldest = (slot + 1) % SEGMENTS_IN_FLIGHT;
        slots.filled -= 1;
        self.wake(slots);
        Ok(())
    }
}
