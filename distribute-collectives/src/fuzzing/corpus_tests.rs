//! The seeds in `crates/tools/fuzz/corpus`: how they are made, and that no target fails with one.

use std::collections::BTreeMap;

use hostile::corpus::Seeds;
use serde_json::{Value, json};

use super::*;
use crate::DType;
use crate::error::CollectiveError;
use crate::failure::{Failure, FailureKind};
use crate::reduce::ReduceOp;
use crate::shared_memory::{Settings, welcome_of};

#[test]
fn the_corpus_has_the_seeds_and_no_target_fails_with_a_file_of_it() {
    for target in TARGETS {
        let seeds = match target.0 {
            "operation_header" => headers(),
            "data_hello" => hellos(),
            "data_frames" => streams(),
            "control_message" => messages_of_control(),
            _ => welcomes(),
        };
        hostile::corpus::check(target, &seeds);
    }
}

/// What ranks say on lanes to the rank in the middle of [`WORLD_SIZE`].
fn hellos() -> Seeds {
    let hello = |rank: usize, change: fn(&mut Value)| {
        let rules = LaneRules::example(rank, WORLD_SIZE);
        let hello = rules.hello(WORLD_SIZE / 2, 0, "127.0.0.1:1");
        let mut hello = serde_json::to_value(hello).unwrap();
        change(&mut hello);
        hello.to_string().into_bytes()
    };
    BTreeMap::from([
        ("valid", hello(WORLD_SIZE - 1, |_| {})),
        ("rank-lower", hello(0, |_| {})),
        ("rank-own", hello(WORLD_SIZE / 2, |_| {})),
        (
            "rank-giant",
            hello(5, |it| it["identity"]["task"] = json!(u32::MAX)),
        ),
        (
            "generation-other",
            hello(5, |it| it["identity"]["generation"] = json!(8)),
        ),
        (
            "group-other",
            hello(5, |it| it["identity"]["group"] = json!("\0")),
        ),
        ("peer-none", hello(5, |it| it["peer_task"] = Value::Null)),
        ("details-none", hello(5, |it| it["details"] = json!(""))),
        (
            "lane-giant",
            hello(5, |it| {
                it["details"] = json!(r#"{"world_size":8,"lane":18446744073709551615,"lanes":1}"#);
            }),
        ),
        (
            "lane-negative",
            hello(5, |it| {
                it["details"] = json!(r#"{"world_size":8,"lane":-1,"lanes":1}"#)
            }),
        ),
    ])
}

/// A message with its prefix.
fn message(number: u64, payload: &[u8]) -> Vec<u8> {
    let header = FrameHeader {
        operation: OperationHeader::new(OperationKind::AllReduce, 1, 2)
            .with_dtype(DType::F32)
            .with_op(ReduceOp::Sum),
        number,
    };
    let prefix = wire::encode_prefix(payload.len());
    [&prefix[..], &header.encode(), payload].concat()
}

/// A change of some bytes of a valid message.
fn changed(offset: usize, bytes: &[u8]) -> Vec<u8> {
    let mut whole = message(0, &[]);
    whole[offset..offset + bytes.len()].copy_from_slice(bytes);
    whole
}

fn headers() -> Seeds {
    let at = |offset| PREFIX_BYTES + offset;
    let mut with_root = changed(at(1), &[1]);
    with_root[at(48)..at(56)].copy_from_slice(&5_u64.to_le_bytes());
    BTreeMap::from([
        ("valid", message(0, &[])),
        ("valid-with-root", with_root),
        ("length-giant", changed(1, &[0xff; 4])),
        ("length-below-header", changed(1, &63_u32.to_be_bytes())),
        ("compressed", changed(0, &[1])),
        ("version-0", changed(at(0), &[0])),
        ("version-255", changed(at(0), &[255])),
        ("flags-unknown", changed(at(1), &[2])),
        ("kind-unknown", changed(at(2), &[8])),
        ("types-unknown", changed(at(3), &[255, 255])),
        ("padding-used", changed(at(7), &[1])),
        ("numbers-overflowing", changed(at(8), &[0xff; 40])),
        ("root-without-flag", changed(at(48), &[1])),
        ("root-giant", {
            let mut giant = changed(at(1), &[1]);
            giant[at(48)..at(56)].copy_from_slice(&[0xff; 8]);
            giant
        }),
    ])
}

fn streams() -> Seeds {
    let stream = |cuts: &[u8], parts: &[Vec<u8>]| {
        let front = [&[cuts.len() as u8], cuts].concat();
        [front, parts.concat()].concat()
    };
    let three = || [message(0, &[]), message(1, &[7; 300]), message(2, &[9; 5])];
    let giant = || changed(1, &[0xff; 4]);
    BTreeMap::from([
        ("whole", stream(&[], &three())),
        ("byte-by-byte", stream(&[0], &three())),
        ("cut-in-header", stream(&[2, 60, 255], &three())),
        ("cut-at-ends", stream(&[4, 63, 68, 255, 44, 73], &three())),
        (
            "largest",
            stream(&[255], &[message(0, &[1; LIMIT - HEADER_BYTES])]),
        ),
        (
            "one-too-large",
            stream(&[255], &[message(0, &[1; LIMIT - HEADER_BYTES + 1])]),
        ),
        (
            "then-giant",
            stream(&[100], &[message(0, &[7; 50]), giant()]),
        ),
        (
            "then-truncated",
            stream(
                &[9],
                &[message(0, &[7; 50]), message(1, &[])[..30].to_vec()],
            ),
        ),
    ])
}

fn envelope(message: envelope::Message) -> Vec<u8> {
    let message = Some(message);
    message::Envelope { message }.encode_to_vec()
}

fn notice(kind: FailureKind) -> Vec<u8> {
    let failure = Failure {
        kind,
        from_sequence: u64::MAX,
    };
    envelope(envelope::Message::Notice(convert::notice(0, &failure)))
}

fn messages_of_control() -> Seeds {
    let mut seeds = heartbeats();
    seeds.extend(notices());
    let giant = [&[0x32][..], &[0xff; 9], &[0x01]].concat();
    seeds.insert("length-giant", giant);
    seeds
}

fn heartbeats() -> Seeds {
    let (op, sequence) = (OperationKind::Reduce, 4);
    let heartbeat = |change: fn(&mut Vec<u8>)| {
        let header = OperationHeader::new(op, 1, sequence).with_root(7);
        let mut running = convert::running(Some(&header.with_dtype(DType::BF16)));
        change(&mut running);
        let completed = u64::MAX;
        envelope(envelope::Message::Heartbeat(message::Heartbeat {
            running,
            completed,
            answer: false,
            lost_permille: 250,
            reports: Vec::new(),
        }))
    };
    BTreeMap::from([
        ("heartbeat", heartbeat(|_| {})),
        ("heartbeat-kind-unknown", heartbeat(|it| it[2] = 255)),
        ("heartbeat-numbers", heartbeat(|it| it[24..48].fill(255))),
    ])
}

fn notices() -> Seeds {
    let reason = || "because".to_string();
    let (op, sequence) = (OperationKind::Reduce, 4);
    let elapsed = std::time::Duration::from_micros(u64::MAX);
    let ended = |error| notice(FailureKind::Ended(error));
    let (rank, peer, address, what) = (7, 1, "host:1".to_string(), reason());
    let (rank_a, rank_b) = (0, 7);
    let missing = vec![0, 7];
    BTreeMap::from([
        (
            "lost",
            notice(FailureKind::Lost {
                rank,
                reason: reason(),
            }),
        ),
        (
            "lost-no-such-rank",
            notice(FailureKind::Lost {
                rank: 8,
                reason: reason(),
            }),
        ),
        ("silent", notice(FailureKind::Silent { rank, elapsed })),
        (
            "mismatch",
            ended(CollectiveError::Mismatch {
                rank_a,
                rank_b,
                op,
                sequence,
                what: reason(),
            }),
        ),
        (
            "peer-lost",
            ended(CollectiveError::PeerLost {
                rank,
                op,
                sequence,
                reason: reason(),
            }),
        ),
        (
            "timeout",
            ended(CollectiveError::Timeout {
                missing,
                op,
                sequence,
                elapsed,
            }),
        ),
        (
            "aborted",
            ended(CollectiveError::Aborted {
                rank,
                reason: reason(),
            }),
        ),
        (
            "protocol",
            ended(CollectiveError::Protocol {
                rank,
                peer,
                address,
                what,
            }),
        ),
    ])
}

fn welcomes() -> Seeds {
    // The seeds stay the same when the defaults change.
    let settings = Settings {
        inline_bytes: 16 << 10,
        slot_bytes: 256 << 10,
        ..Settings::default()
    };
    let valid = welcome_of(3, &settings);
    let word = |index: usize, value: u64| {
        let mut packet = valid;
        packet[8 + 8 * index..16 + 8 * index].copy_from_slice(&value.to_le_bytes());
        packet.to_vec()
    };
    BTreeMap::from([
        ("valid", valid.to_vec()),
        ("no-members", word(0, 0)),
        ("members-giant", word(0, u64::MAX)),
        ("inline-giant", word(1, u64::MAX - 127)),
        ("slot-giant", word(2, 1 << 63)),
        ("slots-giant", word(3, 1 << 32)),
        ("mailbox-giant", word(4, u64::MAX)),
        ("flag-unknown", word(5, 2)),
    ])
}
