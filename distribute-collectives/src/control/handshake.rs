//! A rank and its parent find out whether they are of one group.

use std::net::IpAddr;
use std::time::Duration;
use std::{fmt, io};

use distribute_net::address;
use distribute_net::exchange::{self, ExchangeError};
use distribute_net::handshake::{Authenticated, HandshakeError, Hello, Identity, Listener};
use distribute_net::peers::{Connection, ConnectionGuard};
use fixedbitset::FixedBitSet;
use serde::Deserialize;
use serde_json::Value;
use tonic::{Code, Status};

use crate::control::generated::envelope::Message;
use crate::control::generated::{Announcement, RankAddress, Refusal};
use crate::control::membership::{Link, Member, Membership, Phase, Sender, State, Told};
use crate::control::silence::Silence;
use crate::control::{addresses, clock};

/// The version of the messages that follow the handshake.
pub(super) const PROTOCOL_VERSION: u32 = 8;
/// How long a peer may take for each step.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a handshake did not succeed.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum HandshakeFailure {
    /// The peer cannot be a member of this group as both are configured. With the names of the
    /// options that differ, if it has proven itself and that is the reason.
    Refused(Code, String, Vec<String>),
    /// The peer did not prove who it is.
    Unproven(String),
    /// Not now, but perhaps later.
    Later(Code, String),
}

impl fmt::Display for HandshakeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(_, reason, _) => f.write_str(reason),
            Self::Unproven(reason) => write!(f, "not proven to be of this job: {reason}"),
            Self::Later(_, reason) => write!(f, "not yet: {reason}"),
        }
    }
}

impl HandshakeFailure {
    pub(super) fn later(reason: impl Into<String>) -> HandshakeFailure {
        HandshakeFailure::Later(Code::Unavailable, reason.into())
    }

    fn refused(code: Code, reason: String) -> HandshakeFailure {
        HandshakeFailure::Refused(code, reason, Vec::new())
    }

    /// What the others are told of it; the peer is at `address`.
    pub(super) fn refusal(self, address: String) -> Refusal {
        let (reason, options) = match self {
            Self::Refused(_, reason, options) => (reason, options),
            Self::Unproven(reason) | Self::Later(_, reason) => (reason, Vec::new()),
        };
        Refusal {
            address,
            reason,
            options,
        }
    }

    /// The status that the peer's stream ends with. `peer` is what this says of the peer; the
    /// reader is that peer.
    pub(super) fn status(&self, rank: usize) -> Status {
        let (code, reason) = match self {
            Self::Refused(code, reason, _) | Self::Later(code, reason) => (*code, reason),
            Self::Unproven(reason) => (Code::Unauthenticated, reason),
        };
        Status::new(code, format!("rank {rank} says of this rank: {reason}"))
    }
}

/// What the ranks of one group have in common, beside what every handshake compares.
#[derive(Deserialize)]
struct Settings {
    world_size: u32,
    options: String,
    /// Where the rank listens, if that is not listed.
    #[serde(default)]
    address: Option<String>,
    /// The rank knows its place in the tree; one that does not asks rank 0.
    #[serde(default)]
    is_placed: bool,
}

/// What this rank says in the handshake with `peer_rank`, which it dials at an address or not;
/// `is_placed` when it wants that rank as its parent, not to ask for one.
pub(super) fn hello(
    shared: &Membership,
    peer_rank: usize,
    address: &str,
    is_placed: bool,
) -> Hello {
    let mut hello = shared.hello.clone();
    hello.peer_task = Some(peer_rank as u32);
    hello.address = address.to_string();
    if is_placed && let Ok(Value::Object(mut details)) = serde_json::from_str(&hello.details) {
        details.insert("is_placed".to_string(), true.into());
        hello.details = Value::Object(details).to_string();
    }
    hello
}

/// The address that the other ranks must have dialled: that of this rank in the list that all have.
/// Empty, which fits any, where nothing is proven without a token (who forwards such a port may),
/// and for a rank that listens at all addresses: the others' lists cannot have that one.
fn own_address(shared: &Membership) -> String {
    let address = shared.addresses.get(shared.rank).unwrap_or_default();
    let host = address::split(&address).map_or("", |(host, _)| host);
    let is_everywhere = host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
    if shared.security.has_token() && !is_everywhere {
        address
    } else {
        String::new()
    }
}

/// What a failed handshake says of the peer. One that has proven itself, or has the address that
/// this rank was told to connect to, cannot be a member as both are configured; of an
/// unauthenticated peer nothing follows.
fn failure(error: HandshakeError, is_known: bool) -> HandshakeFailure {
    let reason = match &error {
        HandshakeError::OtherGeneration { theirs, ours } => {
            format!("it is in generation {theirs}, this rank in {ours}")
        }
        HandshakeError::OtherVersion { theirs, ours, .. } => {
            format!("it speaks version {theirs} of the protocol, this rank version {ours}")
        }
        HandshakeError::OtherBuild { theirs, ours } => {
            format!("it has version {theirs} of distribute-collectives, this rank version {ours}")
        }
        other => other.to_string(),
    };
    match error {
        HandshakeError::SecretOfOneSide { .. } | HandshakeError::WrongProof => {
            HandshakeFailure::Unproven(reason)
        }
        HandshakeError::OtherGeneration { .. } => {
            HandshakeFailure::Later(Code::FailedPrecondition, reason)
        }
        HandshakeError::Malformed { .. } if is_known => HandshakeFailure::later(format!(
            "what answers there is no rank that this one understands, or one with TLS settings of \
             its own ({reason})"
        )),
        HandshakeError::Malformed { .. } | HandshakeError::Own(_) => {
            HandshakeFailure::later(reason)
        }
        _ if is_known => HandshakeFailure::refused(Code::InvalidArgument, reason),
        _ => HandshakeFailure::Later(Code::InvalidArgument, reason),
    }
}

/// Refuses what differs between two ranks of one generation that have proven themselves. The other
/// end of the stream is supposed to be rank `expected`, if this one has dialled.
pub(super) fn compare(
    own: &Hello,
    peer: &Hello,
    expected: Option<u32>,
) -> Result<(), HandshakeFailure> {
    let (rank, theirs) = (own.identity.task, peer.identity.task);
    let settings = |of: &Hello| of.read_details().map_err(|error| failure(error, true));
    let (ours, of_peer): (Settings, Settings) = (settings(own)?, settings(peer)?);
    let reason = if peer.identity.group != own.identity.group {
        let (theirs, ours) = (&peer.identity.group, &own.identity.group);
        format!("it is in group {theirs:?}, this rank in {ours:?}")
    } else if of_peer.world_size != ours.world_size {
        let (theirs, ours) = (of_peer.world_size, ours.world_size);
        format!("it has world size {theirs}, this rank {ours}")
    } else if theirs == rank {
        let reason = format!("it also says that it is rank {rank}: two processes have one rank");
        return Err(HandshakeFailure::refused(Code::AlreadyExists, reason));
    } else if peer.peer_task != Some(rank) {
        let wanted = peer
            .peer_task
            .map_or("no rank".to_string(), |it| format!("rank {it}"));
        format!("it expects {wanted} at the address of rank {rank}: the lists of addresses differ")
    } else if expected.is_some_and(|expected| theirs != expected) {
        format!("it is rank {theirs}: the lists of addresses differ")
    } else if expected.is_none() && !(1..ours.world_size).contains(&theirs) {
        format!("it says that it is rank {theirs}, which cannot be")
    } else if of_peer.options != ours.options {
        return Err(other_options(&of_peer.options, &ours.options));
    } else {
        return Ok(());
    };
    Err(HandshakeFailure::refused(Code::InvalidArgument, reason))
}

/// Whether the rank of that number can have the certificate that this peer has shown. What a rank
/// shows when it is dialled is checked with TLS' own handshake.
fn check_certificate(
    shared: &Membership,
    guard: &ConnectionGuard,
    peer: &Hello,
) -> Result<(), HandshakeFailure> {
    let address = match told_address(shared, peer)? {
        Some(told) => Some(told),
        None => shared.addresses.get(peer.identity.task as usize),
    };
    check_host(guard, address.as_deref())
}

/// Whether the peer has a certificate for the host of the address of its rank.
pub(super) fn check_host(
    guard: &ConnectionGuard,
    address: Option<&str>,
) -> Result<(), HandshakeFailure> {
    match address.and_then(|it| address::split(it).ok()) {
        Some((host, _)) if !guard.channel().is_for_host(host) => {
            Err(HandshakeFailure::Unproven(format!(
                "its certificate is not for {host}, the host of its address; check the \
                 certificates of both ranks"
            )))
        }
        _ => Ok(()),
    }
}

/// Where a rank says that it listens, if it is not listed.
fn told_address(shared: &Membership, peer: &Hello) -> Result<Option<String>, HandshakeFailure> {
    let rank = peer.identity.task as usize;
    if shared.addresses.is_listed(rank) {
        return Ok(None);
    }
    let settings: Settings = peer.read_details().map_err(|error| failure(error, true))?;
    let refused = |reason| HandshakeFailure::refused(Code::InvalidArgument, reason);
    let told = settings.address.ok_or_else(|| {
        let reason = "it does not say where it listens, and is not listed here: give all ranks \
                      the same list of addresses, or none";
        refused(reason.to_string())
    })?;
    let wrong = |why| refused(format!("it says that it listens at {told}: {why}"));
    addresses::check_told(&told).map_err(wrong)?;
    Ok(Some(told))
}

/// Two lists of options that differ: the parts that do, or all where one is longer.
fn other_options(theirs: &str, ours: &str) -> HandshakeFailure {
    const BETWEEN: &str = ", ";
    let [mut theirs, mut ours] = [theirs, ours].map(|it| it.split(BETWEEN).collect::<Vec<_>>());
    if theirs.len() == ours.len() {
        let pairs = theirs.into_iter().zip(ours);
        (theirs, ours) = pairs.filter(|(theirs, ours)| theirs != ours).unzip();
    }
    // "transport grpc", "4 lanes"
    let is_name = |word: &&str| !word.starts_with(|it: char| it.is_ascii_digit());
    let name = |option: &&str| option.split(' ').find(is_name).map(str::to_string);
    let names = ours.iter().filter_map(name).collect();
    let (theirs, ours) = (theirs.join(BETWEEN), ours.join(BETWEEN));
    let reason = format!("it has the options {theirs:?}, this rank {ours:?}");
    HandshakeFailure::Refused(Code::InvalidArgument, reason, names)
}

/// What a step of a connected peer comes to, within a limit of time.
pub(super) async fn in_time<T>(step: impl Future<Output = T>) -> Result<T, HandshakeFailure> {
    let ended = tokio::time::timeout(STEP_TIMEOUT, step).await;
    ended.map_err(|_| {
        HandshakeFailure::later(
            "it is connected but does not answer: it is stopped or overloaded, or has no file \
             descriptors left, which it says itself then",
        )
    })
}

/// What the status says that a peer ended the stream with.
pub(super) fn rejected(status: &Status) -> HandshakeFailure {
    let reason = status.message().to_string();
    match status.code() {
        Code::Unauthenticated => HandshakeFailure::Unproven(reason),
        Code::InvalidArgument | Code::AlreadyExists => {
            HandshakeFailure::refused(status.code(), reason)
        }
        Code::FailedPrecondition => HandshakeFailure::Later(status.code(), reason),
        code => HandshakeFailure::later(format!(
            "what answers there is no rank that this one understands, or one with TLS settings of \
             its own ({code:?}: {reason})"
        )),
    }
}

/// What an exchange that failed says of the peer; `is_known` when it has the address that this rank
/// was told to connect to.
pub(super) fn exchange_failure(error: ExchangeError, is_known: bool) -> HandshakeFailure {
    match error {
        ExchangeError::Refused(error) => failure(error, is_known),
        ExchangeError::Certificate(reason) => HandshakeFailure::Unproven(reason),
        ExchangeError::Broken(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            HandshakeFailure::later("it closed the connection")
        }
        error => HandshakeFailure::later(format!("the connection broke: {error}")),
    }
}

/// The exchange with a rank that has connected and says who it is. Admits it.
pub(super) async fn authenticate(
    shared: &Membership,
    connection: &mut Connection,
    listener: Listener,
) -> Result<Authenticated, HandshakeFailure> {
    let peer_rank = listener.peer().identity.task as usize;
    let own = hello(shared, peer_rank, &own_address(shared), false);
    let secret = shared.security.secret();
    let answered = exchange::answer(connection, listener, own, &secret).await;
    let proven = answered.map_err(|error| exchange_failure(error, false))?;
    let compatible = proven.check_compatible();
    let peer = compatible.map_err(|error| failure(error, true))?;
    let admitted = connection.guard().admit_or_end();
    admitted.map_err(|_| HandshakeFailure::later("it made room for other connections"))?;
    Ok(peer)
}

/// Whether a rank that has proven itself fits into the group.
pub(super) fn check_peer(
    shared: &Membership,
    guard: &ConnectionGuard,
    peer: &Hello,
) -> Result<(), HandshakeFailure> {
    let own = hello(shared, peer.identity.task as usize, "", false);
    compare(&own, peer, None)?;
    check_certificate(shared, guard, peer)
}

/// On rank 0, of a rank that does not know its place: the ranks that it may have as its parent, the
/// nearest first; none if that is rank 0 itself.
pub(super) fn redirected(
    shared: &Membership,
    peer: &Authenticated,
) -> Result<Vec<RankAddress>, HandshakeFailure> {
    let (identity, hello) = (&peer.peer.identity, &peer.peer);
    let rank = identity.task as usize;
    let settings: Settings = hello.read_details().map_err(|error| failure(error, true))?;
    if shared.rank != 0 || shared.listed.is_some() || settings.is_placed {
        return Ok(Vec::new());
    }
    let told = told_address(shared, hello)?;
    let mut state = shared.state();
    if state.phase != Phase::Joining {
        return Err(too_late(&state, identity.generation));
    }
    refuse_another_process(&state, rank, &identity.run)?;
    if let Some(told) = &told {
        refuse_taken(shared, &state, rank, told)?;
        shared.addresses.learn(rank, told);
    }
    let address = shared.addresses.get(rank).unwrap_or_default();
    state.places.add(rank, &address);
    let ancestors = state.places.ancestors(rank).into_iter();
    let address = |rank: usize| {
        let address = shared.addresses.get(rank)?;
        let rank = rank as u32;
        Some(RankAddress { rank, address })
    };
    Ok(ancestors
        .take_while(|rank| *rank != 0)
        .filter_map(address)
        .collect())
}

/// Refuses an address that another rank has which is here.
pub(super) fn refuse_taken(
    shared: &Membership,
    state: &State,
    rank: usize,
    told: &str,
) -> Result<(), HandshakeFailure> {
    let is_here = |other| other != rank && state.is_present(shared.rank, other);
    match shared.addresses.rank_at(told, is_here) {
        Some(other) => {
            let reason = format!(
                "it says that it listens at {told}, where rank {other} is: tell each rank an \
                 address of its own"
            );
            Err(HandshakeFailure::refused(Code::InvalidArgument, reason))
        }
        None => Ok(()),
    }
}

/// Refuses a second process of a rank while the first one is there.
fn refuse_another_process(state: &State, rank: usize, run: &str) -> Result<(), HandshakeFailure> {
    let is_other = |link: &&Link| link.open && link.run != run;
    if state.links.get(&rank).filter(is_other).is_some() {
        let reason =
            format!("it says that it is rank {rank}, as another one: two processes have one rank");
        return Err(HandshakeFailure::refused(Code::AlreadyExists, reason));
    }
    let others = state.links.iter().filter(|(other, _)| **other != rank);
    let mut through = others.filter(|(_, link)| link.open && link.behind.contains(rank));
    let known = state.members.get(rank).and_then(Option::as_ref);
    match through
        .next()
        .filter(|_| known.is_some_and(|known| known.run != run))
    {
        Some((other, _)) => Err(HandshakeFailure::later(format!(
            "another process with rank {rank} is there, connected to rank {other}: two processes \
             have one rank, or the other one has just ended"
        ))),
        None => Ok(()),
    }
}

fn too_late(state: &State, generation: u64) -> HandshakeFailure {
    let reason = match state.phase {
        Phase::Leaving => "it comes when this rank leaves".to_string(),
        _ => {
            format!("it comes when generation {generation} runs already: it needs a new generation")
        }
    };
    HandshakeFailure::Later(Code::FailedPrecondition, reason)
}

/// Whether a rank may connect now: while the group forms, and later where it is a member whose
/// parent has left.
fn may_connect(state: &State, identity: &Identity) -> bool {
    let known = state.members.get(identity.task as usize);
    let is_member = known.is_some_and(|it| it.as_ref().is_some_and(|it| it.run == identity.run));
    match state.phase {
        Phase::Joining => true,
        Phase::Formed => is_member && !state.links.contains_key(&(identity.task as usize)),
        Phase::Leaving => false,
    }
}

/// How a stream came about.
pub(super) struct Origin {
    pub(super) ip: IpAddr,
    /// What the parent has announced, if this rank has dialled it.
    pub(super) parent: Option<Announcement>,
}

/// Makes a link of a stream whose handshake has succeeded, and announces this rank there.
pub(super) fn register(
    shared: &Membership,
    peer: &Authenticated,
    origin: Origin,
    sender: Sender,
) -> Result<u64, HandshakeFailure> {
    let identity = &peer.peer.identity;
    let rank = identity.task as usize;
    let told = told_address(shared, &peer.peer)?;
    let mut state = shared.state();
    if rank >= state.world_size() {
        let reason = format!("there is no rank {rank}");
        return Err(HandshakeFailure::refused(Code::InvalidArgument, reason));
    }
    if !may_connect(&state, identity) {
        return Err(too_late(&state, identity.generation));
    }
    refuse_another_process(&state, rank, &identity.run)?;
    if let Some(told) = &told {
        refuse_taken(shared, &state, rank, told)?;
        shared.addresses.learn(rank, told);
    }
    let mut link = Link {
        id: state.next_link,
        sender: Some(sender),
        run: identity.run.clone(),
        ip: origin.ip,
        is_parent: origin.parent.is_some(),
        is_announced: false,
        // Where the group has formed, all know all.
        ready: state.phase == Phase::Formed,
        told_ready: state.phase == Phase::Formed,
        silence: Silence::since(clock::now()),
        unwatched: false,
        left: false,
        open: true,
        behind: FixedBitSet::with_capacity(state.world_size()),
        told: Told::nothing(state.world_size()),
        successors: Vec::new(),
        differing_headers: None,
    };
    link.send(Message::Announcement(shared.announcement.clone()));
    if let Some(announcement) = origin.parent {
        link.is_announced = true;
        link.behind.insert(rank);
        let run = identity.run.clone();
        // Of its own parent it tells later.
        state.members[rank] = Some(Member {
            run,
            announcement,
            parent: rank,
        });
        state.welcome(rank);
        state.adopt(shared.rank, rank);
    }
    if let Some(join_failure) = &mut state.join_failure {
        join_failure.send_to(rank, &link);
    }
    let id = link.id;
    state.next_link += 1;
    state.links.insert(rank, link);
    drop(state);
    // What was told to all before it came.
    shared.tell_first_failure();
    shared.tell_news();
    Ok(id)
}
