//! A port whose members all come at once from one address, with a flood from there or from
//! elsewhere. Time is simulated, in steps of a millisecond.

use std::collections::VecDeque;

use rstest::rstest;

use super::*;

const STEP: Duration = Duration::from_millis(1);
/// How many connections a process accepts in a step.
const ACCEPTED: usize = 20;
/// How many wait in the system's queue.
const BACKLOG: usize = 4096;
/// When a system tries again to connect where that queue was full.
const AGAIN: u64 = 1000;
/// How much a member says first, and at last.
const HELLO: usize = 900;
const PROOF: usize = 200;
/// How long a connection may stay.
const LIFETIME: Duration = Duration::from_secs(10);
/// For how many steps the flood is there before the first member.
const HEAD_START: u64 = 500;
/// When the members must be in, in steps.
const LIMIT: u64 = 30_000;

/// What the connections of a flood do.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Flood {
    None,
    Silent,
    Talks,
    /// As a member, up to the proof.
    SaysHello,
    /// As much as it may.
    SaysMuch,
}

/// Random numbers that a seed decides.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Whose a connection is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Whose {
    Member(usize),
    Flood,
}

struct Member {
    /// When it dials, as long as it has no connection.
    dials: u64,
    pause: u64,
    attempts: usize,
    /// How long it thinks before its proof.
    think: u64,
    is_in: bool,
}

struct Port {
    crowd: Crowd<Whose>,
    queue: VecDeque<Whose>,
    chance: Chance,
    flood: Flood,
    flood_host: u8,
    max: usize,
    members: Vec<Member>,
    /// Connections that are in, with the step at which something happens to them.
    open: Vec<(Id, Whose, u64)>,
    step: u64,
    begin: Instant,
}

impl Port {
    fn now(&self) -> Instant {
        self.begin + STEP * self.step as u32
    }

    fn address(&self, whose: Whose) -> IpAddr {
        host(if whose == Whose::Flood {
            self.flood_host
        } else {
            1
        })
    }

    /// Members and flood dial.
    fn dial(&mut self, flood_per_step: usize) {
        let arriving = if self.flood == Flood::None {
            0
        } else {
            flood_per_step
        };
        let step = self.step;
        let dialing = self.members.iter_mut().enumerate();
        let mut dialing: Vec<Whose> = dialing
            .filter(|(_, member)| member.dials == step)
            .map(|(index, _)| Whose::Member(index))
            .collect();
        // The flood's are spread among them.
        for _ in 0..arriving {
            let place = self.chance.next() as usize % (dialing.len() + 1);
            dialing.insert(place, Whose::Flood);
        }
        for whose in dialing {
            let has_room = self.queue.len() < BACKLOG;
            if has_room {
                self.queue.push_back(whose);
            }
            if let Whose::Member(index) = whose {
                let member = &mut self.members[index];
                member.attempts += usize::from(has_room);
                member.dials = if has_room { u64::MAX } else { step + AGAIN };
            }
        }
    }

    /// What is ending ends.
    fn hang_up(&mut self) {
        let expired = self.crowd.older_than(LIFETIME, self.now());
        expired.into_iter().for_each(|id| {
            self.crowd.end(id);
        });
        let crowd = &self.crowd;
        let is_ending = |id: &Id| crowd.entries.get(id).is_some_and(|entry| entry.is_ending);
        let ending: Vec<_> = self.open.extract_if(.., |(id, ..)| is_ending(id)).collect();
        for (id, whose, _) in ending {
            self.crowd.leave(id);
            self.is_turned_away(whose);
        }
    }

    /// Reads this number of bytes, or fewer if there is no room.
    fn read(&mut self, id: Id, mut bytes: usize) -> bool {
        while bytes > 0 {
            match self.crowd.reserve(id, bytes, self.chance.next()) {
                More::Granted(granted) => {
                    self.crowd.settle(id, granted, granted);
                    bytes -= granted;
                }
                More::TooMuch => return false,
                More::Wait(other) => {
                    other.into_iter().for_each(|id| {
                        self.crowd.end(id);
                    });
                    return false;
                }
            }
        }
        true
    }

    /// What has arrived on the connections that are in.
    fn listen_to_all(&mut self) {
        let all: Vec<Id> = self.open.iter().map(|(id, ..)| *id).collect();
        all.into_iter().for_each(|id| self.listen(id));
    }

    /// What has arrived on this one.
    fn listen(&mut self, id: Id) {
        let Ok(place) = self.open.binary_search_by_key(&id, |(id, ..)| *id) else {
            return;
        };
        let (_, whose, at) = self.open[place];
        if at > self.step || self.crowd.entries[&id].is_ending {
            return;
        }
        let progress = self.crowd.entries[&id].progress;
        let next = match whose {
            Whose::Flood => self.flooded(id),
            Whose::Member(index) if progress < Progress::SentHello => {
                if self.read(id, HELLO) {
                    self.crowd.note(id, Progress::SentHello);
                }
                self.step + self.members[index].think
            }
            Whose::Member(index) => {
                if self.read(id, PROOF) {
                    self.crowd.leave(id);
                    self.members[index].is_in = true;
                    self.open.remove(place);
                    return;
                }
                self.step + 1
            }
        };
        self.open[place].2 = next;
    }

    /// What a connection of the flood says, and when it says more.
    fn flooded(&mut self, id: Id) -> u64 {
        let (bytes, progress, next) = match self.flood {
            Flood::None | Flood::Silent => return u64::MAX,
            Flood::Talks => (100, Progress::SentBytes, u64::MAX),
            Flood::SaysHello => (HELLO, Progress::SentHello, u64::MAX),
            Flood::SaysMuch => (UNPROVEN_BYTES_MAX, Progress::SentHello, self.step + 1),
        };
        self.read(id, bytes);
        self.crowd.note(id, progress);
        next
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTED {
            let Some(whose) = self.queue.pop_front() else {
                return;
            };
            let (address, now) = (self.address(whose), self.now());
            loop {
                let chance = self.chance.next();
                match self.crowd.room(address, self.max, now, chance) {
                    Room::Free => {
                        // Of nine in ten the first bytes have come by now.
                        let is_late = chance.is_multiple_of(10);
                        let late = if is_late { chance % 20 } else { 0 };
                        let id = self.crowd.enter(address, now, whose);
                        self.open.push((id, whose, self.step + late));
                        self.listen(id);
                        break;
                    }
                    Room::Refused => {
                        self.is_turned_away(whose);
                        break;
                    }
                    Room::End(id) => {
                        self.crowd.end(id);
                    }
                    Room::Wait => {
                        self.queue.push_front(whose);
                        return;
                    }
                }
            }
        }
    }

    /// A member tries again after a pause.
    fn is_turned_away(&mut self, whose: Whose) {
        if let Whose::Member(index) = whose {
            let member = &mut self.members[index];
            member.dials = self.step + member.pause;
            member.pause = (member.pause * 3 / 2).min(250);
        }
    }

    fn check(&self) {
        let entries = self.crowd.entries.values();
        let read: usize = entries.clone().map(|entry| entry.read).sum();
        assert!(
            entries
                .clone()
                .all(|entry| entry.read <= UNPROVEN_BYTES_MAX)
        );
        assert!(read <= self.crowd.all.held && self.crowd.all.held <= UNPROVEN_BYTES_OF_ALL_MAX);
        assert!(self.crowd.staying.count <= self.max);
    }

    /// Until all members are in: when, and how often each has tried.
    fn run(mut self, flood_per_step: usize) -> (u64, Vec<usize>) {
        while !self.members.iter().all(|member| member.is_in) {
            assert!(
                self.step < LIMIT,
                "{} are in",
                self.members.iter().filter(|it| it.is_in).count()
            );
            self.dial(flood_per_step);
            self.hang_up();
            self.listen_to_all();
            self.accept();
            self.check();
            self.step += 1;
        }
        let attempts = self.members.iter().map(|member| member.attempts).collect();
        (self.step - HEAD_START, attempts)
    }
}

/// Members of host 1 that think for up to this many steps, and a flood.
fn port(seed: u64, charge: Charge, max: usize, members: usize, think: u64) -> Port {
    let mut chance = Chance(seed);
    let mut member = |_| Member {
        dials: HEAD_START + chance.next() % 10,
        pause: 10,
        attempts: 0,
        think: 1 + chance.next() % think,
        is_in: false,
    };
    let members = (0..members).map(&mut member).collect();
    Port {
        crowd: Crowd::new(charge),
        queue: VecDeque::new(),
        flood: Flood::None,
        flood_host: 2,
        max,
        members,
        open: Vec::new(),
        step: 0,
        begin: Instant::now(),
        chance,
    }
}

/// Prints a line of the table, which `--nocapture` shows.
fn meet(port: Port, flood_per_step: usize) -> (u64, usize) {
    let (flood, host, max) = (port.flood, port.flood_host, port.max);
    let (steps, attempts) = port.run(flood_per_step);
    let most = attempts.iter().max().copied().unwrap_or(0);
    let all: usize = attempts.iter().sum();
    println!(
        "{} members, {max} places, flood of host {host} {flood:?} {flood_per_step} a ms: all in \
         after {steps} ms, {all} attempts, the most of one {most}",
        attempts.len()
    );
    (steps, most)
}

#[test]
fn a_thousand_members_are_in_at_the_first_attempt() {
    for seed in 0..3 {
        let port = port(seed, Charge::CLEAR, 1024, 1000, 1000);
        let (steps, most) = meet(port, 0);
        assert!(most == 1 && steps < 1200, "{seed}");
    }
}

/// Half of the places are theirs, whatever the flood of another host does.
#[rstest]
fn a_flood_of_another_host_ends_no_member(
    #[values(Flood::Silent, Flood::Talks, Flood::SaysHello, Flood::SaysMuch)] flood: Flood,
    #[values((Charge::CLEAR, 1024, 500), (Charge::TLS, 1024, 90), (Charge::CLEAR, 128, 60))] size: (
        Charge,
        usize,
        usize,
    ),
) {
    let (charge, max, members) = size;
    for seed in 0..2 {
        let mut port = port(seed, charge, max, members, 300);
        port.flood = flood;
        let (steps, most) = meet(port, 10);
        assert!(most == 1 && steps < 2500, "{seed}");
    }
}

/// From the same address nothing but what they say, and chance, tells them apart: each attempt of a
/// member has a chance.
#[rstest]
fn a_flood_of_the_same_host_keeps_no_member_out(
    #[values(Flood::Silent, Flood::Talks, Flood::SaysHello, Flood::SaysMuch)] flood: Flood,
    #[values((Charge::CLEAR, 1024, 1000), (Charge::TLS, 1024, 500), (Charge::CLEAR, 128, 200))]
    size: (Charge, usize, usize),
    #[values((40, 3), (300, 1))] think_and_flood: (u64, usize),
) {
    let (charge, max, members) = size;
    let (think, flood_per_step) = think_and_flood;
    let mut port = port(1, charge, max, members, think);
    (port.flood, port.flood_host) = (flood, 1);
    let (steps, most) = meet(port, flood_per_step);
    assert!(steps < 20_000 && most < 80);
}
