//! Eight ranks in a simulated network. The rules of the control plane (joining, heartbeats,
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
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;
use tonic::Status;

use crate::bookkeeping::RunningOperation;
use crate::communicator::AbortTarget;
use crate::control::generated::Envelope;
use crate::control::handshake;
use crate::control::membership::{JoinOptions, Membership, Phase, QUEUE};
use crate::control::plane::{self, JoinProgress};
use crate::control::{probe, silence, watch};
use crate::error::CollectiveError;
use crate::header::OperationHeader;
use crate::operation::OperationKind;
use crate::status::GroupStatus;
use crate::testing::{Random, on_threads};

const RANKS: usize = 8;
const SEEDS: u64 = 1000;
/// Seeds with which a run once failed, for ever; a line has the seed and what was wrong.
const FAILED_ONCE: &str = include_str!("simulation_seeds.txt");

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
    /// Nothing gets from the ranks in the mask to the others, nor back.
    Cut {
        mask: u8,
        until: u64,
    },
}

enum Event {
    Start {
        rank: usize,
    },
    Connect {
        high: usize,
        low: usize,
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
    is_running: bool,
    is_dead: bool,
    has_joined: bool,
    stopped_until: u64,
    /// The error with which joining or its first operation ended.
    verdict: Option<CollectiveError>,
}

impl Rank {
    /// Whether the operation that has failed would go on now.
    fn is_well_again(&self) -> bool {
        let again = self.shared.status.check(&operation());
        self.has_joined && again.err() != self.verdict
    }
}

struct Simulation {
    random: Random,
    base: Instant,
    time: u64,
    number: u64,
    events: BTreeMap<(u64, u64), Event>,
    ranks: Vec<Rank>,
    streams: Vec<[Half; 2]>,
    cut: (u8, u64),
    /// What happened when, and to which rank.
    trace: Vec<(u64, usize, Discriminant<Event>)>,
}

fn operation() -> OperationHeader {
    OperationHeader::new(OperationKind::Barrier, 0, 0)
}

fn hello(rank: usize) -> Hello {
    let mut hello = Hello::new(Purpose::Control, 1, "simulated");
    hello.identity = Identity {
        group: "simulated".to_string(),
        task: rank as u32,
        run: rank.to_string(),
        generation: 0,
    };
    hello
}

/// The key of some session: it is not used here.
static SESSION_KEY: LazyLock<SessionKey> = LazyLock::new(|| {
    let (dialer, first) = Dialer::start(hello(1), &Secret::default()).unwrap();
    let listener = Listener::receive(&first).unwrap();
    let answered = listener.answer(hello(0), &Secret::default(), &[]);
    let (_, proven) = dialer.finish(&answered.unwrap().1, &[]).unwrap();
    proven.check_compatible().unwrap().session_key
});

pub(super) fn membership(rank: usize) -> Arc<Membership> {
    let options = JoinOptions {
        rank,
        addresses: (0..RANKS)
            .map(|rank| Some(format!("rank-{rank}:1")))
            .collect(),
        told_address: None,
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
    };
    let status = Arc::new(GroupStatus::default());
    status.begin(RunningOperation::new(&operation(), Duration::from_secs(1)));
    Arc::new(Membership::new(options, hello(rank), None, status))
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let base = Instant::now();
        NOW.set(Some(base));
        let rank = |rank| Rank {
            shared: membership(rank),
            is_running: false,
            is_dead: false,
            has_joined: false,
            stopped_until: 0,
            verdict: None,
        };
        Simulation {
            random: Random(seed),
            base,
            time: 0,
            number: 0,
            events: BTreeMap::new(),
            ranks: (0..RANKS).map(rank).collect(),
            streams: Vec::new(),
            cut: (0, 0),
            trace: Vec::new(),
        }
    }

    fn at(&mut self, time: u64, event: Event) {
        self.number += 1;
        self.events.insert((time, self.number), event);
    }

    /// Mostly some milliseconds, sometimes a part of a second.
    fn delay(&mut self) -> u64 {
        let slow = self.random.below(100) == 0;
        let most = if slow { 400 } else { 20 };
        100 + self.random.below(most) as u64 * MILLISECOND
    }

    fn is_cut(&self, one: usize, other: usize) -> bool {
        let side = |rank: usize| self.cut.0 >> rank & 1;
        self.time < self.cut.1 && side(one) != side(other)
    }

    fn run(&mut self) {
        while let Some(((time, _), event)) = self.events.pop_first() {
            if time > END {
                return;
            }
            self.time = time;
            NOW.set(Some(self.base + Duration::from_micros(time)));
            self.happen(event);
        }
    }

    fn happen(&mut self, event: Event) {
        let rank = match &event {
            Event::Start { rank }
            | Event::Look { rank, .. }
            | Event::Dial { rank }
            | Event::Leave { rank } => *rank,
            Event::Connect { high, .. } => *high,
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
            Event::Connect { high, low } => self.connect(high, low),
            Event::Deliver {
                stream,
                to,
                message,
            } => self.deliver(stream, to, message),
            Event::Look { due, .. } => self.look(rank, due),
            Event::Dial { .. } => self.dial(rank),
            Event::Leave { .. } => self.leave(rank, String::new(), Vec::new()),
            Event::Start { .. } | Event::Fault(_) => {}
        }
        self.settle(rank);
    }

    fn start(&mut self, rank: usize) {
        // Its deadline counts from now on.
        self.ranks[rank].shared = membership(rank);
        self.ranks[rank].is_running = true;
        let due = self.time;
        self.at(due, Event::Look { rank, due });
        self.at(due, Event::Dial { rank });
        for low in 0..rank {
            self.at(self.time, Event::Connect { high: rank, low });
        }
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
            Fault::Cut { mask, until } => self.cut = (mask, until),
            Fault::Abort { .. } => {}
        }
    }

    /// The handshake, in no time. It is tried until the group has formed, as by `keep_connected`.
    fn connect(&mut self, high: usize, low: usize) {
        if self.ranks[high].shared.state().phase != Phase::Joining {
            return;
        }
        let is_there = self.ranks[low].is_running && self.time >= self.ranks[low].stopped_until;
        if is_there && !self.is_cut(high, low) {
            if let Some(server) = self.register(low, high)
                && let Some(client) = self.register(high, low)
            {
                self.streams.push([client, server]);
                return self.settle(low);
            }
        } else {
            self.ranks[high]
                .shared
                .record_missing(low, "connection refused".to_string());
        }
        let pause = self.delay() + 100 * MILLISECOND;
        self.at(self.time + pause, Event::Connect { high, low });
    }

    fn register(&self, rank: usize, peer: usize) -> Option<Half> {
        let (sender, queue) = mpsc::channel(QUEUE);
        let peer = Authenticated {
            peer: self.ranks[peer].shared.hello.clone(),
            session_key: SESSION_KEY.clone(),
        };
        let ip = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
        let id = handshake::register(
            &self.ranks[rank].shared,
            &peer,
            Some(Default::default()),
            ip,
            sender,
        )
        .ok()?;
        let queue = Some(queue);
        Some(Half {
            rank,
            id,
            queue,
            last_arrival: 0,
            lost: None,
        })
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

    /// Dials the silent ranks of a rank. The system of a stopped process answers, too.
    fn dial(&mut self, rank: usize) {
        let shared = self.ranks[rank].shared.clone();
        for attempt in probe::attempts(&shared) {
            if !self.is_cut(rank, attempt.rank) {
                probe::note_reached(&shared, &attempt);
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
                Ok(JoinProgress::Joined(_)) => self.ranks[rank].has_joined = true,
                Ok(JoinProgress::Until(_)) => {}
                Err(error) => {
                    self.leave(rank, error.to_string(), plane::waited_for(&error));
                    self.ranks[rank].verdict = Some(error);
                    return;
                }
            }
        }
        watch::send_first_failure(&shared);
        self.send(rank);
        if self.ranks[rank].has_joined
            && self.ranks[rank].verdict.is_none()
            && let Err(error) = shared.status.check(&operation())
        {
            // The operation in which the rank waits ends, and then its program.
            self.ranks[rank].verdict = Some(error);
            let pause = self.random.below(2000) as u64 * MILLISECOND;
            self.at(self.time + pause, Event::Leave { rank });
        }
    }

    /// The halves of streams that a rank has.
    fn halves(&self, rank: usize) -> Vec<(usize, usize)> {
        let all = (0..self.streams.len()).flat_map(|stream| [(stream, 0), (stream, 1)]);
        all.filter(|(stream, half)| self.streams[*stream][*half].rank == rank)
            .collect()
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

fn scenario(seed: u64, random: &mut Random) -> (Vec<(u64, Fault)>, Expected) {
    let rank = random.below(RANKS);
    let other = (rank + 1 + random.below(RANKS - 1)) % RANKS;
    let early = 2 * SECOND + random.below(8000) as u64 * MILLISECOND;
    let late = JOINED + early / 2;
    let mask = 1 + random.below((1 << RANKS) - 2) as u8;
    let mut expected = Expected {
        faults: Vec::new(),
        culprits: vec![rank],
        dead: Vec::new(),
        never_starts: None,
    };
    let cut = |time, mask, until| vec![(time, Fault::Cut { mask, until })];
    let short = 1 + random.below(SILENCE as usize - 1) as u64;
    let faults = match seed % 10 {
        0 => Vec::new(),
        1 => vec![(early, Fault::Crash { rank })],
        2 => vec![(late, Fault::Abort { rank })],
        3 => cut(late, 1 << rank, u64::MAX),
        4 => cut(early, mask, early + SECOND),
        5 => cut(late, mask, u64::MAX),
        6 => Vec::new(),
        // For less than a rank may be silent: whatever TCP makes of it.
        9 => cut(late, mask, late + short),
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
        5 => expected.culprits = (0..RANKS).collect(),
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

/// Runs a seed to its end.
fn run(seed: u64) -> (Simulation, Expected) {
    let mut simulation = Simulation::new(seed);
    let (faults, expected) = scenario(seed, &mut simulation.random);
    for rank in (0..RANKS).filter(|rank| Some(*rank) != expected.never_starts) {
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
fn check(seed: u64) -> Result<(), String> {
    let (simulation, expected) = run(seed);
    let living = (0..RANKS).filter(|rank| !expected.dead.contains(rank));
    let verdicts: Vec<_> = living
        .map(|rank| (rank, &simulation.ranks[rank].verdict))
        .collect();
    let wrong = |what: &str| {
        Err(format!(
            "seed {seed}, {:?}: {what}: {verdicts:?}",
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
        let results = seeds.iter().map(|seed| check(*seed));
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
        let (simulation, _) = run(seed);
        let verdicts: Vec<_> = simulation.ranks.into_iter().map(|it| it.verdict).collect();
        (simulation.trace, verdicts)
    };
    for seed in 0..20 {
        assert!(traced(seed) == traced(seed), "seed {seed}");
        assert!(traced(seed) != traced(seed + 10), "seed {seed}");
    }
}
