//! The way around a neighbour that does not answer: a stopped one passes nothing on until it is
//! found silent, which can take as long as the user allows. What cannot wait so long (an
//! interruption, and the failure with which a rank leaves) goes to the other neighbours of that
//! rank, over streams of its own.
//!
//! Such streams make a circle of the tree, which does no harm: each rank passes on what is new to
//! it only, and the group ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::control::client::{self, Attached};
use crate::control::membership::{Membership, Phase};

/// How long it may take to connect to one rank.
const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(300);
/// Most ranks that are connected to.
const ATTEMPTS_MAX: usize = 32;

/// The neighbours that have said nothing since then, and whose streams are open.
fn silent_since(shared: &Membership, since: Instant) -> Vec<usize> {
    let state = shared.state();
    let links = state.links.iter();
    let silent = links.filter(|(_, link)| link.open && !link.left && link.silence.begin() < since);
    silent.map(|(rank, _)| *rank).collect()
}

/// Connects to the other neighbours of all neighbours that have said nothing since then. Returns
/// when all have answered or had the time for it.
pub(super) async fn around_silent(shared: &Arc<Membership>, since: Instant) {
    let _ = around(shared, silent_since(shared, since)).await;
}

/// After this rank has said goodbye: the same for neighbours that have not taken it, if there is a
/// failure to tell. Returns whether there are new streams, on which it was told.
pub(super) async fn around_deaf(shared: &Arc<Membership>) -> bool {
    if shared.status.first_failure().is_none() {
        return false;
    }
    let deaf: Vec<usize> = {
        let state = shared.state();
        let links = state.links.iter();
        let deaf = links.filter(|(_, link)| link.open && !link.left);
        deaf.map(|(rank, _)| *rank).collect()
    };
    if deaf.is_empty() {
        return false;
    }
    // As long as that takes this rank has not left.
    shared.state().phase = Phase::Formed;
    around(shared, deaf).await
}

/// Returns whether there are new streams.
async fn around(shared: &Arc<Membership>, neighbours: Vec<usize>) -> bool {
    let mut others: Vec<usize> = {
        let state = shared.state();
        let of = |rank: &usize| state.neighbours_of(*rank, shared.rank);
        let others = neighbours.iter().flat_map(of);
        others
            .filter(|rank| !state.links.contains_key(rank))
            .collect()
    };
    others.sort_unstable();
    others.dedup();
    others.truncate(ATTEMPTS_MAX);
    let mut attempts = JoinSet::new();
    for rank in others {
        attempts.spawn(connect(shared.clone(), rank));
    }
    let mut has_any = false;
    while let Some(connected) = attempts.join_next().await {
        has_any |= connected.unwrap_or(false);
    }
    has_any
}

/// Connects to a rank; what it says is handled as that of a parent. Returns whether it could.
async fn connect(shared: Arc<Membership>, rank: usize) -> bool {
    let address = shared.addresses.get(rank).unwrap_or_default();
    let joining = client::try_join(&shared, rank, &address, true);
    let Ok(Ok(Attached::Stream(id, inbound))) =
        tokio::time::timeout(ATTEMPT_TIMEOUT, joining).await
    else {
        return false;
    };
    tracing::debug!(
        rank = shared.rank,
        peer = rank,
        "goes around a silent neighbour"
    );
    tokio::spawn(async move {
        client::read_messages(&shared, rank, id, *inbound).await;
    });
    true
}
