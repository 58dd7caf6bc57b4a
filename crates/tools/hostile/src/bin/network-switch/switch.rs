//! A switch of Ethernet frames over links with a delay, a loss and a rate, without any input or
//! output: the time is told to it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use crate::link::{Link, QUEUE};

/// The most frames on their way over one link; more are dropped, whatever its settings are.
const MAX_FRAMES: usize = 4096;
/// What Ethernet sends besides a frame: preamble, checksum and gap, in bytes.
const OVERHEAD_BYTES: u64 = 24;

/// What became of the frames of a link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Handed on, or still on their way.
    pub passed: u64,
    /// Lost as the link says.
    pub lost: u64,
    /// Found the queue full.
    pub dropped: u64,
    /// Came while the link was cut.
    pub cut: u64,
}

/// A direction, its state, and its past.
#[derive(Debug, Default)]
struct Way {
    link: Link,
    /// When the last frame is sent.
    free_at: Duration,
    waiting: usize,
    counters: Counters,
}

/// A frame on its way. Frames of equal time arrive in the order in which they came.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Arrival {
    at: Duration,
    number: u64,
    from: usize,
    to: usize,
    frame: Vec<u8>,
}

/// The switch. Times are since any moment, and never go back.
#[derive(Debug)]
pub struct Switch {
    ports: usize,
    /// By sender and receiver.
    ways: Vec<Way>,
    /// The ports behind which Ethernet addresses have been seen.
    addresses: BTreeMap<[u8; 6], usize>,
    arrivals: BinaryHeap<Reverse<Arrival>>,
    count: u64,
    random: u64,
}

impl Switch {
    pub fn new(ports: usize, seed: u64) -> Self {
        Self {
            ports,
            ways: (0..ports * ports).map(|_| Way::default()).collect(),
            addresses: BTreeMap::new(),
            arrivals: BinaryHeap::new(),
            count: 0,
            random: seed,
        }
    }

    /// What happens from now on to frames from one port to another; those on their way arrive as
    /// they would have.
    pub fn set(&mut self, from: usize, to: usize, link: Link) {
        self.way(from, to).link = link;
    }

    pub fn counters(&self, from: usize, to: usize) -> &Counters {
        &self.ways[from * self.ports + to].counters
    }

    /// A frame that a port has sent.
    pub fn accept(&mut self, from: usize, frame: &[u8], now: Duration) {
        let Some((to, source)) = addresses(frame) else {
            return;
        };
        if !is_for_several(source) {
            self.addresses.insert(source, from);
        }
        let known = self.addresses.get(&to).copied();
        match known.filter(|_| !is_for_several(to)) {
            Some(port) if port == from => {}
            Some(port) => self.send(from, port, frame, now),
            None => {
                for port in (0..self.ports).filter(|port| *port != from) {
                    self.send(from, port, frame, now);
                }
            }
        }
    }

    fn send(&mut self, from: usize, to: usize, frame: &[u8], now: Duration) {
        let draw = self.draw();
        let way = self.way(from, to);
        if way.link.is_cut {
            way.counters.cut += 1;
            return;
        }
        if draw < way.link.loss {
            way.counters.lost += 1;
            return;
        }
        let begins = way.free_at.max(now);
        let is_full = begins - now > way.link.queue.unwrap_or(QUEUE);
        if is_full || way.waiting >= MAX_FRAMES {
            way.counters.dropped += 1;
            return;
        }
        let bits = (frame.len() as u64 + OVERHEAD_BYTES) * 8;
        let sending = way.link.bits_per_second.map_or(Duration::ZERO, |rate| {
            Duration::from_nanos(bits.saturating_mul(1_000_000_000) / rate.max(1))
        });
        way.free_at = begins + sending;
        way.waiting += 1;
        way.counters.passed += 1;
        let at = way.free_at + way.link.delay;
        self.count += 1;
        let number = self.count;
        let frame = frame.to_vec();
        self.arrivals.push(Reverse(Arrival {
            at,
            number,
            from,
            to,
            frame,
        }));
    }

    /// The next frame that has arrived by now, and its port.
    pub fn arrived(&mut self, now: Duration) -> Option<(usize, Vec<u8>)> {
        self.next().filter(|at| *at <= now)?;
        let Reverse(arrival) = self.arrivals.pop()?;
        self.way(arrival.from, arrival.to).waiting -= 1;
        Some((arrival.to, arrival.frame))
    }

    /// When the next frame arrives.
    pub fn next(&self) -> Option<Duration> {
        self.arrivals.peek().map(|Reverse(arrival)| arrival.at)
    }

    fn way(&mut self, from: usize, to: usize) -> &mut Way {
        &mut self.ways[from * self.ports + to]
    }

    /// A number from 0 to below 1 (SplitMix64).
    fn draw(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        (mixed >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Receiver and sender of a frame; `None` if it is none.
fn addresses(frame: &[u8]) -> Option<([u8; 6], [u8; 6])> {
    let (to, rest) = frame.split_first_chunk()?;
    let (from, _) = rest.split_first_chunk()?;
    Some((*to, *from))
}

fn is_for_several(address: [u8; 6]) -> bool {
    address[0] & 1 == 1
}

#[cfg(test)]
mod tests;
