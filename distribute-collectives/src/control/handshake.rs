//! The first messages of a stream: two ranks find out whether they form a group.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use tonic::{Code, Status, Streaming};

use crate::control::generated::envelope::Message;
use crate::control::generated::{self as message, Envelope, Hello, Proof, Refusal};
use crate::control::membership::{Link, Membership, MissingReason, Phase, Sender, envelope};
use crate::control::proof::{self, Key, Side};
use crate::control::{Announcement, random};
use crate::error::Result as CollectiveResult;

/// The version of the messages and of the handshake. Ranks with a token and different versions
/// still exchange proofs: where both can read them, both refuse at once.
pub(super) const PROTOCOL_VERSION: u32 = 2;
/// How long a peer may take for each step.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(5);
const NONCE_BYTES: usize = 32;
/// Both sides say this, so that both errors name the token.
const TOKEN_DIFFERS: &str = "its proof of the token is wrong: the two ranks have different tokens";

/// Why a handshake did not succeed.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum HandshakeFailure {
    /// The peer cannot be a member of this group as both are configured.
    Refused(Code, String),
    /// The peer has proven itself, and was given other options.
    OtherOptions {
        reason: String,
        /// The names of those that differ.
        names: Vec<String>,
    },
    /// The peer did not prove who it is.
    Unproven(String),
    /// Not now, but perhaps later.
    Later(Code, String),
}

impl HandshakeFailure {
    pub(super) fn later(reason: impl Into<String>) -> HandshakeFailure {
        HandshakeFailure::Later(Code::Unavailable, reason.into())
    }

    /// What the others are told of it; the peer is at `address`.
    pub(super) fn refusal(self, address: String) -> Refusal {
        let (reason, options) = match self {
            HandshakeFailure::OtherOptions { reason, names } => (reason, names),
            HandshakeFailure::Refused(_, reason)
            | HandshakeFailure::Unproven(reason)
            | HandshakeFailure::Later(_, reason) => (reason, Vec::new()),
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
            HandshakeFailure::Refused(code, reason) | HandshakeFailure::Later(code, reason) => {
                (*code, reason)
            }
            HandshakeFailure::OtherOptions { reason, .. } => (Code::InvalidArgument, reason),
            HandshakeFailure::Unproven(reason) => (Code::Unauthenticated, reason),
        };
        Status::new(code, format!("rank {rank} says of this rank: {reason}"))
    }
}

/// A peer that has proven that it knows the token.
pub(super) struct Authenticated {
    pub(super) hello: Hello,
    pub(super) key: Key,
    pub(super) announcement: Option<Announcement>,
}

/// What this rank says at the start of a stream to `peer_rank`.
pub(super) fn hello(shared: &Membership, peer_rank: usize) -> CollectiveResult<Hello> {
    Ok(Hello {
        peer_rank: peer_rank as u32,
        nonce: random::<NONCE_BYTES>(shared.rank)?.to_vec(),
        ..shared.hello.clone()
    })
}

/// What makes it useless to go on to the proofs. Nothing here ends a group with a token: its peer
/// has not proven anything yet.
fn differs_at_once(own: &Hello, peer: &Hello) -> Option<HandshakeFailure> {
    // First of all: an old generation may differ in everything else, and will go away.
    if peer.generation != own.generation {
        let (theirs, ours) = (peer.generation, own.generation);
        let reason = format!("it is in generation {theirs}, this rank in {ours}");
        return Some(HandshakeFailure::Later(Code::FailedPrecondition, reason));
    }
    // With a token the proofs come first, see `differs`.
    if let Some(reason) = other_version(own, peer).filter(|_| !own.has_token) {
        return Some(invalid(reason));
    }
    if peer.nonce.len() != NONCE_BYTES || peer.instance.is_empty() {
        return Some(HandshakeFailure::later("its first message makes no sense"));
    }
    match (peer.has_token, own.has_token) {
        (true, false) => Some(HandshakeFailure::Unproven(
            "it has a token, this rank has none".to_string(),
        )),
        (false, true) => Some(HandshakeFailure::Unproven(
            "it has no token, this rank has one".to_string(),
        )),
        _ => None,
    }
}

/// How the versions of the protocol differ.
fn other_version(own: &Hello, peer: &Hello) -> Option<String> {
    (peer.protocol_version != own.protocol_version).then(|| {
        format!(
            "it speaks version {} of the protocol, this rank version {}",
            peer.protocol_version, own.protocol_version
        )
    })
}

fn invalid(reason: String) -> HandshakeFailure {
    HandshakeFailure::Refused(Code::InvalidArgument, reason)
}

/// What differs between two ranks of one generation that have proven themselves. The other end of
/// the stream is supposed to be rank `expected`; a server only knows that it must be higher than
/// its own.
fn differs(own: &Hello, peer: &Hello, expected: Option<usize>) -> Option<HandshakeFailure> {
    let reason = if let Some(reason) = other_version(own, peer) {
        reason
    } else if peer.crate_version != own.crate_version {
        format!(
            "it has version {} of distribute-collectives, this rank version {}",
            peer.crate_version, own.crate_version
        )
    } else if peer.group != own.group {
        format!(
            "it is in group {:?}, this rank in {:?}",
            peer.group, own.group
        )
    } else if peer.world_size != own.world_size {
        let (theirs, ours) = (peer.world_size, own.world_size);
        format!("it has world size {theirs}, this rank {ours}")
    } else if peer.rank == own.rank {
        let rank = own.rank;
        let reason = format!("it also says that it is rank {rank}: two processes have one rank");
        return Some(HandshakeFailure::Refused(Code::AlreadyExists, reason));
    } else if peer.peer_rank != own.rank {
        format!(
            "it expects rank {} at the address of rank {}: the lists of addresses differ",
            peer.peer_rank, own.rank
        )
    } else if expected.is_some_and(|rank| peer.rank as usize != rank) {
        format!("it is rank {}: the lists of addresses differ", peer.rank)
    } else if expected.is_none() && !(own.rank + 1..own.world_size).contains(&peer.rank) {
        format!("it says that it is rank {}, which cannot be", peer.rank)
    } else if peer.options != own.options {
        return Some(other_options(&peer.options, &own.options));
    } else {
        return None;
    };
    Some(invalid(reason))
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
    HandshakeFailure::OtherOptions {
        names: ours.iter().filter_map(name).collect(),
        reason: format!(
            "it has the options {:?}, this rank {:?}",
            theirs.join(BETWEEN),
            ours.join(BETWEEN)
        ),
    }
}

/// The next message, within a limit of time.
async fn next(inbound: &mut Streaming<Envelope>) -> Result<Message, HandshakeFailure> {
    match tokio::time::timeout(STEP_TIMEOUT, inbound.message()).await {
        Err(_) => Err(HandshakeFailure::later(
            "it is connected but does not answer",
        )),
        Ok(Err(status)) => Err(rejected(&status)),
        Ok(Ok(Some(Envelope {
            message: Some(message),
        }))) => Ok(message),
        Ok(Ok(_)) => Err(HandshakeFailure::later("it closed the stream")),
    }
}

/// What the status says that a peer ended the stream with.
pub(super) fn rejected(status: &Status) -> HandshakeFailure {
    let reason = status.message().to_string();
    match status.code() {
        Code::Unauthenticated => HandshakeFailure::Unproven(reason),
        Code::InvalidArgument | Code::AlreadyExists => {
            HandshakeFailure::Refused(status.code(), reason)
        }
        Code::FailedPrecondition => HandshakeFailure::Later(status.code(), reason),
        code => HandshakeFailure::later(format!(
            "what answers there is no rank that this one understands, or one with TLS settings of \
             its own ({code:?}: {reason})"
        )),
    }
}

async fn next_hello(inbound: &mut Streaming<Envelope>) -> Result<Hello, HandshakeFailure> {
    match next(inbound).await? {
        Message::Hello(hello) => Ok(hello),
        _ => Err(HandshakeFailure::later("its first message is no Hello")),
    }
}

async fn next_proof(inbound: &mut Streaming<Envelope>) -> Result<Vec<u8>, HandshakeFailure> {
    match next(inbound).await? {
        Message::Proof(proof) => Ok(proof.mac),
        _ => Err(HandshakeFailure::later("its second message is no Proof")),
    }
}

async fn send(sender: &Sender, message: Message) -> Result<(), HandshakeFailure> {
    let sent = sender.send(Ok(envelope(message))).await;
    sent.map_err(|_| HandshakeFailure::later("the connection closed"))
}

/// The handshake of the rank that connected to rank `expected`, up to the announcement with which
/// the server admits it.
pub(super) async fn authenticate_as_client(
    shared: &Membership,
    expected: usize,
    own: &Hello,
    sender: &Sender,
    inbound: &mut Streaming<Envelope>,
) -> Result<Authenticated, HandshakeFailure> {
    let peer = next_hello(inbound).await?;
    if let Some(failed) = differs_at_once(own, &peer) {
        return Err(failed);
    }
    match prove_as_client(shared, expected, (own, &peer), sender, inbound).await {
        Ok((key, announcement)) => Ok(Authenticated {
            key,
            announcement: Some(announcement.into()),
            hello: peer,
        }),
        // Whatever happened, there is no use to try again. That peer need not have proven
        // itself: it has the address that this rank was told to connect to.
        Err(failed) => Err(other_version(own, &peer).map_or(failed, invalid)),
    }
}

/// The proofs, and the announcement of the server.
async fn prove_as_client(
    shared: &Membership,
    expected: usize,
    (own, peer): (&Hello, &Hello),
    sender: &Sender,
    inbound: &mut Streaming<Envelope>,
) -> Result<(Key, message::Announcement), HandshakeFailure> {
    let token = shared.security.get_token();
    let mac = proof::proof(token, Side::Client, own, peer);
    send(sender, Message::Proof(Proof { mac })).await?;
    let theirs = next_proof(inbound).await?;
    if !proof::verify(token, Side::Server, own, peer, &theirs) {
        return Err(HandshakeFailure::Unproven(TOKEN_DIFFERS.to_string()));
    }
    if let Some(failed) = differs(own, peer, Some(expected)) {
        return Err(failed);
    }
    match next(inbound).await? {
        Message::Announcement(it) => Ok((proof::session_key(token, own, peer), it)),
        _ => Err(HandshakeFailure::later(
            "its third message is no Announcement",
        )),
    }
}

/// The handshake of the rank that was connected to. The claimed rank is told with the failure.
pub(super) async fn authenticate_as_server(
    shared: &Membership,
    sender: &Sender,
    inbound: &mut Streaming<Envelope>,
) -> Result<Authenticated, (Option<usize>, HandshakeFailure)> {
    let peer = next_hello(inbound).await.map_err(|failed| (None, failed))?;
    match prove_as_server(shared, &peer, sender, inbound).await {
        Ok(key) => Ok(Authenticated {
            hello: peer,
            key,
            announcement: None,
        }),
        Err(failed) => Err((Some(peer.rank as usize), failed)),
    }
}

async fn prove_as_server(
    shared: &Membership,
    peer: &Hello,
    sender: &Sender,
    inbound: &mut Streaming<Envelope>,
) -> Result<Key, HandshakeFailure> {
    let token = shared.security.get_token();
    let own =
        hello(shared, peer.rank as usize).map_err(|e| HandshakeFailure::later(e.to_string()))?;
    send(sender, Message::Hello(own.clone())).await?;
    if let Some(failed) = differs_at_once(&own, peer) {
        return Err(failed);
    }
    let proven = next_proof(inbound).await.and_then(|theirs| {
        match proof::verify(token, Side::Client, peer, &own, &theirs) {
            true => Ok(()),
            false => Err(HandshakeFailure::Unproven(TOKEN_DIFFERS.to_string())),
        }
    });
    if let Err(failed) = proven {
        // A rank of another version may prove itself in another way; so may a stranger say.
        // The peer hears that it need not try again, this rank goes on waiting.
        let later = |reason| HandshakeFailure::Later(Code::InvalidArgument, reason);
        return Err(other_version(&own, peer).map_or(failed, later));
    }
    let mac = proof::proof(token, Side::Server, peer, &own);
    send(sender, Message::Proof(Proof { mac })).await?;
    match differs(&own, peer, None) {
        Some(failed) => Err(failed),
        None => Ok(proof::session_key(token, peer, &own)),
    }
}

/// Makes a link of a stream whose handshake has succeeded, and announces this rank there.
pub(super) fn register(
    shared: &Membership,
    peer: &Authenticated,
    ip: IpAddr,
    sender: Sender,
) -> Result<u64, HandshakeFailure> {
    let rank = peer.hello.rank as usize;
    let mut state = shared.state();
    if state.phase != Phase::Joining {
        let generation = peer.hello.generation;
        let reason = match state.phase {
            Phase::Leaving => "it comes when this rank leaves".to_string(),
            _ => format!(
                "it comes when generation {generation} runs already: it needs a new generation"
            ),
        };
        return Err(HandshakeFailure::Later(Code::FailedPrecondition, reason));
    }
    let id = state.next_link;
    let Some(place) = state.links.get_mut(rank) else {
        return Err(invalid(format!("there is no rank {rank}")));
    };
    if let Some(link) = place
        && link.open
        && link.instance != peer.hello.instance
    {
        return Err(HandshakeFailure::Refused(
            Code::AlreadyExists,
            format!("it says that it is rank {rank}, as another one: two processes have one rank"),
        ));
    }
    let link = Link {
        id,
        sender: Some(sender),
        key: peer.key,
        instance: peer.hello.instance.clone(),
        ip,
        announcement: peer.announcement.clone(),
        ready: false,
        last_received: Instant::now(),
        unwatched: false,
        left: false,
        open: true,
        differing_headers: None,
    };
    link.send(Message::Announcement(shared.announcement.clone().into()));
    if let Some(join_failure) = &mut state.join_failure {
        join_failure.send_to(rank, &link);
    }
    state.links[rank] = Some(link);
    state.last[rank] = MissingReason::default();
    state.unproven_claims.retain(|claim| claim.rank != rank);
    state.next_link += 1;
    drop(state);
    shared.changed.notify_one();
    Ok(id)
}
