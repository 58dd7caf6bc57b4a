//! Heartbeats, silence, and telling the other ranks what went wrong.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::time::timeout_at;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::control::SERVICE_NAME;
use crate::control::generated::Heartbeat;
use crate::control::generated::envelope::Message;
use crate::control::membership::{Link, Membership, Phase, State};
use crate::control::silence::{Rules, Verdict};
use crate::control::topology::elsewhere;
use crate::control::{clock, convert, probe, process, reports};
use crate::error::CollectiveError;
use crate::failure::FailureKind;

/// The pause between two messages with news: the news of many children travel on in one message.
/// Nothing waits for it to be right; a connection takes longer.
const NEWS_PAUSE: Duration = Duration::from_millis(2);
/// For how long after a question heartbeats follow each other quickly, and how quickly.
const URGENT_TIME: Duration = Duration::from_secs(1);
const URGENT_INTERVAL: Duration = Duration::from_millis(50);

/// Sends heartbeats and looks for silent ranks until the runtime ends.
pub(super) async fn keep_watch(shared: Arc<Membership>) {
    let mut wake = Instant::now();
    let mut lost = shared.compute.lost();
    loop {
        // Earlier when a rank asks what the others do.
        let _ = timeout_at(wake.into(), shared.urgent.notified()).await;
        let lost_before = std::mem::replace(&mut lost, shared.compute.lost());
        wake = check_heartbeats(&shared, lost.saturating_sub(lost_before));
    }
}

/// One look at the clock; returns when to look again. `lost` is what this process did not get to
/// compute since the last one: it says nothing about its peers, and what they sent waits in the
/// sockets.
pub(super) fn check_heartbeats(shared: &Membership, lost: Duration) -> Instant {
    shared.tell_first_failure();
    let now = clock::now();
    let mut state = shared.state();
    state.lost += lost;
    if now >= state.next_heartbeat {
        let beat = shared.periodic_heartbeat(&mut state, now);
        shared.send_heartbeats(&state, &beat);
        let had_room = state.spread(shared.rank, &shared.addresses, true);
        shared.is_behind.fetch_or(!had_room, Ordering::Relaxed);
        let is_urgent = state.urgent_until.is_some_and(|until| now < until);
        state.next_heartbeat = now + shared.pause(is_urgent);
    }
    let mut wake = state.next_heartbeat;
    let mut silent = Vec::new();
    let watching = state.phase == Phase::Formed;
    for (rank, link) in state.links.iter_mut() {
        if !watching || link.unwatched {
            continue;
        }
        link.silence.excuse(lost, now);
        match link.silence.look(now, &rules(shared, link)) {
            Verdict::Until(until) => wake = wake.min(until),
            Verdict::Silent(elapsed) => silent.push((*rank, link.id, elapsed)),
        }
    }
    drop(state);
    let mut first = None;
    for (rank, id, elapsed) in silent {
        // What the system says is read without the lock.
        let announcement = shared.announcement_of(rank);
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
    let hosts = shared.hosts();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    hears_of_no_other_host(&hosts, shared.rank, |rank| {
        let link = state.links.get(&rank).filter(|link| !link.left);
        let answered = state.witnesses.get(&rank);
        let witness = answered.map(|answered| answered.is_none());
        link.map_or(witness, |link| Some(nearly_silent(shared, link, now)))
    })
}

/// Whether nothing comes from any other host that is listened to, though there are two at least:
/// then it is the network of this host that is lost, and none of the others is to blame. `hosts`
/// has the host of each rank. `is_away` says of neighbours, and of ranks that were dialled because
/// neighbours are silent, whether nothing comes from them.
fn hears_of_no_other_host(
    hosts: &[&str],
    own: usize,
    is_away: impl Fn(usize) -> Option<bool>,
) -> bool {
    let mut asked = BTreeSet::new();
    for (rank, host) in elsewhere(hosts, own) {
        match is_away(rank) {
            Some(false) => return false,
            Some(true) => drop(asked.insert(host.ok_or(rank))),
            None => {}
        }
    }
    asked.len() > 1
}

pub(super) fn nearly_silent(shared: &Membership, link: &Link, now: Instant) -> bool {
    // Heartbeats of different ranks are up to one interval apart.
    let limit = shared.silence_limit();
    let almost = limit.saturating_sub(shared.interval * 3 / 2).max(limit / 2);
    link.silence.counted(now) >= almost
}

impl Membership {
    /// Sends all neighbours a heartbeat, each with what is known of the ranks on this side.
    pub(super) fn send_heartbeats(&self, state: &State, beat: &Heartbeat) {
        for (rank, link) in state.links.iter().filter(|(_, link)| link.open) {
            let beat = reports::for_neighbour(self, state, *rank, beat);
            link.send(Message::Heartbeat(beat));
        }
    }

    /// The time between two heartbeats.
    pub(super) fn pause(&self, is_urgent: bool) -> Duration {
        if is_urgent {
            self.interval.min(URGENT_INTERVAL)
        } else {
            self.interval
        }
    }

    /// Asks all ranks to say at once what they do, and goes on listening for that.
    pub(super) fn ask_all(&self) {
        let now = clock::now();
        let mut state = self.state();
        state.urgent_until = Some(now + URGENT_TIME);
        let question = self.own_heartbeat(true);
        self.send_heartbeats(&state, &question);
    }

    /// Answers a neighbour that wants to know at once what the ranks on this side do: passes the
    /// question on, unless that was done a moment ago.
    pub(super) fn answer(&self, state: &mut State, from: usize) {
        let now = clock::now();
        let is_new = state
            .urgent_until
            .is_none_or(|until| until < now + URGENT_TIME / 2);
        let own = self.own_heartbeat(false);
        if is_new {
            state.urgent_until = Some(now + URGENT_TIME);
            state.next_heartbeat = now;
            for (rank, link) in state.links.iter().filter(|(rank, _)| **rank != from) {
                let question = Heartbeat {
                    answer: true,
                    ..own.clone()
                };
                link.send(Message::Heartbeat(reports::for_neighbour(
                    self, state, *rank, &question,
                )));
            }
            self.urgent.notify_one();
        }
        let answer = reports::for_neighbour(self, state, from, &own);
        if let Some(link) = state.links.get(&from) {
            link.send(Message::Heartbeat(answer));
        }
    }
}

/// Tells the neighbours what they lack, whenever that changes, until the runtime ends.
pub(super) async fn spread_news(shared: Arc<Membership>) {
    loop {
        shared.news.notified().await;
        shared.spread(false);
        // What comes in the next moment travels together.
        tokio::time::sleep(NEWS_PAUSE).await;
    }
}

/// Tells the neighbours of the first failure, and wakes the threads of this rank.
pub(super) async fn spread_failures(shared: Arc<Membership>, reporter: HealthReporter) {
    loop {
        shared.failed.notified().await;
        if shared.tell_first_failure() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_cut_off_when_none_of_two_others_is_heard_of() {
        let away = |ranks: &'static [usize]| move |rank| Some(ranks.contains(&rank));
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
        // Of ranks that are no neighbours nothing is known before they were dialled.
        let neighbour = |rank| (rank == 0).then_some(true);
        assert!(!hears_of_no_other_host(&hosts, 4, neighbour));
        let dialled = |rank| (rank == 0 || rank == 2).then_some(true);
        assert!(hears_of_no_other_host(&hosts, 4, dialled));
    }
}
