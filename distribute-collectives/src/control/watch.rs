//! Heartbeats, silence, and telling the other ranks what went wrong.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep_until;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::control::SERVICE_NAME;
use crate::control::generated::envelope::Message;
use crate::control::membership::{Link, Membership, Phase};
use crate::control::{clock, convert};
use crate::failure::FailureKind;

/// Sends heartbeats and looks for silent ranks until the runtime ends.
pub(super) async fn send_heartbeats(shared: Arc<Membership>) {
    let mut wake = Instant::now();
    loop {
        sleep_until(wake.into()).await;
        let late = wake.elapsed();
        wake = check_heartbeats(&shared, late);
    }
}

/// One look at the clock; returns when to look again. `late` is by how much this process itself
/// was kept from looking.
pub(super) fn check_heartbeats(shared: &Membership, late: Duration) -> Instant {
    let now = clock::now();
    let heartbeat = shared.own_heartbeat(false);
    let mut state = shared.state();
    if now >= state.next_heartbeat {
        state.send_to_all(&heartbeat);
        state.tell_addresses();
        state.next_heartbeat = now + shared.interval;
    }
    // Time in which this process was stopped says nothing about its peers: what they sent waits
    // in the sockets.
    let stopped = if late > shared.interval {
        late
    } else {
        Duration::ZERO
    };
    let limit = shared.silence_limit();
    let mut wake = state.next_heartbeat;
    let mut silent = None;
    let watching = state.phase == Phase::Formed;
    for (rank, link) in state.links.iter_mut().enumerate() {
        let Some(link) = link.as_mut().filter(|link| watching && !link.unwatched) else {
            continue;
        };
        link.last_received += stopped;
        let elapsed = now.saturating_duration_since(link.last_received);
        if elapsed < limit {
            wake = wake.min(link.last_received + limit);
        } else if silent.is_none() {
            link.unwatched = true;
            silent = Some((rank, elapsed));
        } else {
            // Looked at again at once, after the first one has been noted.
            wake = now;
        }
    }
    let Some((rank, elapsed)) = silent else {
        return wake;
    };
    let others = state.links.iter().flatten().filter(|link| !link.left);
    let cut_off = shared.world_size() > 2
        && others.clone().count() + 1 == shared.world_size()
        && others.clone().all(|link| nearly_silent(shared, link, now));
    drop(state);
    let others = shared.world_size() - 1;
    let kind = match cut_off {
        true => FailureKind::Lost {
            rank: shared.rank,
            reason: format!(
                "this rank is cut off: none of the other {others} ranks was heard of for \
                 {elapsed:.1?}"
            ),
        },
        false => FailureKind::Silent { rank, elapsed },
    };
    shared.record_failure(kind);
    wake
}

fn nearly_silent(shared: &Membership, link: &Link, now: Instant) -> bool {
    // Heartbeats of different ranks are up to one interval apart.
    let limit = shared.silence_limit();
    let almost = limit.saturating_sub(shared.interval * 3 / 2).max(limit / 2);
    now.saturating_duration_since(link.last_received) >= almost
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
