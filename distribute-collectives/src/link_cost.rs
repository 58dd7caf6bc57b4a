//! What a link costs, and which algorithm is cheapest on it.
//!
//! The model is the usual one (Hockney): a step costs a latency, a byte costs the inverse of the
//! bandwidth. Both are measured when a group is made, by all ranks together, so that every rank
//! chooses the same algorithm for the same size.

use std::fmt;
use std::time::{Duration, Instant};

use crate::buffer::Buffer;
use crate::communicator::{Communicator, CommunicatorExt};
use crate::error::Result;
use crate::options::Algorithm;
use crate::reduce::ReduceOp;

/// Operations that are timed for the latency.
const LATENCY_SAMPLES: usize = 15;
/// Operations that are timed for the bandwidth, and the bytes of each.
const BANDWIDTH_SAMPLES: usize = 4;
const BANDWIDTH_BYTES: usize = 1 << 20;

/// The measured constants of the links of a group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkCost {
    /// Time of a step that carries almost nothing.
    pub latency: Duration,
    /// What a rank can send and receive at the same time, in bytes per second.
    pub bytes_per_second: f64,
}

impl Default for LinkCost {
    /// A link that was not measured: 20 us and 2 GB/s, about a loopback connection.
    fn default() -> Self {
        LinkCost {
            latency: Duration::from_micros(20),
            bytes_per_second: 2e9,
        }
    }
}

impl fmt::Display for LinkCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.0} us a step, {:.2} GB/s",
            self.latency.as_secs_f64() * 1e6,
            self.bytes_per_second / 1e9
        )
    }
}

impl LinkCost {
    /// What the model expects an all-reduce of `bytes` bytes over `world_size` ranks to take.
    ///
    /// | algorithm | steps | bytes sent |
    /// |---|---|---|
    /// | direct_exchange | `1`, and half a latency for each further rank | `S(P-1)` |
    /// | halving_doubling | `2 log2 Q` (+2) | `2S(Q-1)/Q` (+`2S`) |
    /// | ring | `2(P-1)` | `2S(P-1)/P` |
    /// | chain | `2(P-1)` | `2S` |
    pub fn expected(&self, algorithm: Algorithm, world_size: usize, bytes: usize) -> Duration {
        let (ranks, size) = (world_size as f64, bytes as f64);
        let power = f64::from(1_u32 << world_size.max(1).ilog2());
        let odd = f64::from(u8::from(!world_size.is_power_of_two()));
        let (steps, sent) = match algorithm {
            _ if world_size < 2 => (0.0, 0.0),
            Algorithm::DirectExchange => (1.0 + (ranks - 2.0) / 2.0, size * (ranks - 1.0)),
            Algorithm::HalvingDoubling => (
                2.0 * power.log2() + 2.0 * odd,
                2.0 * size * (power - 1.0) / power + 2.0 * size * odd,
            ),
            Algorithm::Chain => (2.0 * (ranks - 1.0), 2.0 * size),
            _ => (2.0 * (ranks - 1.0), 2.0 * size * (ranks - 1.0) / ranks),
        };
        let seconds = steps * self.latency.as_secs_f64() + sent / self.bytes_per_second;
        Duration::from_secs_f64(seconds.clamp(0.0, 1e6))
    }

    /// The cheapest algorithm for `bytes` bytes.
    pub fn cheapest(&self, world_size: usize, bytes: usize) -> Algorithm {
        let candidates = [
            Algorithm::DirectExchange,
            Algorithm::HalvingDoubling,
            Algorithm::Ring,
        ];
        let cost = |algorithm: &Algorithm| self.expected(*algorithm, world_size, bytes);
        candidates
            .into_iter()
            .min_by_key(cost)
            .unwrap_or(Algorithm::Ring)
    }

    /// The sizes in bytes from which on the cheapest algorithm changes, smallest first, with the
    /// algorithm that starts there. The first one starts at 0.
    pub fn crossovers(&self, world_size: usize) -> Vec<(usize, Algorithm)> {
        let mut crossovers: Vec<(usize, Algorithm)> = Vec::new();
        for shift in 0..34 {
            let bytes = if shift == 0 { 0 } else { 1 << (shift + 2) };
            let algorithm = self.cheapest(world_size, bytes);
            if crossovers.last().is_none_or(|(_, last)| *last != algorithm) {
                crossovers.push((bytes, algorithm));
            }
        }
        crossovers
    }

    /// Measures a group. All ranks must call it together; all get the same result: the slowest
    /// rank's.
    ///
    /// `small` and `big` are the all-reduces to time: one that takes one step, and a ring.
    pub(crate) fn measure<C: Communicator>(
        communicator: &mut C,
        small: impl Fn(&mut C, &mut [Buffer<'_>]) -> Result<()>,
        big: impl Fn(&mut C, &mut [Buffer<'_>]) -> Result<()>,
    ) -> Result<LinkCost> {
        let ranks = communicator.world_size() as f64;
        let mut tiny = [0.0_f32];
        let latency = shortest(LATENCY_SAMPLES, || {
            small(communicator, &mut [(&mut tiny[..]).into()])
        })?;
        let step = latency.as_secs_f64() / (1.0 + (ranks - 2.0).max(0.0) / 2.0);
        let mut vector = vec![0.0_f32; BANDWIDTH_BYTES / size_of::<f32>()];
        let time = shortest(BANDWIDTH_SAMPLES, || {
            big(communicator, &mut [(&mut vector[..]).into()])
        })?;
        let sent = 2.0 * BANDWIDTH_BYTES as f64 * (ranks - 1.0) / ranks;
        let moving = (time.as_secs_f64() - 2.0 * (ranks - 1.0) * step).max(1e-6);
        let all = communicator.all_gather(&[step, moving / sent])?;
        let worst = |index: usize| all.iter().map(|one| one[index]).fold(0.0, f64::max);
        Ok(LinkCost {
            latency: Duration::from_secs_f64(worst(0)),
            bytes_per_second: 1.0 / worst(1).max(1e-15),
        })
    }
}

/// The shortest of some runs: whatever else the machine does only makes them longer.
fn shortest(samples: usize, mut operation: impl FnMut() -> Result<()>) -> Result<Duration> {
    operation()?;
    let mut shortest = Duration::MAX;
    for _ in 0..samples {
        let begun = Instant::now();
        operation()?;
        shortest = shortest.min(begun.elapsed());
    }
    Ok(shortest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_steps_win_for_small_buffers_and_few_bytes_for_big_ones() {
        let cost = LinkCost::default();
        for world_size in [2, 3, 4, 8, 9, 64] {
            let crossovers = cost.crossovers(world_size);
            assert_eq!(crossovers[0], (0, Algorithm::DirectExchange), "{world_size}");
            let big = cost.cheapest(world_size, 1 << 30);
            let fewest = match world_size {
                // Two ranks exchange halves either way.
                2 => [Algorithm::Ring, Algorithm::HalvingDoubling].contains(&big),
                _ => big != Algorithm::DirectExchange,
            };
            assert!(fewest, "{world_size}: {big}");
        }
        assert_eq!(cost.cheapest(9, 1 << 30), Algorithm::Ring);
    }

    #[test]
    fn a_slow_link_prefers_few_steps_for_longer() {
        let far = LinkCost {
            latency: Duration::from_millis(10),
            bytes_per_second: 1e9,
        };
        let near = LinkCost::default();
        let until = |cost: LinkCost| cost.crossovers(8)[1].0;
        assert!(until(far) > until(near));
    }

    #[test]
    fn the_ring_of_two_takes_two_steps() {
        let cost = LinkCost {
            latency: Duration::from_micros(10),
            bytes_per_second: 1e9,
        };
        let expected = cost.expected(Algorithm::Ring, 2, 1_000_000);
        assert_eq!(expected, Duration::from_micros(20 + 1000));
        assert_eq!(cost.expected(Algorithm::Ring, 1, 1_000_000), Duration::ZERO);
    }
}
