//! `send` and `recv`: the two ranks first agree on type, length and generation.
//!
//! The sender describes its buffer by the header that all operations have, the receiver compares
//! and answers, then the segments follow. So a difference is an error on both sides before any
//! element is overwritten, and a `send` returns only when the receiver is there.

use crate::buffer::Buffer;
use crate::error::Result;
use crate::header::OperationHeader;
use crate::operation::OperationKind;
use crate::transport::Transport;

/// The call as its sender describes it, on both sides.
fn described(header: &OperationHeader, buffer: &Buffer<'_>) -> OperationHeader {
    OperationHeader {
        kind: OperationKind::Send,
        dtype: Some(buffer.dtype()),
        count: buffer.len(),
        buffers: 1,
        ..*header
    }
}

pub(crate) fn send(
    transport: &mut dyn Transport,
    header: &OperationHeader,
    to: usize,
    buffer: &Buffer<'_>,
    segment_bytes: usize,
) -> Result<()> {
    transport.send_bytes(to, &described(header, buffer).encode())?;
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
    let own = described(header, buffer);
    let mut theirs = own.encode();
    let bytes = theirs.len();
    transport.receive_with(from, bytes, &mut |frame| theirs.copy_from_slice(frame))?;
    // The group has failed only by a difference: the loss of the sender is the receiver's alone.
    agree(&own, transport.rank(), &theirs, from).inspect_err(|error| {
        transport.fail(error.clone());
    })?;
    transport.send_with(from, 1, &mut |_| {})?;
    for segment in buffer.as_bytes_mut().chunks_mut(segment_bytes) {
        let bytes = segment.len();
        transport.receive_with(from, bytes, &mut |frame| segment.copy_from_slice(frame))?;
    }
    Ok(())
}

/// Compares the sender's header with the own one, but for the number of the next collective
/// operation, which is not this one's.
fn agree(
    own: &OperationHeader,
    rank: usize,
    theirs: &[u8; OperationHeader::BYTES],
    from: usize,
) -> Result<()> {
    match OperationHeader::decode(theirs) {
        Ok(mut theirs) => {
            theirs.sequence = own.sequence;
            own.compare(rank, &theirs, from)
        }
        Err(error) => Err(own.mismatch(rank, from, error.to_string())),
    }
}
