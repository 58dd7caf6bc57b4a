//! Small values of all ranks, exchanged over the control streams.

use std::time::Instant;

use crate::control::generated::Gather;
use crate::control::generated::envelope::Message;
use crate::control::membership::{Membership, State};
use crate::error::{CollectiveError, Result};
use crate::failure::FailureKind;
use crate::header::OperationHeader;
use crate::operation::OperationKind;
use crate::sync::unpoisoned;

/// The largest value of one rank.
pub(super) const VALUE_MAX_BYTES: usize = 16 << 10;

impl Membership {
    /// Takes the part of a peer. No rank is more than one gathering ahead, since each needs the
    /// part of this rank; more is not kept.
    pub(super) fn take_part(&self, rank: usize, part: Gather) {
        let mut state = self.state();
        let expected = state.next_gather.saturating_sub(1)..=state.next_gather;
        if part.value.len() > VALUE_MAX_BYTES || !expected.contains(&part.number) {
            return;
        }
        state.parts(part.number)[rank] = Some(part.value);
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
        let value = value.to_vec();
        state.parts(number)[self.rank] = Some(value.clone());
        state.send_to_all(&Message::Gather(Gather { number, value }));
        loop {
            let parts = state.parts(number).iter().enumerate();
            let missing: Vec<usize> = parts
                .filter(|(_, part)| part.is_none())
                .map(|(rank, _)| rank)
                .collect();
            if missing.is_empty() {
                let parts = state.gathers.remove(&number).unwrap_or_default();
                return Ok(parts.into_iter().flatten().collect());
            }
            let gone = missing.iter().find(|rank| is_gone(&state, **rank)).copied();
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

/// Whether nothing more can come from a rank.
fn is_gone(state: &State, rank: usize) -> bool {
    let link = state.links[rank].as_ref();
    link.is_none_or(|link| link.left || !link.open)
}
