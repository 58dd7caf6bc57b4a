//! What ranks say of themselves reaches all others with the heartbeats of their neighbours.
//!
//! A heartbeat has what its sender says of itself, and what it was told of the other ranks on its
//! side of the stream: ranks that said the same at about the same time are told together.

use std::time::{Duration, Instant};

use fixedbitset::FixedBitSet;

use crate::control::clock;
use crate::control::convert;
use crate::control::generated::{Heartbeat, Reports};
use crate::control::membership::{Membership, State};
use crate::header::OperationHeader;
use crate::status::Report;

/// Most groups of ranks in one heartbeat, and most bytes that they take: it stays far below the
/// limit of a message. Of the ranks beyond them nothing is said this time.
const GROUPS_MAX: usize = 32;
const BYTES_MAX: usize = 32 << 10;
/// What a group takes beside its ranks.
const GROUP_BYTES: usize = 2 * OperationHeader::BYTES;

/// Ranks that said the same.
struct Group {
    running: Option<OperationHeader>,
    completed: u64,
    /// How old their reports are, in intervals between heartbeats.
    age: u32,
    oldest: Instant,
    ranks: FixedBitSet,
}

impl Membership {
    /// Notes what a neighbour was told of other ranks.
    pub(super) fn take_reports(&self, from: usize, reports: &[Reports]) {
        let (now, world_size) = (clock::now(), self.world_size());
        for reports in reports {
            let age = Duration::from_millis(reports.age_ms);
            let Some(at) = now.checked_sub(age) else {
                continue;
            };
            let running = convert::header(&reports.running);
            let bits = reports.ranks.iter().enumerate();
            let ranks = bits.flat_map(|(byte, bits)| {
                let set = (0..8).filter(move |bit| bits >> bit & 1 == 1);
                set.map(move |bit| 8 * byte + bit)
            });
            let others = ranks.filter(|rank| ![self.rank, from].contains(rank));
            let told = Report {
                at,
                running,
                completed: reports.completed,
            };
            self.status
                .note_peers(others.take_while(|rank| *rank < world_size), told);
        }
    }
}

/// A heartbeat for a neighbour.
pub(super) fn for_neighbour(
    shared: &Membership,
    state: &State,
    to: usize,
    beat: &Heartbeat,
) -> Heartbeat {
    let mut groups: Vec<Group> = Vec::new();
    let (now, interval) = (clock::now(), shared.interval.max(Duration::from_millis(1)));
    let behind = state.links.get(&to).map(|link| &link.behind);
    let bytes = GROUP_BYTES + shared.world_size().div_ceil(8);
    let groups_max = GROUPS_MAX.min((BYTES_MAX / bytes).max(1));
    shared.status.for_each_report(|rank, report| {
        if rank == to || behind.is_some_and(|behind| behind.contains(rank)) {
            return;
        }
        let age = now
            .saturating_duration_since(report.at)
            .div_duration_f64(interval) as u32;
        let known = groups.iter_mut().find(|it| {
            it.age == age && it.completed == report.completed && it.running == report.running
        });
        if let Some(known) = known {
            known.oldest = known.oldest.min(report.at);
            known.ranks.insert(rank);
        } else if groups.len() < groups_max {
            let mut ranks = FixedBitSet::with_capacity(shared.world_size());
            ranks.insert(rank);
            groups.push(Group {
                running: report.running,
                completed: report.completed,
                age,
                oldest: report.at,
                ranks,
            });
        }
    });
    Heartbeat {
        reports: groups.iter().map(|group| encode(group, now)).collect(),
        ..beat.clone()
    }
}

fn encode(group: &Group, now: Instant) -> Reports {
    let mut ranks = vec![0; group.ranks.len().div_ceil(8)];
    for rank in group.ranks.ones() {
        ranks[rank / 8] |= 1 << (rank % 8);
    }
    Reports {
        running: convert::running(group.running.as_ref()),
        completed: group.completed,
        age_ms: now.saturating_duration_since(group.oldest).as_millis() as u64,
        ranks,
    }
}
