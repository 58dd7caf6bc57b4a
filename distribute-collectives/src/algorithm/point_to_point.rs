//! `send` and `recv`: the two ranks first agree on type and length.
//!
//! The sender describes its buffer, the receiver compares and answers, then the segments follow.
//! So a difference is an error on both sides before any element is overwritten, and a `send`
//! returns only when the receiver is there.

use crate::buffer::{Buffer, DType};
use crate::error::Result;
use crate::header::OperationHeader;
use crate::transport::Transport;

/// A buffer's type (1 byte) and length (8 bytes) on the wire.
const DESCRIPTION_BYTES: usize = 9;

fn describe(buffer: &Buffer<'_>) -> [u8; DESCRIPTION_BYTES] {
    let mut description = [buffer.dtype() as u8; DESCRIPTION_BYTES];
    description[1..].copy_from_slice(&(buffer.len() as u64).to_le_bytes());
    description
}

fn in_words(description: [u8; DESCRIPTION_BYTES]) -> String {
    let dtype = DType::ALL
        .iter()
        .find(|dtype| **dtype as u8 == description[0]);
    let mut len = [0; 8];
    len.copy_from_slice(&description[1..]);
    let len = u64::from_le_bytes(len);
    dtype.map_or_else(
        || "unknown".to_string(),
        |dtype| format!("{len} elements of {dtype}"),
    )
}

pub(crate) fn send(
    transport: &mut dyn Transport,
    to: usize,
    buffer: &Buffer<'_>,
    segment_bytes: usize,
) -> Result<()> {
    let description = describe(buffer);
    transport.send_bytes(to, &description)?;
    transport.receive_with(to, 1, &mut |_| {})?;
    for segment in buffer.as_bytes().chunks(segment_bytes) {
        transport.send_bytes(to, segment)?;
    }
    Ok(())
}

pub(crate) fn recv(
    transport: &mut dyn Transport,
    header: &OperationHeader,
    from: usize,
    buffer: &mut Buffer<'_>,
    segment_bytes: usize,
) -> Result<()> {
    let expected = describe(buffer);
    let mut found = expected;
    transport.receive_with(from, DESCRIPTION_BYTES, &mut |frame| {
        found.copy_from_slice(frame)
    })?;
    if found != expected {
        let rank = transport.rank();
        let what = format!(
            "rank {from} sent {}, rank {rank} expects {}",
            in_words(found),
            in_words(expected)
        );
        let error = header.mismatch(rank, from, what);
        transport.fail(error.clone());
        return Err(error);
    }
    transport.send_with(from, 1, &mut |_| {})?;
    for segment in buffer.as_bytes_mut().chunks_mut(segment_bytes) {
        let bytes = segment.len();
        transport.receive_with(from, bytes, &mut |frame| segment.copy_from_slice(frame))?;
    }
    Ok(())
}
