//! The random stream of a replica: [`ReplicaRng`].

use std::convert::Infallible;
use std::panic::Location;
use std::sync::Arc;

use rand::{SeedableRng, TryRng};
use rand_chacha::ChaCha8Rng;

use crate::trace::Trace;

/// What [`ReplicaContext::rng`](crate::ReplicaContext::rng) gives: a stream of random numbers
/// (ChaCha8) that depends on a seed, a step and the replica alone. All that `rand` makes of an
/// `Rng` can be drawn from it.
///
/// In a step that is compiled only [`dropout`](crate::dropout) can use it. A number that the host
/// draws there would be a constant of the program, the same in all steps and on all replicas, so it
/// is [`Error::RandomOnHost`](crate::Error::RandomOnHost).
#[derive(Debug, Clone)]
pub struct ReplicaRng {
    stream: ChaCha8Rng,
    /// The capture that the stream is part of, and where in the program it was asked for.
    capture: Option<(Arc<Trace>, &'static Location<'static>)>,
}

impl ReplicaRng {
    /// A stream on the host.
    pub(crate) fn new(seed: u64, step: u64, replica: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&step.to_le_bytes());
        key[16..24].copy_from_slice(&replica.to_le_bytes());
        Self {
            stream: ChaCha8Rng::from_seed(key),
            capture: None,
        }
    }

    /// A stream of a captured step: it stands for the streams of all steps and replicas.
    pub(crate) fn captured(
        seed: u64,
        trace: &Arc<Trace>,
        place: &'static Location<'static>,
    ) -> Self {
        Self {
            capture: Some((Arc::clone(trace), place)),
            ..Self::new(seed, 0, 0)
        }
    }

    fn stream(&mut self) -> &mut ChaCha8Rng {
        if let Some((trace, place)) = &self.capture {
            trace.drawn_on_host(place);
        }
        &mut self.stream
    }
}

impl TryRng for ReplicaRng {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        self.stream().try_next_u32()
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        self.stream().try_next_u64()
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.stream().try_fill_bytes(bytes)
    }
}
