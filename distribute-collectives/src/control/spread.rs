//! What concerns all ranks travels along the tree: each rank tells its neighbours what it has heard
//! from the others.
//!
//! The stream to a neighbour divides the ranks into two sides. A neighbour is told which ranks are
//! on this side; while the group forms also which ones are there no more. So each rank knows of
//! every other one whether it is there, and through which neighbour. A child hears of it with the
//! heartbeats, or at once when all are there, so that a big group is not told of its members one by
//! one; a parent hears of it at once.
//!
//! A neighbour that has no room for more is told the rest when it has read.

use std::sync::atomic::Ordering;

use fixedbitset::FixedBitSet;

use crate::control::addresses::{self, Addresses};
use crate::control::generated::envelope::Message;
use crate::control::generated::{Gather, Gone, Left, Member as MemberMessage, Members, Part};
use crate::control::membership::{Link, Member, Membership, MissingReason, Phase, State};
use crate::control::{clock, handshake};
use crate::failure::FailureKind;

/// Bytes of one message: it stays far below the limit.
const MESSAGE_BYTES: usize = 32 << 10;
/// What the fields of an entry take beside its texts.
const ENTRY_BYTES: usize = 64;

impl Membership {
    /// Tells the neighbours what they lack. `all` says whether children are told of ranks that
    /// have come while others are missing.
    pub(super) fn spread(&self, all: bool) {
        // Before which ranks have left: a rank that ends because of a failure is not its cause.
        self.tell_first_failure();
        if !self.state().spread(self.rank, &self.addresses, all) {
            self.is_behind.store(true, Ordering::Relaxed);
        }
    }

    /// Takes what a neighbour says of the ranks on its side.
    pub(super) fn take_members(&self, from: usize, id: u64, members: Members) {
        let world_size = self.world_size();
        let is_other = |rank: u32| (rank as usize) < world_size && rank as usize != self.rank;
        for entry in members.entries.into_iter().filter(|it| is_other(it.rank)) {
            if let Err(refusal) = self.take_member(from, id, entry) {
                self.refuse(None, refusal);
            }
        }
        for gone in members.gone.into_iter().filter(|it| is_other(it.rank)) {
            self.take_gone(from, id, gone);
        }
        for left in members.left {
            self.take_left(left);
        }
        self.tell_news();
    }

    /// Notes that a rank is not on a neighbour's side any more. If this rank has met all before
    /// it heard of that, the group has failed: it cannot form without that rank.
    fn take_gone(&self, from: usize, id: u64, gone: Gone) {
        let rank = gone.rank as usize;
        let mut state = self.state();
        let Some(link) = state.link(from, id) else {
            return;
        };
        link.behind.set(rank, false);
        if state.phase == Phase::Formed {
            drop(state);
            let reason = gone.reason;
            return self.record_failure(FailureKind::Lost { rank, reason });
        }
        if !state.is_present(self.rank, rank) {
            let waited_for = gone.waited_for.iter().map(|rank| *rank as usize);
            let missing = MissingReason {
                reason: gone.reason,
                waited_for: waited_for.collect(),
            };
            state.note_missing(rank, missing);
        }
    }

    /// Notes a rank on a neighbour's side.
    fn take_member(
        &self,
        from: usize,
        id: u64,
        entry: MemberMessage,
    ) -> Result<(), crate::control::generated::Refusal> {
        let (rank, world_size) = (entry.rank as usize, self.world_size());
        let mut state = self.state();
        if let Some(announcement) = entry.announcement
            && state.phase == Phase::Joining
        {
            if !self.addresses.is_listed(rank) && addresses::check_told(&entry.address).is_ok() {
                handshake::refuse_taken(self, &state, rank, &entry.address)
                    .map_err(|failed| failed.refusal(entry.address.clone()))?;
                self.addresses.learn(rank, &entry.address);
            }
            state.welcome(rank);
            state.members[rank] = Some(Member {
                run: entry.run,
                announcement,
                parent: rank,
            });
        }
        let parent = entry.parent as usize;
        if let Some(member) = state.members[rank].as_mut().filter(|_| parent < world_size) {
            member.parent = parent;
        }
        let is_known = state.members[rank].is_some();
        if let Some(link) = state.link(from, id).filter(|_| is_known) {
            link.behind.insert(rank);
        }
        Ok(())
    }
}

impl State {
    /// Notes the parent of this rank, of which the other neighbours hear anew.
    pub(super) fn adopt(&mut self, own: usize, parent: usize) {
        if let Some(member) = &mut self.members[own] {
            member.parent = parent;
        }
        for link in self.links.values_mut() {
            link.told.members.set(own, false);
        }
    }

    /// Forgets why a rank was missing that has come.
    pub(super) fn welcome(&mut self, rank: usize) {
        self.last[rank] = MissingReason::default();
        self.unproven_claims.retain(|claim| claim.rank != rank);
    }

    /// As [`Membership::spread`]. Returns whether there was room for all.
    pub(super) fn spread(&mut self, own: usize, addresses: &Addresses, all: bool) -> bool {
        let all = all || self.present(own).count_ones(..) == self.world_size();
        let mut had_room = true;
        for (rank, side) in self.sides(own) {
            let is_parent = self.links.get(&rank).is_some_and(|link| link.is_parent);
            let told_members = (!all && !is_parent) || self.tell_members(rank, &side, addresses);
            // In this order: who has left has sent its parts before.
            had_room &= told_members && self.tell_parts(rank, all) && self.tell_left(rank);
        }
        had_room
    }

    /// The neighbours that read, each with the ranks that are on this side of its stream.
    fn sides(&self, own: usize) -> Vec<(usize, FixedBitSet)> {
        let reads = |link: &Link| link.open && link.is_announced && link.sender.is_some();
        let readers = self.links.iter().filter(|(_, link)| reads(link));
        let side = |reader: usize| {
            let mut side = FixedBitSet::with_capacity(self.world_size());
            side.insert(own);
            let others = self.links.iter().filter(|(rank, _)| **rank != reader);
            for (_, link) in others.filter(|(_, link)| link.open && !link.gave_up()) {
                side.union_with(&link.behind);
            }
            (reader, side)
        };
        readers.map(|(rank, _)| side(*rank)).collect()
    }

    /// Tells a neighbour which ranks are on this side. Returns whether it knows all.
    fn tell_members(&mut self, to: usize, side: &FixedBitSet, addresses: &Addresses) -> bool {
        let is_forming = self.phase != Phase::Formed;
        let State {
            links,
            members,
            last,
            ..
        } = self;
        let Some(link) = links.get_mut(&to) else {
            return true;
        };
        let knows_all = link.ready;
        loop {
            let mut bytes = 0;
            let mut fits = |more: usize| {
                let fits = bytes < MESSAGE_BYTES;
                bytes += more + ENTRY_BYTES;
                fits
            };
            let mut message = Members::default();
            for rank in side.difference(&link.told.members) {
                let entry = members[rank].as_ref().map(|it| {
                    // A peer that has told of its subtree's readiness knows all.
                    let announcement = Some(it.announcement.clone()).filter(|_| !knows_all);
                    MemberMessage {
                        rank: rank as u32,
                        address: addresses.get(rank).unwrap_or_default(),
                        run: it.run.clone(),
                        announcement,
                        parent: it.parent as u32,
                    }
                });
                let Some(entry) = entry else { continue };
                if !fits(prost::Message::encoded_len(&entry)) {
                    break;
                }
                message.entries.push(entry);
            }
            for rank in link.told.members.difference(side).filter(|_| is_forming) {
                let MissingReason { reason, waited_for } = last[rank].clone();
                if !fits(reason.len() + 4 * waited_for.len()) {
                    break;
                }
                message.gone.push(Gone {
                    rank: rank as u32,
                    reason,
                    waited_for: waited_for.iter().map(|rank| *rank as u32).collect(),
                });
            }
            if message == Members::default() {
                return true;
            }
            let came: Vec<usize> = message.entries.iter().map(|it| it.rank as usize).collect();
            let went: Vec<usize> = message.gone.iter().map(|it| it.rank as usize).collect();
            if !link.try_send(Message::Members(message)) {
                return false;
            }
            came.into_iter()
                .for_each(|rank| link.told.members.insert(rank));
            went.into_iter()
                .for_each(|rank| link.told.members.set(rank, false));
        }
    }

    /// Sends a neighbour the parts of this side, once all of them are here or have been waited for.
    /// Returns whether it has what there is.
    fn tell_parts(&mut self, to: usize, all: bool) -> bool {
        let Some(link) = self.links.get_mut(&to) else {
            return true;
        };
        let first = self.gathers.keys().next().copied().unwrap_or(u64::MAX);
        link.told.forget_parts_before(first);
        for (number, gathering) in &self.gathers {
            let wanted = |rank: &usize| !link.behind.contains(*rank);
            let side = || (0..gathering.parts.len()).filter(wanted);
            let is_complete = side().all(|rank| gathering.parts[rank].is_some());
            let is_late = all && clock::now() >= gathering.late_at;
            if !is_complete && !is_late {
                continue;
            }
            let here: Vec<usize> = side()
                .filter(|rank| gathering.parts[*rank].is_some())
                .collect();
            let none = || FixedBitSet::with_capacity(gathering.parts.len());
            let told = link.told.parts.entry(*number).or_insert_with(none);
            let mut rest = here.into_iter().filter(|rank| !told.contains(*rank));
            let rest: Vec<usize> = rest.by_ref().collect();
            for ranks in batches(&rest, |rank| {
                gathering.parts[*rank].as_ref().map_or(0, Vec::len)
            }) {
                let part = |rank: &usize| Part {
                    rank: *rank as u32,
                    value: gathering.parts[*rank].clone().unwrap_or_default(),
                };
                let message = Gather {
                    number: *number,
                    parts: ranks.iter().map(part).collect(),
                };
                let sender = link.sender.as_ref();
                let sent = sender.is_some_and(|sender| {
                    let message = crate::control::membership::envelope(Message::Gather(message));
                    sender.try_send(Ok(message)).is_ok()
                });
                if !sent {
                    return false;
                }
                ranks.iter().for_each(|rank| told.insert(*rank));
            }
        }
        true
    }

    /// Tells a neighbour which ranks have said goodbye. Returns whether it knows all.
    fn tell_left(&mut self, to: usize) -> bool {
        let Some(link) = self.links.get_mut(&to) else {
            return true;
        };
        let told = |rank: usize| rank == to || link.told.left.contains(rank);
        let rest = self.left.iter().filter(|(rank, _)| !told(**rank));
        let rest: Vec<Left> = rest.map(|(_, left)| left.clone()).collect();
        for left in batches(&rest, |left| left.reason.len()) {
            let message = Members {
                left: left.to_vec(),
                ..Members::default()
            };
            if !link.try_send(Message::Members(message)) {
                return false;
            }
            for left in left {
                link.told.left.insert(left.rank as usize);
            }
        }
        true
    }
}

/// Runs of elements that fit into one message each.
fn batches<T>(elements: &[T], bytes: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let mut batches = Vec::new();
    let (mut begin, mut sum) = (0, 0);
    for (index, element) in elements.iter().enumerate() {
        sum += bytes(element) + ENTRY_BYTES;
        if sum > MESSAGE_BYTES && index > begin {
            batches.push(&elements[begin..index]);
            (begin, sum) = (index, bytes(element) + ENTRY_BYTES);
        }
    }
    if begin < elements.len() {
        batches.push(&elements[begin..]);
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_fit_into_messages_and_leave_nothing_out() {
        let sizes: Vec<usize> = (0..500).map(|it| it * 37 % 16_000).collect();
        let batches = batches(&sizes, |size| *size);
        assert_eq!(batches.concat(), sizes);
        for batch in &batches {
            let bytes: usize = batch.iter().map(|size| size + ENTRY_BYTES).sum();
            assert!(bytes <= MESSAGE_BYTES || batch.len() == 1);
        }
        assert!(batches.len() > 100);
        assert!(super::batches::<usize>(&[], |size| *size).is_empty());
    }
}
