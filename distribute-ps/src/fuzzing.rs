//! What the fuzz targets call: any bytes as what servers, workers and their clients say to each
//! other, and as tables of a checkpoint. A panic is a find.
//!
//! Not part of the interface of this crate; compiled for tests and with the feature `fuzzing`.

use std::collections::BTreeMap;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use burn::tensor::TensorData;
use bytes::Bytes;

use crate::client::fuzzing::catalog;
use crate::rpc::message::{Outgoing, Reader};
use crate::server::fuzzing::shards;
use crate::wire::Part;
use crate::wire_error::sendable;
use crate::{HostTensor, PsError, Snapshot, value};

/// A name, and what it calls.
type Target = (&'static str, fn(&[u8]));

/// The targets by their names.
pub const TARGETS: [Target; 6] = [
    ("ps_catalog", catalog),
    ("ps_error", error),
    ("ps_message", message),
    ("ps_shards", shards),
    ("ps_tables", tables),
    ("ps_value", values),
];

/// A call's first message and its payload. The first byte says how many of the next ones are the
/// sizes of the pieces in which they come, used again and again. However they come, it is the same
/// error or the same call, which is read again as it was.
pub fn message(bytes: &[u8]) {
    let Some((count, rest)) = bytes.split_first() else {
        return;
    };
    let (cuts, stream) = rest.split_at(usize::from(*count % 16).min(rest.len()));
    let whole = read(Outgoing::of_pieces(pieces(stream, &[])));
    assert_eq!(read(Outgoing::of_pieces(pieces(stream, cuts))), whole);
    if let Some((part, payload)) = whole {
        let sent = Outgoing::new(&part, vec![Bytes::from(payload.clone())]);
        assert_eq!(read(sent), Some((part, payload)));
    }
}

/// A stream in pieces of these sizes.
fn pieces(stream: &[u8], sizes: &[u8]) -> impl Iterator<Item = Bytes> {
    let mut rest = Bytes::copy_from_slice(stream);
    let mut sizes = sizes.iter().cycle();
    std::iter::from_fn(move || {
        let size = sizes
            .next()
            .map_or(rest.len(), |size| usize::from(*size) + 1);
        let piece = rest.split_to(size.min(rest.len()));
        (!piece.is_empty()).then_some(piece)
    })
}

/// All of a call whose body is there.
fn read(body: Outgoing) -> Option<(Part, Vec<u8>)> {
    let call = async {
        let mut reader = Reader::new(body);
        let part: Part = reader.header().await.ok()?;
        let payload = reader.rope(part.bytes).await.ok()?;
        reader.end().await.ok()?;
        Some((part, payload.read(0, payload.len())))
    };
    match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(read) => read,
        Poll::Pending => None,
    }
}

/// The error of a step or of a server. What it means does not change when it travels once more.
pub fn error(bytes: &[u8]) {
    let Ok(error) = value::decode::<PsError>(bytes) else {
        return;
    };
    let again = sendable(&error);
    assert!(!again.to_string().is_empty());
    let sent = value::encode(&again);
    let arrived = sent.as_ref().map(|sent| value::decode::<PsError>(sent));
    let arrived = arrived.map(|arrived| arrived.map(|error| value::encode(&sendable(&error))));
    assert_eq!(arrived, Ok(Ok(sent.clone())));
}

/// Arguments and results of steps: an error, or what is read again as it was.
pub fn values(bytes: &[u8]) {
    type Values = (HostTensor, Vec<HostTensor>, Option<String>, (f32, u64));

    let Ok(values) = value::decode::<Values>(bytes) else {
        return;
    };
    let sent = value::encode(&values);
    let again = sent
        .as_ref()
        .ok()
        .and_then(|sent| value::decode::<Values>(sent).ok());
    assert_eq!(again.as_ref().map(value::encode), Some(sent));
    let HostTensor(tensor) = values.0;
    assert_eq!(tensor.iter::<bool>().count(), tensor.shape().num_elements());
}

/// The tensors of a checkpoint as the state of servers, and back.
pub fn tables(bytes: &[u8]) {
    let Ok((step, tensors)) = value::decode::<(u32, BTreeMap<String, HostTensor>)>(bytes) else {
        return;
    };
    let tensors: BTreeMap<String, TensorData> = tensors
        .into_iter()
        .map(|(name, tensor)| (name, tensor.0))
        .collect();
    let snapshot = Snapshot::from_tensors(&tensors, step.into());
    let again = Snapshot::from_tensors(&snapshot.to_tensors(), step.into());
    assert_eq!(again, snapshot);
}

#[cfg(test)]
mod tests {
    use burn::tensor::{BoolStore, DType};
    use distribute_core::{Adam, Sgd};
    use hostile::corpus::Seeds;

    use super::*;
    use crate::OptimizerSpec;
    use crate::wire::ShardSpec;

    #[test]
    fn the_corpus_has_the_seeds_and_no_target_fails_with_a_file_of_it() {
        for target in TARGETS {
            let seeds = match target.0 {
                "ps_catalog" => catalogs(),
                "ps_error" => errors(),
                "ps_message" => calls(),
                "ps_shards" => created(),
                "ps_tables" => checkpoints(),
                _ => arguments(),
            };
            hostile::corpus::check(target, &seeds);
        }
    }

    fn changed(change: impl FnOnce(&mut ShardSpec)) -> ShardSpec {
        let mut shard = ShardSpec::whole("model/w", DType::F32, &[4, 2]);
        shard.variable.optimizer = Some(OptimizerSpec::of(&Sgd::new(0.1).momentum(0.9)));
        change(&mut shard);
        shard
    }

    fn shard() -> ShardSpec {
        changed(|_| {})
    }

    fn encoded(shards: Vec<ShardSpec>) -> Vec<u8> {
        value::encode(&shards).unwrap()
    }

    fn catalogs() -> Seeds {
        let half = |number| {
            changed(|shard| {
                (shard.number, shard.id, shard.num_shards) = (number, number, 2);
                (shard.offset, shard.rows) = (2 * number as usize, 2);
            })
        };
        let one = |change: fn(&mut ShardSpec)| encoded(vec![changed(change)]);
        Seeds::from([
            ("one", encoded(vec![shard()])),
            ("halves", encoded(vec![half(0), half(1)])),
            ("half", encoded(vec![half(1)])),
            ("order-giant", one(|shard| shard.order = u64::MAX)),
            (
                "shape-giant",
                one(|shard| shard.variable.shape = vec![usize::MAX; 3]),
            ),
            (
                "dtype-unknown",
                one(|shard| shard.variable.dtype = DType::Flex32),
            ),
        ])
    }

    fn created() -> Seeds {
        let one = |change: fn(&mut ShardSpec)| encoded(vec![changed(change)]);
        let config = |config: serde_json::Value| {
            let name = "sgd".to_string();
            let optimizer = Some(OptimizerSpec { name, config });
            encoded(vec![changed(|shard| shard.variable.optimizer = optimizer)])
        };
        let deep = (0..200).fold(serde_json::Value::Null, |deep, _| vec![deep].into());
        Seeds::from([
            ("sgd", encoded(vec![shard()])),
            (
                "adam",
                one(|shard| {
                    shard.variable.optimizer = Some(OptimizerSpec::of(&Adam::new(0.1)));
                }),
            ),
            ("plain", one(|shard| shard.variable.optimizer = None)),
            ("double", one(|shard| shard.variable.dtype = DType::F64)),
            (
                "scalar",
                one(|shard| (shard.variable.shape, shard.rows) = (vec![], 1)),
            ),
            (
                "no-rows",
                one(|shard| (shard.variable.shape, shard.rows) = (vec![0, 2], 0)),
            ),
            ("no-columns", one(|shard| shard.variable.shape = vec![4, 0])),
            (
                "shape-giant",
                one(|shard| shard.variable.shape = vec![usize::MAX; 3]),
            ),
            (
                "rows-giant",
                one(|shard| (shard.offset, shard.rows) = (usize::MAX, usize::MAX)),
            ),
            ("config", config(serde_json::json!({"learning_rate": "a"}))),
            ("config-deep", config(deep)),
        ])
    }

    fn calls() -> Seeds {
        let part = |bytes| Part {
            id: 7,
            base: Some(u64::MAX),
            rows: Some(1),
            bytes,
            dtype: DType::F32,
        };
        let call = |cuts: &[u8], part: Part, payload: &[u8]| {
            let mut body = Outgoing::new(&part, vec![Bytes::copy_from_slice(payload)]);
            let mut sent = vec![cuts.len() as u8];
            sent.extend(cuts);
            let mut context = Context::from_waker(Waker::noop());
            while let Poll::Ready(Some(Ok(frame))) =
                http_body::Body::poll_frame(std::pin::Pin::new(&mut body), &mut context)
            {
                sent.extend(frame.into_data().unwrap());
            }
            sent
        };
        Seeds::from([
            ("whole", call(&[], part(300), &[7; 300])),
            ("byte-by-byte", call(&[0], part(9), &[7; 9])),
            ("pieces", call(&[4, 0, 9], part(40), &[7; 40])),
            ("empty", call(&[3], part(0), &[])),
            ("payload-giant", call(&[], part(u64::MAX), &[7; 9])),
            ("payload-long", call(&[], part(3), &[7; 9])),
            ("header-giant", vec![0, 0xff, 0xff, 0xff, 0xff, 1]),
        ])
    }

    fn errors() -> Seeds {
        let encoded = |error: PsError| value::encode(&error).unwrap();
        let shape = PsError::Shape {
            op: "push",
            name: "model/w".to_string(),
            expected: vec![4, 2],
            found: vec![usize::MAX],
        };
        let waited = std::time::Duration::MAX;
        let (op, bound) = ("pull", u64::MAX);
        let late = PsError::StalenessTimeout { op, bound, waited };
        Seeds::from([
            ("shape", encoded(shape)),
            ("late", encoded(late)),
            ("step", encoded(PsError::step("the file\r\nis empty\u{7f}"))),
            ("deep", vec![0x91; 10_000]),
            ("length-giant", vec![0xdb, 0xff, 0xff, 0xff, 0xff]),
        ])
    }

    fn tensor(dtype: DType, shape: &[usize], bytes: Vec<u8>) -> HostTensor {
        TensorData::from_bytes_vec(bytes, shape.to_vec(), dtype).into()
    }

    fn arguments() -> Seeds {
        let rest = || (Vec::<HostTensor>::new(), None::<String>, (0.5_f32, 7_u64));
        let with = |first: HostTensor| {
            let (others, text, numbers) = rest();
            value::encode(&(first, others, text, numbers)).unwrap()
        };
        let bools = |bytes: Vec<u8>| {
            let count = bytes.len();
            with(tensor(DType::Bool(BoolStore::Native), &[count], bytes))
        };
        let floats = tensor(DType::F32, &[2, 1], vec![0x7f; 8]);
        let several = (
            floats.clone(),
            vec![floats.clone(); 2],
            Some("ä"),
            (1.0_f32, 1_u64),
        );
        Seeds::from([
            ("several", value::encode(&several).unwrap()),
            ("floats", with(floats)),
            ("empty", with(tensor(DType::I64, &[0, 3], vec![]))),
            ("halves", with(tensor(DType::BF16, &[1], vec![0xff; 2]))),
            ("bools", bools(vec![0, 1])),
            ("bool-of-2", bools(vec![0, 2])),
            (
                "bytes-giant",
                vec![0x94, 0x83, 0xc6, 0xff, 0xff, 0xff, 0xff],
            ),
        ])
    }

    fn checkpoints() -> Seeds {
        let floats = |values: usize| tensor(DType::F32, &[values, 1], vec![0x3f; 4 * values]);
        let count = |value: i64| tensor(DType::I64, &[1], value.to_le_bytes().to_vec());
        let checkpoint = |tensors: Vec<(&str, HostTensor)>| {
            let tensors: BTreeMap<&str, HostTensor> = tensors.into_iter().collect();
            value::encode(&(9_u32, tensors)).unwrap()
        };
        Seeds::from([
            (
                "table",
                checkpoint(vec![
                    ("table/words", floats(3)),
                    ("optimizer/momentum/table/words", floats(3)),
                    ("updates/table/words", count(3)),
                ]),
            ),
            (
                "model",
                checkpoint(vec![
                    ("model/w", floats(2)),
                    ("optimizer/m/w", floats(2)),
                    ("optimizer/v/w", floats(1)),
                ]),
            ),
            (
                "same-slots",
                checkpoint(vec![
                    ("model/w", floats(2)),
                    ("w", floats(2)),
                    ("optimizer/m/w", floats(2)),
                ]),
            ),
            (
                "count-negative",
                checkpoint(vec![("table/t", floats(1)), ("updates/table/t", count(-1))]),
            ),
            (
                "count-of-floats",
                checkpoint(vec![("table/t", floats(1)), ("updates/table/t", floats(0))]),
            ),
        ])
    }
}
