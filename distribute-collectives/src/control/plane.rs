//! Joining a group, and the thread that keeps the streams to its ranks.

use std::net::IpAddr;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use distribute_net::address::{self, BoundListener};
use distribute_net::handshake::{Hello, Identity, Purpose, SessionKey};
use distribute_net::shortage::shortage;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::communicator::AbortTarget;
use crate::control::generated::envelope::Message;
use crate::control::generated::{self as message, Announcement, Goodbye, Refusal};
use crate::control::handshake::PROTOCOL_VERSION;
use crate::control::membership::{
    JoinOptions, Link, Membership, MissingReason, NOT_CONNECTED, Phase, State, UnprovenClaim,
};
use crate::control::{client, clock, interrupted, probe, process, server, watch};
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) rank: usize,
    /// The address of the rank in the list.
    pub(crate) address: String,
    /// The IP address that its control connection has.
    pub(crate) ip: IpAddr,
    pub(crate) announcement: Announcement,
    /// Known to the two ranks only (when there is a token).
    pub(crate) session_key: SessionKey,
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
    // The nearest first, so that not all ranks begin with rank 0.
    for rank in (0..shared.rank).rev() {
        tokio::spawn(client::keep_connected(shared.clone(), rank));
    }
    for rank in shared.rank + 1..shared.world_size() {
        tokio::spawn(client::look_up_address(shared.clone(), rank));
    }
    let ticking = shared.clone();
    tokio::spawn(async move { ticking.compute.keep_ticking().await });
    tokio::spawn(watch::send_heartbeats(shared.clone()));
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
        let all_know = (0..shared.world_size()).all(|rank| join_failure.notified.contains(&rank));
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
    let is_over = state.phase == Phase::Formed && state.links.iter().flatten().any(Link::gave_up);
    // With a token an unproven claim only says which error the deadline brings: the process at the
    // other end has proven nothing, and must not be able to end the join earlier.
    let is_missing = |claim: &&UnprovenClaim| state.links[claim.rank].is_none();
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

/// Tells all ranks when this one has met all of them.
fn mark_formed(shared: &Membership, state: &mut State) {
    let met = |link: &&Link| link.open && link.announcement.is_some();
    let count = state.links.iter().flatten().filter(met).count();
    if state.phase != Phase::Joining || count + 1 != shared.world_size() {
        return;
    }
    state.phase = Phase::Formed;
    for link in state.links.iter_mut().flatten() {
        link.silence.end(clock::now());
        link.send(Message::Ready(message::Ready {}));
    }
}

/// The peers, when all of them have met all ranks.
fn peers(shared: &Membership, state: &State) -> Option<Vec<Peer>> {
    if state.phase != Phase::Formed {
        return None;
    }
    let others = state.links.iter().enumerate();
    others
        .filter(|(rank, _)| *rank != shared.rank)
        .map(|(rank, link)| {
            let link = link.as_ref().filter(|link| link.ready)?;
            Some(Peer {
                rank,
                address: shared.addresses.get(rank)?,
                ip: link.ip,
                announcement: link.announcement.clone()?,
                session_key: link.session_key.clone(),
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
    let is_missing = |rank: usize| state.links[rank].as_ref().is_none_or(Link::gave_up);
    let others = (0..shared.world_size()).filter(|rank| *rank != shared.rank);
    let (absent, met): (Vec<_>, Vec<_>) = others.partition(|rank| is_missing(*rank));
    let mut claims = state.unproven_claims.iter();
    if let Some(claim) = claims.find(|claim| is_missing(claim.rank)) {
        return unproven_claim_error(shared, state, claim, &absent);
    }
    let waits = |rank: usize| {
        let link = state.links[rank].as_ref().filter(|link| !link.ready);
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

/// Whether this rank would know if that one had come. Where it listens, only rank 0 says, which may
/// be missing itself.
fn could_hear_of(shared: &Membership, state: &State, rank: usize) -> bool {
    let told_of = shared.addresses.is_listed(rank) || shared.addresses.get(rank).is_some();
    let has_leader = || {
        let leader = state.links[0].as_ref().is_some_and(|link| !link.gave_up());
        shared.rank == 0 || leader || !state.last[0].waited_for.is_empty()
    };
    told_of || has_leader()
}

/// What is known about a rank that did not come.
fn missing_reason(shared: &Membership, state: &State, rank: usize) -> String {
    // Higher ranks connect; what this process lacks says more than that they have not.
    if let Some(shortage) = state.shortage.as_ref().filter(|_| rank > shared.rank) {
        return shortage.clone();
    }
    let mut reason = state.last[rank].reason.clone();
    if shared.rank > 0 && shared.addresses.get(rank).is_none() {
        reason = "it has not come to rank 0".to_string();
    }
    reason += &firewall_note(shared, rank, &reason);
    reason += &loopback_note(shared, rank);
    // Only higher ranks connect here. Which one shows a certificate is not known before it has
    // been accepted.
    for refused in state.certificates.iter().filter(|_| rank > shared.rank) {
        let (address, why) = (&refused.address, &refused.reason);
        reason += &format!("; a connection from {address} was turned away: {why}");
    }
    reason
}

/// What to do if a rank that has to connect here is started and does not get through.
fn firewall_note(shared: &Membership, rank: usize, reason: &str) -> String {
    match shared.local.get() {
        Some(local)
            if rank > shared.rank && reason == NOT_CONNECTED && !local.ip().is_loopback() =>
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
        Some(local) if rank > shared.rank && local.ip().is_loopback() && !is_plain => format!(
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
    watch::send_first_failure(shared);
    watch::send_departure(shared);
    let goodbye = Goodbye {
        completed: shared.status.completed(),
        reason,
        waited_for,
    };
    let mut state = shared.state();
    state.phase = Phase::Leaving;
    for link in state.links.iter_mut().flatten() {
        link.send(Message::Goodbye(goodbye.clone()));
        link.sender = None;
    }
}

/// Says goodbye and waits until the others have heard it, within limits.
async fn leave(shared: &Membership, reason: String, waited_for: Vec<u32>) {
    say_goodbye(shared, reason, waited_for);
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
