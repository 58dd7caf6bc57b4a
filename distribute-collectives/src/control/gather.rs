//! Small values of all ranks, exchanged along the tree: see [`spread`](super::spread).

use std::time::{Duration, Instant};

use crate::control::clock;
use crate::control::generated::Gather;
use crate::control::membership::{Gathering, Membership, State};
use crate::error::{CollectiveError, Result};
use crate::failure::FailureKind;
use crate::header::OperationHeader;
use crate::operation::OperationKind;
use crate::sync::unpoisoned;

/// The largest value of one rank.
pub(super) const VALUE_MAX_BYTES: usize = 16 << 10;
/// How long parts wait for the other parts of their side, so that all travel together. Later they
/// travel alone: then all ranks see whose part is missing.
const LATE_AFTER: Duration = Duration::from_millis(250);

impl State {
    /// The gathering of this number. Ranks that have not done the one before it may still need the
    /// parts of that, but of none earlier: they have done the one before it.
    fn gathering(&mut self, number: u64) -> &mut Gathering {
        self.gathers = self.gathers.split_off(&number.saturating_sub(2));
        let world_size = self.world_size();
        self.gathers.entry(number).or_insert_with(|| Gathering {
            parts: vec![None; world_size],
            late_at: clock::now() + LATE_AFTER,
        })
    }
}

impl Membership {
    /// Takes parts from a neighbour. No rank is more than one gathering ahead, since each needs the
    /// part of this rank; more is not kept.
    pub(super) fn take_parts(&self, parts: Gather) {
        let mut state = self.state();
        let expected = state.next_gather.saturating_sub(1)..=state.next_gather;
        if !expected.contains(&parts.number) {
            return;
        }
        let gathering = state.gathering(parts.number);
        for part in parts.parts {
            if part.value.len() <= VALUE_MAX_BYTES
                && let Some(place) = gathering.parts.get_mut(part.rank as usize)
            {
                place.get_or_insert(part.value);
            }
        }
        drop(state);
        self.news.notify_one();
        self.gathered.notify_all();
    }

    /// Gives every rank the values of all ranks, in rank order. All ranks call it equally often.
    pub(super) fn gather(&self, value: &[u8]) -> Result<Vec<Vec<u8>>> {
        if value.len() > VALUE_MAX_BYTES {
            return Err(CollectiveError::InvalidArgument {
                rank: self.rank,
                op: OperationKind::AllGather,
                what: format!("{} bytes, at most {VALUE_MAX_BYTES} fit", value.len()),
            });
        }
        let started = Instant::now();
        let mut state = self.state();
        let number = state.next_gather;
        let generation = self.hello.identity.generation;
        let header = OperationHeader::new(OperationKind::AllGather, generation, number);
        if let Some(failure) = self.status.first_failure() {
            return Err(failure.kind.into_error(&header));
        }
        state.next_gather += 1;
        state.gathering(number).parts[self.rank] = Some(value.to_vec());
        self.news.notify_one();
        loop {
            let parts = &state.gathering(number).parts;
            let missing: Vec<usize> = (0..parts.len())
                .filter(|rank| parts[*rank].is_none())
                .collect();
            if missing.is_empty() {
                return Ok(parts.iter().flatten().cloned().collect());
            }
            let gone = missing.iter().find(|rank| state.is_gone(**rank)).copied();
            let left = self.gather_timeout.saturating_sub(started.elapsed());
            let failed = self.status.first_failure().is_some();
            if gone.is_none() && !left.is_zero() && !failed {
                state = unpoisoned(self.gathered.wait_timeout(state, left)).0;
                continue;
            }
            drop(state);
            return Err(self.gather_error(&header, gone, missing, started));
        }
    }

    fn gather_error(
        &self,
        header: &OperationHeader,
        gone: Option<usize>,
        missing: Vec<usize>,
        started: Instant,
    ) -> CollectiveError {
        if let Some(failure) = self.status.first_failure() {
            return failure.kind.into_error(header);
        }
        if let Some(rank) = gone {
            let reason = "it left the group".to_string();
            return FailureKind::Lost { rank, reason }.into_error(header);
        }
        let error = CollectiveError::Timeout {
            missing,
            op: header.kind,
            sequence: header.sequence,
            elapsed: started.elapsed(),
        };
        self.record_failure(FailureKind::Ended(error.clone()));
        error
    }
}

impl State {
    /// Whether nothing more can come from a rank.
    fn is_gone(&self, rank: usize) -> bool {
        let is_lost = |link: &super::membership::Link| !link.open && !link.left;
        self.left.contains_key(&rank) || self.links.get(&rank).is_some_and(is_lost)
    }
}
