//! Heartbeats, silence, and telling the other ranks what went wrong.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep_until;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::control::SERVICE_NAME;
use crate::control::generated::envelope::Message;
use crate::control::membership::{Link, Membership, Phase, State};
use crate::control::silence::{Rules, Verdict};
use crate::control::{clock, convert, probe, process};
use crate::error::CollectiveError;
use crate::failure::FailureKind;

/// Sends heartbeats and looks for silent ranks until the runtime ends.
pub(super) async fn send_heartbeats(shared: Arc<Membership>) {
    let mut wake = Instant::now();
    let mut lost = shared.compute.lost();
    loop {
        sleep_until(wake.into()).await;
        let lost_before = std::mem::replace(&mut lost, shared.compute.lost());
        wake = check_heartbeats(&shared, lost.saturating_sub(lost_before));
    }
}

/// One look at the clock; returns when to look again. `lost` is what this process did not get to
/// compute since the last one: it says nothing about its peers, and what they sent waits in the
/// sockets.
pub(super) fn check_heartbeats(shared: &Membership, lost: Duration) -> Instant {
    let now = clock::now();
    let mut state = shared.state();
    state.lost += lost;
    if now >= state.next_heartbeat {
        let beat = shared.periodic_heartbeat(&mut state, now);
        state.send_to_all(&beat);
        state.tell_addresses();
        state.next_heartbeat = now + shared.interval;
    }
    let mut wake = state.next_heartbeat;
    let mut silent = Vec::new();
    let watching = state.phase == Phase::Formed;
    for (rank, link) in state.links.iter_mut().enumerate() {
        let Some(link) = link.as_mut().filter(|link| watching && !link.unwatched) else {
            continue;
        };
        link.silence.excuse(lost, now);
        match link.silence.look(now, &rules(shared, link)) {
            Verdict::Until(until) => wake = wake.min(until),
            Verdict::Silent(elapsed) => {
                silent.push((rank, link.id, elapsed, link.announcement.clone()));
            }
        }
    }
    drop(state);
    let mut first = None;
    for (rank, id, elapsed, announcement) in silent {
        // What the system says is read without the lock.
        let pardoned = process::is_kept_from_running(&shared.announcement, announcement.as_ref());
        let mut state = shared.state();
        let Some(link) = state.link(rank, id).filter(|link| !link.unwatched) else {
            continue;
        };
        if pardoned {
            // It would speak if it could. A dead one closes its connections, a stopped one does not
            // wait for a processor.
            link.silence.pardon(now + shared.interval);
            wake = wake.min(now + shared.interval);
        } else if first.is_none() {
            link.unwatched = true;
            first = Some((rank, elapsed));
        } else {
            // Looked at again at once, after the first one has been noted.
            wake = now;
        }
    }
    if let Some((rank, elapsed)) = first {
        shared.record_failure(failure(shared, rank, elapsed, now));
    }
    wake
}

/// A rank has been silent for so long: either it has failed, or this one hears of no other.
fn failure(shared: &Membership, rank: usize, elapsed: Duration, now: Instant) -> FailureKind {
    if is_cut_off(shared, &shared.state(), now) {
        FailureKind::Ended(CollectiveError::CutOff {
            rank: shared.rank,
            host: shared.host(shared.rank),
            elapsed,
        })
    } else {
        FailureKind::Silent { rank, elapsed }
    }
}

fn rules(shared: &Membership, link: &Link) -> Rules {
    Rules {
        limit: shared.silence_limit(),
        interval: shared.interval,
        is_probed: probe::is_probed(link),
    }
}

/// Whether it is this rank's host that is cut off.
fn is_cut_off(shared: &Membership, state: &State, now: Instant) -> bool {
    let hosts: Vec<String> = (0..shared.world_size())
        .map(|rank| shared.host(rank))
        .collect();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    hears_of_no_other_host(&hosts, shared.rank, |rank| {
        let link = state.links[rank].as_ref().filter(|link| !link.left);
        link.is_some_and(|link| nearly_silent(shared, link, now))
    })
}

/// Whether nothing comes from any other host, though there are two at least: then it is the
/// network of this host that is lost, and none of the others is to blame. `hosts` has the host of
/// each rank; where all have the same, each rank is one.
fn hears_of_no_other_host(hosts: &[&str], own: usize, is_away: impl Fn(usize) -> bool) -> bool {
    let others = (0..hosts.len()).filter(|rank| *rank != own);
    let (elsewhere, here): (Vec<_>, Vec<_>) = others.partition(|rank| hosts[*rank] != hosts[own]);
    let (others, count) = if elsewhere.is_empty() {
        (&here, here.len())
    } else {
        let names: BTreeSet<&str> = elsewhere.iter().map(|rank| hosts[*rank]).collect();
        (&elsewhere, names.len())
    };
    count > 1 && others.iter().all(|rank| is_away(*rank))
}

fn nearly_silent(shared: &Membership, link: &Link, now: Instant) -> bool {
    // Heartbeats of different ranks are up to one interval apart.
    let limit = shared.silence_limit();
    let almost = limit.saturating_sub(shared.interval * 3 / 2).max(limit / 2);
    link.silence.counted(now) >= almost
}

/// Tells all ranks of the first failure, and wakes the threads of this one.
pub(super) async fn spread_failures(shared: Arc<Membership>, reporter: HealthReporter) {
    loop {
        shared.failed.notified().await;
        if send_first_failure(&shared) {
            report(&reporter, ServingStatus::NotServing).await;
        }
        // Under the lock, so that no thread misses it between its look and its sleep.
        let state = shared.state();
        shared.gathered.notify_all();
        drop(state);
        shared.changed.notify_one();
    }
}

/// Tells any gRPC client that asks how the group is.
pub(super) async fn report(reporter: &HealthReporter, status: ServingStatus) {
    reporter.set_service_status(SERVICE_NAME, status).await;
}

/// Before this rank leaves because another one has left: tells the others of that one, so that
/// they do not take this rank for the first.
pub(super) fn send_departure(shared: &Membership) {
    if let Some(failure) = shared.status.reported_departure() {
        let notice = convert::notice(shared.rank, &failure);
        shared.state().send_to_all(&Message::Notice(notice));
    }
}

/// Sends the first failure to all ranks unless that was done. Returns whether there is one.
pub(super) fn send_first_failure(shared: &Membership) -> bool {
    let Some(failure) = shared.status.first_failure() else {
        return false;
    };
    let notice = convert::notice(shared.rank, &failure);
    let mut state = shared.state();
    if !std::mem::replace(&mut state.failure_sent, true) {
        tracing::warn!(rank = shared.rank, %failure, "the group failed");
        state.send_to_all(&Message::Notice(notice));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_cut_off_when_none_of_two_others_is_heard_of() {
        let away = |ranks: &'static [usize]| move |rank| ranks.contains(&rank);
        let hosts = ["a", "a", "b", "b", "c"];
        // The other rank of its own host is heard of all the time.
        assert!(hears_of_no_other_host(&hosts, 0, away(&[2, 3, 4])));
        assert!(hears_of_no_other_host(&hosts, 4, away(&[0, 1, 2, 3])));
        // Only one host is away: that one is to blame.
        assert!(!hears_of_no_other_host(&hosts, 0, away(&[2, 3])));
        assert!(!hears_of_no_other_host(&hosts, 0, away(&[4])));
        // Of two hosts neither knows which one it is.
        assert!(!hears_of_no_other_host(&["a", "a", "b"], 0, away(&[2])));
        assert!(!hears_of_no_other_host(&["a", "b"], 0, away(&[1])));
        // Ranks of one host, as in tests and containers: each is one of its own.
        assert!(hears_of_no_other_host(&["a"; 3], 1, away(&[0, 2])));
        assert!(!hears_of_no_other_host(&["a"; 3], 1, away(&[0])));
        assert!(!hears_of_no_other_host(&["a"; 2], 1, away(&[0])));
    }
}
