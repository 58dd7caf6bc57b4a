//! All-gather of inputs of different sizes: the sizes go around a ring, then the inputs.
//!
//! - Steps: `2(P - 1)`. Bytes sent per rank: all inputs but the next rank's.

use crate::error::Result;
use crate::transport::Transport;

/// Fills `sizes` with the number of input bytes of every rank.
///
/// In step `k` rank `r` passes on the size of rank `r - k` and learns that of rank `r - k - 1`.
pub(crate) fn exchange_sizes(
    transport: &mut dyn Transport,
    own: usize,
    sizes: &mut Vec<usize>,
) -> Result<()> {
    let (rank, size) = (transport.rank(), transport.world_size());
    sizes.clear();
    sizes.resize(size, 0);
    sizes[rank] = own;
    for step in 1..size {
        let sent = sizes[(rank + size + 1 - step) % size] as u64;
        transport.send_bytes((rank + 1) % size, &sent.to_le_bytes())?;
        let learnt = &mut sizes[(rank + size - step) % size];
        transport.receive_with((rank + size - 1) % size, 8, &mut |frame| {
            *learnt = frame.first_chunk().map_or(0, |it| u64::from_le_bytes(*it)) as usize;
        })?;
    }
    Ok(())
}
