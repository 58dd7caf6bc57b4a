//! In place of the mapping, for the models: words that are loom's, and slots of mailboxes of which
//! loom knows who accesses them when.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytemuck::Pod;
use loom::cell::UnsafeCell;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io;

use crate::shared_memory::layout::{Counter, Layout};
use crate::sync::atomic::{AtomicU32, AtomicU64};

/// Bytes of a slot.
const SLOT_BYTES: usize = 64;

struct Memory {
    words: BTreeMap<usize, AtomicU32>,
    longs: BTreeMap<usize, AtomicU64>,
    slots: BTreeMap<usize, UnsafeCell<[u64; SLOT_BYTES / 8]>>,
}

/// What a member sees of the memory that all members share.
#[derive(Clone)]
pub(crate) struct Segment {
    memory: Arc<Memory>,
}

// SAFETY: loom checks each access to the slots, the only part that is not atomic.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Segment {
    /// The words of all members and of the mailboxes for point-to-point calls.
    pub(crate) fn model(layout: &Layout) -> Segment {
        let mut memory = Memory {
            words: BTreeMap::new(),
            longs: BTreeMap::new(),
            slots: BTreeMap::new(),
        };
        let mut longs = vec![Layout::ARRIVALS];
        for member in 0..layout.members {
            for word in [layout.bell(member), layout.waiting(member)] {
                memory.words.insert(word, AtomicU32::new(0));
            }
            let counters = [
                Counter::Arrived,
                Counter::Published,
                Counter::Reduced,
                Counter::Fetched,
            ];
            longs.extend(counters.map(|counter| layout.counter(member, counter)));
            let others = (0..layout.members).filter(|other| *other != member);
            for mailbox in others.map(|to| layout.mailbox(member, to, true)) {
                longs.extend([Layout::mail_head(mailbox), Layout::mail_tail(mailbox)]);
                for segment in 0..2 {
                    longs.push(Layout::mail_len(mailbox, segment));
                    let slot = layout.mail_data(mailbox, segment);
                    memory.slots.insert(slot, UnsafeCell::default());
                }
            }
        }
        memory.longs = longs
            .into_iter()
            .map(|at| (at, AtomicU64::new(0)))
            .collect();
        let memory = Arc::new(memory);
        Segment { memory }
    }

    pub(crate) fn create(_len: usize) -> io::Result<(OwnedFd, Segment)> {
        Err(io::Errno::NOSYS)
    }

    pub(crate) fn map(_file: impl AsFd, _len: usize) -> io::Result<Segment> {
        Err(io::Errno::NOSYS)
    }

    pub(crate) fn word(&self, at: usize) -> &AtomicU32 {
        &self.memory.words[&at]
    }

    pub(crate) fn long(&self, at: usize) -> &AtomicU64 {
        &self.memory.longs[&at]
    }

    pub(crate) unsafe fn elements<T: Pod>(&self, at: usize, len: usize) -> &[T] {
        assert!(len * size_of::<T>() <= SLOT_BYTES);
        // SAFETY: inside the slot; loom fails when another thread writes meanwhile.
        self.memory.slots[&at].with(|slot| unsafe { std::slice::from_raw_parts(slot.cast(), len) })
    }

    #[expect(clippy::mut_from_ref, reason = "as the real one")]
    pub(crate) unsafe fn elements_mut<T: Pod>(&self, at: usize, len: usize) -> &mut [T] {
        assert!(len * size_of::<T>() <= SLOT_BYTES);
        let slot = &self.memory.slots[&at];
        // SAFETY: inside the slot; loom fails when another thread accesses it meanwhile.
        slot.with_mut(|slot| unsafe { std::slice::from_raw_parts_mut(slot.cast(), len) })
    }

    pub(crate) fn copy_in(&self, _at: usize, _from: &[u8]) {
        unreachable!("no model moves buffers through windows");
    }

    pub(crate) fn copy_out(&self, _at: usize, _to: &mut [u8]) {
        unreachable!("no model moves buffers through windows");
    }
}
