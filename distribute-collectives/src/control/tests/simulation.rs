//! Ranks in a simulated network. The rules of the control plane (the tree, joining, heartbeats,
//! silence, failures, goodbyes) run as they are; clock, network and processes are simulated. A run
//! is its seed, so one that fails can be run again.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::mem::{Discriminant, discriminant};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use distribute_net::handshake::{
    Authenticated, Dialer, Hello, Identity, Listener, Purpose, Secret, SessionKey,
};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;
use tonic::Status;

use crate::bookkeeping::RunningOperation;
use crate::communicator::AbortTarget;
use crate::control::generated::envelope::Message;
use crate::control::generated::{Announcement, Envelope};
use crate::control::handshake::{self, Origin};
use crate::control::membership::{JoinOptions, Membership, Phase, QUEUE, envelope};
use crate::control::plane::{self, JoinProgress};
use crate::control::{ARITY, client, clock, probe, silence, watch};
use crate::error::CollectiveError;
use crate::header::OperationHeader;
use crate::operation::OperationKind;
use crate::status::GroupStatus;
use crate::testing::{Random, on_threads};

pub(super) const RANKS: usize = 8;
const SEEDS: u64 = 1000;
/// Seeds with which a run once failed, for ever; a line has the seed and what was wrong.
const FAILED_ONCE: &str = include_str!("simulation_seeds.txt");

/// What a message and a handshake cost a rank, where that is simulated.
const MESSAGE_COST: u64 = 30;
const HANDSHAKE_COST: u64 = 500;

const MILLISECOND: u64 = 1000;
const SECOND: u64 = 1000 * MILLISECOND;
const INTERVAL: u64 = SECOND;
/// A rank that has not been heard of for so long is silent.
const SILENCE: u64 = 3 * SECOND;
/// The first pause after which TCP sends again what was lost.
const RESEND_PAUSE: u64 = 220 * MILLISECOND;
/// A silent rank is dialled so often.
const DIAL_PAUSE: u64 = silence::ATTEMPT_PAUSE.as_micros() as u64;
const JOIN_TIMEOUT: u64 = 20 * SECOND;
/// All ranks are there, unless something happens before.
const JOINED: u64 = 6 * SECOND;
/// Whatever happens has happened by then, and all ranks have had the time to hear of it.
const END: u64 = 40 * SECOND;

thread_local! {
    static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The time of the simulation that runs on this thread.
pub(in crate::control) fn now() -> Option<Instant> {
    NOW.get()
}

/// Runs something at another time.
pub(super) fn at<R>(time: Instant, run: impl FnOnce() -> R) -> R {
    NOW.set(Some(time));
    let result = run();
    NOW.set(None);
    result
}

/// What happens to the ranks, beside delays.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    Crash {
        rank: usize,
    },
    Abort {
        rank: usize,
    },
    /// The process stands still.
    Stop {
        rank: usize,
        until: u64,
    },
    /// Nothing gets from the ranks of one side to the others, nor back.
    Cut {
        side: Side,
        until: u64,
    },
}

/// Some of the ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Side {
    Only(usize),
    /// Half of them, by these random bits.
    Half {
        bits: u64,
        inside: usize,
        outside: usize,
    },
}

impl Side {
    fn contains(self, rank: usize) -> bool {
        match self {
            Side::Only(only) => only == rank,
            Side::Half { inside, .. } if inside == rank => true,
            Side::Half { outside, .. } if outside == rank => false,
            Side::Half { bits, .. } => Random(bits ^ rank as u64).below(2) == 1,
        }
    }
}

/// The group of a run.
#[derive(Debug, Clone, Copy)]
struct Shape {
    ranks: usize,
    arity: usize,
    ranks_per_host: usize,
    /// All addresses are listed, not only that of rank 0.
    is_listed: bool,
    /// As in one data centre: short delays, and every message and handshake keeps its rank busy.
    is_local: bool,
}

enum Event {
    Start {
        rank: usize,
    },
    /// A rank without a parent looks for one.
    Attach {
        rank: usize,
    },
    /// A rank that looks for a parent has dialled this one, and is to try the others if that fails.
    Shake {
        rank: usize,
        parent: usize,
        others: Vec<usize>,
        is_placed: bool,
    },
    Deliver {
        stream: usize,
        to: usize,
        message: Option<Envelope>,
    },
    Look {
        rank: usize,
        due: u64,
    },
    /// Silent ranks are dialled.
    Dial {
        rank: usize,
    },
    Leave {
        rank: usize,
    },
    Fault(Fault),
}

/// The rank's half of a stream: its number there, and what it has queued.
struct Half {
    rank: usize,
    id: u64,
    queue: Option<mpsc::Receiver<Result<Envelope, Status>>>,
    /// When what it has sent last arrives.
    last_arrival: u64,
    /// What was lost first in the cut, when that was, and the pause until it is sent again.
    lost: Option<(u64, u64)>,
}

struct Rank {
    shared: Arc<Membership>,
    /// Its halves of streams.
    halves: Vec<(usize, usize)>,
    /// It looks for a parent, and where and since when.
    is_attaching: bool,
    has_tried: bool,
    lost: usize,
    candidates: Vec<(usize, String)>,
    alone_since: Instant,
    is_running: bool,
    is_dead: bool,
    has_joined: bool,
    stopped_until: u64,
    /// Until then it works on what has come before.
    busy_until: u64,
    joined_at: u64,
    /// The error with which joining or its first operation ended, and when.
    verdict: Option<CollectiveError>,
    ended_at: u64,
}

impl Rank {
    /// Whether the operation that has failed would go on now.
    fn is_well_again(&self) -> bool {
        let again = self.shared.status.check(&operation());
        self.has_joined && again.err() != self.verdict
    }
}

struct Simulation {
    shape: Shape,
    random: Random,
    base: Instant,
    time: u64,
    number: u64,
    events: BTreeMap<(u64, u64), Event>,
    ranks: Vec<Rank>,
    streams: Vec<[Half; 2]>,
    cut: (Side, u64),
    /// Delivered so far.
    messages: u64,
    /// What happened when, and to which rank.
    trace: Vec<(u64, usize, Discriminant<Event>)>,
}

fn operation() -> OperationHeader {
    OperationHeader::new(OperationKind::Barrier, 0, 0)
}

fn address(shape: &Shape, rank: usize) -> String {
    format!("host-{}:{}", rank / shape.ranks_per_host, rank + 1)
}

fn hello(shape: &Shape, rank: usize) -> Hello {
    let mut hello = Hello::new(Purpose::Control, 1, "simulated");
    let told = (!shape.is_listed && rank > 0).then(|| address(shape, rank));
    hello.details = json!({"world_size": shape.ranks, "options": "", "address": told}).to_string();
    hello.identity = Identity {
        group: "simulated".to_string(),
        task: rank as u32,
        run: rank.to_string(),
        generation: 0,
    };
    hello
}

/// A key, which is not used here.
static SESSION_KEY: LazyLock<SessionKey> = LazyLock::new(|| {
    let named = |rank| hello(&STAR, rank);
    let (dialer, first) = Dialer::start(named(1), &Secret::default()).unwrap();
    let listener = Listener::receive(&first).unwrap();
    let answered = listener.answer(named(0), &Secret::default(), &[]);
    let (_, proven) = dialer.finish(&answered.unwrap().1, &[]).unwrap();
    proven.check_compatible().unwrap().session_key
});

const STAR: Shape = Shape {
    ranks: RANKS,
    arity: ARITY,
    ranks_per_host: 1,
    is_listed: true,
    is_local: false,
};

/// One of eight ranks.
pub(super) fn membership(rank: usize) -> Arc<Membership> {
    membership_of(&STAR, rank)
}

/// One of eight ranks that has connected to rank 0, and the number of that link. What it sends is
/// read by none.
pub(super) fn joined_to_rank_0(rank: usize) -> (Arc<Membership>, u64) {
    let (own, parent) = (membership(rank), membership(0));
    let link = register(&own, &parent, Some(Default::default())).unwrap();
    (own, link.id)
}

/// What rank 0 of a group that has formed queues for two of its children: the number of the link
/// to each one, and what it is told.
pub(super) type Children = [(u64, mpsc::Receiver<Result<Envelope, Status>>); 2];

/// Rank 0 of a group that has formed, with its children 1 and 2.
pub(super) fn with_children() -> (Arc<Membership>, Children) {
    let own = membership(0);
    let children = [1, 2].map(|child| {
        let half = register(&own, &membership(child), None).unwrap();
        let announcement = Message::Announcement(Announcement::default());
        own.handle(child, half.id, envelope(announcement));
        (half.id, half.queue.unwrap())
    });
    own.state().phase = Phase::Formed;
    (own, children)
}

fn membership_of(shape: &Shape, rank: usize) -> Arc<Membership> {
    let is_listed = |rank: usize| rank == 0 || shape.is_listed;
    let options = JoinOptions {
        rank,
        addresses: (0..shape.ranks)
            .map(|rank| is_listed(rank).then(|| address(shape, rank)))
            .collect(),
        told_address: (!is_listed(rank)).then(|| address(shape, rank)),
        group: String::new(),
        generation: 0,
        options: String::new(),
        rendezvous_timeout: Duration::from_micros(JOIN_TIMEOUT),
        heartbeat_interval: Duration::from_micros(INTERVAL),
        heartbeat_misses: (SILENCE / INTERVAL) as u32,
        security: Default::default(),
        announcement: Default::default(),
        interruption: Default::default(),
        lanes: 1,
        arity: shape.arity,
    };
    let status = Arc::new(GroupStatus::default());
    status.begin(RunningOperation::new(&operation(), Duration::from_secs(1)));
    Arc::new(Membership::new(options, hello(shape, rank), None, status))
}

impl Simulation {
    fn new(seed: u64, shape: Shape) -> Simulation {
        let base = Instant::now();
        NOW.set(Some(base));
        let rank = |rank| Rank {
            shared: membership_of(&shape, rank),
            halves: Vec::new(),
            is_attaching: false,
            has_tried: false,
            lost: 0,
            candidates: Vec::new(),
            alone_since: base,
            is_running: false,
            is_dead: false,
            has_joined: false,
            stopped_until: 0,
            busy_until: 0,
            joined_at: 0,
            verdict: None,
            ended_at: 0,
        };
        Simulation {
            shape,
            random: Random(seed),
            base,
            time: 0,
            number: 0,
            events: BTreeMap::new(),
            ranks: (0..shape.ranks).map(rank).collect(),
            streams: Vec::new(),
            cut: (Side::Only(0), 0),
            messages: 0,
            trace: Vec::new(),
        }
    }

    fn at(&mut self, time: u64, event: Event) {
        self.number += 1;
        self.events.insert((time, self.number), event);
    }

    /// Mostly some milliseconds, sometimes a part of a second.
    fn delay(&mut self) -> u64 {
        if self.shape.is_local {
            return 50 + self.random.below(200) as u64;
        }
        let slow = self.random.below(100) == 0;
        let most = if slow { 400 } else { 20 };
        100 + self.random.below(most) as u64 * MILLISECOND
    }

    fn is_cut(&self, one: usize, other: usize) -> bool {
        let side = |rank: usize| self.cut.0.contains(rank);
        self.time < self.cut.1 && side(one) != side(other)
    }

    fn run(&mut self) {
        self.run_until(END);
    }

    fn run_until(&mut self, end: u64) {
        while let Some(((time, number), event)) = self.events.pop_first() {
            if time > end {
                self.events.insert((time, number), event);
                return;
            }
            let (cost, rank) = self.cost(&event);
            let busy_until = &mut self.ranks[rank].busy_until;
            if cost > 0 && time < *busy_until {
                // Keeps its number, and with it its place behind what has come before.
                self.events.insert((*busy_until, number), event);
                continue;
            }
            if cost > 0 {
                *busy_until = time + cost;
            }
            self.time = time;
            NOW.set(Some(self.base + Duration::from_micros(time)));
            self.happen(event);
        }
    }

    /// For how long an event keeps a rank busy, and which one.
    fn cost(&self, event: &Event) -> (u64, usize) {
        match event {
            _ if !self.shape.is_local => (0, 0),
            Event::Deliver { stream, to, .. } => (MESSAGE_COST, self.streams[*stream][*to].rank),
            Event::Shake { parent, .. } => (HANDSHAKE_COST, *parent),
            _ => (0, 0),
        }
    }

    fn happen(&mut self, event: Event) {
        let rank = match &event {
            Event::Start { rank }
            | Event::Look { rank, .. }
            | Event::Dial { rank }
            | Event::Attach { rank }
            | Event::Shake { rank, .. }
            | Event::Leave { rank } => *rank,
            Event::Deliver { stream, to, .. } => self.streams[*stream][*to].rank,
            Event::Fault(fault) => return self.fail(*fault),
        };
        self.trace.push((self.time, rank, discriminant(&event)));
        let stopped_until = self.ranks[rank].stopped_until;
        if self.time < stopped_until {
            return self.at(stopped_until, event);
        }
        match event {
            Event::Start { .. } if !self.ranks[rank].is_dead => self.start(rank),
            _ if !self.ranks[rank].is_running => {}
            Event::Attach { .. } => self.attach(rank),
            Event::Shake {
                parent,
                others,
                is_placed,
                ..
            } => self.shake(rank, parent, others, is_placed),
            Event::Deliver {
                stream,
                to,
                message,
            } => self.deliver(stream, to, message),
            Event::Look { due, .. } => self.look(rank, due),
            Event::Dial { .. } => self.probe(rank),
            Event::Leave { .. } => self.leave(rank, String::new(), Vec::new()),
            Event::Start { .. } | Event::Fault(_) => {}
        }
        self.settle(rank);
    }

    fn start(&mut self, rank: usize) {
        // Its deadline counts from now on.
        let shared = membership_of(&self.shape, rank);
        let started = &mut self.ranks[rank];
        started.candidates = client::candidates(&shared);
        started.alone_since = clock::now();
        (started.shared, started.is_running) = (shared, true);
        let due = self.time;
        self.at(due, Event::Look { rank, due });
        self.at(due, Event::Dial { rank });
    }

    fn fail(&mut self, fault: Fault) {
        match fault {
            Fault::Crash { rank } => {
                self.ranks[rank].is_running = false;
                self.ranks[rank].is_dead = true;
                for (stream, from) in self.halves(rank) {
                    if self.streams[stream][from].queue.take().is_some() {
                        self.put(stream, from, None);
                    }
                }
            }
            Fault::Abort { rank } if self.ranks[rank].is_running => {
                self.ranks[rank].shared.abort(rank, "the loss is NaN");
                self.settle(rank);
            }
            Fault::Stop { rank, until } => self.ranks[rank].stopped_until = until,
            Fault::Cut { side, until } => self.cut = (side, until),
            Fault::Abort { .. } => {}
        }
    }

    /// One round of attempts to find a parent, like a round of `find_parent` or `keep_attached`.
    fn attach(&mut self, rank: usize) {
        let shared = self.ranks[rank].shared.clone();
        let own = &self.ranks[rank];
        let (candidates, is_placed) = match client::replacement(&shared) {
            Some((parent, successors)) => {
                shared.state().links.remove(&parent);
                (successors, true)
            }
            None if shared.state().phase == Phase::Joining => {
                let waited = clock::now().saturating_duration_since(own.alone_since);
                let reached = client::reach(&shared, &own.candidates, waited, own.lost);
                (reached, !own.candidates.is_empty())
            }
            None => (Vec::new(), true),
        };
        let ranks = candidates.into_iter().map(|(rank, _)| rank).collect();
        self.dial(rank, ranks, is_placed);
    }

    /// Dials the first of these ranks, which takes some time.
    fn dial(&mut self, rank: usize, mut ranks: Vec<usize>, is_placed: bool) {
        if ranks.is_empty() {
            self.ranks[rank].is_attaching = false;
            return;
        }
        let parent = ranks.remove(0);
        let arrives = self.time + 2 * self.delay();
        let event = Event::Shake {
            rank,
            parent,
            others: ranks,
            is_placed,
        };
        self.at(arrives, event);
    }

    fn shake(&mut self, rank: usize, parent: usize, others: Vec<usize>, is_placed: bool) {
        if self.connect(rank, parent, is_placed) {
            self.ranks[rank].is_attaching = false;
            self.ranks[rank].alone_since = clock::now();
            self.ranks[rank].lost = usize::from(is_placed);
        } else {
            self.dial(rank, others, is_placed);
        }
    }

    /// The handshake. Returns whether there is a stream, or another parent to try.
    fn connect(&mut self, child: usize, parent: usize, is_placed: bool) -> bool {
        let server = &self.ranks[parent];
        let is_there = server.is_running && self.time >= server.stopped_until;
        if !is_there || self.is_cut(child, parent) {
            let shared = &self.ranks[child].shared;
            shared.record_missing(parent, "connection refused".to_string());
            return false;
        }
        let listening = server.shared.clone();
        let dialling = self.ranks[child].shared.clone();
        let hello = handshake::hello(&dialling, parent, "", is_placed);
        match handshake::redirected(&listening, &authenticated(hello)) {
            Ok(ancestors) if ancestors.is_empty() => {}
            Ok(ancestors) => {
                let ancestors = ancestors
                    .into_iter()
                    .map(|it| (it.rank as usize, it.address));
                self.ranks[child].candidates = ancestors.collect();
                // It knows where to go now, and does so at once.
                self.ranks[child].has_tried = false;
                return true;
            }
            Err(_) => return false,
        }
        let Some(server) = register(&listening, &dialling, None) else {
            return false;
        };
        let Some(client) = register(&dialling, &listening, Some(Default::default())) else {
            listening.ended(child, server.id, "it closed the stream".to_string());
            return false;
        };
        let stream = self.streams.len();
        self.ranks[child].halves.push((stream, 0));
        self.ranks[parent].halves.push((stream, 1));
        self.streams.push([client, server]);
        self.settle(parent);
        true
    }

    fn deliver(&mut self, stream: usize, to: usize, message: Option<Envelope>) {
        let [half, peer] = [to, 1 - to].map(|half| &self.streams[stream][half]);
        let (rank, id, peer) = (half.rank, half.id, peer.rank);
        if self.is_cut(rank, peer) {
            let event = Event::Deliver {
                stream,
                to,
                message,
            };
            let again = self.resent_at(stream, 1 - to);
            return self.at(again, event);
        }
        self.streams[stream][1 - to].lost = None;
        self.messages += 1;
        let shared = &self.ranks[rank].shared;
        match message {
            Some(message) => drop(shared.handle(peer, id, message)),
            None => shared.ended(peer, id, "its process ended".to_string()),
        }
    }

    /// When a half sends again what was lost: TCP doubles its pauses from lost packet to lost
    /// packet, and all that is sent later waits for the first.
    fn resent_at(&mut self, stream: usize, from: usize) -> u64 {
        let time = self.time;
        let half = &mut self.streams[stream][from];
        let (mut at, mut pause) = half.lost.unwrap_or((time, RESEND_PAUSE));
        while at <= time {
            at += pause;
            pause *= 2;
        }
        half.lost = Some((at, pause));
        at
    }

    /// Probes the silent ranks of a rank. The system of a stopped process answers, too.
    fn probe(&mut self, rank: usize) {
        let shared = self.ranks[rank].shared.clone();
        for attempt in probe::attempts(&shared) {
            if !self.is_cut(rank, attempt.rank) {
                probe::note_reached(&shared, &attempt);
            }
        }
        for witness in probe::witnesses(&shared) {
            let asked = &self.ranks[witness];
            let answers = asked.is_running && self.time >= asked.stopped_until;
            if answers && !self.is_cut(rank, witness) {
                probe::note_witness(&shared, witness);
            }
        }
        self.at(self.time + DIAL_PAUSE, Event::Dial { rank });
    }

    /// A look at the clock that was due at this time.
    fn look(&mut self, rank: usize, due: u64) {
        let late = Duration::from_micros(self.time - due);
        let wake = watch::check_heartbeats(&self.ranks[rank].shared, late)
            .saturating_duration_since(self.base)
            .as_micros() as u64;
        let due = wake.max(self.time + MILLISECOND);
        self.at(due, Event::Look { rank, due });
    }

    fn leave(&mut self, rank: usize, reason: String, waited_for: Vec<u32>) {
        plane::say_goodbye(&self.ranks[rank].shared, reason, waited_for);
        self.send(rank);
        self.ranks[rank].is_running = false;
    }

    /// What a rank does after anything that it has seen.
    fn settle(&mut self, rank: usize) {
        if !self.ranks[rank].is_running {
            return;
        }
        let shared = self.ranks[rank].shared.clone();
        if !self.ranks[rank].has_joined {
            match plane::join_progress(&shared) {
                Ok(JoinProgress::Joined(_)) => {
                    self.ranks[rank].has_joined = true;
                    self.ranks[rank].joined_at = self.time;
                }
                Ok(JoinProgress::Until(_)) => {}
                Err(error) => {
                    self.leave(rank, error.to_string(), plane::waited_for(&error));
                    self.ranks[rank].verdict = Some(error);
                    self.ranks[rank].ended_at = self.time;
                    return;
                }
            }
        }
        shared.spread(false);
        self.send(rank);
        self.look_for_a_parent(rank);
        if self.ranks[rank].has_joined
            && self.ranks[rank].verdict.is_none()
            && let Err(error) = shared.status.check(&operation())
        {
            // The operation in which the rank waits ends, and then its program.
            self.ranks[rank].verdict = Some(error);
            self.ranks[rank].ended_at = self.time;
            let pause = self.random.below(2000) as u64 * MILLISECOND;
            self.at(self.time + pause, Event::Leave { rank });
        }
    }

    /// Tries again soon, while a rank has no parent and needs one.
    fn look_for_a_parent(&mut self, rank: usize) {
        let shared = self.ranks[rank].shared.clone();
        let needs_one = {
            let state = shared.state();
            state.phase == Phase::Joining && rank > 0 && state.parent().is_none()
        };
        if !self.ranks[rank].is_attaching && (needs_one || client::replacement(&shared).is_some()) {
            self.ranks[rank].is_attaching = true;
            let has_tried = std::mem::replace(&mut self.ranks[rank].has_tried, true);
            let pause = match (has_tried, self.shape.is_local) {
                (false, _) => 0,
                (true, true) => 10 * MILLISECOND,
                (true, false) => self.delay() + 100 * MILLISECOND,
            };
            self.at(self.time + pause, Event::Attach { rank });
        }
    }

    /// The halves of streams that a rank has.
    fn halves(&self, rank: usize) -> Vec<(usize, usize)> {
        self.ranks[rank].halves.clone()
    }

    /// Puts what a rank has queued on its way.
    fn send(&mut self, rank: usize) {
        for (stream, from) in self.halves(rank) {
            while let Some(queue) = &mut self.streams[stream][from].queue {
                match queue.try_recv() {
                    Ok(message) => self.put(stream, from, message.ok()),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        self.streams[stream][from].queue = None;
                        self.put(stream, from, None);
                    }
                }
            }
        }
    }

    /// A message, or the end of the stream, arrives some time later, after all before it.
    fn put(&mut self, stream: usize, from: usize, message: Option<Envelope>) {
        let arrival = self.time + self.delay();
        let half = &mut self.streams[stream][from];
        half.last_arrival = half.last_arrival.max(arrival);
        let (arrival, to) = (half.last_arrival, 1 - from);
        self.at(
            arrival,
            Event::Deliver {
                stream,
                to,
                message,
            },
        );
    }
}

fn authenticated(hello: Hello) -> Authenticated {
    Authenticated {
        peer: hello,
        session_key: SESSION_KEY.clone(),
    }
}

/// Makes a link to `peer`; `parent` is what that has announced, if it is the parent.
fn register(
    shared: &Arc<Membership>,
    peer: &Membership,
    parent: Option<Announcement>,
) -> Option<Half> {
    let (sender, queue) = mpsc::channel(QUEUE);
    let ip = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    let peer = authenticated(peer.hello.clone());
    let id = handshake::register(shared, &peer, Origin { ip, parent }, sender).ok()?;
    Some(Half {
        rank: shared.rank,
        id,
        queue: Some(queue),
        last_arrival: 0,
        lost: None,
    })
}

/// The ranks that an error names.
fn blamed(error: &CollectiveError) -> Vec<usize> {
    match error {
        CollectiveError::PeerLost { rank, .. }
        | CollectiveError::CutOff { rank, .. }
        | CollectiveError::Aborted { rank, .. } => {
            vec![*rank]
        }
        CollectiveError::Timeout { missing, .. } => missing.clone(),
        CollectiveError::Rendezvous { missing, .. } => missing.iter().map(|it| it.rank).collect(),
        other => panic!("{other:?}"),
    }
}

/// What is to come of a run.
struct Expected {
    faults: Vec<Fault>,
    /// Ranks that may be named; without any, none may fail.
    culprits: Vec<usize>,
    /// Ranks of which nothing is asked, since they are dead.
    dead: Vec<usize>,
    never_starts: Option<usize>,
}

fn scenario(seed: u64, ranks: usize, random: &mut Random) -> (Vec<(u64, Fault)>, Expected) {
    let rank = random.below(ranks);
    let other = (rank + 1 + random.below(ranks - 1)) % ranks;
    let early = 2 * SECOND + random.below(8000) as u64 * MILLISECOND;
    let late = JOINED + early / 2;
    let half = Side::Half {
        bits: random.next(),
        inside: rank,
        outside: other,
    };
    let mut expected = Expected {
        faults: Vec::new(),
        culprits: vec![rank],
        dead: Vec::new(),
        never_starts: None,
    };
    let cut = |time, side, until| vec![(time, Fault::Cut { side, until })];
    let short = 1 + random.below(SILENCE as usize - 1) as u64;
    let faults = match seed % 10 {
        0 => Vec::new(),
        1 => vec![(early, Fault::Crash { rank })],
        2 => vec![(late, Fault::Abort { rank })],
        3 => cut(late, Side::Only(rank), u64::MAX),
        4 => cut(early, half, early + SECOND),
        5 => cut(late, half, u64::MAX),
        6 => Vec::new(),
        // For less than a rank may be silent: whatever TCP makes of it.
        9 => cut(late, half, late + short),
        7 => vec![(
            late,
            Fault::Stop {
                rank,
                until: late + 10 * SECOND,
            },
        )],
        _ => {
            let soon = late + random.below(200) as u64 * MILLISECOND;
            expected.culprits.push(other);
            vec![
                (late, Fault::Crash { rank }),
                (soon, Fault::Abort { rank: other }),
            ]
        }
    };
    match seed % 10 {
        0 | 4 | 9 => expected.culprits.clear(),
        5 => expected.culprits = (0..ranks).collect(),
        6 => {
            expected.never_starts = Some(rank);
            expected.dead.push(rank);
        }
        _ => {}
    }
    expected.faults = faults.iter().map(|(_, fault)| *fault).collect();
    for fault in &expected.faults {
        if let Fault::Crash { rank } = fault {
            expected.dead.push(*rank);
        }
    }
    (faults, expected)
}

/// Groups of eight as a star and as deep trees, of hosts with one rank and with three, listed and
/// not.
fn shape(seed: u64) -> Shape {
    Shape {
        arity: [ARITY, 1, 2, 3][(seed / 10 % 4) as usize],
        ranks_per_host: [1, 3][(seed / 40 % 2) as usize],
        is_listed: !(seed / 80).is_multiple_of(3),
        ..STAR
    }
}

/// Runs a seed to its end.
fn run(seed: u64, shape: Shape) -> (Simulation, Expected) {
    let mut simulation = Simulation::new(seed, shape);
    let (faults, expected) = scenario(seed, shape.ranks, &mut simulation.random);
    for rank in (0..shape.ranks).filter(|rank| Some(*rank) != expected.never_starts) {
        let start = simulation.random.below(4000) as u64 * MILLISECOND;
        simulation.at(start, Event::Start { rank });
    }
    for (time, fault) in faults {
        simulation.at(time, Event::Fault(fault));
    }
    simulation.run();
    NOW.set(None);
    (simulation, expected)
}

/// Runs a seed; what was wrong.
fn check(seed: u64, shape: Shape) -> Result<(), String> {
    let (simulation, expected) = run(seed, shape);
    let living = (0..shape.ranks).filter(|rank| !expected.dead.contains(rank));
    let verdicts: Vec<_> = living
        .map(|rank| (rank, &simulation.ranks[rank].verdict))
        .collect();
    let wrong = |what: &str| {
        Err(format!(
            "seed {seed}, {shape:?}, {:?}: {what}: {verdicts:?}",
            expected.faults
        ))
    };
    for (rank, verdict) in &verdicts {
        match verdict {
            None if expected.culprits.is_empty() => {
                if !simulation.ranks[*rank].has_joined {
                    return wrong(&format!("rank {rank} has not joined"));
                }
            }
            None => return wrong(&format!("rank {rank} waits for ever")),
            Some(error) => {
                if simulation.ranks[*rank].is_well_again() {
                    return wrong(&format!("the group of rank {rank} came back"));
                }
                let named = blamed(error);
                let is_guilty = |rank: &usize| expected.culprits.contains(rank);
                if named.is_empty() || !named.iter().all(is_guilty) {
                    return wrong(&format!("rank {rank} names another rank"));
                }
            }
        }
    }
    // What one rank says, all others repeat.
    let is_abort = matches!(expected.faults[..], [Fault::Abort { .. }]);
    if is_abort
        && verdicts
            .iter()
            .any(|(_, verdict)| *verdict != verdicts[0].1)
    {
        return wrong("the errors differ");
    }
    Ok(())
}

#[test]
fn whatever_happens_to_eight_ranks_all_of_them_hear_of_it_and_name_who_failed() {
    let kept = FAILED_ONCE
        .lines()
        .filter_map(|line| line.split(' ').next()?.parse().ok());
    let seeds: Vec<u64> = kept.chain(0..SEEDS).collect();
    let (half, rest) = seeds.split_at(seeds.len() / 2);
    let wrong = on_threads([half, rest], |seeds| {
        let results = seeds.iter().map(|seed| check(*seed, shape(*seed)));
        results.filter_map(Result::err).collect::<Vec<_>>()
    })
    .concat();
    assert!(
        wrong.is_empty(),
        "{} seeds failed; add them to simulation_seeds.txt:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(5)].join("\n")
    );
}

#[test]
fn a_seed_says_all_that_happens() {
    let traced = |seed| {
        let (simulation, _) = run(seed, shape(seed));
        let verdicts: Vec<_> = simulation.ranks.into_iter().map(|it| it.verdict).collect();
        (simulation.trace, verdicts)
    };
    for seed in 0..20 {
        assert!(traced(seed) == traced(seed), "seed {seed}");
        assert!(traced(seed) != traced(seed + 10), "seed {seed}");
    }
}

/// What meeting costs a group in one data centre whose ranks all start at once.
#[derive(Debug)]
struct Meeting {
    ranks: usize,
    /// Until all have met all.
    time_us: u64,
    messages: u64,
    connections: usize,
    most_connections: usize,
}

fn meet(ranks: usize, ranks_per_host: usize, is_listed: bool) -> Meeting {
    let shape = Shape {
        ranks,
        ranks_per_host,
        is_listed,
        is_local: true,
        ..STAR
    };
    let mut simulation = Simulation::new(ranks as u64, shape);
    for rank in 0..ranks {
        let start = simulation.random.below(1000) as u64;
        simulation.at(start, Event::Start { rank });
    }
    let mut end = 0;
    while simulation.ranks.iter().any(|rank| !rank.has_joined) {
        end += 10 * MILLISECOND;
        assert!(end < JOIN_TIMEOUT, "{shape:?}: they have not met");
        simulation.run_until(end);
    }
    NOW.set(None);
    let counts = (simulation.ranks.iter()).map(|rank| rank.shared.state().links.len());
    let joined = simulation.ranks.iter().map(|rank| rank.joined_at);
    Meeting {
        ranks,
        time_us: joined.max().unwrap_or(0),
        messages: simulation.messages,
        connections: simulation.streams.len(),
        most_connections: counts.max().unwrap_or(0),
    }
}

/// The table in docs/many-machines.md.
#[test]
fn a_group_of_any_size_meets_in_a_time_like_its_logarithm() {
    let most = many("DISTRIBUTE_SIMULATED_RANKS", 256);
    for (ranks_per_host, is_listed) in [(1, true), (8, true), (8, false)] {
        println!("{ranks_per_host} ranks per host, listed: {is_listed}");
        for ranks in [8, 64, 256, 1000, 4000]
            .into_iter()
            .filter(|it| *it <= most)
        {
            let it = meet(ranks, ranks_per_host, is_listed);
            println!(
                "| {} | {:.1} | {} | {} | {} |",
                it.ranks,
                it.time_us as f64 / 1000.0,
                it.messages,
                it.connections,
                it.most_connections
            );
            assert!(it.most_connections <= 2 * ARITY + 1, "{it:?}");
            assert_eq!(it.connections, it.ranks - 1, "{it:?}");
            assert!(it.messages <= 16 * it.ranks as u64, "{it:?}");
            let log = (it.ranks as f64).log2();
            assert!(!is_listed || it.time_us as f64 <= 5_000.0 * log, "{it:?}");
        }
    }
}

/// Whatever its place in the tree, the ranks hear of it within the time of one silence.
#[test]
fn all_ranks_of_a_big_group_hear_of_a_lost_one_within_five_seconds() {
    for seed in 0..many("DISTRIBUTE_SIMULATED_SEEDS", 4) as u64 {
        let shape = Shape {
            ranks: many("DISTRIBUTE_SIMULATED_RANKS", 120),
            ranks_per_host: [1, 8][(seed % 2) as usize],
            is_local: true,
            ..STAR
        };
        if let Err(wrong) = check_many(seed, shape) {
            panic!("{wrong}");
        }
    }
}

/// How many there are, unless the environment says another number, for a long run.
fn many(name: &str, usually: usize) -> usize {
    let asked = std::env::var(name).ok();
    asked.and_then(|it| it.parse().ok()).unwrap_or(usually)
}

fn check_many(seed: u64, shape: Shape) -> Result<(), String> {
    let mut simulation = Simulation::new(seed, shape);
    for rank in 0..shape.ranks {
        let start = simulation.random.below(1000) as u64;
        simulation.at(start, Event::Start { rank });
    }
    let at = JOINED / 2 + simulation.random.below(1000) as u64 * MILLISECOND;
    // Half of the time a rank near the root, which has many others behind it.
    let near = simulation.random.below(2) == 0;
    let rank = simulation.random.below(if near { 73 } else { shape.ranks });
    let until = u64::MAX;
    let fault = match seed / 2 % 3 {
        0 => Fault::Crash { rank },
        1 => Fault::Stop { rank, until },
        _ => Fault::Cut {
            side: Side::Only(rank),
            until,
        },
    };
    simulation.at(at, Event::Fault(fault));
    simulation.run_until(at + 6 * SECOND);
    NOW.set(None);
    let others = simulation.ranks.iter().enumerate();
    for (other, it) in others.filter(|(it, _)| *it != rank) {
        let named = it.verdict.as_ref().map(blamed);
        let late = it.ended_at.saturating_sub(at);
        if named.as_deref() != Some(&[rank]) || late > 5 * SECOND {
            return Err(format!(
                "seed {seed}, {shape:?}, {fault:?}: rank {other} after {late} us: {:?}",
                it.verdict
            ));
        }
    }
    Ok(())
}
