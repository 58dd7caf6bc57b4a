//! After an interruption: ends the operation in which this rank waits for others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::bookkeeping::RunningOperation;
use crate::control::membership::Membership;
use crate::control::{detour, process};
use crate::error::{CollectiveError, MissingRank};
use crate::failure::FailureKind;
use crate::header::OperationHeader;

/// How often the others are asked for a sign of life, and how long an operation may go on.
const POLL_INTERVAL: Duration = Duration::from_millis(150);
/// How long a sign of life may take, where that is what counts.
const SILENT_AFTER: Duration = Duration::from_millis(800);

/// Waits for the interruption, and then for an operation to end with it.
pub(super) async fn end_waits(shared: Arc<Membership>) {
    shared.interruption.raised().await;
    let mut watched = OperationWatch {
        since: Instant::now(),
        last: shared.status.running(),
    };
    let begin = Instant::now();
    let mut has_gone_around = false;
    loop {
        shared.ask_all();
        let (asked, lost) = (Instant::now(), shared.compute.lost());
        tokio::time::sleep(POLL_INTERVAL).await;
        if !std::mem::replace(&mut has_gone_around, true) {
            detour::around_silent(&shared, begin).await;
        }
        // Time in which this process, or the machine, did not get to compute says nothing about the
        // others.
        let lost = shared.compute.lost().saturating_sub(lost);
        watched.since += lost.min(asked.elapsed());
        if let Some(error) = watched.stalled(&shared) {
            shared.record_failure(FailureKind::Ended(error));
            return;
        }
    }
}

struct OperationWatch {
    /// Since when the others are asked.
    since: Instant,
    /// What ran at the last look.
    last: Option<RunningOperation>,
}

impl OperationWatch {
    /// The error with which the operation is to end that has run since the last look.
    fn stalled(&mut self, shared: &Membership) -> Option<CollectiveError> {
        let now = shared.status.running();
        let last = std::mem::replace(&mut self.last, now);
        let running = now.filter(|_| last == now)?;
        let silent = self.silent(shared);
        let missing = match (shared.interruption.is_held(), silent.is_empty()) {
            (true, true) => return None,
            (_, false) => silent,
            (false, true) => self.absent(shared, &running.header),
        };
        Some(CollectiveError::Interrupted {
            rank: shared.rank,
            missing,
            elapsed: running.begin.elapsed(),
        })
    }

    /// The ranks that have not answered.
    fn silent(&self, shared: &Membership) -> Vec<MissingRank> {
        let state = shared.state();
        let others = (0..shared.world_size()).filter(|rank| *rank != shared.rank);
        let staying = others.filter(|rank| !state.left.contains_key(rank));
        let heard = staying.map(|rank| {
            let link = state.links.get(&rank).filter(|link| link.open);
            let own = link.map(|link| link.silence.begin());
            let heard = own.or_else(|| shared.status.heard_of(rank));
            (rank, heard.unwrap_or(shared.started))
        });
        let is_silent =
            |(_, heard): &(usize, Instant)| (*heard).max(self.since).elapsed() >= SILENT_AFTER;
        let silent: Vec<(usize, Instant)> = heard.filter(is_silent).collect();
        // What the system says is read without the lock.
        drop(state);
        let silent = silent.into_iter().filter(|(rank, _)| {
            let announcement = shared.announcement_of(*rank);
            !process::is_kept_from_running(&shared.announcement, announcement.as_ref())
        });
        let missing = silent.map(|(rank, heard)| {
            let since = heard.elapsed();
            shared.missing(
                rank,
                format!("it has given no sign of life for {since:.1?}"),
            )
        });
        missing.collect()
    }

    /// The ranks that have not come to the operation, as far as they have said; none for a
    /// call between two ranks, of which they say nothing.
    fn absent(&self, shared: &Membership, header: &OperationHeader) -> Vec<MissingRank> {
        let others = (0..shared.world_size()).filter(|rank| *rank != shared.rank);
        let absent = others.filter_map(|rank| {
            let reason = match shared.status.has_begun(rank, header, self.since) {
                Some(true) => return None,
                Some(false) => "it is busy and has not come to this operation",
                None => "it has not answered",
            };
            Some(shared.missing(rank, reason))
        });
        if header.kind.is_point_to_point() {
            Vec::new()
        } else {
            absent.collect()
        }
    }
}
