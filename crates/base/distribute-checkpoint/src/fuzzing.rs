//! The fuzz targets: they read any bytes as the files of a checkpoint. A panic is a finding.
//!
//! Not part of the interface of this crate; compiled for tests and with the feature `fuzzing`.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::Path;

use burn::tensor::TensorData;
use sha2::{Digest, Sha256};

use crate::marker::{FileRecord, Marker};
use crate::reader::decode_metadata;
use crate::recorded::Recorded;
use crate::tensor_file::{PreparedTensors, read_tensors};
use crate::{Metadata, weights_sha256};

/// A target's name and function.
type Target = (&'static str, fn(&[u8]));

/// The targets by their names.
pub const TARGETS: [Target; 3] = [
    ("checkpoint_marker", marker),
    ("checkpoint_metadata", metadata),
    ("checkpoint_tensors", tensors),
];

/// `COMPLETE`, unchanged and with the right checksum: an error, or equal after a round
/// trip.
pub fn marker(bytes: &[u8]) {
    let decode = |bytes: &[u8]| Marker::decode(Path::new("c"), Path::new("c/COMPLETE"), bytes).ok();
    let checksum = format!("crc32c {:08x}\n", crc32c::crc32c(bytes));
    for bytes in [bytes, &[bytes, checksum.as_bytes()].concat()] {
        if let Some(marker) = decode(bytes) {
            let again = marker.encode().ok().and_then(|bytes| decode(&bytes));
            assert_eq!(again, Some(marker));
        }
    }
}

/// `metadata.json`: an error, or equal after a round trip.
pub fn metadata(bytes: &[u8]) {
    let decode = |bytes: &[u8]| -> Option<Metadata> {
        decode_metadata(Path::new("c"), Path::new("c/metadata.json"), bytes).ok()
    };
    if let Some(metadata) = decode(bytes) {
        let again = serde_json::to_vec(&metadata).ok();
        assert_eq!(again.and_then(|bytes| decode(&bytes)), Some(metadata));
    }
}

/// `tensors.safetensors`, with a matching marker: damage, or tensors that are equal after a round
/// trip.
pub fn tensors(bytes: &[u8]) {
    let Some(tensors) = read(bytes) else {
        return;
    };
    assert!(weights_sha256(&tensors).is_ok());
    // Other programs may write names that this library never writes.
    let Ok(prepared) = PreparedTensors::new(&tensors, Path::new("c")) else {
        return;
    };
    let mut written = Vec::new();
    assert!(prepared.write_to(&mut written).is_ok());
    assert_eq!(read(&written).as_ref(), Some(&tensors));
}

fn read(bytes: &[u8]) -> Option<BTreeMap<String, TensorData>> {
    let record = FileRecord {
        bytes: bytes.len() as u64,
        sha256: hex::encode(Sha256::digest(bytes)),
    };
    let content = Box::new(Cursor::new(bytes.to_vec()));
    match read_tensors(Recorded::new("c/tensors".into(), content, &record)) {
        Ok(tensors) => Some(tensors),
        Err(error) => {
            assert!(error.is_damage(), "{error}");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{BoolStore, DType};
    use hostile::corpus::Seeds;
    use serde_json::json;

    use super::*;
    use crate::FORMAT_VERSION;

    #[test]
    fn the_corpus_has_the_seeds_and_no_target_fails_with_a_file_of_it() {
        for target in TARGETS {
            let seeds = match target.0 {
                "checkpoint_marker" => markers(),
                "checkpoint_metadata" => metadata_files(),
                _ => tensor_files(),
            };
            hostile::corpus::check(target, &seeds);
        }
    }

    fn markers() -> Seeds {
        let record = FileRecord {
            bytes: 7,
            sha256: hex::encode(Sha256::digest(b"content")),
        };
        let marker = Marker::new(BTreeMap::from([("metadata.json".to_string(), record)]));
        let whole = marker.encode().unwrap();
        let line = |text: &str| format!("{text}\n").into_bytes();
        Seeds::from([
            ("truncated", whole[..whole.len() / 2].to_vec()),
            ("whole", whole),
            ("version-giant", line(r#"{"format_version":4294967295}"#)),
            ("version-1", line(r#"{"format_version":1,"files":{}}"#)),
            ("deep", line(&"[".repeat(1000))),
        ])
    }

    fn metadata_files() -> Seeds {
        let mut metadata = Metadata::new(u64::MAX);
        metadata.created_by = "seeds".to_string();
        metadata.optimizer.hyper_parameters = json!({"learning_rate": 0.1, "betas": [0.9, null]});
        metadata.extra.insert("ä".to_string(), json!(1.0e-300));
        let whole = serde_json::to_string(&metadata).unwrap();
        let version = format!("\"format_version\":{FORMAT_VERSION}");
        let newer = whole.replace(&version, "\"format_version\":9");
        let text = |text: &str| text.as_bytes().to_vec();
        Seeds::from([
            ("whole", text(&whole)),
            ("newer", text(&newer)),
            ("truncated", text(&whole[..whole.len() / 2])),
            ("number-giant", text(&whole.replace("1e-300", "1e999"))),
            ("deep", text(&whole.replace("1e-300", &"[".repeat(200)))),
        ])
    }

    /// A header and `data_bytes` zero bytes.
    fn with_header(header: &str, data_bytes: usize) -> Vec<u8> {
        let length = (header.len() as u64).to_le_bytes();
        [&length[..], header.as_bytes(), &vec![0; data_bytes]].concat()
    }

    fn tensor_files() -> Seeds {
        let one = |dtype: &str, shape: &str, bytes: usize| {
            let header = format!(
                r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{bytes}]}}}}"#
            );
            with_header(&header, bytes)
        };
        let flags = |store| TensorData::from_bytes_vec(vec![1; 4], [1], DType::Bool(store));
        let tensors = BTreeMap::from([
            ("model/kernel", TensorData::from([[1.0_f32, -2.0]])),
            ("model/mask", TensorData::from([true, false])),
            ("optimizer/m/kernel", TensorData::from([0.5_f64])),
            ("flags", flags(BoolStore::U32)),
            (
                "nothing",
                TensorData::from_bytes_vec(vec![], [0, 3], DType::I16),
            ),
        ]);
        let tensors = tensors
            .into_iter()
            .map(|(name, it)| (name.to_string(), it))
            .collect();
        let mut whole = Vec::new();
        let prepared = PreparedTensors::new(&tensors, Path::new("c")).unwrap();
        prepared.write_to(&mut whole).unwrap();
        let mut bool_of_2 = one("BOOL", "[1]", 1);
        *bool_of_2.last_mut().unwrap() = 2;
        Seeds::from([
            ("truncated", whole[..whole.len() - 3].to_vec()),
            ("whole", whole),
            ("nothing", with_header("{}", 0)),
            ("header-giant", vec![0xff; 12]),
            ("shape-giant", one("F64", "[4294967296,4294967296,2]", 0)),
            ("shape-empty", one("F64", "[0,4294967296,4294967296]", 0)),
            ("shape-scalar", one("BF16", "[]", 2)),
            ("dtype-unknown", one("F8_E4M3", "[8]", 8)),
            ("bool-of-2", bool_of_2),
        ])
    }
}
