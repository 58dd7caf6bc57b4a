//! Single segments from one member to another one, in order: two slots per ordered pair and kind.
//!
//! The sender owns slot `n` while fewer than two segments are in the mailbox (`head - tail < 2`),
//! and gives it away by raising `head`. The receiver owns the oldest slot while there is one, and
//! gives it back by raising `tail`. Each of the two words has one writer, so a slot has one owner
//! at any time: the unsafe blocks here rely on that.

use std::sync::atomic::{Ordering, fence};

use crate::error::{CollectiveError, Result};
use crate::shared_memory::doorbell::{Operation, SegmentView};
use crate::shared_memory::group::LocalGroup;
use crate::shared_memory::layout::{Counter, Layout};
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
    fn can_send(&self, mailbox: usize) -> Option<u64> {
        let tail = self.segment.long(Layout::mail_tail(mailbox));
        let head = self.segment.long(Layout::mail_head(mailbox));
        let head = head.load(Ordering::Relaxed);
        let filled = head.wrapping_sub(tail.load(Ordering::Acquire));
        (filled < SEGMENTS_IN_FLIGHT as u64).then_some(head)
    }

    fn can_receive(&self, mailbox: usize) -> Option<u64> {
        let tail = self.segment.long(Layout::mail_tail(mailbox));
        let head = self.segment.long(Layout::mail_head(mailbox));
        let tail = tail.load(Ordering::Relaxed);
        (head.load(Ordering::Acquire) != tail).then_some(tail)
    }

    fn try_send(
        &self,
        to: usize,
        point_to_point: bool,
        part: Part,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> bool {
        let mailbox = self.layout.mailbox(self.me, to, point_to_point);
        let Some(segment) = self.can_send(mailbox) else {
            return false;
        };
        let at = self.layout.mail_data(mailbox, segment);
        let bytes = part.bytes.min(self.layout.mailbox_bytes);
        // SAFETY: the slot is the sender's, see the module.
        fill(unsafe { self.segment.elements_mut::<u8>(at, bytes) });
        let len = self.segment.long(Layout::mail_len(mailbox, segment));
        len.store(part.total as u64, Ordering::Relaxed);
        let head = self.segment.long(Layout::mail_head(mailbox));
        head.store(segment.wrapping_add(1), Ordering::Release);
        fence(Ordering::SeqCst);
        self.ring_if_waiting(to, Counter::Mail);
        true
    }

    /// `Err` has the size of the segment that is there, when it is not the expected one.
    fn try_receive(
        &self,
        from: usize,
        point_to_point: bool,
        part: Part,
        consume: &mut dyn FnMut(&[u8]),
    ) -> std::result::Result<bool, u64> {
        let mailbox = self.layout.mailbox(from, self.me, point_to_point);
        let Some(segment) = self.can_receive(mailbox) else {
            return Ok(false);
        };
        let len = self.segment.long(Layout::mail_len(mailbox, segment));
        let found = len.load(Ordering::Relaxed);
        if found != part.total as u64 {
            return Err(found);
        }
        let at = self.layout.mail_data(mailbox, segment);
        let bytes = part.bytes.min(self.layout.mailbox_bytes);
        // SAFETY: the slot is the receiver's, see the module.
        consume(unsafe { self.segment.elements::<u8>(at, bytes) });
        let tail = self.segment.long(Layout::mail_tail(mailbox));
        tail.store(segment.wrapping_add(1), Ordering::Release);
        fence(Ordering::SeqCst);
        self.ring_if_waiting(from, Counter::Mail);
        Ok(true)
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
    /// Sends a segment to a rank of this host when there is room in its mailbox; at most
    /// [`mailbox_bytes`](Self::mailbox_bytes).
    pub(crate) fn try_send(
        &self,
        operation: &Operation<'_>,
        to: usize,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<bool> {
        let to = self.peer(operation, to)?;
        let total = bytes;
        let part = Part { total, bytes };
        Ok(self.shared.try_send(to, operation.only_peer, part, fill))
    }

    /// Receives a segment of a rank of this host when one is there.
    pub(crate) fn try_receive(
        &self,
        operation: &Operation<'_>,
        from: usize,
        bytes: usize,
        consume: &mut dyn FnMut(&[u8]),
    ) -> Result<bool> {
        let member = self.peer(operation, from)?;
        let total = bytes;
        let part = Part { total, bytes };
        let point_to_point = operation.only_peer;
        self.shared
            .try_receive(member, point_to_point, part, consume)
            .map_err(|found| self.wrong_size(operation, from, found, bytes))
    }

    /// Whether there is room for a segment to a rank of this host.
    pub(crate) fn can_send(&self, operation: &Operation<'_>, to: usize) -> Result<bool> {
        let (to, shared) = (self.peer(operation, to)?, &self.shared);
        let mailbox = shared.layout.mailbox(shared.me, to, operation.only_peer);
        Ok(shared.can_send(mailbox).is_some())
    }

    /// Whether there is a segment of a rank of this host.
    pub(crate) fn can_receive(&self, operation: &Operation<'_>, from: usize) -> Result<bool> {
        let (from, shared) = (self.peer(operation, from)?, &self.shared);
        let mailbox = shared.layout.mailbox(from, shared.me, operation.only_peer);
        Ok(shared.can_receive(mailbox).is_some())
    }

    /// Blocks until there is room for a segment to a rank of this host.
    pub(crate) fn wait_to_send(&self, operation: &Operation<'_>, to: usize) -> Result<()> {
        let (to, shared) = (self.peer(operation, to)?, &self.shared);
        let mailbox = shared.layout.mailbox(shared.me, to, operation.only_peer);
        shared.wait(operation, to, Counter::Mail, || {
            shared.can_send(mailbox).is_some()
        })
    }

    /// Blocks until there is a segment of a rank of this host.
    pub(crate) fn wait_to_receive(&self, operation: &Operation<'_>, from: usize) -> Result<()> {
        let (from, shared) = (self.peer(operation, from)?, &self.shared);
        let mailbox = shared.layout.mailbox(from, shared.me, operation.only_peer);
        shared.wait(operation, from, Counter::Mail, || {
            shared.can_receive(mailbox).is_some()
        })
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
        if bytes <= self.mailbox_bytes() {
            self.wait_to_send(operation, to)?;
            return self.try_send(operation, to, bytes, fill).map(|_| ());
        }
        scratch.resize(bytes, 0);
        fill(scratch);
        let member = self.peer(operation, to)?;
        for (offset, part) in parts(bytes, self.mailbox_bytes()) {
            self.wait_to_send(operation, to)?;
            let from = &scratch[offset..offset + part.bytes];
            self.shared
                .try_send(member, operation.only_peer, part, &mut |slot| {
                    slot.copy_from_slice(from)
                });
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
        if bytes <= self.mailbox_bytes() {
            self.wait_to_receive(operation, from)?;
            return self
                .try_receive(operation, from, bytes, consume)
                .map(|_| ());
        }
        scratch.resize(bytes, 0);
        let member = self.peer(operation, from)?;
        for (offset, part) in parts(bytes, self.mailbox_bytes()) {
            self.wait_to_receive(operation, from)?;
            let to = &mut scratch[offset..offset + part.bytes];
            self.shared
                .try_receive(member, operation.only_peer, part, &mut |slot| {
                    to.copy_from_slice(slot)
                })
                .map_err(|found| self.wrong_size(operation, from, found, bytes))?;
        }
        consume(scratch);
        Ok(())
    }

    /// The member that another rank of this host is.
    fn peer(&self, operation: &Operation<'_>, rank: usize) -> Result<usize> {
        let me = self.shared.me;
        let member = self.member(rank).filter(|member| *member != me);
        member.ok_or_else(|| CollectiveError::InvalidArgument {
            rank: self.shared.ranks[me],
            op: operation.header.kind,
            what: format!("rank {rank} is not another rank of this host"),
        })
    }

    fn wrong_size(
        &self,
        operation: &Operation<'_>,
        from: usize,
        found: u64,
        expected: usize,
    ) -> CollectiveError {
        let rank = self.shared.ranks[self.shared.me];
        operation.fail(CollectiveError::Mismatch {
            rank_a: from.min(rank),
            rank_b: from.max(rank),
            op: operation.header.kind,
            sequence: operation.header.sequence,
            what: format!(
                "rank {from} sent a segment of {found} bytes, rank {rank} expects {expected}"
            ),
        })
    }
}
