//! Single segments from one member to another one, in order: two slots per ordered pair and kind.
//!
//! The sender owns slot `n` while fewer than two segments are in the mailbox (`head - tail < 2`),
//! and gives it away by raising `head`. The receiver owns the oldest slot while there is one, and
//! gives it back by raising `tail`. Each of the two words has one writer, so a slot has one owner
//! at any time: the unsafe blocks here rely on that.

use crate::error::Result;
use crate::shared_memory::doorbell::{Operation, SegmentView};
use crate::shared_memory::group::LocalGroup;
use crate::shared_memory::layout::{Counter, Layout};
use crate::sync::atomic::{Ordering, fence};
use crate::transport::SEGMENTS_IN_FLIGHT;

/// A segment, or the part of one that is bigger than a slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// Bytes of the whole segment: sender and receiver must expect the same.
    pub(crate) total: usize,
    /// Bytes of this part.
    pub(crate) bytes: usize,
}

impl SegmentView {
    fn can_send(&self, mailbox: usize) -> bool {
        let tail = self.segment.long(Layout::mail_tail(mailbox));
        let head = self
            .segment
            .long(Layout::mail_head(mailbox))
            .load(Ordering::Relaxed);
        head.wrapping_sub(tail.load(Ordering::Acquire)) < SEGMENTS_IN_FLIGHT as u64
    }

    fn can_receive(&self, mailbox: usize) -> bool {
        let tail = self.segment.long(Layout::mail_tail(mailbox));
        let head = self.segment.long(Layout::mail_head(mailbox));
        head.load(Ordering::Acquire) != tail.load(Ordering::Relaxed)
    }

    /// Puts a part into a slot when there is room.
    fn send_part(
        &self,
        operation: &Operation<'_>,
        to: usize,
        part: Part,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<()> {
        let mailbox = self.layout.mailbox(self.me, to, operation.only_peer);
        self.wait(operation, to, Counter::Mail, || self.can_send(mailbox))?;
        let head = self.segment.long(Layout::mail_head(mailbox));
        let segment = head.load(Ordering::Relaxed);
        let at = self.layout.mail_data(mailbox, segment);
        let bytes = part.bytes.min(self.layout.mailbox_bytes);
        // SAFETY: the slot is the sender's, see the module.
        fill(unsafe { self.segment.elements_mut::<u8>(at, bytes) });
        let len = self.segment.long(Layout::mail_len(mailbox, segment));
        len.store(part.total as u64, Ordering::Relaxed);
        head.store(segment.wrapping_add(1), Ordering::Release);
        fence(Ordering::SeqCst);
        self.ring_if_waiting(to, Counter::Mail);
        Ok(())
    }

    /// Takes the part that comes out of its slot. One of a segment of another size is an error.
    fn receive_part(
        &self,
        operation: &Operation<'_>,
        from: usize,
        part: Part,
        consume: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        let mailbox = self.layout.mailbox(from, self.me, operation.only_peer);
        self.wait(operation, from, Counter::Mail, || self.can_receive(mailbox))?;
        let tail = self.segment.long(Layout::mail_tail(mailbox));
        let segment = tail.load(Ordering::Relaxed);
        let len = self.segment.long(Layout::mail_len(mailbox, segment));
        let found = len.load(Ordering::Relaxed);
        if found != part.total as u64 {
            let (rank, from) = (self.ranks[self.me], self.ranks[from]);
            let header = &operation.running.header;
            return Err(operation.fail(header.wrong_size(rank, from, found, part.total)));
        }
        let at = self.layout.mail_data(mailbox, segment);
        let bytes = part.bytes.min(self.layout.mailbox_bytes);
        // SAFETY: the slot is the receiver's, see the module.
        consume(unsafe { self.segment.elements::<u8>(at, bytes) });
        tail.store(segment.wrapping_add(1), Ordering::Release);
        fence(Ordering::SeqCst);
        self.ring_if_waiting(from, Counter::Mail);
        Ok(())
    }
}

/// The parts of a segment that need `slot` bytes at most: (offset, part).
fn parts(total: usize, slot: usize) -> impl Iterator<Item = (usize, Part)> {
    let count = total.div_ceil(slot).max(1);
    (0..count).map(move |index| {
        let offset = index * slot;
        let bytes = slot.min(total - offset);
        (offset, Part { total, bytes })
    })
}

impl LocalGroup {
    /// Whether there is room for a segment to a rank of this host.
    pub(crate) fn can_send(&self, operation: &Operation<'_>, to: usize) -> Result<bool> {
        let (to, shared) = (self.peer(operation, to)?, &self.shared);
        let mailbox = shared.layout.mailbox(shared.me, to, operation.only_peer);
        Ok(shared.can_send(mailbox))
    }

    /// Whether there is a segment of a rank of this host.
    pub(crate) fn can_receive(&self, operation: &Operation<'_>, from: usize) -> Result<bool> {
        let (from, shared) = (self.peer(operation, from)?, &self.shared);
        let mailbox = shared.layout.mailbox(from, shared.me, operation.only_peer);
        Ok(shared.can_receive(mailbox))
    }

    /// Sends a segment of any size to a rank of this host; see
    /// [`Transport::send_with`](crate::Transport::send_with). `scratch` holds a segment that is
    /// bigger than a slot.
    pub(crate) fn send_with(
        &self,
        operation: &Operation<'_>,
        to: usize,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
        scratch: &mut Vec<u8>,
    ) -> Result<()> {
        let to = self.peer(operation, to)?;
        if bytes <= self.mailbox_bytes() {
            let total = bytes;
            return (self.shared).send_part(operation, to, Part { total, bytes }, fill);
        }
        scratch.resize(bytes, 0);
        fill(scratch);
        for (offset, part) in parts(bytes, self.mailbox_bytes()) {
            let from = &scratch[offset..offset + part.bytes];
            let mut fill = |slot: &mut [u8]| slot.copy_from_slice(from);
            self.shared.send_part(operation, to, part, &mut fill)?;
        }
        Ok(())
    }

    /// Receives a segment of any size from a rank of this host; see
    /// [`Transport::receive_with`](crate::Transport::receive_with).
    pub(crate) fn receive_with(
        &self,
        operation: &Operation<'_>,
        from: usize,
        bytes: usize,
        consume: &mut dyn FnMut(&[u8]),
        scratch: &mut Vec<u8>,
    ) -> Result<()> {
        let from = self.peer(operation, from)?;
        if bytes <= self.mailbox_bytes() {
            let total = bytes;
            return (self.shared).receive_part(operation, from, Part { total, bytes }, consume);
        }
        scratch.resize(bytes, 0);
        for (offset, part) in parts(bytes, self.mailbox_bytes()) {
            let to = &mut scratch[offset..offset + part.bytes];
            let mut consume = |slot: &[u8]| to.copy_from_slice(slot);
            self.shared
                .receive_part(operation, from, part, &mut consume)?;
        }
        consume(scratch);
        Ok(())
    }

    /// The member that another rank of this host is.
    fn peer(&self, operation: &Operation<'_>, rank: usize) -> Result<usize> {
        let me = self.shared.me;
        let member = self.member(rank).filter(|member| *member != me);
        member.ok_or_else(|| {
            let what = format!("rank {rank} is not another rank of this host");
            (operation.running.header).refused(self.shared.ranks[me], what)
        })
    }
}
