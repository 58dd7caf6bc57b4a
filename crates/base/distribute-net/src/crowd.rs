//! The unauthenticated connections of a port: what they hold, and which one ends when there is no
//! room for another one, or for more bytes.
//!
//! What counts is what they hold, not how many they are: a handshake needs few bytes, so that a
//! thousand members which come at once from one host all stay, while a flood that sends much has
//! room for few connections. The rules keep one source from taking the room of others:
//!
//! - A connection of the source that has most goes first; of these one that has come least far, and
//!   of these a random one. A flood cannot arrange that an honest process is always the next to go:
//!   each of its attempts has a chance, and it tries again.
//! - A source does not push out its own connections that have sent bytes before they have had the
//!   time for a handshake ([`TENURE`]): if chance chooses such a one, the new one is refused
//!   instead, and its process tries again. No connection waits for that, so that a flood holds up
//!   no member of another host.
//! - When there is no room for more bytes, a connection that has more than a handshake needs goes,
//!   of the source that has most of such bytes. One that keeps to what a handshake needs is never
//!   ended for the bytes of others.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use crate::pending::{UNPROVEN_BYTES_MAX, UNPROVEN_BYTES_OF_ALL_MAX};

/// New connections come in while all together hold no more than this. The rest is for handshakes
/// that are longer than others.
const BYTES_FOR_NEW: usize = 7 << 19;
/// How many bytes are read at once.
const PIECE: usize = 4 << 10;
/// How long a connection that has sent bytes is safe from others of its source.
pub(crate) const TENURE: Duration = Duration::from_millis(200);

/// How far an unauthenticated connection has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Progress {
    /// No bytes have arrived.
    #[default]
    Idle,
    /// Some bytes have arrived.
    SentBytes,
    /// The first message of the handshake has arrived.
    SentHello,
}

/// What a connection counts as, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Charge {
    /// From its begin: its own parts, and the bytes of a usual handshake.
    at_begin: usize,
    /// How many bytes of a usual handshake are in that.
    usual: usize,
}

impl Charge {
    /// Socket, guard, task and messages of a handshake were measured to take 2.2 KiB; the messages
    /// themselves are about 350 bytes.
    pub(crate) const CLEAR: Charge = Charge {
        at_begin: 3 << 10,
        usual: 2 << 10,
    };
    /// With a session of TLS and the certificates it is 11 KiB.
    pub(crate) const TLS: Charge = Charge {
        at_begin: 12 << 10,
        usual: 5 << 10,
    };

    /// What a connection of which so much was read holds.
    fn of(self, read: usize) -> usize {
        self.at_begin + self.excess(read)
    }

    /// What was read beyond a usual handshake.
    fn excess(self, read: usize) -> usize {
        read.saturating_sub(self.usual)
    }
}

/// The number of a connection, which no other one of its port has had.
pub(crate) type Id = u64;

/// An unauthenticated connection.
#[derive(Debug)]
struct Entry<T> {
    source: IpAddr,
    since: Instant,
    progress: Progress,
    /// Bytes that were read, or may be at this moment.
    read: usize,
    /// It was told to end, and has not ended yet.
    is_ending: bool,
    /// Which one it is, for the caller.
    what: T,
}

/// Whether another connection has room.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// It has.
    Free,
    /// This one has to end first.
    End(Id),
    /// Not before one that is ending has left.
    Wait,
    /// It has none: the others of its source have come before.
    Refused,
}

/// Whether more may be read of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum More {
    /// At most this number of bytes; [`Crowd::settle`] takes the number that was read.
    Granted(usize),
    /// It has sent all that it may.
    TooMuch,
    /// Not until another one leaves; this one has to end, if it is given.
    Wait(Option<Id>),
}

/// Of several connections: how many they are, what they hold, and how much of that is beyond usual
/// handshakes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Totals {
    count: usize,
    held: usize,
    excess: usize,
}

impl Totals {
    fn add(&mut self, more: Totals) {
        self.count += more.count;
        self.held += more.held;
        self.excess += more.excess;
    }

    fn subtract(&mut self, less: Totals) {
        self.count -= less.count;
        self.held -= less.held;
        self.excess -= less.excess;
    }
}

/// The unauthenticated connections of a port.
#[derive(Debug)]
pub(crate) struct Crowd<T> {
    charge: Charge,
    entries: BTreeMap<Id, Entry<T>>,
    next: Id,
    all: Totals,
    /// Without the ones that are ending.
    staying: Totals,
    /// The same for each source.
    sources: HashMap<IpAddr, Totals>,
}

/// A source: an IPv4 address, or the IPv6 network that one host has.
fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

/// One of these, each as often as its weight says.
fn draw(candidates: &[(Id, usize)], chance: u64) -> Option<Id> {
    let total: usize = candidates.iter().map(|(_, weight)| weight).sum();
    let mut left = usize::try_from(chance.checked_rem(total as u64)?).ok()?;
    let drawn = candidates.iter().find(|(_, weight)| {
        let is_it = left < *weight;
        left = left.saturating_sub(*weight);
        is_it
    });
    drawn.map(|(id, _)| *id)
}

impl<T> Crowd<T> {
    pub(crate) fn new(charge: Charge) -> Self {
        Self {
            charge,
            entries: BTreeMap::new(),
            next: 0,
            all: Totals::default(),
            staying: Totals::default(),
            sources: HashMap::new(),
        }
    }

    /// The connections that are not ending.
    fn staying(&self) -> impl Iterator<Item = (Id, &Entry<T>)> {
        let staying = self.entries.iter().filter(|(_, entry)| !entry.is_ending);
        staying.map(|(id, entry)| (*id, entry))
    }

    /// The staying connections of the source that has most of `weight`, if there is any. `more` is
    /// added for a source. Of several such sources, and of their connections, [`draw`] chooses with
    /// what is left of `chance`.
    fn of_heaviest(
        &self,
        (from, more): (IpAddr, usize),
        weight: impl Fn(&Totals) -> usize,
        chance: &mut u64,
    ) -> Vec<(Id, &Entry<T>)> {
        let weight = |(source, totals): (&IpAddr, &Totals)| {
            weight(totals) + if *source == from { more } else { 0 }
        };
        let most = self.sources.iter().map(weight).max();
        let heaviest = self.sources.iter().filter(|one| Some(weight(*one)) == most);
        let mut heaviest: Vec<IpAddr> = heaviest.map(|(source, _)| *source).collect();
        heaviest.sort_unstable();
        let Some(index) = chance.checked_rem(heaviest.len() as u64) else {
            return Vec::new();
        };
        *chance /= heaviest.len() as u64;
        let source = usize::try_from(index)
            .ok()
            .and_then(|index| heaviest.get(index));
        let is_of = |(_, entry): &(Id, &Entry<T>)| Some(&entry.source) == source;
        self.staying().filter(is_of).collect()
    }

    /// Whether a new connection has room where there may be `max`. `chance` is a random number.
    pub(crate) fn room(&self, address: IpAddr, max: usize, now: Instant, mut chance: u64) -> Room {
        let (begin, source) = (self.charge.at_begin, source_of(address));
        let has_place = self.staying.count < max;
        let has_bytes = self.staying.held + begin <= BYTES_FOR_NEW;
        if has_place && has_bytes {
            let is_free = self.all.held + begin <= UNPROVEN_BYTES_OF_ALL_MAX;
            // Else what ends has not ended yet.
            return if is_free { Room::Free } else { Room::Wait };
        }
        let mut candidates = if has_bytes {
            self.of_heaviest((source, 1), |totals| totals.count, &mut chance)
        } else {
            self.of_heaviest((source, begin), |totals| totals.held, &mut chance)
        };
        if !has_bytes {
            let excess = |(id, entry): &(Id, &Entry<T>)| (*id, self.charge.excess(entry.read));
            let excess: Vec<_> = candidates.iter().map(excess).collect();
            if let Some(id) = draw(&excess, chance) {
                return Room::End(id);
            }
        }
        keep_least(&mut candidates);
        let all: Vec<_> = candidates.iter().map(|(id, _)| (*id, 1)).collect();
        let drawn = draw(&all, chance).and_then(|id| Some((id, self.entries.get(&id)?)));
        let is_safe = |entry: &Entry<T>| {
            let is_young = now.duration_since(entry.since) < TENURE;
            entry.source == source && is_young && entry.progress > Progress::Idle
        };
        match drawn {
            Some((id, entry)) if !is_safe(entry) => Room::End(id),
            _ => Room::Refused,
        }
    }

    /// The connection to end when the process lacks something for another one.
    pub(crate) fn one_to_end(&self, mut chance: u64) -> Option<Id> {
        let no_more = (IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);
        let mut candidates = self.of_heaviest(no_more, |totals| totals.count, &mut chance);
        keep_least(&mut candidates);
        let all: Vec<_> = candidates.iter().map(|(id, _)| (*id, 1)).collect();
        draw(&all, chance)
    }

    /// What a connection counts as.
    fn totals(&self, entry: &Entry<T>) -> Totals {
        Totals {
            count: 1,
            held: self.charge.of(entry.read),
            excess: self.charge.excess(entry.read),
        }
    }

    fn count(&mut self, entry: &Entry<T>) {
        let totals = self.totals(entry);
        self.all.add(totals);
        if !entry.is_ending {
            self.staying.add(totals);
            self.sources.entry(entry.source).or_default().add(totals);
        }
    }

    fn discount(&mut self, entry: &Entry<T>) {
        let totals = self.totals(entry);
        self.all.subtract(totals);
        if !entry.is_ending {
            self.staying.subtract(totals);
            if let Some(of_source) = self.sources.get_mut(&entry.source) {
                of_source.subtract(totals);
                if of_source.count == 0 {
                    self.sources.remove(&entry.source);
                }
            }
        }
    }

    /// Changes a connection, if it is there.
    fn change(&mut self, id: Id, change: impl FnOnce(&mut Entry<T>)) {
        if let Some(mut entry) = self.entries.remove(&id) {
            self.discount(&entry);
            change(&mut entry);
            self.count(&entry);
            self.entries.insert(id, entry);
        }
    }

    /// Takes a connection in.
    pub(crate) fn enter(&mut self, address: IpAddr, now: Instant, what: T) -> Id {
        let id = self.next;
        self.next += 1;
        let entry = Entry {
            source: source_of(address),
            since: now,
            progress: Progress::Idle,
            read: 0,
            is_ending: false,
            what,
        };
        self.count(&entry);
        self.entries.insert(id, entry);
        id
    }

    /// Notes how far a connection has come.
    pub(crate) fn note(&mut self, id: Id, progress: Progress) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.progress = entry.progress.max(progress);
        }
    }

    /// Whether `wanted` bytes more may be read of a connection. One that is not there any more may
    /// read what it wants: its peer is authenticated.
    pub(crate) fn reserve(&mut self, id: Id, wanted: usize, mut chance: u64) -> More {
        let Some(entry) = self.entries.get(&id) else {
            return More::Granted(wanted);
        };
        let (read, source) = (entry.read, entry.source);
        let own = UNPROVEN_BYTES_MAX.saturating_sub(read);
        let granted = wanted.min(PIECE).min(own);
        if granted == 0 {
            return More::TooMuch;
        }
        let more = self.charge.of(read + granted) - self.charge.of(read);
        if self.all.held + more <= UNPROVEN_BYTES_OF_ALL_MAX {
            self.change(id, |entry| entry.read += granted);
            return More::Granted(granted);
        }
        if self.staying.held + more <= UNPROVEN_BYTES_OF_ALL_MAX {
            return More::Wait(None);
        }
        let candidates = self.of_heaviest((source, more), |totals| totals.excess, &mut chance);
        let weight = |(of, entry): &(Id, &Entry<T>)| {
            let wanted = if *of == id { more } else { 0 };
            (*of, self.charge.excess(entry.read) + wanted)
        };
        let candidates: Vec<_> = candidates.iter().map(weight).collect();
        More::Wait(draw(&candidates, chance))
    }

    /// Takes back the bytes that were `granted` and not `read`.
    pub(crate) fn settle(&mut self, id: Id, granted: usize, read: usize) {
        let settled = |all: usize| (all + read).saturating_sub(granted);
        self.change(id, |entry| entry.read = settled(entry.read));
    }

    /// A connection was told to end: it makes room, when it has [left](Self::leave).
    pub(crate) fn end(&mut self, id: Id) -> Option<&T> {
        self.change(id, |entry| entry.is_ending = true);
        self.entries.get(&id).map(|entry| &entry.what)
    }

    /// A connection has ended, or its peer is authenticated; whether it was there.
    pub(crate) fn leave(&mut self, id: Id) -> bool {
        let left = self.entries.remove(&id);
        if let Some(entry) = &left {
            self.discount(entry);
        }
        left.is_some()
    }

    /// The connections that have been here for this long.
    pub(crate) fn older_than(&self, age: Duration, now: Instant) -> Vec<Id> {
        // They are in the order in which they came.
        let is_older = |(_, entry): &(Id, &Entry<T>)| now.duration_since(entry.since) > age;
        self.staying()
            .take_while(is_older)
            .map(|(id, _)| id)
            .collect()
    }
}

/// Keeps the connections that have come least far.
fn keep_least<T>(candidates: &mut Vec<(Id, &Entry<T>)>) {
    let least = candidates.iter().map(|(_, entry)| entry.progress).min();
    candidates.retain(|(_, entry)| Some(entry.progress) == least);
}

#[cfg(test)]
mod tests;
