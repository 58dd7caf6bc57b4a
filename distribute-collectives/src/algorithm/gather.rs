//! The beginning of an all-gather of inputs of different sizes: all ranks learn the sizes.
//!
//! - Steps: `log2 P`, rounded up. Bytes sent per rank: `8(P - 1)`.

use crate::algorithm::dissemination;
use crate::error::Result;
use crate::transport::Transport;

/// Bytes of a size.
const SIZE_BYTES: usize = 8;

/// Fills `sizes` with the number of input bytes of every rank.
///
/// Before round `k` of the [dissemination](dissemination) a rank knows the sizes of the `2^k` ranks
/// up to itself; it passes them on and learns the sizes of as many ranks before these.
pub(crate) fn exchange_sizes(
    transport: &mut dyn Transport,
    own: usize,
    sizes: &mut Vec<usize>,
) -> Result<()> {
    let (rank, size) = (transport.rank(), transport.world_size());
    let before = |distance: usize| (rank + size - distance) % size;
    let most = (transport.max_segment_bytes() / SIZE_BYTES).max(1);
    sizes.clear();
    sizes.resize(size, 0);
    sizes[rank] = own;
    let mut known = 1;
    for (to, from) in dissemination::rounds(rank, size) {
        let learnt = known.min(size - known);
        for start in (0..learnt).step_by(most) {
            let part = start..(start + most).min(learnt);
            let bytes = SIZE_BYTES * part.len();
            transport.send_with(to, bytes, &mut |frame| {
                let words = frame.as_chunks_mut::<SIZE_BYTES>().0.iter_mut();
                for (word, distance) in words.zip(part.clone()) {
                    *word = (sizes[before(distance)] as u64).to_le_bytes();
                }
            })?;
            transport.receive_with(from, bytes, &mut |frame| {
                let words = frame.as_chunks::<SIZE_BYTES>().0.iter();
                for (word, distance) in words.zip(part.clone()) {
                    sizes[before(known + distance)] = u64::from_le_bytes(*word) as usize;
                }
            })?;
        }
        known += learnt;
    }
    Ok(())
}
