//! What the fuzz targets call: any bytes to what reads bytes of other processes. A panic is a find.
//!
//! Not part of the interface of this crate; compiled for tests and with the feature `fuzzing`.

#[cfg(test)]
mod corpus_tests;

use bytes::Bytes;
use distribute_net::handshake::Hello;
use prost::Message as _;

use crate::control::convert;
use crate::control::generated::{self as message, envelope};
use crate::grpc::frames::Assembler;
use crate::grpc::rules::LaneRules;
use crate::header::OperationHeader;
use crate::operation::OperationKind;
use crate::shared_memory::{self, WELCOME_BYTES};
use crate::status::GroupStatus;
use crate::wire::{self, FrameHeader, HEADER_BYTES, PREFIX_BYTES};

/// A name, and what it calls.
type Target = (&'static str, fn(&[u8]));

/// The targets by their names.
pub const TARGETS: [Target; 5] = [
    ("operation_header", operation_header),
    ("data_hello", data_hello),
    ("data_frames", data_frames),
    ("control_message", control_message),
    ("shared_memory_welcome", shared_memory_welcome),
];

/// Most bytes of a message in [`data_frames`].
const LIMIT: usize = 4096;

/// A world size in which the ranks of a control message have to be.
const WORLD_SIZE: usize = 8;

/// gRPC's prefix and the header of an operation: an error, or what encodes to the same bytes.
pub fn operation_header(bytes: &[u8]) {
    let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX_BYTES>() else {
        return;
    };
    if let Ok(payload) = wire::decode_prefix(prefix, LIMIT) {
        assert!(payload + HEADER_BYTES <= LIMIT);
        assert_eq!(wire::encode_prefix(payload), *prefix);
    }
    let Some(header) = rest.first_chunk::<HEADER_BYTES>() else {
        return;
    };
    if let Ok(decoded) = FrameHeader::decode(header) {
        assert_eq!(decoded.encode(), *header);
        // What a rank compares it with, and what it says about a difference.
        let other = OperationHeader::new(OperationKind::Barrier, 0, 0);
        let difference = decoded.operation.first_difference(&other);
        assert_eq!(difference.is_none(), decoded.operation == other);
    }
}

/// What a rank says first on a data connection, before it has proven anything, to the rank in the
/// middle: refused, or a rank and a lane that there are.
pub fn data_hello(bytes: &[u8]) {
    let rules = LaneRules::example(WORLD_SIZE / 2, WORLD_SIZE);
    let Ok(hello) = serde_json::from_slice::<Hello>(bytes) else {
        return;
    };
    if let Ok((rank, lane)) = rules.check_client(&hello) {
        assert!(rules.rank < rank && rank < WORLD_SIZE);
        assert!(lane < rules.lanes);
    }
}

/// The body of a data stream. The first byte says how many of the next ones are the sizes of the
/// pieces, which are used again and again. An error ends the stream; until then the messages are
/// those that the stream gives in one piece, and no more memory is held than one message needs.
pub fn data_frames(bytes: &[u8]) {
    let Some((count, rest)) = bytes.split_first() else {
        return;
    };
    let (cuts, stream) = rest.split_at(usize::from(*count % 16).min(rest.len()));
    let whole = messages(stream, &[]);
    let cut = messages(stream, cuts);
    assert_eq!(whole, cut);
    let taken: usize = cut
        .iter()
        .map(|(header, payload)| header.len() + payload.len())
        .sum();
    assert!(taken <= stream.len());
}

/// The headers and payloads in a stream up to its first error.
fn messages(stream: &[u8], cuts: &[u8]) -> Vec<([u8; HEADER_BYTES], Vec<u8>)> {
    let mut assembler = Assembler::new(LIMIT);
    let mut rest = Bytes::copy_from_slice(stream);
    let mut cuts = cuts.iter().cycle();
    let mut found = Vec::new();
    while !rest.is_empty() {
        let size = cuts.next().map_or(rest.len(), |cut| usize::from(*cut) + 1);
        let mut piece = rest.split_to(size.min(rest.len()));
        while !piece.is_empty() {
            let Ok(next) = assembler.next(&mut piece) else {
                return found;
            };
            if let Some(message) = next {
                found.push((message.header.encode(), message.payload().to_vec()));
                assembler.recycle(message);
            }
            assert!(assembler.payload_capacity() <= LIMIT);
        }
    }
    found
}

/// A message of the control plane: an error, or one whose failure or operation means the same
/// after it was sent once more.
pub fn control_message(bytes: &[u8]) {
    let Ok(envelope) = message::Envelope::decode(bytes) else {
        return;
    };
    match envelope.message {
        Some(envelope::Message::Heartbeat(heartbeat)) => {
            if let Some(header) = convert::header(&heartbeat.running) {
                assert_eq!(convert::running(Some(&header)), heartbeat.running);
            }
        }
        Some(envelope::Message::Notice(notice)) => noticed(&notice),
        _ => {}
    }
}

#[expect(clippy::expect_used, reason = "a fuzz target fails by a panic")]
fn noticed(notice: &message::Notice) {
    let Some(failure) = convert::failure(WORLD_SIZE, notice) else {
        return;
    };
    let again = convert::notice(0, &failure);
    assert!(again.encoded_len() < 64 << 10);
    assert!(convert::failure(WORLD_SIZE, &again).is_some());
    let status = GroupStatus::default();
    let header = OperationHeader::new(OperationKind::Barrier, 0, u64::MAX);
    status.record_failure(failure);
    let error = status.check(&header).expect_err("a failure was noted");
    assert!(!error.to_string().is_empty());
}

/// The packet with which the leader of a host passes its segment on: refused, or a layout whose
/// parts lie in the segment one after the other.
pub fn shared_memory_welcome(bytes: &[u8]) {
    if let Some(packet) = bytes.first_chunk::<WELCOME_BYTES>()
        && let Some(layout) = shared_memory::read_welcome(packet)
    {
        layout.check_parts();
    }
}
