//! What the tasks of one rank's control plane share: who it is, its neighbours in the tree, and
//! what is known of all ranks.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use distribute_net::address;
use distribute_net::compute_clock::ComputeClock;
use distribute_net::handshake::{Hello, Secret};
use distribute_net::security::Security;
use distribute_net::tls::TlsSettings;
use fixedbitset::FixedBitSet;
use tokio::sync::{Notify, mpsc};
use tonic::Status;

use crate::communicator::AbortTarget;
use crate::control::addresses::Addresses;
use crate::control::generated::envelope::Message;
use crate::control::generated::{self as message, Announcement, Envelope, Left, Refusal};
use crate::control::silence::Silence;
use crate::control::topology::Topology;
use crate::control::{clock, convert, process};
use crate::error::MissingRank;
use crate::failure::{Failure, FailureKind};
use crate::grpc::{Entrance, LaneRules};
use crate::header::OperationHeader;
use crate::interruption::Interruption;
use crate::status::{GroupStatus, Report};
use crate::sync::unpoisoned;

/// How many reasons for which certificates were not accepted are kept.
const CERTIFICATES_MAX: usize = 8;

/// What is known of a rank at first.
pub(super) const NOT_CONNECTED: &str = "it has not connected";

/// Messages that wait to be sent to one rank. A rank that does not read them will be found silent.
pub(super) const QUEUE: usize = 64;

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
    /// Of the tree: see the module `topology`.
    pub(crate) arity: usize,
}

/// The sending half of a stream: a message, or the status that ends it.
pub(super) type Sender = mpsc::Sender<Result<Envelope, Status>>;

/// How far the group has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Ranks may come and go.
    Joining,
    /// All ranks are there; from now on a lost one is a failure.
    Formed,
    /// This rank says goodbye.
    Leaving,
}

/// What is known of a rank.
#[derive(Debug, Clone)]
pub(super) struct Member {
    /// Which process of that rank it is.
    pub(super) run: String,
    pub(super) announcement: Announcement,
    /// The rank that it is connected to as its parent; itself if it has none, as far as is known.
    pub(super) parent: usize,
}

/// What a neighbour was told.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// The first failure of the group.
    pub(super) failure: bool,
    /// Ranks that are on this side.
    pub(super) members: FixedBitSet,
    /// Ranks that have said goodbye.
    pub(super) left: FixedBitSet,
    /// By the number of a gathering: the ranks whose part it has.
    pub(super) parts: BTreeMap<u64, FixedBitSet>,
}

impl Told {
    pub(super) fn nothing(world_size: usize) -> Told {
        Told {
            failure: false,
            members: FixedBitSet::with_capacity(world_size),
            left: FixedBitSet::with_capacity(world_size),
            parts: BTreeMap::new(),
        }
    }

    /// Forgets gatherings before this one.
    pub(super) fn forget_parts_before(&mut self, number: u64) {
        self.parts = self.parts.split_off(&number);
    }
}

/// The parts of one gathering that have come, by rank.
pub(super) struct Gathering {
    pub(super) parts: Vec<Option<Vec<u8>>>,
    pub(super) late_at: Instant,
}

/// The stream to a neighbour in the tree.
pub(super) struct Link {
    /// Tells this stream from an earlier one to the same rank.
    pub(super) id: u64,
    /// `None` once one side has said goodbye.
    pub(super) sender: Option<Sender>,
    /// Which process of that rank it is.
    pub(super) run: String,
    pub(super) ip: IpAddr,
    /// This rank has dialled it: it is the parent.
    pub(super) is_parent: bool,
    /// The peer has announced itself.
    pub(super) is_announced: bool,
    /// What the peer said of its side: all of its ranks have met all.
    pub(super) ready: bool,
    /// The same was said of this side.
    pub(super) told_ready: bool,
    pub(super) silence: Silence,
    /// The peer has left, or was found silent: it is not watched any more.
    pub(super) unwatched: bool,
    /// The peer said goodbye.
    pub(super) left: bool,
    /// The stream still delivers messages.
    pub(super) open: bool,
    /// The ranks on the peer's side of the stream, the peer among them.
    pub(super) behind: FixedBitSet,
    /// What the peer was told.
    pub(super) told: Told,
    /// To whom to connect when the peer has left, as it said.
    pub(super) successors: Vec<(usize, String)>,
    /// The two headers that differed at the last heartbeat.
    pub(super) differing_headers: Option<(OperationHeader, OperationHeader)>,
}

impl Link {
    /// The peer gave up before it had met all others: the group cannot form with it.
    pub(super) fn gave_up(&self) -> bool {
        self.left && !self.ready
    }

    /// Forgets the ranks on the peer's side, and returns them.
    fn take_behind(&mut self) -> FixedBitSet {
        let none = FixedBitSet::with_capacity(self.behind.len());
        std::mem::replace(&mut self.behind, none)
    }

    /// Queues a message if there is room, and says whether there was.
    pub(super) fn try_send(&self, message: Message) -> bool {
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
    /// The neighbours that know.
    pub(super) notified: BTreeSet<usize>,
}

impl JoinFailure {
    /// Tells a neighbour why the group cannot form, once.
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
    /// To the neighbours, by rank.
    pub(super) links: BTreeMap<usize, Link>,
    pub(super) next_link: u64,
    /// By rank, what is known of it since it was there last; this rank among them.
    pub(super) members: Vec<Option<Member>>,
    /// What happened last with each rank, for the error when it does not come.
    pub(super) last: Vec<MissingReason>,
    /// Ranks that have said goodbye to the group that has formed.
    pub(super) left: BTreeMap<usize, Left>,
    /// On rank 0, where not all ranks are listed: the places that it has given away.
    pub(super) places: Topology,
    /// Why this process could not take connections.
    pub(super) shortage: Option<String>,
    pub(super) join_failure: Option<JoinFailure>,
    pub(super) unproven_claims: Vec<UnprovenClaim>,
    /// Connections whose certificate was not accepted, the first ones of every reason.
    pub(super) certificates: Vec<Refusal>,
    /// By number.
    pub(super) gathers: BTreeMap<u64, Gathering>,
    pub(super) next_gather: u64,
    pub(super) next_heartbeat: Instant,
    /// Until then heartbeats follow each other quickly, as some rank has asked for them.
    pub(super) urgent_until: Option<Instant>,
    /// Ranks of other hosts that have answered, and when, while neighbours are silent.
    pub(super) witnesses: BTreeMap<usize, Option<Instant>>,
    /// Streams that were turned away and still carry the reason to their peers.
    pub(super) turned_away: usize,
    /// The first failure was logged.
    pub(super) failure_logged: bool,
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
    /// All ranks' places, where all are listed.
    pub(super) listed: Option<Topology>,
    state: Mutex<State>,
    /// Wakes the task that joins or leaves.
    pub(super) changed: Notify,
    /// Wakes the task that tells the neighbours what they lack.
    pub(super) news: Arc<Notify>,
    /// Some neighbour had no room for news.
    pub(super) is_behind: AtomicBool,
    /// Wakes the task that sends heartbeats.
    pub(super) urgent: Notify,
    /// Wakes the task that spreads failures; [`GroupStatus`] rings it.
    pub(super) failed: Arc<Notify>,
    /// Wakes a thread that gathers.
    pub(super) gathered: Condvar,
}

impl State {
    pub(super) fn new(world_size: usize, places: Topology) -> State {
        State {
            phase: Phase::Joining,
            links: BTreeMap::new(),
            next_link: 0,
            members: vec![None; world_size],
            last: vec![NOT_CONNECTED.to_string().into(); world_size],
            left: BTreeMap::new(),
            places,
            shortage: None,
            join_failure: None,
            unproven_claims: Vec::new(),
            certificates: Vec::new(),
            gathers: BTreeMap::new(),
            next_gather: 0,
            next_heartbeat: clock::now(),
            urgent_until: None,
            witnesses: BTreeMap::new(),
            turned_away: 0,
            failure_logged: false,
            last_heartbeat: clock::now(),
            lost: Duration::ZERO,
        }
    }

    pub(super) fn world_size(&self) -> usize {
        self.members.len()
    }

    /// The link of a rank, if it is still the one with this number.
    pub(super) fn link(&mut self, rank: usize, id: u64) -> Option<&mut Link> {
        let link = self.links.get_mut(&rank)?;
        (link.id == id).then_some(link)
    }

    /// Notes what happened last with a rank that is missing.
    pub(super) fn note_missing(&mut self, rank: usize, missing: MissingReason) {
        if let Some(last) = self.last.get_mut(rank)
            && (last.waited_for.is_empty() || !missing.waited_for.is_empty())
        {
            *last = missing;
        }
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
        let is_new = rank < self.world_size()
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

    pub(super) fn open_links(&self) -> impl Iterator<Item = &Link> {
        self.links.values().filter(|link| link.open)
    }

    /// The link to the parent, while this rank has one.
    pub(super) fn parent(&self) -> Option<(usize, &Link)> {
        let mut links = self.links.iter();
        let parent = links.find(|(_, link)| link.is_parent && link.open && !link.left);
        parent.map(|(rank, link)| (*rank, link))
    }

    /// The ranks that are there, as far as is known here, `own` among them.
    pub(super) fn present(&self, own: usize) -> FixedBitSet {
        let mut present = FixedBitSet::with_capacity(self.world_size());
        present.insert(own);
        for link in self.open_links().filter(|link| !link.gave_up()) {
            present.union_with(&link.behind);
        }
        present
    }

    /// Whether a rank is one of [`present`](Self::present).
    pub(super) fn is_present(&self, own: usize, rank: usize) -> bool {
        let mut links = self.open_links().filter(|link| !link.gave_up());
        rank == own || links.any(|link| link.behind.contains(rank))
    }

    /// The other neighbours of a neighbour, as far as is known.
    pub(super) fn neighbours_of(&self, neighbour: usize, own: usize) -> Vec<usize> {
        let parent = self.members[neighbour].as_ref().map(|member| member.parent);
        let members = self.members.iter().enumerate();
        let is_child =
            |member: &Option<Member>| member.as_ref().is_some_and(|it| it.parent == neighbour);
        let children = members
            .filter(|(_, member)| is_child(member))
            .map(|(rank, _)| rank);
        let others = parent.into_iter().chain(children);
        others
            .filter(|rank| ![own, neighbour].contains(rank) && !self.left.contains_key(rank))
            .collect()
    }

    /// Queues a message to all neighbours whose streams are open.
    pub(super) fn send_to_all(&self, message: &Message) {
        for link in self.open_links() {
            link.send(message.clone());
        }
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
        let all_listed = options.addresses.iter().all(Option::is_some);
        let listed = all_listed.then(|| Topology::of_addresses(options.arity, &options.addresses));
        let own_address = options.addresses.first().cloned().into_iter();
        let places = Topology::of_addresses(options.arity, &own_address.collect::<Vec<_>>());
        let mut state = State::new(options.addresses.len(), places);
        if let Some(own) = state.members.get_mut(options.rank) {
            *own = Some(Member {
                run: hello.identity.run.clone(),
                announcement: announcement.clone(),
                parent: options.rank,
            });
        }
        let entrance = Entrance::new(LaneRules {
            rank: options.rank,
            world_size: options.addresses.len(),
            generation: options.generation,
            group: options.group,
            lanes: options.lanes,
        });
        Membership {
            state: Mutex::new(state),
            listed,
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
            changed: Notify::new(),
            news: Arc::default(),
            is_behind: AtomicBool::new(false),
            urgent: Notify::new(),
            failed,
            gathered: Condvar::new(),
        }
    }

    /// What a rank has said of its process.
    pub(super) fn announcement_of(&self, rank: usize) -> Option<Announcement> {
        let state = self.state();
        let member = state.members.get(rank)?.as_ref()?;
        Some(member.announcement.clone())
    }

    /// Held only for short changes. The status is never asked to note something meanwhile.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        unpoisoned(self.state.lock())
    }

    pub(super) fn world_size(&self) -> usize {
        self.addresses.len()
    }

    /// What this rank and another one that has joined know, and others only if they know the token
    /// too: it follows from the token and from the run of rank 0, which each start of a group
    /// draws anew. Without a token nothing proves who a rank is.
    pub(super) fn secret_with(&self, state: &State, rank: usize) -> Option<Secret> {
        state.members.get(rank)?.as_ref()?;
        let run = &state.members.first()?.as_ref()?.run;
        let identity = &self.hello.identity;
        let pair = [self.rank.min(rank), self.rank.max(rank)].map(|rank| rank as u64);
        let parts = [
            run.as_bytes(),
            identity.group.as_bytes(),
            &identity.generation.to_le_bytes(),
            &pair[0].to_le_bytes(),
            &pair[1].to_le_bytes(),
        ];
        let derived = self.security.derive("distribute control 8: ranks", &parts);
        Some(Secret::new(if derived.is_empty() {
            parts.concat()
        } else {
            derived
        }))
    }

    /// Whether a rank that comes connects here, as far as is known before.
    pub(super) fn is_child(&self, rank: usize) -> bool {
        match &self.listed {
            Some(listed) => listed.parent(rank) == Some(self.rank),
            None => self.rank == 0 && rank != 0,
        }
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
        self.state().note_missing(rank, missing);
    }

    /// Ends the join of this rank, and of all others: the group cannot form. Rank `informed`
    /// knows already.
    pub(super) fn refuse(&self, informed: Option<usize>, refusal: Refusal) {
        let mut state = self.state();
        let world_size = state.world_size();
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
            let informed = informed.filter(|rank| *rank < world_size);
            join_failure.notified.extend(informed);
            for (rank, link) in links.iter().filter(|(_, link)| link.open) {
                join_failure.send_to(*rank, link);
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Handles one message of a neighbour. Returns whether to go on reading.
    pub(super) fn handle(&self, rank: usize, id: u64, envelope: Envelope) -> bool {
        {
            let mut state = self.state();
            let Some(link) = state.link(rank, id) else {
                return false;
            };
            link.silence.end(clock::now());
            link.ready |= matches!(envelope.message, Some(Message::Ready(_)));
        }
        match envelope.message {
            Some(Message::Announcement(it)) => self.announced(rank, id, it),
            Some(Message::Ready(_)) => self.changed.notify_one(),
            Some(Message::Members(members)) => self.take_members(rank, id, members),
            Some(Message::Heartbeat(beat)) => self.heartbeat(rank, id, &beat),
            Some(Message::Notice(notice)) => {
                if let Some(failure) = convert::failure(self.world_size(), &notice) {
                    self.status.record_if_first(failure);
                }
            }
            Some(Message::Gather(parts)) => self.take_parts(parts),
            Some(Message::Goodbye(goodbye)) => self.goodbye(rank, id, goodbye),
            Some(Message::Refusal(refusal)) => self.refuse(Some(rank), refusal),
            // A redirection is read where a stream begins; others are of later versions.
            Some(Message::Redirect(_)) | None => {}
        }
        true
    }

    /// Notes what a child says of itself.
    fn announced(&self, rank: usize, id: u64, announcement: Announcement) {
        let mut state = self.state();
        let Some(link) = state.link(rank, id) else {
            return;
        };
        link.is_announced = true;
        link.behind.insert(rank);
        let run = link.run.clone();
        let parent = self.rank;
        state.members[rank] = Some(Member {
            run,
            announcement,
            parent,
        });
        state.welcome(rank);
        drop(state);
        self.tell_news();
    }

    /// Notes that a neighbour reads: there may be room for what had none.
    pub(super) fn note_room(&self) {
        if self.is_behind.swap(false, Ordering::Relaxed) {
            self.news.notify_one();
        }
    }

    /// Looks at what has changed, and tells the neighbours.
    pub(super) fn tell_news(&self) {
        self.news.notify_one();
        self.changed.notify_one();
    }

    fn goodbye(&self, rank: usize, id: u64, goodbye: message::Goodbye) {
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
        let successors = goodbye.successors.into_iter();
        let known = successors.map(|it| (it.rank as usize, it.address));
        link.successors = known.collect();
        let behind = link.take_behind();
        let because = match goodbye.reason.as_str() {
            "" => String::new(),
            reason => format!(": {reason}"),
        };
        let waited_for: Vec<usize> = (goodbye.waited_for.iter())
            .map(|rank| *rank as usize)
            .collect();
        match phase {
            Phase::Leaving => {}
            Phase::Joining | Phase::Formed if !joined => {
                for lost in behind.ones().filter(|it| *it != rank) {
                    let reason = format!("it was connected through rank {rank}, which gave up");
                    let waited_for = waited_for.clone();
                    state.note_missing(lost, MissingReason { reason, waited_for });
                }
                let reason = format!("it gave up joining{because}");
                state.note_missing(rank, MissingReason { reason, waited_for });
                drop(state);
            }
            _ => {
                let left = Left {
                    rank: rank as u32,
                    completed: goodbye.completed,
                    reason: because,
                };
                drop(state);
                self.take_left(left);
            }
        }
        self.tell_news();
    }

    /// Notes that a rank has said goodbye to the group.
    pub(super) fn take_left(&self, left: Left) {
        let rank = left.rank as usize;
        if rank >= self.world_size() || rank == self.rank {
            return;
        }
        let (completed, because) = (left.completed, left.reason.clone());
        if let Entry::Vacant(place) = self.state().left.entry(rank) {
            place.insert(left);
        }
        let reason = format!("it left the group after {completed} operations{because}");
        self.status.goodbye(rank, completed, reason);
        self.tell_news();
    }

    /// What this rank says about itself, and whether it wants to hear the same.
    pub(super) fn own_heartbeat(&self, answer: bool) -> message::Heartbeat {
        message::Heartbeat {
            running: convert::running(self.status.running().map(|it| it.header).as_ref()),
            completed: self.status.completed(),
            answer,
            lost_permille: self.lost_permille.load(Ordering::Relaxed),
            reports: Vec::new(),
        }
    }

    /// What the neighbours are told from time to time: also how much of the time since the last one
    /// this process lost.
    pub(super) fn periodic_heartbeat(&self, state: &mut State, now: Instant) -> message::Heartbeat {
        let before = std::mem::replace(&mut state.last_heartbeat, now);
        let elapsed = now.saturating_duration_since(before).as_millis().max(1);
        let lost = std::mem::take(&mut state.lost).as_millis().min(elapsed);
        let permille = (lost * 1000 / elapsed) as u32;
        self.lost_permille.store(permille, Ordering::Relaxed);
        self.own_heartbeat(false)
    }

    /// The host of each rank.
    pub(super) fn hosts(&self) -> Vec<String> {
        (0..self.world_size()).map(|rank| self.host(rank)).collect()
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
        let report = Report {
            at: clock::now(),
            running: theirs,
            completed: beat.completed,
        };
        self.status.note_peers([rank].into_iter(), report);
        self.take_reports(rank, &beat.reports);
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
        let before = std::mem::replace(&mut link.differing_headers, pair);
        if beat.answer {
            self.answer(&mut state, rank);
        }
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
        let behind = link.take_behind();
        if phase == Phase::Joining {
            state.links.remove(&rank);
            for lost in behind.ones().filter(|it| !left && *it != rank) {
                let reason = format!("it was connected through rank {rank}, which is gone");
                let waited_for = vec![rank];
                state.note_missing(lost, MissingReason { reason, waited_for });
            }
            if !left {
                state.last[rank] = reason.clone().into();
            }
        }
        drop(state);
        if phase == Phase::Formed && !left {
            self.record_failure(FailureKind::Lost { rank, reason });
        }
        self.tell_news();
        self.gathered.notify_all();
    }
}

impl AbortTarget for Membership {
    fn abort(&self, rank: usize, reason: &str) {
        self.status.record_if_first(Failure::aborted(rank, reason));
    }
}
