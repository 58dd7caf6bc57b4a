//! What the fuzz targets call: any bytes as a file that a run goes on with or is compared with. A
//! panic is a find.
//!
//! Not part of the interface of this crate; compiled for tests and with the feature `fuzzing`.

use std::io::Cursor;
use std::path::PathBuf;

use crate::bits::Reader;
use crate::tensorboard::copy;

/// A name, and what it calls.
type Target = (&'static str, fn(&[u8]));

/// The targets by their names.
pub const TARGETS: [Target; 2] = [("event_file", event_file), ("bit_log", bit_log)];

/// An event file of TensorBoard, of which the points of some steps are removed: what is left is
/// records of it in their order, and has nothing to be removed.
#[expect(clippy::expect_used, reason = "a fuzz target fails by a panic")]
pub fn event_file(bytes: &[u8]) {
    let cut = |mut from: &[u8], is_obsolete: &mut dyn FnMut(&str, u64) -> bool| {
        let mut left = Vec::new();
        let found = copy(&mut from, &mut left, is_obsolete).expect("memory can be read");
        assert!(from.len() <= bytes.len() && left.len() <= bytes.len());
        (found, left)
    };
    let (found, whole) = cut(bytes, &mut |_, _| false);
    assert!(bytes.starts_with(&whole), "only what is damaged goes");
    assert_eq!(found.changes, whole.len() != bytes.len());
    let (after, again) = cut(&whole, &mut |_, _| false);
    assert!(!after.changes && again == whole && after.points == found.points);
    let mut is_odd = |tag: &str, step: u64| (tag.len() as u64 + step) % 2 == 1;
    let (odd, rest) = cut(bytes, &mut is_odd);
    assert!(odd.points <= found.points);
    let (after, again) = cut(&rest, &mut is_odd);
    assert!(!after.changes && again == rest && after.points == odd.points);
}

/// The bits of a run, for `same-bits`: steps go up, and each line has a hash for each parameter.
pub fn bit_log(bytes: &[u8]) {
    let lines = Box::new(Cursor::new(bytes.to_vec()));
    let Ok(mut reader) = Reader::new(PathBuf::from("bits.jsonl"), lines) else {
        return;
    };
    let mut last = None;
    while let Ok(Some(line)) = reader.next() {
        assert!(last < Some(line.step), "steps go up");
        assert!(reader.bytes <= bytes.len() as u64);
        last = Some(line.step);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, UNIX_EPOCH};

    use hostile::corpus::{Seeds, check};

    use super::*;
    use crate::tensorboard::EventWriter;

    #[test]
    fn the_corpus_has_the_seeds_and_the_targets_fail_with_no_file_of_it() {
        check(TARGETS[0], &event_files());
        check(TARGETS[1], &bit_logs());
    }

    /// What a writer leaves, but for its first record, which has the time of the day.
    fn events() -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(folder.path()).unwrap();
        let time = UNIX_EPOCH + Duration::from_secs(1);
        for step in 0..3 {
            writer.scalar("epoch_loss", 0.5, step, time).unwrap();
        }
        let values = [0.5, 1.5, -2.0];
        writer.histogram("weights", values, 3, time).unwrap();
        writer.flush().unwrap();
        let mut files = fs::read_dir(folder.path()).unwrap();
        let bytes = fs::read(files.next().unwrap().unwrap().path()).unwrap();
        let first = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        bytes[first as usize + 16..].to_vec()
    }

    fn event_files() -> Seeds {
        let whole = events();
        let with = |change: fn(&mut Vec<u8>)| {
            let mut bytes = whole.clone();
            change(&mut bytes);
            bytes
        };
        Seeds::from([
            ("whole", whole.clone()),
            ("cut-off", with(|bytes| bytes.truncate(bytes.len() - 3))),
            ("half-a-length", with(|bytes| bytes.truncate(7))),
            ("damaged", with(|bytes| bytes[20] ^= 1)),
            ("damaged-length", with(|bytes| bytes[1] ^= 1)),
            ("garbage-behind", with(|bytes| bytes.extend([0; 40]))),
            ("no-message", distribute_records::encode(&[0xff; 12])),
            ("empty-record", distribute_records::encode(&[])),
            ("nothing", Vec::new()),
        ])
    }

    fn bit_logs() -> Seeds {
        let head = r#"{"bits":1,"parameters":[["a",[2,3]],["b",[]]]}"#;
        let line = |step: u64, hashes: usize| {
            let hashes = vec![format!("\"{}\"", "0a".repeat(32)); hashes];
            format!("{{\"step\":{step},\"sha256\":[{}]}}\n", hashes.join(","))
        };
        let file = |lines: &[String]| {
            [&format!("{head}\n"), &*lines.concat()]
                .concat()
                .into_bytes()
        };
        let (first, second) = (line(1, 2), line(2, 2));
        let whole = file(&[first.clone(), second.clone()]);
        let mut reader = Reader::new("bits".into(), Box::new(Cursor::new(whole.clone()))).unwrap();
        assert_eq!(reader.next().unwrap().unwrap().step, 1);
        Seeds::from([
            ("whole", whole),
            ("backwards", file(&[second, first.clone()])),
            ("too-few", file(&[line(1, 1)])),
            ("cut-off", file(&[first[..30].to_string()])),
            ("giant-step", file(&[line(u64::MAX, 2)])),
            ("other-version", head.replace(":1", ":9").into_bytes()),
            ("deep", b"[".repeat(1000)),
        ])
    }
}
