//! Whether the host of a silent rank can be reached.
//!
//! A message that was lost in a cut comes again when TCP sends it again, which can take as long as
//! the cut took: a rank that is heard of so late has not been away for longer than it may. So
//! while a rank is silent, its control port is dialled again and again. That something answers
//! there says that the way is free again, and since when, not that the process lives: a stopped
//! one has a system that answers, too. Nothing is said on these connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use distribute_net::address;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::control::clock;
use crate::control::membership::{Link, Membership, Phase};
use crate::control::silence::{ATTEMPT_PAUSE, ATTEMPT_TIMEOUT};

/// Attempts at the same time, whatever the size of the group.
const ATTEMPTS_MAX: usize = 64;

/// A silent rank, its link, and where its host answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Attempt {
    pub(super) rank: usize,
    pub(super) id: u64,
    pub(super) address: SocketAddr,
}

/// Dials silent ranks until the runtime ends.
pub(super) async fn dial_silent_ranks(shared: Arc<Membership>) {
    let mut running = JoinSet::new();
    loop {
        tokio::time::sleep(ATTEMPT_PAUSE).await;
        while running.try_join_next().is_some() {}
        for attempt in attempts(&shared) {
            if running.len() < ATTEMPTS_MAX {
                running.spawn(dial(shared.clone(), attempt));
            }
        }
    }
}

async fn dial(shared: Arc<Membership>, attempt: Attempt) {
    let connecting = TcpStream::connect(attempt.address);
    let answered = match tokio::time::timeout(ATTEMPT_TIMEOUT, connecting).await {
        Ok(Ok(_)) => true,
        // No process listens any more: the way is free.
        Ok(Err(error)) => error.kind() == io::ErrorKind::ConnectionRefused,
        Err(_) => false,
    };
    if answered {
        note_reached(&shared, &attempt);
    }
}

/// Notes that the host of a rank has answered.
pub(super) fn note_reached(shared: &Membership, attempt: &Attempt) {
    if let Some(link) = shared.state().link(attempt.rank, attempt.id) {
        link.silence.note_reached(clock::now());
    }
}

/// Whether the host of a rank is dialled while it is silent: not where nothing can be cut, nor
/// where the rank does not listen yet or any more.
pub(super) fn is_probed(link: &Link) -> bool {
    !link.ip.is_loopback() && link.open && !link.left
}

/// The ranks that are to be dialled now.
pub(super) fn attempts(shared: &Membership) -> Vec<Attempt> {
    let now = clock::now();
    let silent_for = shared.first_attempt_after();
    let state = shared.state();
    if state.phase != Phase::Formed {
        return Vec::new();
    }
    let links = state.links.iter().enumerate();
    let silent = links.filter_map(|(rank, link)| {
        let link = link.as_ref()?;
        let wanted = is_probed(link)
            && !link.unwatched
            && !link.silence.was_reached()
            && link.silence.counted(now) >= silent_for;
        let known = shared.addresses.get(rank)?;
        let (_, port) = address::split(&known).ok()?;
        wanted.then(|| Attempt {
            rank,
            id: link.id,
            address: SocketAddr::new(link.ip, port),
        })
    });
    silent.collect()
}

impl Membership {
    /// How long a rank is silent before its host is dialled: some heartbeats are missing then.
    fn first_attempt_after(&self) -> Duration {
        (self.silence_limit() / 3).max(self.interval * 3 / 2)
    }
}
