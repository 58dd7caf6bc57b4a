//! Measuring links within a limit of time.
//!
//! What a step costs is known after one small operation, what a byte costs only after many: on a
//! fast link a megabyte takes a millisecond, and a long way it takes seconds. So the number of
//! bytes grows from operation to operation, as long as what the next one takes fits into the
//! limit. All ranks take the same decisions: from times that they have agreed on, the times of the
//! slowest rank.

use crate::error::Result;
use crate::link_cost::{LinkCost, steps_and_traffic};
use crate::options::Algorithm;

/// What the operations may take that are timed for the latency, in seconds, beyond the first ones.
const LATENCY_SECONDS: f64 = 0.05;
const LATENCY_SAMPLES_MAX: usize = 15;
/// What the operations may take that are timed for the bandwidth of one algorithm, in seconds,
/// beyond the first one.
pub(super) const BANDWIDTH_SECONDS: f64 = 0.25;
const BANDWIDTH_SAMPLES_MAX: usize = 4;
/// The bytes of the first and of the last operation, and by how much they grow.
const BYTES_MIN: usize = 64 << 10;
pub(super) const BYTES_MAX: usize = 1 << 20;
const GROWTH: usize = 4;
/// The part of an operation that counts as the time of its bytes at least: where the latency is
/// nearly all of it, their time cannot be told.
const SENDING_MIN: f64 = 0.25;

/// The links that are measured, by all ranks together.
pub(super) trait Links {
    /// What an all-reduce of this many bytes takes this rank, in seconds, with an algorithm that
    /// sums in canonical order.
    fn time(&mut self, algorithm: Algorithm, bytes: usize) -> Result<f64>;

    /// Replaces each number by the largest one of all ranks.
    fn agree(&mut self, numbers: &mut [f64]) -> Result<()>;
}

/// How many operations of `each` seconds fit into a time, within limits.
fn fitting(seconds: f64, each: f64, most: usize) -> usize {
    ((seconds / each.max(1e-9)).max(0.0) as usize).min(most)
}

/// The shortest of some runs and of the one before: whatever else the machine does only makes them
/// longer.
fn shortest(
    links: &mut impl Links,
    algorithm: Algorithm,
    bytes: usize,
    samples: usize,
    before: f64,
) -> Result<f64> {
    let mut shortest = before;
    for _ in 0..samples {
        shortest = shortest.min(links.time(algorithm, bytes)?);
    }
    Ok(shortest)
}

/// The algorithm of the smallest operations, in one step.
pub(super) const SMALLEST: Algorithm = Algorithm::DirectExchange;

/// Measures what the links cost. All ranks call it together and get the same result.
pub(super) fn measure(links: &mut impl Links, world_size: usize) -> Result<LinkCost> {
    let (steps, _) = steps_and_traffic(SMALLEST, world_size);
    // The first operation waits for the last rank to come.
    links.time(SMALLEST, 0)?;
    let first = links.time(SMALLEST, 0)?;
    let mut agreed = [first];
    links.agree(&mut agreed)?;
    let samples = fitting(LATENCY_SECONDS, agreed[0], LATENCY_SAMPLES_MAX - 1);
    let mut latency = [shortest(links, SMALLEST, 0, samples, first)? / steps.max(1.0)];
    links.agree(&mut latency)?;
    let [latency] = latency;

    // A byte a second is slow enough, whatever a peer says.
    let bandwidth = |cost: f64| 1.0 / cost.min(1.0);
    let direct = Bandwidth {
        algorithm: SMALLEST,
        world_size,
        latency,
    };
    let direct_cost = direct.grow(links)?;
    let ring = Bandwidth {
        algorithm: Algorithm::Ring,
        ..direct
    };
    // What no time is left to measure is as fast as what was measured: the wires are the same.
    let ring_cost = if ring.expected(direct_cost, BYTES_MIN) <= BANDWIDTH_SECONDS {
        ring.grow(links)?
    } else {
        direct_cost
    };
    Ok(LinkCost::from_numbers([
        latency,
        bandwidth(ring_cost),
        bandwidth(direct_cost),
    ]))
}

/// What is measured of one algorithm.
#[derive(Clone, Copy)]
struct Bandwidth {
    algorithm: Algorithm,
    world_size: usize,
    /// What a step costs, in seconds; agreed on.
    latency: f64,
}

impl Bandwidth {
    /// What an operation is expected to take if a byte costs so much.
    fn expected(&self, byte: f64, bytes: usize) -> f64 {
        let (steps, traffic) = steps_and_traffic(self.algorithm, self.world_size);
        steps * self.latency + traffic * bytes as f64 * byte
    }

    /// What a byte costs, in seconds, by an operation that took so long.
    fn byte(&self, seconds: f64, bytes: usize) -> f64 {
        let (steps, traffic) = steps_and_traffic(self.algorithm, self.world_size);
        let sending = (seconds - steps * self.latency).max(SENDING_MIN * seconds);
        sending.max(1e-9) / (traffic * bytes as f64).max(1.0)
    }

    /// What a byte costs, by operations of more and more bytes; agreed on.
    fn grow(&self, links: &mut impl Links) -> Result<f64> {
        let (mut bytes, mut spent) = (BYTES_MIN, 0.0);
        loop {
            let own = links.time(self.algorithm, bytes)?;
            let mut agreed = [own];
            links.agree(&mut agreed)?;
            let [worst] = agreed;
            spent += worst;
            let left = BANDWIDTH_SECONDS - spent;
            if bytes < BYTES_MAX && worst * GROWTH as f64 <= left {
                bytes *= GROWTH;
                continue;
            }
            let samples = fitting(left, worst, BANDWIDTH_SAMPLES_MAX);
            let least = shortest(links, self.algorithm, bytes, samples, own)?;
            let mut byte = [self.byte(least, bytes)];
            links.agree(&mut byte)?;
            return Ok(byte[0]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Links as one rank sees them: what the model says, on a clock of their own.
    struct Modelled {
        cost: LinkCost,
        world_size: usize,
        /// By how much this rank is faster than the slowest one.
        faster: f64,
        /// What the slowest rank has found, for the others: the largest numbers are all its own.
        slowest: Vec<f64>,
        clock: f64,
        done: Vec<(Algorithm, usize)>,
    }

    impl Links for Modelled {
        fn time(&mut self, algorithm: Algorithm, bytes: usize) -> Result<f64> {
            self.done.push((algorithm, bytes));
            let expected = self.cost.expected(algorithm, self.world_size, bytes.max(4));
            let seconds = expected.as_secs_f64();
            self.clock += seconds;
            Ok(seconds / self.faster)
        }

        fn agree(&mut self, numbers: &mut [f64]) -> Result<()> {
            self.clock += self.cost.latency.as_secs_f64();
            if self.faster > 1.0 {
                numbers.copy_from_slice(&[self.slowest.remove(0)])
            } else {
                self.slowest.extend_from_slice(numbers)
            }
            Ok(())
        }
    }

    fn modelled(latency_ms: f64, megabytes_per_second: f64, world_size: usize) -> Modelled {
        let bytes_per_second = megabytes_per_second * 1e6;
        Modelled {
            cost: LinkCost {
                latency: Duration::from_secs_f64(latency_ms / 1e3),
                ring_bytes_per_second: bytes_per_second,
                direct_exchange_bytes_per_second: bytes_per_second,
            },
            world_size,
            faster: 1.0,
            slowest: Vec::new(),
            clock: 0.0,
            done: Vec::new(),
        }
    }

    #[test]
    fn measuring_takes_milliseconds_on_fast_links_and_ends_on_all() {
        // Latency in milliseconds, megabytes a second, ranks, and the seconds that it may take.
        let links = [
            (0.02, 2000.0, 2, 0.03),
            (0.1, 1250.0, 4, 0.05),
            (0.1, 125.0, 8, 1.0),
            (50.0, 125.0, 4, 1.0),
            (150.0, 12.0, 4, 2.0),
            (0.5, 1.25, 4, 0.7),
            (1.0, 125.0, 64, 1.2),
            (0.1, 1250.0, 64, 0.5),
        ];
        for (latency, bandwidth, world_size, limit) in links {
            let mut links = modelled(latency, bandwidth, world_size);
            measure(&mut links, world_size).unwrap();
            let took = links.clock;
            assert!(
                took < limit,
                "{latency} ms, {bandwidth} MB/s, {world_size} ranks: {took:.3} s, {:?}",
                links.done
            );
        }
    }

    #[test]
    fn what_is_measured_is_what_the_links_cost() {
        for (latency, bandwidth, world_size) in [
            (0.02, 2000.0, 2),
            (0.1, 1250.0, 4),
            (0.5, 1.25, 4),
            (0.1, 125.0, 8),
            (0.1, 125.0, 64),
        ] {
            let mut links = modelled(latency, bandwidth, world_size);
            let expected = links.cost;
            let found = measure(&mut links, world_size).unwrap();
            let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 0.05;
            let is_near = near(found.latency.as_secs_f64(), expected.latency.as_secs_f64())
                && near(found.ring_bytes_per_second, expected.ring_bytes_per_second)
                && near(
                    found.direct_exchange_bytes_per_second,
                    expected.direct_exchange_bytes_per_second,
                );
            assert!(is_near, "{found:?} instead of {expected:?}");
        }
    }

    #[test]
    fn ranks_that_measure_other_times_do_and_find_the_same() {
        for (latency, bandwidth, world_size) in
            [(0.02, 2000.0, 2), (150.0, 12.0, 4), (0.5, 1.25, 9)]
        {
            let mut slow = modelled(latency, bandwidth, world_size);
            let cost = measure(&mut slow, world_size).unwrap();
            let mut fast = modelled(latency, bandwidth, world_size);
            (fast.faster, fast.slowest) = (3.0, slow.slowest);
            assert_eq!(measure(&mut fast, world_size).unwrap(), cost);
            assert_eq!(slow.done, fast.done);
        }
    }
}
