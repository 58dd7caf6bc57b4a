//! What the tasks of one rank's control plane share: who it is, its peers, and what they said.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use distribute_net::address;
use distribute_net::compute_clock::ComputeClock;
use distribute_net::handshake::{Hello, Secret, SessionKey};
use distribute_net::security::Security;
use distribute_net::tls::TlsSettings;
use tokio::sync::{Notify, Semaphore, mpsc};
use tonic::Status;

use crate::communicator::AbortTarget;
use crate::control::addresses::{self, Addresses, Registered};
use crate::control::generated::envelope::Message;
use crate::control::generated::{self as message, Announcement, Envelope, Refusal};
use crate::control::silence::Silence;
use crate::control::{clock, convert, process};
use crate::error::MissingRank;
use crate::failure::{Failure, FailureKind};
use crate::grpc::{Entrance, LaneRules};
use crate::header::OperationHeader;
use crate::interruption::Interruption;
use crate::status::GroupStatus;
use crate::sync::unpoisoned;

/// How many reasons for which certificates were not accepted are kept.
const CERTIFICATES_MAX: usize = 8;

/// What is known of a rank at first.
pub(super) const NOT_CONNECTED: &str = "it has not connected";

/// Messages that wait to be sent to one rank. A rank that does not read them will be found silent.
pub(super) const QUEUE: usize = 64;

/// How many lower ranks are connected to at the same time, and with how many of those that have
/// answered this one shakes hands.
const CONNECTING_MAX: usize = 256;
const DIALLING_MAX: usize = 8;

/// Longer times count as this long: sums with the clock stay in its range.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// How often the clock ticks that leaves out what was not computed.
const TICK_MIN: Duration = Duration::from_millis(5);
const TICK_MAX: Duration = Duration::from_millis(200);

/// What [`ControlPlane::join`](crate::control::ControlPlane::join) needs to know.
#[derive(Debug)]
pub(crate) struct JoinOptions {
    pub(crate) rank: usize,
    /// `addresses[i]` is where rank `i` listens, if that is listed; their number is the world size.
    /// Rank 0 is listed always.
    pub(crate) addresses: Vec<Option<String>>,
    /// Where this rank listens, if it is not listed: it tells rank 0.
    pub(crate) told_address: Option<String>,
    pub(crate) group: String,
    pub(crate) generation: u64,
    /// All settings that must be equal on all ranks, in words; shown when they differ.
    pub(crate) options: String,
    pub(crate) rendezvous_timeout: Duration,
    pub(crate) heartbeat_interval: Duration,
    pub(crate) heartbeat_misses: u32,
    pub(crate) security: Security,
    pub(crate) announcement: Announcement,
    pub(crate) interruption: Interruption,
    /// Data connections between each pair of ranks.
    pub(crate) lanes: usize,
}

/// The sending half of a stream: a message, or the status that ends it.
pub(super) type Sender = mpsc::Sender<Result<Envelope, Status>>;

/// How far the group has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Streams may come and go.
    Joining,
    /// All streams are up; from now on a lost one is a failure.
    Formed,
    /// This rank says goodbye.
    Leaving,
}

/// The stream to one rank.
pub(super) struct Link {
    /// Tells this stream from an earlier one to the same rank.
    pub(super) id: u64,
    /// `None` once one side has said goodbye.
    pub(super) sender: Option<Sender>,
    pub(super) session_key: SessionKey,
    /// Which process of that rank it is.
    pub(super) run: String,
    pub(super) ip: IpAddr,
    pub(super) announcement: Option<Announcement>,
    pub(super) ready: bool,
    pub(super) silence: Silence,
    /// The peer has left, or was found silent: it is not watched any more.
    pub(super) unwatched: bool,
    /// The peer said goodbye.
    pub(super) left: bool,
    /// The stream still delivers messages.
    pub(super) open: bool,
    /// How many of the addresses that have come to rank 0 the peer was told.
    pub(super) told: usize,
    /// The two headers that differed at the last heartbeat.
    pub(super) differing_headers: Option<(OperationHeader, OperationHeader)>,
}

impl Link {
    /// The peer gave up before it had met all others: the group cannot form with it.
    pub(super) fn gave_up(&self) -> bool {
        self.left && !self.ready
    }

    /// Queues a message if there is room, and says whether there was.
    fn try_send(&self, message: Message) -> bool {
        let sender = self.sender.as_ref();
        sender.is_some_and(|sender| sender.try_send(Ok(envelope(message))).is_ok())
    }

    /// Queues a message. It is dropped when the peer does not read: that is found as silence. A
    /// heartbeat is dropped where it would take the room of what is more important.
    pub(super) fn send(&self, message: Message) {
        if let Some(sender) = &self.sender
            && (sender.capacity() > QUEUE / 2 || !matches!(message, Message::Heartbeat(_)))
        {
            let _ = sender.try_send(Ok(envelope(message)));
        }
    }
}

pub(super) fn envelope(message: Message) -> Envelope {
    Envelope {
        message: Some(message),
    }
}

/// The group cannot form, and this rank knows why; the others are told while they come.
pub(super) struct JoinFailure {
    pub(super) refusal: Refusal,
    pub(super) since: Instant,
    /// The ranks that know.
    pub(super) notified: BTreeSet<usize>,
}

impl JoinFailure {
    /// Tells a rank why the group cannot form, once.
    pub(super) fn send_to(&mut self, rank: usize, link: &Link) {
        if self.notified.insert(rank) {
            link.send(Message::Refusal(self.refusal.clone()));
        }
    }
}

/// A peer that claimed a rank without the right token. The right one may still come.
pub(super) struct UnprovenClaim {
    pub(super) since: Instant,
    pub(super) rank: usize,
    pub(super) refusal: Refusal,
}

/// Why a rank is not there.
#[derive(Debug, Clone, Default)]
pub(super) struct MissingReason {
    pub(super) reason: String,
    /// The rank was there and gave up waiting for these ranks, which are to blame in its place.
    pub(super) waited_for: Vec<usize>,
}

impl From<String> for MissingReason {
    fn from(reason: String) -> MissingReason {
        MissingReason {
            reason,
            waited_for: Vec::new(),
        }
    }
}

pub(super) struct State {
    pub(super) phase: Phase,
    /// By rank; never one for this rank.
    pub(super) links: Vec<Option<Link>>,
    pub(super) next_link: u64,
    /// What happened last with each rank, for the error when it does not come.
    pub(super) last: Vec<MissingReason>,
    /// Why this process could not take connections.
    pub(super) shortage: Option<String>,
    pub(super) join_failure: Option<JoinFailure>,
    pub(super) unproven_claims: Vec<UnprovenClaim>,
    /// Connections whose certificate was not accepted, the first ones of every reason.
    pub(super) certificates: Vec<Refusal>,
    /// The parts of gatherings by number, then by rank.
    pub(super) gathers: BTreeMap<u64, Vec<Option<Vec<u8>>>>,
    pub(super) next_gather: u64,
    /// On rank 0: the ranks that are not listed and have come.
    pub(super) registered: Registered,
    pub(super) next_heartbeat: Instant,
    /// Streams that were turned away and still carry the reason to their peers.
    pub(super) turned_away: usize,
    /// The peers know of the first failure.
    pub(super) failure_sent: bool,
    /// When the others were told last what this process lost, and what it has lost since then.
    pub(super) last_heartbeat: Instant,
    pub(super) lost: Duration,
}

pub(super) struct Membership {
    pub(super) rank: usize,
    pub(super) addresses: Addresses,
    /// Where the socket of this rank listens, once it does.
    pub(super) local: OnceLock<SocketAddr>,
    pub(super) hello: Hello,
    pub(super) announcement: Announcement,
    pub(super) security: Security,
    pub(super) tls: Option<TlsSettings>,
    /// Takes the data connections.
    pub(super) entrance: Arc<Entrance>,
    pub(super) interval: Duration,
    pub(super) misses: u32,
    /// Ticks in the runtime of the control plane.
    pub(super) compute: ComputeClock,
    /// What the others were told last: the part of the time that this process lost, in thousandths.
    lost_permille: AtomicU32,
    pub(super) started: Instant,
    pub(super) deadline: Instant,
    pub(super) gather_timeout: Duration,
    pub(super) status: Arc<GroupStatus>,
    pub(super) interruption: Interruption,
    /// Turns of those that dial, so that the ranks of a big group on few processors do not all
    /// begin with all and come to no end within the time that a handshake may take.
    pub(super) connecting: Semaphore,
    pub(super) dialling: Semaphore,
    state: Mutex<State>,
    /// Wakes the task that joins or leaves.
    pub(super) changed: Notify,
    /// Wakes the task that spreads failures; [`GroupStatus`] rings it.
    pub(super) failed: Arc<Notify>,
    /// Wakes a thread that gathers.
    pub(super) gathered: Condvar,
}

impl State {
    pub(super) fn new(world_size: usize) -> State {
        State {
            phase: Phase::Joining,
            links: (0..world_size).map(|_| None).collect(),
            next_link: 0,
            last: vec![NOT_CONNECTED.to_string().into(); world_size],
            shortage: None,
            join_failure: None,
            unproven_claims: Vec::new(),
            certificates: Vec::new(),
            gathers: BTreeMap::new(),
            next_gather: 0,
            registered: Registered::default(),
            next_heartbeat: clock::now(),
            turned_away: 0,
            failure_sent: false,
            last_heartbeat: clock::now(),
            lost: Duration::ZERO,
        }
    }

    /// The link of a rank, if it is still the one with this number.
    pub(super) fn link(&mut self, rank: usize, id: u64) -> Option<&mut Link> {
        let link = self.links.get_mut(rank)?.as_mut()?;
        (link.id == id).then_some(link)
    }

    /// Notes a connection whose certificate was not accepted.
    pub(super) fn note_certificate(&mut self, refusal: Refusal) {
        let known = |it: &Refusal| it.reason == refusal.reason;
        if self.certificates.len() < CERTIFICATES_MAX && !self.certificates.iter().any(known) {
            self.certificates.push(refusal);
        }
    }

    /// Notes a peer that claims a rank and does not prove it, and returns whether that is new: one
    /// for each rank that there is, however many an unauthenticated peer makes up.
    pub(super) fn note_unproven(&mut self, rank: usize, refusal: Refusal) -> bool {
        let is_new = rank < self.links.len()
            && self.phase == Phase::Joining
            && self.unproven_claims.iter().all(|claim| claim.rank != rank);
        if is_new {
            self.unproven_claims.push(UnprovenClaim {
                since: Instant::now(),
                rank,
                refusal,
            });
        }
        is_new
    }

    /// On rank 0: tells all ranks the addresses that they have not been told. What a rank has no
    /// room for now it is told at a later heartbeat.
    pub(super) fn tell_addresses(&mut self) {
        let links = self.links.iter_mut().flatten();
        for link in links.filter(|link| link.open) {
            while let Some((message, told)) = self.registered.next(link.told) {
                if !link.try_send(Message::Addresses(message)) {
                    break;
                }
                link.told = told;
            }
        }
    }

    pub(super) fn open_links(&self) -> impl Iterator<Item = &Link> {
        self.links.iter().flatten().filter(|link| link.open)
    }

    /// Queues a message to all ranks whose streams are open.
    pub(super) fn send_to_all(&self, message: &Message) {
        for link in self.open_links() {
            link.send(message.clone());
        }
    }

    /// The parts of a gathering, by rank.
    pub(super) fn parts(&mut self, number: u64) -> &mut [Option<Vec<u8>>] {
        let none = || vec![None; self.links.len()];
        self.gathers.entry(number).or_insert_with(none)
    }

    /// Whether there are streams that a peer still reads.
    pub(super) fn has_streams(&self) -> bool {
        self.turned_away > 0 || self.open_links().next().is_some()
    }
}

impl Membership {
    pub(super) fn new(
        options: JoinOptions,
        hello: Hello,
        tls: Option<TlsSettings>,
        status: Arc<GroupStatus>,
    ) -> Membership {
        let started = clock::now();
        let timeout = options.rendezvous_timeout.min(FOREVER);
        let failed = Arc::new(Notify::new());
        let bell = failed.clone();
        status.on_failure(move || bell.notify_one());
        let interval = options.heartbeat_interval.min(FOREVER);
        let period = (interval / 2).clamp(TICK_MIN, TICK_MAX);
        let compute = ComputeClock::for_light_work(period);
        let mut announcement = options.announcement;
        process::announce(&mut announcement);
        let entrance = Entrance::new(LaneRules {
            rank: options.rank,
            world_size: options.addresses.len(),
            generation: options.generation,
            group: options.group,
            lanes: options.lanes,
        });
        Membership {
            state: Mutex::new(State::new(options.addresses.len())),
            rank: options.rank,
            addresses: Addresses::new(
                options.addresses,
                options.rank,
                options.told_address.as_deref(),
            ),
            local: OnceLock::new(),
            hello,
            announcement,
            security: options.security,
            tls,
            entrance,
            interval,
            misses: options.heartbeat_misses,
            compute,
            lost_permille: AtomicU32::new(0),
            started,
            deadline: started + timeout,
            gather_timeout: timeout,
            status,
            interruption: options.interruption,
            connecting: Semaphore::new(CONNECTING_MAX),
            dialling: Semaphore::new(DIALLING_MAX),
            changed: Notify::new(),
            failed,
            gathered: Condvar::new(),
        }
    }

    /// Held only for short changes. The status is never asked to note something meanwhile.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        unpoisoned(self.state.lock())
    }

    pub(super) fn world_size(&self) -> usize {
        self.addresses.len()
    }

    /// What this rank and another one know that has joined.
    pub(super) fn secret_with(&self, rank: usize) -> Option<Secret> {
        let state = self.state();
        let link = state.links.get(rank)?.as_ref()?;
        Some(link.session_key.secret())
    }

    /// What an error says of a rank that is missed.
    pub(super) fn missing(&self, rank: usize, reason: impl Into<String>) -> MissingRank {
        MissingRank {
            rank,
            address: self.addresses.shown(rank),
            reason: reason.into(),
        }
    }

    /// The silence after which a rank counts as stopped.
    pub(super) fn silence_limit(&self) -> Duration {
        self.interval.saturating_mul(self.misses).min(FOREVER)
    }

    /// Notes what ends every operation from the first one on.
    pub(super) fn record_failure(&self, kind: FailureKind) {
        self.status.record_failure(Failure::new(kind, 0));
    }

    /// Notes what happened last with a rank that is still missing. Why it gave up tells more than
    /// that no process listens there afterwards.
    pub(super) fn record_missing(&self, rank: usize, missing: impl Into<MissingReason>) {
        let missing = missing.into();
        let reason = &missing.reason;
        tracing::debug!(rank = self.rank, peer = rank, reason, "not joined yet");
        if let Some(last) = self.state().last.get_mut(rank)
            && (last.waited_for.is_empty() || !missing.waited_for.is_empty())
        {
            *last = missing;
        }
    }

    /// Ends the join of this rank, and of all others: the group cannot form. Rank `informed`
    /// knows already.
    pub(super) fn refuse(&self, informed: Option<usize>, refusal: Refusal) {
        let mut state = self.state();
        if state.phase == Phase::Joining {
            let State {
                join_failure,
                links,
                ..
            } = &mut *state;
            let join_failure = join_failure.get_or_insert_with(|| JoinFailure {
                refusal,
                since: clock::now(),
                notified: BTreeSet::from([self.rank]),
            });
            let informed = informed.filter(|rank| *rank < links.len());
            join_failure.notified.extend(informed);
            for (rank, link) in links.iter().enumerate() {
                if let Some(link) = link.as_ref().filter(|link| link.open) {
                    join_failure.send_to(rank, link);
                }
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Handles one message of a rank that has proven itself. Returns whether to go on reading.
    pub(super) fn handle(&self, rank: usize, id: u64, mut envelope: Envelope) -> bool {
        {
            let mut state = self.state();
            let Some(link) = state.link(rank, id) else {
                return false;
            };
            link.silence.end(clock::now());
            match &mut envelope.message {
                Some(Message::Announcement(it)) => link.announcement = Some(std::mem::take(it)),
                Some(Message::Ready(_)) => link.ready = true,
                _ => {}
            }
        }
        match envelope.message {
            Some(Message::Announcement(_) | Message::Ready(_)) => self.changed.notify_one(),
            Some(Message::Heartbeat(beat)) => self.heartbeat(rank, id, &beat),
            Some(Message::Notice(notice)) => {
                if let Some(failure) = convert::failure(self.world_size(), &notice) {
                    self.status.record_if_first(failure);
                }
            }
            Some(Message::Gather(part)) => self.take_part(rank, part),
            Some(Message::Goodbye(goodbye)) => self.goodbye(rank, id, &goodbye),
            Some(Message::Refusal(refusal)) => self.refuse(Some(rank), refusal),
            Some(Message::Addresses(told)) if rank == 0 => {
                for (rank, address) in addresses::entries(told) {
                    self.addresses.learn(rank, &address);
                }
            }
            // Messages of later versions.
            Some(Message::Addresses(_)) | None => {}
        }
        true
    }

    fn goodbye(&self, rank: usize, id: u64, goodbye: &message::Goodbye) {
        let mut state = self.state();
        let phase = state.phase;
        let Some(link) = state.link(rank, id) else {
            return;
        };
        link.left = true;
        link.unwatched = true;
        // Closes this half, so that the peer knows that its goodbye has arrived.
        link.sender = None;
        let joined = phase == Phase::Formed && link.ready;
        drop(state);
        let because = match goodbye.reason.as_str() {
            "" => String::new(),
            reason => format!(": {reason}"),
        };
        match phase {
            Phase::Leaving => {}
            Phase::Joining | Phase::Formed if !joined => {
                let waited_for = goodbye.waited_for.iter().map(|rank| *rank as usize);
                let missing = MissingReason {
                    reason: format!("it gave up joining{because}"),
                    waited_for: waited_for.collect(),
                };
                self.record_missing(rank, missing);
                self.changed.notify_one();
            }
            _ => {
                let count = goodbye.completed;
                let reason = format!("it left the group after {count} operations{because}");
                self.status.goodbye(rank, count, reason);
            }
        }
    }

    /// What this rank says about itself, and whether it wants to hear the same.
    pub(super) fn own_heartbeat(&self, answer: bool) -> Message {
        Message::Heartbeat(message::Heartbeat {
            running: convert::running(self.status.running().map(|it| it.header).as_ref()),
            completed: self.status.completed(),
            answer,
            lost_permille: self.lost_permille.load(Ordering::Relaxed),
        })
    }

    /// What all others are told from time to time: also how much of the time since the last one
    /// this process lost.
    pub(super) fn periodic_heartbeat(&self, state: &mut State, now: Instant) -> Message {
        let before = std::mem::replace(&mut state.last_heartbeat, now);
        let elapsed = now.saturating_duration_since(before).as_millis().max(1);
        let lost = std::mem::take(&mut state.lost).as_millis().min(elapsed);
        let permille = (lost * 1000 / elapsed) as u32;
        self.lost_permille.store(permille, Ordering::Relaxed);
        self.own_heartbeat(false)
    }

    /// The host in a rank's address.
    pub(super) fn host(&self, rank: usize) -> String {
        let address = self.addresses.shown(rank);
        let host = address::split(&address).map(|(host, _)| host.to_string());
        host.unwrap_or(address)
    }

    /// Compares the operation that the peer is in with that of this rank. The data connections
    /// find most differences; this finds differences of calls that never exchange a byte.
    fn heartbeat(&self, rank: usize, id: u64, beat: &message::Heartbeat) {
        let own = self.status.running().map(|running| running.header);
        let theirs = convert::header(&beat.running);
        self.status.note_peer(rank, theirs, beat.completed);
        let answer = beat.answer.then(|| self.own_heartbeat(false));
        let pair = own.zip(theirs).filter(|(own, theirs)| {
            let collective = |h: &OperationHeader| !h.kind.is_point_to_point();
            own.sequence == theirs.sequence
                && own != theirs
                && collective(own)
                && collective(theirs)
        });
        let mut state = self.state();
        let Some(link) = state.link(rank, id) else {
            return;
        };
        link.silence.note_lost_share(beat.lost_permille);
        if let Some(answer) = answer {
            link.send(answer);
        }
        let before = std::mem::replace(&mut link.differing_headers, pair);
        drop(state);
        if before == pair
            && let Some((own, theirs)) = pair
            && let Err(error) = own.compare(self.rank, &theirs, rank)
        {
            self.record_failure(FailureKind::Ended(error));
        }
    }

    /// Handles the end of a stream; `reason` says what is known.
    pub(super) fn ended(&self, rank: usize, id: u64, reason: String) {
        let mut state = self.state();
        let phase = state.phase;
        let Some(link) = state.link(rank, id) else {
            return;
        };
        let left = link.left;
        link.open = false;
        link.sender = None;
        link.unwatched = true;
        if phase == Phase::Joining {
            state.links[rank] = None;
            if !left {
                state.last[rank] = reason.clone().into();
            }
        }
        drop(state);
        if phase == Phase::Formed && !left {
            self.record_failure(FailureKind::Lost { rank, reason });
        }
        self.changed.notify_one();
        self.gathered.notify_all();
    }
}

impl AbortTarget for Membership {
    fn abort(&self, rank: usize, reason: &str) {
        self.status.record_if_first(Failure::aborted(rank, reason));
    }
}
