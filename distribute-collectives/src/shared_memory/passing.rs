//! How ranks find out that they share a host, and how they come to map the same memory.
//!
//! Every rank makes an [`Offer`]: a listening Unix socket whose abstract name is 128 random bits.
//! Names travel through the rendezvous; other processes that find them are turned away
//! (`acceptor.rs`). A rank that can connect to a name is in the same network namespace on the same
//! host; addresses in text say nothing about that. The first rank that answers is the leader of the
//! host.
//!
//! The leader makes the segment and passes it on with the handshake of all connections
//! ([`distribute_net::handshake`]), whose secret is what the two ranks share since they have met
//! (packets, so that nothing has to be cut):
//!
//! 1. member: its Hello;
//! 2. leader: the layout, the file, its proof and its Hello;
//! 3. member: maps the file, and proves itself if the proof is right;
//! 4. leader, when all members have answered: go (or: this rank never came).
//!
//! What both proofs are bound to is the layout, and a nonce that the leader wrote into the segment:
//! so both have the same memory. Both sides check that the other one belongs to the same user. All
//! waiting has a deadline, and ends at once when the group has failed: a rank that is lost on the
//! way is not waited for.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::{Duration, Instant};

use distribute_net::handshake::{
    AwaitingProof, Dialer, Hello, Identity, Listener, Purpose, Secret, Verified,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::error::{CollectiveError, MissingRank, Result};
use crate::header::OperationHeader;
use crate::operation::OperationKind;
use crate::shared_memory::acceptor::{BackgroundAcceptor, MAGIC, has_received, same_user};
use crate::shared_memory::group::LocalGroup;
use crate::shared_memory::layout::{Layout, MEMBERS_MAX, Settings};
use crate::shared_memory::segment::Segment;
use crate::status::GroupStatus;

/// The version of the segment's layout.
const VERSION: u32 = 4;
/// Bytes of a name, and of the nonce.
const NAME_BYTES: usize = 16;
const NONCE_BYTES: usize = 32;
/// The leader's packet before its answer: who sends it, and the layout.
pub(crate) const WELCOME_BYTES: usize = 8 + 6 * 8;
/// The largest packet.
const PACKET_BYTES_MAX: usize = 16 << 10;
const GO_BYTES: usize = 16;
/// The pause after no connection could be taken: nothing says when a descriptor or a place is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How many connections the leader keeps besides its members'.
const PENDING_MAX: usize = 16;
/// How long a member whose leader has gone waits to hear why from the group.
const FAILURE_GRACE: Duration = Duration::from_millis(500);

/// A socket where other ranks of this host can ask for the segment.
pub(crate) struct Offer {
    acceptor: BackgroundAcceptor,
    name: [u8; NAME_BYTES],
}

/// How a rank comes to its segment.
pub(crate) enum Attachment {
    /// The rank makes the segment.
    Leader,
    /// The rank gets the segment from rank `leader`, through this connection.
    Member {
        leader: usize,
        connection: OwnedFd,
        dialer: Box<Dialer>,
    },
}

/// The identity of a rank for the others of its host, and the secrets that it shares with each of
/// them.
pub(crate) struct LocalIdentity {
    pub(crate) rank: usize,
    pub(crate) group: String,
    pub(crate) generation: u64,
    /// By rank.
    pub(crate) secrets: Vec<Secret>,
}

impl LocalIdentity {
    fn hello(&self, peer: usize) -> Hello {
        let mut hello = Hello::new(Purpose::SharedMemory, VERSION, env!("CARGO_PKG_VERSION"));
        hello.identity = Identity {
            group: self.group.clone(),
            task: self.rank as u32,
            run: String::new(),
            generation: self.generation,
        };
        hello.peer_task = Some(peer as u32);
        hello
    }

    fn secret(&self, peer: usize) -> Secret {
        self.secrets.get(peer).cloned().unwrap_or_default()
    }

    /// Whether a rank means this one, in this group.
    fn is_meant(&self, hello: &Hello) -> bool {
        let (group, generation) = (&hello.identity.group, hello.identity.generation);
        hello.peer_task == Some(self.rank as u32)
            && (group, generation) == (&self.group, self.generation)
    }
}

impl Attachment {
    /// The rank that makes the segment, `rank` being this rank.
    pub(crate) fn leader(&self, rank: usize) -> usize {
        match self {
            Attachment::Leader => rank,
            Attachment::Member { leader, .. } => *leader,
        }
    }
}

fn unavailable(what: &str, error: impl std::fmt::Display) -> CollectiveError {
    let reason = format!("{what} failed: {error}; use the gRPC transport");
    CollectiveError::unavailable("shared memory", reason)
}

fn socket(flags: SocketFlags) -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | flags;
    net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|error| unavailable("making a Unix socket", error))
}

impl Offer {
    /// Listens at a new name.
    pub(crate) fn new() -> Result<Offer> {
        let name = distribute_net::random::<NAME_BYTES>()?;
        let address = SocketAddrUnix::new_abstract_name(&name)
            .map_err(|error| unavailable("naming a Unix socket", error))?;
        let listener = socket(SocketFlags::NONBLOCK)?;
        net::bind(&listener, &address)
            .and_then(|()| net::listen(&listener, MEMBERS_MAX as i32))
            .map_err(|error| unavailable("listening at a Unix socket", error))?;
        let acceptor = BackgroundAcceptor::open(listener)
            .map_err(|error| unavailable("starting a thread", error))?;
        Ok(Offer { acceptor, name })
    }

    /// What other ranks pass to [`find_leader`].
    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }
}

/// Finds the lowest rank on this host: tries the names of all lower ranks, `offers[i]` being that
/// of rank `i` (empty: it offers nothing).
pub(crate) fn find_leader(
    offers: &[Vec<u8>],
    own: &LocalIdentity,
    deadline: Instant,
) -> Result<Attachment> {
    for (leader, name) in offers.iter().enumerate().take(own.rank) {
        // A name of another length is not ours; an empty one would ask the kernel to pick one.
        if name.len() != NAME_BYTES {
            continue;
        }
        if let Some(connection) = connect(name, deadline)? {
            // At once, so that the leader knows this rank. If that has gone, the wait for its
            // answer says so.
            let (dialer, first) = Dialer::start(own.hello(leader), &own.secret(leader))
                .map_err(|error| unavailable("beginning a handshake", error))?;
            let _ = send(&connection, &packet(first.as_bytes()), &[]);
            return Ok(Attachment::Member {
                leader,
                connection,
                dialer: Box::new(dialer),
            });
        }
    }
    Ok(Attachment::Leader)
}

/// Connects to a name, or finds that it is not on this host or not this user's.
fn connect(name: &[u8], deadline: Instant) -> Result<Option<OwnedFd>> {
    let Ok(address) = SocketAddrUnix::new_abstract_name(name) else {
        return Ok(None);
    };
    let connection = socket(SocketFlags::empty())?;
    // Only a full queue makes connecting wait.
    let left = deadline
        .saturating_duration_since(Instant::now())
        .max(Duration::from_millis(1));
    sockopt::set_socket_timeout(&connection, Timeout::Send, Some(left))
        .map_err(|error| unavailable("setting a deadline", error))?;
    match net::connect(&connection, &address) {
        Ok(()) if same_user(&connection) => {}
        Err(error @ (Errno::AGAIN | Errno::INTR)) => {
            return Err(unavailable("connecting to a rank of this host", error));
        }
        _ => return Ok(None),
    }
    rustix::io::ioctl_fionbio(&connection, true)
        .map_err(|error| unavailable("setting up a Unix socket", error))?;
    Ok(Some(connection))
}

/// Makes or receives the segment. `members` are the ranks of this host in ascending order, the
/// leader first; all of them call this.
///
/// # Errors
/// [`Rendezvous`](CollectiveError::Rendezvous) names the ranks that did not come before the
/// deadline, on every member.
pub(crate) fn establish(
    mut offer: Offer,
    attachment: Attachment,
    own: &LocalIdentity,
    members: &[usize],
    settings: &Settings,
    deadline: Instant,
    status: Arc<GroupStatus>,
) -> Result<LocalGroup> {
    let rank = own.rank;
    let ascending = members.windows(2).all(|pair| pair[0] < pair[1]);
    let me = members.iter().position(|member| *member == rank);
    let leads = members.first() == Some(&attachment.leader(rank));
    let (Some(me), true, true) = (me, ascending, leads && members.len() <= MEMBERS_MAX) else {
        return Err(CollectiveError::InvalidOption {
            what: format!("the ranks {members:?} cannot share memory with rank {rank}"),
        });
    };
    let alarm = status.alarm();
    let waiting = MemberWait {
        own,
        members,
        begin: Instant::now(),
        deadline,
        status: &status,
        alarm: alarm.map_err(|error| unavailable("making an eventfd", error))?,
    };
    let (segment, layout) = match attachment {
        Attachment::Leader => run_leader(&mut offer, settings, &waiting)?,
        Attachment::Member {
            leader,
            connection,
            dialer,
        } => {
            drop(offer);
            run_member(&connection, *dialer, leader, &waiting)?
        }
    };
    Ok(LocalGroup::new(segment, layout, members, me, status))
}

/// The wait of one rank for the other members: since when, and until when.
struct MemberWait<'a> {
    own: &'a LocalIdentity,
    members: &'a [usize],
    begin: Instant,
    deadline: Instant,
    status: &'a GroupStatus,
    alarm: Arc<OwnedFd>,
}

impl MemberWait<'_> {
    /// Sleeps until a descriptor can be read; `false` when the deadline has passed.
    ///
    /// # Errors
    /// The failure of the group, if it has one: then no rank need be waited for any more.
    fn readable<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) -> Result<bool> {
        self.wait_until(self.deadline, fds)
    }

    /// As [`readable`](Self::readable), with another deadline.
    fn wait_until<'a>(&'a self, until: Instant, fds: &mut Vec<PollFd<'a>>) -> Result<bool> {
        self.check()?;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let left = Timespec::try_from(left).ok();
        fds.push(PollFd::new(&*self.alarm, PollFlags::IN));
        let waited = poll(fds, left.as_ref());
        let rings = fds.pop().is_some_and(|fd| !fd.revents().is_empty());
        match waited {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(unavailable("waiting for the ranks of this host", error)),
        }
        if rings {
            // Emptied before the look, so that a failure that does not concern this is no noise.
            let _ = rustix::io::read(&*self.alarm, &mut [0; 8]);
            self.check()?;
        }
        Ok(true)
    }

    /// Whether the group has failed. A rank that left after operations of the group has been here.
    fn check(&self) -> Result<()> {
        let header = OperationHeader::new(OperationKind::Barrier, 0, 0);
        self.status.check(&header)
    }

    /// The error when the leader has given up, as it seems because of `rank`. The group's own
    /// failure says more, and may be noted only a moment later.
    fn given_up(&self, rank: usize, reason: &str) -> CollectiveError {
        let until = self.deadline.min(Instant::now() + FAILURE_GRACE);
        loop {
            match self.wait_until(until, &mut Vec::new()) {
                Err(error) => return error,
                Ok(true) => {}
                Ok(false) => return self.missing([rank], reason),
            }
        }
    }

    fn missing(&self, ranks: impl IntoIterator<Item = usize>, reason: &str) -> CollectiveError {
        let one = |rank| MissingRank {
            rank,
            address: "shared memory of this host".to_string(),
            reason: reason.to_string(),
        };
        CollectiveError::Rendezvous {
            rank: self.own.rank,
            missing: ranks.into_iter().map(one).collect(),
            elapsed: self.begin.elapsed(),
        }
    }

    fn refused(&self, reason: &str) -> CollectiveError {
        CollectiveError::Refused {
            rank: self.own.rank,
            address: "shared memory of this host".to_string(),
            reason: format!("{reason}; run the same program on all ranks"),
            options: Vec::new(),
        }
    }
}

/// What the proofs are bound to: a layout, and the nonce in the segment.
fn binding(welcome: &[u8; WELCOME_BYTES], nonce: &[u8; NONCE_BYTES]) -> Vec<u8> {
    [&welcome[..], nonce].concat()
}

/// A packet with a text of the handshake, or with [the last word](go).
fn packet(content: &[u8]) -> Vec<u8> {
    [&MAGIC[..], content].concat()
}

/// A rank that has connected to the leader.
struct Candidate {
    connection: OwnedFd,
    /// The index of the rank among the members, once it has sent its Hello.
    member: Option<usize>,
    /// What its proof is checked with.
    waiting: Option<AwaitingProof>,
}

impl Candidate {
    fn new(connection: OwnedFd) -> Self {
        Self {
            connection,
            member: None,
            waiting: None,
        }
    }

    /// The index of the rank, once it has proven itself.
    fn proven(&self) -> Option<usize> {
        self.member.filter(|_| self.waiting.is_none())
    }
}

/// The leader's side.
fn run_leader(
    offer: &mut Offer,
    settings: &Settings,
    waiting: &MemberWait<'_>,
) -> Result<(Segment, Layout)> {
    let layout = Layout::new(waiting.members.len(), settings);
    let (file, segment) = Segment::create(layout.total())
        .map_err(|error| unavailable("making a shared segment", error))?;
    let nonce = distribute_net::random::<NONCE_BYTES>()?;
    segment.copy_in(0, &nonce);
    let binding = binding(&welcome(&layout), &nonce);
    let (listener, taken) = offer.acceptor.hand_over();
    let mut candidates: Vec<Candidate> = taken.into_iter().map(Candidate::new).collect();
    let mut pause: Option<Instant> = None;
    while candidates.iter().filter_map(Candidate::proven).count() + 1 < waiting.members.len() {
        pause = pause.filter(|until| Instant::now() < *until);
        let listening = pause.map_or(PollFlags::IN, |_| PollFlags::empty());
        let mut fds = vec![PollFd::new(listener, listening)];
        fds.extend(
            candidates
                .iter()
                .map(|one| PollFd::new(&one.connection, PollFlags::IN)),
        );
        // Of a failure the members hear from the group, as this rank does.
        let until = pause.map_or(waiting.deadline, |pause| pause.min(waiting.deadline));
        if !waiting.wait_until(until, &mut fds)? && Instant::now() >= waiting.deadline {
            return Err(rendezvous_failed(&candidates, waiting));
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let taken: Vec<usize> = candidates.iter().filter_map(Candidate::proven).collect();
        // Before others are taken, which may end some: `poll` answered for these, in this order.
        let mut known = ready[1..].iter();
        candidates.retain_mut(|one| {
            known.next() != Some(&true) || serve(one, &taken, &file, &binding, waiting).is_some()
        });
        if ready[0] {
            let taken_all = accept(listener, &mut candidates, waiting.members.len());
            pause = (!taken_all).then(|| Instant::now() + ACCEPT_PAUSE);
        }
    }
    for one in candidates.iter().filter(|one| one.proven().is_some()) {
        let _ = send(&one.connection, &go(0), &[]);
    }
    Ok((segment, layout))
}

/// The last packet: 0 is go, else one more than the rank that never came.
fn go(code: u64) -> Vec<u8> {
    packet(&code.to_le_bytes())
}

/// Tells the members that have come which rank has not.
fn rendezvous_failed(candidates: &[Candidate], waiting: &MemberWait<'_>) -> CollectiveError {
    let came = |index: usize| candidates.iter().any(|one| one.proven() == Some(index));
    let missing: Vec<usize> = (1..waiting.members.len())
        .filter(|index| !came(*index))
        .map(|index| waiting.members[index])
        .collect();
    if let Some(first) = missing.first() {
        for one in candidates {
            let _ = send(&one.connection, &go(*first as u64 + 1), &[]);
        }
    }
    waiting.missing(missing, "it did not ask for the segment")
}

/// Takes the waiting connections; returns true when none is left. Of connections that never say who
/// they are only a few are kept; when all have said something, they are heard before more are
/// taken.
fn accept(listener: &OwnedFd, candidates: &mut Vec<Candidate>, members: usize) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    while candidates.len() < members + PENDING_MAX || end_one_silent(candidates) {
        match net::accept_with(listener, flags) {
            Ok(connection) if same_user(&connection) => {
                candidates.push(Candidate::new(connection));
            }
            Ok(_) | Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(Errno::AGAIN) => return true,
            // Perhaps there are no descriptors left: an unauthenticated peer's is the first to go.
            Err(_) if end_one_silent(candidates) => {}
            Err(_) => return false,
        }
    }
    false
}

/// Makes room; whether it could. A member speaks as soon as it has connected: the oldest of those
/// that have not is the least likely to be one.
fn end_one_silent(candidates: &mut Vec<Candidate>) -> bool {
    let is_silent = |one: &Candidate| one.member.is_none() && !has_received(&one.connection);
    let silent = candidates.iter().position(is_silent);
    silent.map(|index| candidates.remove(index)).is_some()
}

/// Reads one packet of a candidate; `None` when the connection is of no use any more.
fn serve(
    candidate: &mut Candidate,
    taken: &[usize],
    file: &OwnedFd,
    binding: &[u8],
    waiting: &MemberWait<'_>,
) -> Option<()> {
    let mut packet = [0; PACKET_BYTES_MAX];
    let len = match receive(&candidate.connection, &mut packet) {
        Ok((len, _)) => len,
        Err(Errno::AGAIN) => return Some(()),
        Err(_) => 0,
    };
    let text = packet.get(..len)?.strip_prefix(&MAGIC)?;
    let text = std::str::from_utf8(text).ok()?;
    if let Some(awaiting) = candidate.waiting.take() {
        return awaiting
            .finish(text)
            .and_then(Verified::check_compatible)
            .ok()
            .map(drop);
    }
    // One that has proven itself has nothing more to say.
    let listener = Listener::receive(text)
        .ok()
        .filter(|_| candidate.member.is_none())?;
    let rank = listener.peer().identity.task as usize;
    let mut members = waiting.members.iter();
    let index = members.position(|member| *member == rank)?;
    if index == 0 || taken.contains(&index) || !waiting.own.is_meant(listener.peer()) {
        return None;
    }
    let (hello, secret) = (waiting.own.hello(rank), waiting.own.secret(rank));
    let (awaiting, answer) = listener.answer(hello, &secret, binding).ok()?;
    candidate.member = Some(index);
    candidate.waiting = Some(awaiting);
    let packet = [binding.get(..WELCOME_BYTES)?, answer.as_bytes()].concat();
    send(&candidate.connection, &packet, &[file.as_fd()]).ok()
}

/// The front of the leader's packet.
fn welcome(layout: &Layout) -> [u8; WELCOME_BYTES] {
    let mut packet = [0; WELCOME_BYTES];
    packet[..8].copy_from_slice(&MAGIC);
    packet[8..].copy_from_slice(layout.encode().map(u64::to_le_bytes).as_flattened());
    packet
}

/// The front of the packet of a group with this many members.
#[cfg(test)]
pub(crate) fn welcome_of(members: usize, settings: &Settings) -> [u8; WELCOME_BYTES] {
    let mut layout = Layout::new(members, settings);
    layout.may_spin = true;
    welcome(&layout)
}

/// The layout in a welcome, or `None` when it makes no sense.
pub(crate) fn read_welcome(packet: &[u8; WELCOME_BYTES]) -> Option<Layout> {
    let (words, _) = packet[8..].as_chunks();
    let word = |index: usize| u64::from_le_bytes(words[index]);
    Layout::decode(std::array::from_fn(word))
}

/// A member's side, after its Hello.
fn run_member(
    connection: &OwnedFd,
    dialer: Dialer,
    leader: usize,
    waiting: &MemberWait<'_>,
) -> Result<(Segment, Layout)> {
    let gone = || waiting.given_up(leader, "it closed the connection");
    let (received, file) = receive_packet(connection, leader, waiting)?;
    if received.len() == GO_BYTES {
        // The leader gave up before it came to this rank.
        return Err(waiting.given_up(leader, "it gave up waiting for another rank"));
    }
    let file = file.ok_or_else(|| waiting.refused("the leader passed no file"))?;
    let split = received.split_first_chunk::<WELCOME_BYTES>();
    let nonsense = || waiting.refused("the leader's packet makes no sense");
    let (front, answer) = split.ok_or_else(nonsense)?;
    let answer = std::str::from_utf8(answer).map_err(|_| nonsense())?;
    let layout = read_welcome(front)
        .filter(|it| it.members == waiting.members.len())
        .ok_or_else(|| waiting.refused("the leader's layout makes no sense"))?;
    let segment = Segment::map(&file, layout.total())
        .map_err(|error| unavailable("mapping the shared segment", error))?;
    let mut nonce = [0; NONCE_BYTES];
    segment.copy_out(0, &mut nonce);
    let not_its = |why: String| waiting.refused(&format!("the segment is not the leader's: {why}"));
    let finished = dialer.finish(answer, &binding(front, &nonce));
    let (proof, proven) = finished.map_err(|error| not_its(error.to_string()))?;
    let peer = proven
        .check_compatible()
        .map_err(|error| not_its(error.to_string()))?
        .peer;
    if peer.identity.task as usize != leader || !waiting.own.is_meant(&peer) {
        return Err(not_its("another rank made it".to_string()));
    }
    send(connection, &packet(proof.as_bytes()), &[]).map_err(|_| gone())?;
    let (received, _) = receive_packet(connection, leader, waiting)?;
    match read_go(&received) {
        Some(0) => Ok((segment, layout)),
        Some(code) => Err(waiting.given_up(code as usize - 1, "it did not ask for the segment")),
        None => Err(nonsense()),
    }
}

/// The code in the last packet.
fn read_go(packet: &[u8]) -> Option<u64> {
    let code = packet.strip_prefix(&MAGIC)?;
    Some(u64::from_le_bytes(code.try_into().ok()?))
}

/// Receives a packet from the leader, and the file that came with it.
fn receive_packet(
    connection: &OwnedFd,
    leader: usize,
    waiting: &MemberWait<'_>,
) -> Result<(Vec<u8>, Option<OwnedFd>)> {
    let mut failed = false;
    let mut packet = vec![0; PACKET_BYTES_MAX];
    loop {
        match receive(connection, &mut packet) {
            Ok((len, file)) if len > 0 && packet.starts_with(&MAGIC) => {
                packet.truncate(len);
                return Ok((packet, file));
            }
            Ok((0, _)) | Err(Errno::CONNRESET) => {
                return Err(waiting.given_up(leader, "it closed the connection"));
            }
            Ok(_) => return Err(waiting.refused("the leader's packet makes no sense")),
            Err(Errno::AGAIN | Errno::INTR) => {
                let mut fds = vec![PollFd::new(connection, PollFlags::IN)];
                match (waiting.readable(&mut fds), failed) {
                    (Ok(true), _) => {}
                    (Ok(false), _) => {
                        return Err(waiting.missing([leader], "it did not pass the segment"));
                    }
                    // The packet may have come before the failure: of a leader that left early.
                    (Err(_), false) => failed = true,
                    (Err(error), true) => return Err(error),
                }
            }
            Err(error) => return Err(unavailable("receiving the shared segment", error)),
        }
    }
}

fn send(connection: &OwnedFd, packet: &[u8], files: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(Errno::NOBUFS);
    }
    // The few small packets of a connection always fit its buffer.
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    net::sendmsg(connection, &[IoSlice::new(packet)], &mut control, flags).map(|_| ())
}

/// Receives one packet, and the file that came with it. 0 bytes: the other side has closed.
fn receive(
    connection: &OwnedFd,
    packet: &mut [u8],
) -> rustix::io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let mut slices = [IoSliceMut::new(packet)];
    let received = net::recvmsg(connection, &mut slices, &mut control, flags)?;
    let mut file = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            // Files beyond the first are closed here.
            file = files.into_iter().next().or(file);
        }
    }
    Ok((received.bytes, file))
}
