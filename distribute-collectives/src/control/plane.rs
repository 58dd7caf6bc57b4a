//! Joining a group, and the thread that keeps the streams to its ranks.

use std::net::IpAddr;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use distribute_net::address::{self, BoundListener};
use distribute_net::handshake::{Hello, Identity, Purpose, Secret};
use distribute_net::shortage::shortage;
use fixedbitset::FixedBitSet;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::communicator::AbortTarget;
use crate::control::generated::envelope::Message;
use crate::control::generated::{self as message, Announcement, Goodbye, RankAddress, Refusal};
use crate::control::handshake::PROTOCOL_VERSION;
use crate::control::membership::{
    JoinFailure, JoinOptions, Link, Membership, MissingReason, NOT_CONNECTED, Phase, State,
    UnprovenClaim,
};
use crate::control::{client, clock, detour, interrupted, probe, process, server, watch};
use crate::error::{CollectiveError, Result};
use crate::failure::FailureKind;
use crate::grpc::Doorway;
use crate::header::OperationHeader;
use crate::operation::OperationKind;
use crate::status::GroupStatus;

/// Without a token of its own: how long a rank waits for the right one of a rank that has one.
const UNPROVEN_CLAIM_GRACE: Duration = Duration::from_secs(5);
/// How long to stay so that ranks which come a little later hear why the group cannot form.
const JOIN_FAILURE_LINGER: Duration = Duration::from_secs(1);
/// How long to wait for the others to read the goodbye.
const GOODBYE_TIMEOUT: Duration = Duration::from_millis(500);
/// The same for a rank that was told to end.
const INTERRUPTED_GOODBYE_TIMEOUT: Duration = Duration::from_millis(100);
/// How long to wait for a name look-up that cannot be interrupted.
const RUNTIME_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// The largest description of a rank's shared memory.
const SHARED_MEMORY_MAX_BYTES: usize = 16 << 10;
/// The longest description of options and the longest name of a group.
const TEXT_MAX_BYTES: usize = 4 << 10;

/// Another rank of the group.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) rank: usize,
    /// The address of the rank in the list.
    pub(crate) address: String,
    #[cfg_attr(
        not(any(test, feature = "shm")),
        expect(dead_code, reason = "only ranks that share memory need it")
    )]
    pub(crate) announcement: Announcement,
}

/// One rank's membership in a group. Dropping it says goodbye to the others, closes all
/// connections and ends the thread.
pub(crate) struct ControlPlane {
    pub(super) shared: Arc<Membership>,
    peers: Vec<Peer>,
    runtime: Handle,
    /// Carries the reason for leaving.
    leave: Option<oneshot::Sender<String>>,
    thread: Option<JoinHandle<()>>,
}

impl ControlPlane {
    /// Meets the other ranks; returns when all have met all. `listener` is bound to this rank's
    /// address. `status` hears of lost and silent ranks from now on, and what it hears of first is
    /// told to all ranks.
    ///
    /// # Errors
    /// [`CollectiveError::Rendezvous`] names the ranks that did not come before the deadline,
    /// [`CollectiveError::Refused`] a rank that does not fit, [`CollectiveError::PeerLost`] one
    /// that was lost at the last moment, [`CollectiveError::Interrupted`] that the interruption was
    /// raised.
    pub(crate) fn join(
        options: JoinOptions,
        listener: BoundListener,
        status: Arc<GroupStatus>,
    ) -> Result<ControlPlane> {
        check(&options)?;
        let hello = hello(&options)?;
        ControlPlane::join_with_hello(hello, options, listener, status)
    }

    /// As [`join`](Self::join), saying this about itself.
    pub(super) fn join_with_hello(
        hello: Hello,
        options: JoinOptions,
        listener: BoundListener,
        status: Arc<GroupStatus>,
    ) -> Result<ControlPlane> {
        let tls = options.security.tls_settings()?;
        let shared = Arc::new(Membership::new(options, hello, tls, status));
        let waiting = shared.clone();
        let _listening = (shared.interruption).on_raise(move || waiting.changed.notify_one());
        let (leave, left) = oneshot::channel();
        let (joined, outcome) = mpsc::channel();
        let (rank, own) = (shared.rank, shared.clone());
        let thread = std::thread::Builder::new()
            .name(process::THREAD_NAME.to_string())
            .spawn(move || run(own, listener, joined, left))
            .map_err(|error| unavailable(rank, &error))?;
        // The thread always answers: it knows the deadline.
        let joined = outcome.recv().unwrap_or_else(|_| {
            let ended = "its thread ended".to_string();
            Err(unavailable(rank, &std::io::Error::other(ended)))
        });
        match joined {
            Ok((peers, runtime)) => Ok(ControlPlane {
                shared,
                peers,
                runtime,
                leave: Some(leave),
                thread: Some(thread),
            }),
            Err(error) => {
                // A panic there was noted by the guard of the thread.
                let _ = thread.join();
                Err(error)
            }
        }
    }

    /// All other ranks, in rank order.
    pub(crate) fn peers(&self) -> &[Peer] {
        &self.peers
    }

    /// What this rank and another one know, and others only if they know the token too.
    pub(crate) fn secret_with(&self, rank: usize) -> Secret {
        let secret = self.shared.secret_with(&self.shared.state(), rank);
        // All are known since they have met.
        secret.unwrap_or_default()
    }

    /// Where data connections come from.
    pub(crate) fn doorway(&self) -> Doorway {
        Doorway {
            entrance: self.shared.entrance.clone(),
            runtime: self.runtime.clone(),
            tls: self.shared.tls.clone(),
        }
    }

    /// What an [`AbortHandle`](crate::AbortHandle) acts on.
    pub(crate) fn abort_target(&self) -> Arc<dyn AbortTarget> {
        self.shared.clone()
    }

    /// Gives every rank the values of all ranks, in rank order: at most 16 KiB each, for what has
    /// to be agreed on at the start. All ranks call it equally often.
    ///
    /// # Errors
    /// The failure that ended the group, or [`CollectiveError::Timeout`] with the ranks whose
    /// value did not come within the time that joining may take.
    pub(crate) fn all_gather(&self, value: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.shared.gather(value)
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        let reason = if std::thread::panicking() {
            "its thread panicked"
        } else {
            ""
        };
        if let Some(leave) = self.leave.take() {
            let _ = leave.send(reason.to_string());
        }
        if let Some(thread) = self.thread.take() {
            // A panic there was noted by the guard of the thread.
            let _ = thread.join();
        }
    }
}

fn unavailable(rank: usize, error: &std::io::Error) -> CollectiveError {
    let why = shortage(error).unwrap_or_else(|| error.to_string());
    let reason = format!("rank {rank} cannot start it: {why}");
    CollectiveError::unavailable("the control plane", reason)
}

/// Refuses options that cannot be right.
fn check(options: &JoinOptions) -> Result<()> {
    let world_size = options.addresses.len();
    let mut sorted: Vec<&String> = options.addresses.iter().flatten().collect();
    sorted.sort();
    let what = if options.rank >= world_size {
        format!(
            "rank {} does not exist: there are {world_size} addresses",
            options.rank
        )
    } else if options.addresses.first().is_none_or(Option::is_none) {
        "the address of rank 0 is needed: it is where the ranks meet".to_string()
    } else if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        format!("two ranks have the address {}", pair[0])
    } else if options.arity == 0 {
        "the arity of the tree must be above 0".to_string()
    } else if options.heartbeat_interval.is_zero() || options.heartbeat_misses == 0 {
        "the interval and the misses of heartbeats must be above 0".to_string()
    } else if options.announcement.shared_memory.len() > SHARED_MEMORY_MAX_BYTES {
        "the description of the shared memory is too long".to_string()
    } else if options.group.len() > TEXT_MAX_BYTES || options.options.len() > TEXT_MAX_BYTES {
        format!("the name of the group has more than {TEXT_MAX_BYTES} bytes")
    } else {
        for (rank, address) in options.addresses.iter().enumerate() {
            let Some(address) = address else { continue };
            address::split(address).map_err(|reason| CollectiveError::InvalidOption {
                what: format!("cannot use the address {address} of rank {rank}: {reason}"),
            })?;
        }
        return Ok(());
    };
    Err(CollectiveError::InvalidOption { what })
}

pub(super) fn hello(options: &JoinOptions) -> Result<Hello> {
    let build = env!("CARGO_PKG_VERSION");
    let mut hello = Hello::new(Purpose::Control, PROTOCOL_VERSION, build);
    hello.identity = Identity {
        group: options.group.clone(),
        task: options.rank as u32,
        run: distribute_net::random_hex::<16>()?,
        generation: options.generation,
    };
    hello.details = json!({
        "world_size": options.addresses.len(),
        "options": options.options,
        "address": options.told_address,
    })
    .to_string();
    Ok(hello)
}

/// Notes that the thread has ended by a panic, so that it is not waited for.
struct ThreadGuard(Arc<Membership>);

impl Drop for ThreadGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let reason = "its control thread panicked".to_string();
            let rank = self.0.rank;
            self.0.record_failure(FailureKind::Lost { rank, reason });
            self.0.gathered.notify_all();
        }
    }
}

/// The other ranks, and the runtime of the thread.
type Joined = (Vec<Peer>, Handle);

/// The thread.
fn run(
    shared: Arc<Membership>,
    listener: BoundListener,
    joined: mpsc::Sender<Result<Joined>>,
    left: oneshot::Receiver<String>,
) {
    let _guard = ThreadGuard(shared.clone());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(2)
        .build();
    match runtime {
        Ok(runtime) => {
            runtime.block_on(run_tasks(&shared, listener, joined, left));
            // Ends all tasks and closes all connections.
            runtime.shutdown_timeout(RUNTIME_SHUTDOWN_TIMEOUT);
        }
        Err(error) => drop(joined.send(Err(unavailable(shared.rank, &error)))),
    }
}

async fn run_tasks(
    shared: &Arc<Membership>,
    listener: BoundListener,
    joined: mpsc::Sender<Result<Joined>>,
    left: oneshot::Receiver<String>,
) {
    let _first = shared.local.set(listener.local_addr());
    let reporter = HealthReporter::new();
    watch::report(&reporter, ServingStatus::NotServing).await;
    if let Err(error) = server::start(shared, listener.into_socket(), reporter.clone()) {
        let _ = joined.send(Err(unavailable(shared.rank, &error)));
        return;
    }
    tokio::spawn(client::keep_attached(shared.clone()));
    tokio::spawn(client::look_up_addresses(shared.clone()));
    let ticking = shared.clone();
    tokio::spawn(async move { ticking.compute.keep_ticking().await });
    tokio::spawn(watch::keep_watch(shared.clone()));
    tokio::spawn(watch::spread_news(shared.clone()));
    tokio::spawn(probe::dial_silent_ranks(shared.clone()));
    tokio::spawn(watch::spread_failures(shared.clone(), reporter.clone()));
    match wait_for_all_ranks(shared).await {
        Ok(peers) => {
            watch::report(&reporter, ServingStatus::Serving).await;
            tokio::spawn(interrupted::end_waits(shared.clone()));
            let _ = joined.send(Ok((peers, Handle::current())));
            let reason = left.await.unwrap_or_default();
            leave(shared, reason, Vec::new()).await;
        }
        Err(error) => {
            // A rank that this one has not met for want of descriptors is not to blame.
            let waited_for = match shared.state().shortage {
                Some(_) => Vec::new(),
                None => waited_for(&error),
            };
            leave(shared, error.to_string(), waited_for).await;
            // Only now: the caller may end the process at once.
            let _ = joined.send(Err(error));
        }
    }
}

/// Waits until all ranks have met all ranks.
async fn wait_for_all_ranks(shared: &Membership) -> Result<Vec<Peer>> {
    loop {
        let wake = match join_progress(shared)? {
            JoinProgress::Joined(peers) => return Ok(peers),
            JoinProgress::Until(wake) => wake,
        };
        let _ = tokio::time::timeout_at(wake.into(), shared.changed.notified()).await;
    }
}

/// How far joining has come.
pub(super) enum JoinProgress {
    Joined(Vec<Peer>),
    /// Look again when something changed, at the latest then.
    Until(Instant),
}

/// One look at what has happened. When nothing more does, the next one is due at the time that it
/// returns.
pub(super) fn join_progress(shared: &Membership) -> Result<JoinProgress> {
    if let Some(failure) = shared.status.first_failure() {
        let generation = shared.hello.identity.generation;
        let header = OperationHeader::new(OperationKind::Barrier, generation, 0);
        return Err(failure.kind.into_error(&header));
    }
    let (now, state) = (clock::now(), &mut *shared.state());
    if let Some(join_failure) = &state.join_failure {
        // The others start at about the same time: they need not wait for their deadlines.
        let until = (join_failure.since + JOIN_FAILURE_LINGER).min(shared.deadline);
        let all_know = informed(state, join_failure).count_ones(..) == shared.world_size();
        return if now >= until || all_know {
            Err(refused_error(shared, join_failure.refusal.clone()))
        } else {
            Ok(JoinProgress::Until(until))
        };
    }
    mark_formed(shared, state);
    if let Some(peers) = peers(shared, state) {
        return Ok(JoinProgress::Joined(peers));
    }
    let is_interrupted = shared.interruption.is_raised();
    let is_over = state.phase == Phase::Formed && state.links.values().any(Link::gave_up);
    // With a token an unproven claim only says which error the deadline brings: the process at the
    // other end has proven nothing, and must not be able to end the join earlier.
    let present = state.present(shared.rank);
    let is_missing = |claim: &&UnprovenClaim| !present.contains(claim.rank);
    let claims = state.unproven_claims.iter().filter(is_missing);
    let grace_ends = claims.map(|claim| claim.since + UNPROVEN_CLAIM_GRACE);
    let grace_end = grace_ends.min().filter(|_| !shared.security.has_token());
    let until = grace_end.map_or(shared.deadline, |end| end.min(shared.deadline));
    if is_interrupted || is_over || now >= until {
        Err(rendezvous_error(shared, state, is_interrupted))
    } else {
        Ok(JoinProgress::Until(until))
    }
}

/// The ranks that know why the group cannot form, or hear of it from a neighbour that knows.
fn informed(state: &State, failure: &JoinFailure) -> FixedBitSet {
    let mut informed = FixedBitSet::with_capacity(state.world_size());
    informed.extend(failure.notified.iter().copied());
    for (_, link) in (state.links.iter()).filter(|(rank, _)| failure.notified.contains(rank)) {
        informed.union_with(&link.behind);
    }
    informed
}

/// Goes on from ranks that come and go to a group, when all are there, and says so along the tree:
/// to the parent when all ranks of the own subtree know it, to the children when all ranks do.
fn mark_formed(shared: &Membership, state: &mut State) {
    if state.phase == Phase::Joining {
        if state.present(shared.rank).count_ones(..) != shared.world_size() {
            return;
        }
        state.phase = Phase::Formed;
        for link in state.links.values_mut() {
            link.silence.end(clock::now());
        }
    }
    if state.phase != Phase::Formed || !is_subtree_ready(state) {
        return;
    }
    let all_ready = shared.rank == 0 || state.parent().is_some_and(|(_, parent)| parent.ready);
    let told = state.links.values_mut().filter(|link| link.open);
    for link in told.filter(|link| link.is_parent || all_ready) {
        let ready = Message::Ready(message::Ready {});
        link.told_ready = link.told_ready || link.try_send(ready);
    }
}

/// Whether all ranks of this rank's subtree know all ranks.
fn is_subtree_ready(state: &State) -> bool {
    let mut links = state.links.values();
    links.all(|link| link.is_parent || link.ready)
}

/// The other ranks, when all of them know all ranks.
fn peers(shared: &Membership, state: &State) -> Option<Vec<Peer>> {
    let is_done = |link: &Link| link.ready && link.told_ready;
    if state.phase != Phase::Formed || !state.links.values().all(is_done) {
        return None;
    }
    let others = state.members.iter().enumerate();
    others
        .filter(|(rank, _)| *rank != shared.rank)
        .map(|(rank, member)| {
            let member = member.as_ref()?;
            Some(Peer {
                rank,
                address: shared.addresses.get(rank)?,
                announcement: member.announcement.clone(),
            })
        })
        .collect()
}

fn refused_error(shared: &Membership, refusal: Refusal) -> CollectiveError {
    CollectiveError::Refused {
        rank: shared.rank,
        address: refusal.address,
        reason: refusal.reason,
        options: refusal.options,
    }
}

/// The error at the deadline, or when a rank that was there has left without having met all, or
/// when this rank was told to end: an interruption then, unless a claim without the right token
/// says more.
fn rendezvous_error(shared: &Membership, state: &State, is_interrupted: bool) -> CollectiveError {
    let present = state.present(shared.rank);
    let is_missing = |rank: usize| !present.contains(rank);
    let others = (0..shared.world_size()).filter(|rank| *rank != shared.rank);
    let (absent, met): (Vec<_>, Vec<_>) = others.partition(|rank| is_missing(*rank));
    let mut claims = state.unproven_claims.iter();
    if let Some(claim) = claims.find(|claim| is_missing(claim.rank)) {
        return unproven_claim_error(shared, state, claim, &absent);
    }
    let waits = |rank: usize| {
        let link = state.links.get(&rank).filter(|link| !link.ready);
        link.map(|_| shared.missing(rank, "it is connected and waits for other ranks"))
    };
    let failed = |rank: usize| shared.missing(rank, missing_reason(shared, state, rank));
    let missing = if absent.is_empty() {
        met.into_iter().filter_map(waits).collect()
    } else {
        let heard: Vec<usize> = absent
            .iter()
            .filter(|rank| could_hear_of(shared, state, **rank))
            .copied()
            .collect();
        culprits(&heard, &state.last).map(failed).collect()
    };
    let elapsed = clock::now().saturating_duration_since(shared.started);
    let rank = shared.rank;
    if is_interrupted {
        CollectiveError::Interrupted {
            rank,
            missing,
            elapsed,
        }
    } else {
        CollectiveError::Rendezvous {
            rank,
            missing,
            elapsed,
        }
    }
}

/// The error when a rank that did not come was claimed without the right token. It names all that
/// did not come: an unauthenticated peer may have claimed the rank.
fn unproven_claim_error(
    shared: &Membership,
    state: &State,
    claim: &UnprovenClaim,
    absent: &[usize],
) -> CollectiveError {
    let mut refusal = claim.refusal.clone();
    for rank in absent.iter().filter(|rank| **rank != claim.rank) {
        let why = missing_reason(shared, state, *rank);
        refusal.reason += &format!("; rank {rank} did not come either ({why})");
    }
    refused_error(shared, refusal)
}

/// Whether this rank would know if that one had come: all ranks tell rank 0, which tells all. As
/// long as this rank does not hear of rank 0, it only knows of the ranks that it dials.
fn could_hear_of(shared: &Membership, state: &State, rank: usize) -> bool {
    let hears_of_rank_0 = state.is_present(shared.rank, 0);
    let has_dialled = || state.last[rank].reason != NOT_CONNECTED;
    hears_of_rank_0 || !state.last[0].waited_for.is_empty() || rank == 0 || has_dialled()
}

/// What is known about a rank that did not come.
fn missing_reason(shared: &Membership, state: &State, rank: usize) -> String {
    let connects_here = shared.is_child(rank);
    // What this process lacks says more than that a child has not connected.
    if let Some(shortage) = state.shortage.as_ref().filter(|_| connects_here) {
        return shortage.clone();
    }
    let mut reason = state.last[rank].reason.clone();
    if shared.addresses.get(rank).is_none() && shared.rank > 0 {
        reason = "it has not come to rank 0".to_string();
    }
    reason += &firewall_note(shared, rank, &reason);
    reason += &loopback_note(shared, rank);
    // Only children connect here. Which one shows a certificate is not known before it has been
    // accepted.
    for refused in state.certificates.iter().filter(|_| connects_here) {
        let (address, why) = (&refused.address, &refused.reason);
        reason += &format!("; a connection from {address} was turned away: {why}");
    }
    reason
}

/// What to do if a rank that has to connect here is started and does not get through.
fn firewall_note(shared: &Membership, rank: usize, reason: &str) -> String {
    match shared.local.get() {
        Some(local)
            if shared.is_child(rank) && reason == NOT_CONNECTED && !local.ip().is_loopback() =>
        {
            format!(
                "; if it runs: a firewall? Let connections from its host to TCP port {} of this \
                 host pass",
                local.port()
            )
        }
        _ => String::new(),
    }
}

/// A common reason why no rank comes from other hosts: a line of `/etc/hosts` says that the
/// name of this host is a loopback address.
fn loopback_note(shared: &Membership, rank: usize) -> String {
    let own = shared.addresses.get(shared.rank).unwrap_or_default();
    let host = address::split(&own).map_or("", |(host, _)| host);
    let is_plain = host.parse::<IpAddr>().is_ok() || host == "localhost";
    match shared.local.get() {
        Some(local) if shared.is_child(rank) && local.ip().is_loopback() && !is_plain => format!(
            "; on this host {host} is {}, which other hosts cannot reach: give an IP address, or \
             correct /etc/hosts",
            local.ip()
        ),
        _ => String::new(),
    }
}

/// Leaves out ranks that were there and gave up waiting for another absent rank: their deadline was
/// only a moment earlier than that of this rank.
fn culprits(absent: &[usize], last: &[MissingReason]) -> impl Iterator<Item = usize> {
    let never_came = move |rank: &usize| absent.contains(rank) && last[*rank].waited_for.is_empty();
    let is_victim = move |rank: &usize| last[*rank].waited_for.iter().any(never_came);
    absent.iter().copied().filter(move |rank| !is_victim(rank))
}

/// The ranks that did not come, if the error says so.
pub(super) fn waited_for(error: &CollectiveError) -> Vec<u32> {
    match error {
        CollectiveError::Rendezvous { missing, .. } => {
            missing.iter().map(|missing| missing.rank as u32).collect()
        }
        _ => Vec::new(),
    }
}

/// Tells the others what went wrong, if something did, and says goodbye.
pub(super) fn say_goodbye(shared: &Membership, reason: String, waited_for: Vec<u32>) {
    shared.tell_first_failure();
    watch::send_departure(shared);
    shared.spread(true);
    let mut state = shared.state();
    let successors = successors(shared, &state);
    state.phase = Phase::Leaving;
    for link in state.links.values_mut() {
        link.send(Message::Goodbye(Goodbye {
            completed: shared.status.completed(),
            reason: reason.clone(),
            waited_for: waited_for.clone(),
            // The parent needs none.
            successors: successors
                .iter()
                .filter(|_| !link.is_parent)
                .cloned()
                .collect(),
        }));
        link.sender = None;
    }
}

/// To whom the children connect when this rank leaves: to its parent, and if it is the root to the
/// first child that still is there.
fn successors(shared: &Membership, state: &State) -> Vec<RankAddress> {
    let ranks: Vec<usize> = match state.parent() {
        Some((parent, _)) => vec![parent],
        None => {
            let children = state
                .links
                .iter()
                .filter(|(_, link)| link.open && !link.left);
            children.map(|(rank, _)| *rank).collect()
        }
    };
    let known = |rank: usize| {
        let address = shared.addresses.get(rank)?;
        let rank = rank as u32;
        Some(RankAddress { rank, address })
    };
    ranks.into_iter().filter_map(known).collect()
}

/// Says goodbye and waits until the others have heard it, within limits.
async fn leave(shared: &Arc<Membership>, reason: String, waited_for: Vec<u32>) {
    say_goodbye(shared, reason.clone(), waited_for.clone());
    await_closed(shared).await;
    if detour::around_deaf(shared).await {
        say_goodbye(shared, reason, waited_for);
        await_closed(shared).await;
    }
}

/// Waits until the others have closed their streams, within limits.
async fn await_closed(shared: &Membership) {
    let all_closed = async {
        while shared.state().has_streams() {
            shared.changed.notified().await;
        }
    };
    let limit = if shared.interruption.is_raised() {
        INTERRUPTED_GOODBYE_TIMEOUT
    } else {
        GOODBYE_TIMEOUT
    };
    let _ = tokio::time::timeout(limit, all_closed).await;
}
