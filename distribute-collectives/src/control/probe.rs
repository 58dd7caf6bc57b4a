//! Whether the host of a silent rank can be reached.
//!
//! A message that was lost in a cut comes again when TCP sends it again, which can take as long as
//! the cut took: a rank that is heard of so late has not been away for longer than it may. So
//! while a rank is silent, its control port is dialled again and again. That something answers
//! there says that the way is free again, and since when, not that the process lives: a stopped
//! one has a system that answers, too. Nothing is said on these connections.
//!
//! A rank has few neighbours. To tell whether one of them is away or the own host is cut off, it
//! also dials ranks of some other hosts meanwhile, and shakes hands with them: they are witnesses.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use distribute_net::address;
use distribute_net::exchange;
use distribute_net::peers::Connection;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::control::membership::{Link, Membership, Phase};
use crate::control::silence::{ATTEMPT_PAUSE, ATTEMPT_TIMEOUT};
use crate::control::{clock, handshake, topology};

/// Attempts at the same time, whatever the size of the group.
const ATTEMPTS_MAX: usize = 64;
/// Other hosts of which one rank is asked whether this host is cut off.
const WITNESSES_MAX: usize = 3;

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
        for witness in witnesses(&shared) {
            if running.len() < ATTEMPTS_MAX {
                running.spawn(ask(shared.clone(), witness));
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

/// Shakes hands with a rank of another host.
async fn ask(shared: Arc<Membership>, rank: usize) {
    let Some(address) = shared.addresses.get(rank) else {
        return;
    };
    let shaking = async {
        let Ok((host, port)) = address::split(&address) else {
            return false;
        };
        let tcp = match TcpStream::connect((host, port)).await {
            Ok(tcp) => tcp,
            // Its process has ended, and its host says so.
            Err(error) => return error.kind() == io::ErrorKind::ConnectionRefused,
        };
        let opened = Connection::over(tcp, host, shared.tls.as_ref()).await;
        let Ok(mut connection) = opened else {
            return false;
        };
        let own = handshake::hello(&shared, rank, &address, true);
        let secret = shared.security.secret();
        let dialled = exchange::dial(&mut connection, own, &secret).await;
        dialled.is_ok()
    };
    if let Ok(true) = tokio::time::timeout(ATTEMPT_TIMEOUT, shaking).await {
        note_witness(&shared, rank);
    }
}

/// Notes that a rank of another host, or that host, has answered.
pub(super) fn note_witness(shared: &Membership, rank: usize) {
    if let Some(answered) = shared.state().witnesses.get_mut(&rank) {
        *answered = Some(clock::now());
    }
}

/// The ranks of other hosts that are to be asked now: while a neighbour on another host is silent,
/// one of each of the hosts that follow this one and have no neighbour.
pub(super) fn witnesses(shared: &Membership) -> Vec<usize> {
    let (now, silent_for) = (clock::now(), shared.first_attempt_after());
    let is_silent =
        |link: &Link| link.open && !link.left && link.silence.counted(now) >= silent_for;
    let mut state = shared.state();
    if state.phase != Phase::Formed || !state.links.values().any(is_silent) {
        state.witnesses.clear();
        return Vec::new();
    }
    let hosts = shared.hosts();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let place = |(rank, host): (usize, Option<_>)| (host.ok_or(rank), rank);
    let away: Vec<_> = (topology::elsewhere(&hosts, shared.rank).into_iter())
        .map(place)
        .collect();
    let is_near = |rank: &usize| state.links.contains_key(rank) || state.left.contains_key(rank);
    let near: BTreeSet<_> = (away.iter().filter(|(_, rank)| is_near(rank)))
        .map(|(host, _)| *host)
        .collect();
    let (before, after): (Vec<_>, Vec<_>) =
        away.into_iter().partition(|(_, rank)| *rank < shared.rank);
    let mut seen = near;
    let following = after.into_iter().chain(before);
    let chosen: Vec<usize> = following
        .filter(|(host, _)| seen.insert(*host))
        .map(|(_, rank)| rank)
        .take(WITNESSES_MAX)
        .collect();
    for rank in &chosen {
        state.witnesses.entry(*rank).or_default();
    }
    chosen
        .into_iter()
        .filter(|rank| state.witnesses[rank].is_none())
        .collect()
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
    let silent = state.links.iter().filter_map(|(rank, link)| {
        let rank = *rank;
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
