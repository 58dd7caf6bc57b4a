//! What a link costs, and which algorithm is cheapest on it.
//!
//! The model is the usual one (Hockney): a step costs a latency, a byte costs the inverse of the
//! bandwidth. The latency and the bandwidth that each algorithm gets out of the links (it includes
//! what the algorithm computes) are measured when a group is made, by all ranks together, so that
//! every rank chooses the same algorithm for the same size. Measured are the two algorithms that
//! sum in canonical order, because only between them does what was measured decide: see
//! [`select`](crate::auto::select). In a group of more than `ALL_TO_ALL_MAX` ranks there is nothing
//! to decide, so nothing is measured: of the algorithms only halving_doubling has few partners.

#[cfg(feature = "grpc")]
mod given;
mod measure;
#[cfg(feature = "grpc")]
pub(crate) mod remembered;

use std::fmt;
use std::time::{Duration, Instant};

use crate::buffer::Buffer;
use crate::communicator::Communicator;
use crate::error::Result;
use crate::options::Algorithm;
use crate::reduce::ReduceOp;

/// Everything that takes longer is equally hopeless.
const LONGEST_SECONDS: f64 = 1e6;

/// The algorithms whose cost the model tells apart. All of them can sum in canonical order.
const CANDIDATES: [Algorithm; 3] = [
    Algorithm::Ring,
    Algorithm::HalvingDoubling,
    Algorithm::DirectExchange,
];
/// The largest group in which [`Algorithm::Auto`] lets every rank exchange with all others, each
/// over a connection of its own. Beyond it a rank has `log2 P` partners, in halving_doubling.
pub(crate) const ALL_TO_ALL_MAX: usize = 64;

/// What halving_doubling gets out of a link that gives 1 to the ring (measured on loopback): its
/// partners change with every step.
const HALVING_DOUBLING_SHARE: f64 = 0.9;

/// The measured constants of the links of a group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkCost {
    /// Time of a step that carries almost nothing.
    pub latency: Duration,
    /// What a rank sends while it receives as much, in bytes per second, with ring.
    pub ring_bytes_per_second: f64,
    /// As `ring_bytes_per_second`, with direct_exchange.
    pub direct_exchange_bytes_per_second: f64,
}

impl Default for LinkCost {
    /// Links that were not measured: about the cost of a loopback connection.
    fn default() -> Self {
        LinkCost {
            latency: Duration::from_micros(20),
            ring_bytes_per_second: 2e9,
            direct_exchange_bytes_per_second: 1.6e9,
        }
    }
}

impl fmt::Display for LinkCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.0} us a step, {:.2} GB/s each way",
            self.latency.as_secs_f64() * 1e6,
            self.ring_bytes_per_second / 1e9
        )
    }
}

/// Steps of an algorithm, and bytes that a rank sends per byte of the vector.
fn steps_and_traffic(algorithm: Algorithm, world_size: usize) -> (f64, f64) {
    let ranks = world_size as f64;
    let power_of_two = |ranks: usize| (1_usize << ranks.max(1).ilog2()) as f64;
    let power = power_of_two(world_size);
    match algorithm {
        _ if world_size < 2 => (0.0, 0.0),
        // One step, but every further message takes its time to send: half a latency.
        Algorithm::DirectExchange => (1.0 + (ranks - 2.0) / 2.0, ranks - 1.0),
        Algorithm::HalvingDoubling => {
            let beside = match world_size - power as usize {
                0 => 0.0,
                rest => 2.0 / power_of_two(rest),
            };
            let blocks = f64::from(world_size.count_ones());
            (
                2.0 * power.log2() + 2.0 * (blocks - 1.0),
                2.0 * (power - 1.0) / power + beside,
            )
        }
        _ => (2.0 * (ranks - 1.0), 2.0 * (ranks - 1.0) / ranks),
    }
}

impl LinkCost {
    fn bytes_per_second(&self, algorithm: Algorithm) -> f64 {
        match algorithm {
            Algorithm::DirectExchange => self.direct_exchange_bytes_per_second,
            Algorithm::HalvingDoubling => HALVING_DOUBLING_SHARE * self.ring_bytes_per_second,
            _ => self.ring_bytes_per_second,
        }
    }

    /// What the model expects an all-reduce of `bytes` bytes over `world_size` ranks to take:
    /// `steps x latency + bytes sent / bandwidth`.
    ///
    /// | algorithm | steps | bytes sent |
    /// |---|---|---|
    /// | direct_exchange | `1`, and half a latency for each further rank | `S(P-1)` |
    /// | halving_doubling | `2 log2 Q`, and 2 for each further block | `2S(Q-1)/Q` (+`2S/R`) |
    /// | ring | `2(P-1)` | `2S(P-1)/P` |
    ///
    /// halving_doubling runs in blocks of powers of two of ranks: `Q` is the first one, `R` the
    /// second.
    pub fn expected(&self, algorithm: Algorithm, world_size: usize, bytes: usize) -> Duration {
        let (steps, traffic) = steps_and_traffic(algorithm, world_size);
        let sent = traffic * bytes as f64;
        // Nothing is sent at once, also by a link that sends nothing.
        let sending = if sent > 0.0 {
            sent / self.bytes_per_second(algorithm)
        } else {
            0.0
        };
        let seconds = steps * self.latency.as_secs_f64() + sending;
        // Not a number where a bandwidth is not one: never the cheapest.
        Duration::try_from_secs_f64(seconds.clamp(0.0, LONGEST_SECONDS))
            .unwrap_or(Duration::from_secs_f64(LONGEST_SECONDS))
    }

    /// The cheapest algorithm for `bytes` bytes, whose partners a rank of such a group can have.
    pub(crate) fn cheapest(&self, world_size: usize, bytes: usize) -> Algorithm {
        if world_size > ALL_TO_ALL_MAX {
            return Algorithm::HalvingDoubling;
        }
        self.cheapest_of_all(world_size, bytes)
    }

    /// The cheapest algorithm for `bytes` bytes if a rank may have any number of partners.
    pub(crate) fn cheapest_of_all(&self, world_size: usize, bytes: usize) -> Algorithm {
        let cost = |algorithm: &Algorithm| self.expected(*algorithm, world_size, bytes);
        CANDIDATES
            .into_iter()
            .min_by_key(cost)
            .unwrap_or(Algorithm::Ring)
    }

    fn from_numbers(numbers: [f64; 3]) -> Self {
        LinkCost {
            latency: Duration::from_secs_f64(numbers[0].clamp(0.0, LONGEST_SECONDS)),
            ring_bytes_per_second: numbers[1],
            direct_exchange_bytes_per_second: numbers[2],
        }
    }

    /// Measures a group: `all_reduce` runs one with a given algorithm. All ranks must call it
    /// together; all get the same result: the slowest rank's. Ends soon also on slow links, see
    /// the module [`measure`].
    pub(crate) fn measure<C: Communicator>(
        communicator: &mut C,
        all_reduce: impl Fn(&mut C, Algorithm, ReduceOp, &mut [Buffer<'_>]) -> Result<()>,
    ) -> Result<LinkCost> {
        let world_size = communicator.world_size();
        let mut links = Group {
            communicator,
            all_reduce,
            vector: vec![0.0; measure::BYTES_MAX / size_of::<f32>()],
        };
        measure::measure(&mut links, world_size)
    }
}

/// A group whose links are measured.
struct Group<'a, C, F> {
    communicator: &'a mut C,
    all_reduce: F,
    vector: Vec<f32>,
}

impl<C, F> measure::Links for Group<'_, C, F>
where
    C: Communicator,
    F: Fn(&mut C, Algorithm, ReduceOp, &mut [Buffer<'_>]) -> Result<()>,
{
    fn time(&mut self, algorithm: Algorithm, bytes: usize) -> Result<f64> {
        let elements = (bytes / size_of::<f32>()).clamp(1, self.vector.len());
        let buffers = &mut [(&mut self.vector[..elements]).into()];
        let begun = Instant::now();
        (self.all_reduce)(self.communicator, algorithm, ReduceOp::Sum, buffers)?;
        Ok(begun.elapsed().as_secs_f64())
    }

    fn agree(&mut self, numbers: &mut [f64]) -> Result<()> {
        let buffers = &mut [numbers.into()];
        let algorithm = measure::SMALLEST;
        (self.all_reduce)(self.communicator, algorithm, ReduceOp::Max, buffers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_steps_win_for_small_buffers_and_few_bytes_for_big_ones() {
        let cost = LinkCost::default();
        for world_size in [2, 3, 4, 8, 9] {
            let smallest = cost.cheapest(world_size, 1);
            assert_eq!(smallest, Algorithm::DirectExchange, "{world_size}");
            assert_eq!(cost.cheapest(world_size, 1 << 30), Algorithm::Ring);
        }
        assert_eq!(cost.cheapest(64, 1000), Algorithm::HalvingDoubling);
    }

    #[test]
    fn a_rank_of_a_big_group_never_speaks_with_all_others() {
        let cost = LinkCost::default();
        for bytes in [1, 1 << 20, 1 << 30] {
            let cheapest = cost.cheapest(ALL_TO_ALL_MAX + 1, bytes);
            assert_eq!(cheapest, Algorithm::HalvingDoubling);
        }
        assert_eq!(cost.cheapest(ALL_TO_ALL_MAX, 1 << 30), Algorithm::Ring);
    }

    #[test]
    fn a_slow_link_prefers_few_steps_for_longer() {
        let near = LinkCost::default();
        let far = LinkCost {
            latency: Duration::from_millis(10),
            ..near
        };
        let bytes = 1 << 20;
        assert_ne!(near.cheapest(8, bytes), Algorithm::DirectExchange);
        assert_eq!(far.cheapest(8, bytes), Algorithm::DirectExchange);
    }

    #[test]
    fn links_that_carry_nothing_are_never_cheap() {
        let latency = Duration::from_micros(10);
        for wrong in [0.0, -0.0, -1.0, f64::NAN, f64::INFINITY] {
            for index in 0..2 {
                let mut cost = LinkCost {
                    latency,
                    ..LinkCost::default()
                };
                let bandwidths = [
                    &mut cost.ring_bytes_per_second,
                    &mut cost.direct_exchange_bytes_per_second,
                ];
                *bandwidths.into_iter().nth(index).unwrap() = wrong;
                for (bytes, world_size) in [(0, 2), (0, 1), (1, 3), (1 << 40, 5)] {
                    for algorithm in CANDIDATES {
                        let expected = cost.expected(algorithm, world_size, bytes);
                        assert!(bytes > 0 || expected <= 10 * latency, "{expected:?}");
                    }
                    cost.cheapest(world_size, bytes);
                }
            }
        }
        let none = LinkCost {
            ring_bytes_per_second: 0.0,
            ..LinkCost::default()
        };
        assert_ne!(none.cheapest(3, 100 << 20), Algorithm::Ring);
    }

    #[test]
    fn the_ring_of_two_takes_two_steps() {
        let cost = LinkCost {
            latency: Duration::from_micros(10),
            ring_bytes_per_second: 1e9,
            ..LinkCost::default()
        };
        let expected = cost.expected(Algorithm::Ring, 2, 1_000_000);
        assert_eq!(expected, Duration::from_micros(20 + 1000));
        assert_eq!(cost.expected(Algorithm::Ring, 1, 1_000_000), Duration::ZERO);
    }
}
