//! Checkpoints read back: every dtype and shape, and every kind of damage.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::{BoolStore, DType, TensorData};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::faulty_file_system::FaultyFileSystem;
use super::marker::{FileRecord, Marker};
use super::*;

const DTYPES: [DType; 15] = [
    DType::F64,
    DType::F32,
    DType::Flex32,
    DType::F16,
    DType::BF16,
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U64,
    DType::U32,
    DType::U16,
    DType::U8,
    DType::Bool(BoolStore::Native),
    DType::Bool(BoolStore::U32),
];

fn manager(directory: &Path) -> CheckpointManager {
    let fs = Arc::new(FaultyFileSystem::faultless());
    CheckpointManager::open_in(fs, directory.to_path_buf()).unwrap()
}

/// Saves a small checkpoint below `directory` and returns its path.
fn save_small(directory: &Path) -> (Checkpoint, PathBuf) {
    let mut checkpoint = Checkpoint::new(Metadata::new(3));
    for (name, tensor) in [
        (
            "model/kernel",
            TensorData::from([[1.0_f32, 2.0], [3.0, 4.0]]),
        ),
        ("model/count", TensorData::from([7_i64])),
        ("model/mask", TensorData::from([true, false, true])),
    ] {
        checkpoint.tensors.insert(name.to_string(), tensor);
    }
    let saved = manager(directory).save(&checkpoint).unwrap();
    (checkpoint, saved.entry.path)
}

/// Readers during a run that keeps the newest checkpoints only.
mod rotation {
    use std::cell::Cell;
    use std::io;

    use super::*;
    use crate::filesystem::{FileSystem, OsFileSystem};
    use crate::reader::{load_in, newest_in};

    fn save(manager: &CheckpointManager, step: u64) {
        manager.save(&Checkpoint::new(Metadata::new(step))).unwrap();
    }

    /// The newest checkpoint if `rotate` runs while the first one is read.
    fn found_while(
        rotate: impl Fn(&CheckpointManager),
        failure: impl Fn(&Path) -> CheckpointError,
    ) -> (u64, usize) {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("checkpoints");
        let manager = manager(&directory).with_max_to_keep(NonZeroUsize::new(2));
        save(&manager, 5);
        save(&manager, 10);
        let first = Cell::new(true);
        let read = |fs: &dyn FileSystem, path: &Path| {
            if first.replace(false) {
                rotate(&manager);
                return Err(failure(path));
            }
            load_in(fs, path)
        };
        let newest = newest_in(&OsFileSystem, &directory, read).unwrap();
        (newest.found.unwrap().0.step, newest.skipped.len())
    }

    #[test]
    fn a_checkpoint_that_is_replaced_while_it_is_read_is_read_anew() {
        let incomplete = |path: &Path| CheckpointError::corrupt(path, "the file does not exist");
        let again = |manager: &CheckpointManager| save(manager, 10);
        assert_eq!(found_while(again, incomplete), (10, 0));
        let newer = |manager: &CheckpointManager| {
            save(manager, 15);
            save(manager, 20);
        };
        assert_eq!(found_while(newer, incomplete), (20, 0));
    }

    #[test]
    fn any_error_of_a_checkpoint_that_is_gone_is_none() {
        // The error of a file server for a removed file (ESTALE).
        let stale = |path: &Path| CheckpointError::Io {
            path: path.to_path_buf(),
            operation: "read",
            source: io::Error::from(io::ErrorKind::StaleNetworkFileHandle),
        };
        let newer = |manager: &CheckpointManager| {
            save(manager, 15);
            save(manager, 20);
        };
        assert_eq!(found_while(newer, stale), (20, 0));
    }
}

fn tensor() -> impl Strategy<Value = TensorData> {
    let shape = prop::collection::vec(0_usize..5, 0..5);
    (prop::sample::select(&DTYPES[..]), shape, any::<u64>()).prop_map(|(dtype, shape, seed)| {
        let count: usize = shape.iter().product();
        let bytes = (0..count * dtype.size())
            .map(|index| (seed.wrapping_mul(index as u64 + 1) >> 32) as u8)
            .map(|byte| if dtype.is_bool() { byte & 1 } else { byte })
            .collect();
        TensorData::from_bytes_vec(bytes, shape, dtype)
    })
}

fn metadata() -> impl Strategy<Value = Metadata> {
    (any::<[u64; 4]>(), any::<f64>(), "\\PC*").prop_map(|(numbers, rate, text)| {
        let mut metadata = Metadata::new(numbers[0]);
        metadata.epoch = numbers[1];
        metadata.batches_into_epoch = numbers[2];
        metadata.seed = numbers[3];
        metadata.model.name.clone_from(&text);
        metadata.optimizer.hyper_parameters = json!({ "learning_rate": rate });
        metadata.extra.insert(text, json!([rate, null, true]));
        metadata
    })
}

proptest! {
    #[test]
    fn any_checkpoint_round_trips(
        tensors in prop::collection::btree_map("\\PC{1,12}", tensor(), 0..6),
        metadata in metadata(),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint { tensors, metadata };
        let saved = manager(directory.path()).save(&checkpoint).unwrap();
        verify(&saved.entry.path).unwrap();
        prop_assert_eq!(load(&saved.entry.path).unwrap(), checkpoint);
    }

    #[test]
    fn any_damaged_byte_is_detected(
        file in prop::sample::select(vec![TENSORS_FILE, METADATA_FILE, MARKER_FILE]),
        position in any::<prop::sample::Index>(),
        mask in 1_u8..,
    ) {
        let directory = tempfile::tempdir().unwrap();
        let (_, path) = save_small(directory.path());
        let damaged = path.join(file);
        let mut bytes = fs::read(&damaged).unwrap();
        let position = position.index(bytes.len());
        bytes[position] ^= mask;
        fs::write(&damaged, bytes).unwrap();
        for result in [load(&path).map(|_| ()), verify(&path)] {
            let error = result.unwrap_err();
            let found = matches!(&error, CheckpointError::Corrupt { path, .. } if *path == damaged);
            prop_assert!(found, "{}", error);
        }
    }

    #[test]
    fn hostile_tensor_files_with_valid_checksums_do_not_panic(
        bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            ("\\PC{0,100}", any::<u16>()).prop_map(|(header, data)| with_header(&header, data)),
        ],
    ) {
        let directory = tempfile::tempdir().unwrap();
        let (_, path) = save_small(directory.path());
        forge(&path, TENSORS_FILE, &bytes);
        // Whatever the bytes mean, they are a checkpoint or a typed error.
        match load(&path) {
            Ok(checkpoint) => prop_assert!(checkpoint.tensors.is_empty()),
            Err(error) => prop_assert!(matches!(error, CheckpointError::Corrupt { .. }), "{error}"),
        }
    }
}

/// A safetensors file with this header and `data_bytes` zeros.
fn with_header(header: &str, data_bytes: u16) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + usize::from(data_bytes), 0);
    bytes
}

/// Replaces a file of a checkpoint and makes the marker vouch for it.
fn forge(path: &Path, file: &str, bytes: &[u8]) {
    fs::write(path.join(file), bytes).unwrap();
    let records = [TENSORS_FILE, METADATA_FILE].map(|name| {
        let bytes = fs::read(path.join(name)).unwrap();
        let record = FileRecord {
            bytes: bytes.len() as u64,
            sha256: hex::encode(Sha256::digest(&bytes)),
        };
        (name.to_string(), record)
    });
    let marker = Marker::new(BTreeMap::from(records)).encode().unwrap();
    fs::write(path.join(MARKER_FILE), marker).unwrap();
}

#[rstest]
#[case::offsets_beyond_the_file(r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#, 8)]
#[case::data_without_an_owner(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, 8)]
#[case::offsets_that_do_not_fit_the_shape(
    r#"{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,8]}}"#,
    8
)]
#[case::overlap(
    r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},
        "b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#,
    8
)]
#[case::reversed_offsets(r#"{"a":{"dtype":"U8","shape":[0],"data_offsets":[8,0]}}"#, 8)]
#[case::overflow(
    r#"{"a":{"dtype":"F64","shape":[4294967296,4294967296,2],"data_offsets":[0,0]}}"#,
    0
)]
#[case::negative_dimension(r#"{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,8]}}"#, 8)]
#[case::dtype_unknown(r#"{"a":{"dtype":"F31","shape":[8],"data_offsets":[0,8]}}"#, 8)]
#[case::dtype_burn_lacks(r#"{"a":{"dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8]}}"#, 8)]
#[case::special_dtype_of_another_width(
    r#"{"__metadata__":{"distribute.dtypes":"{\"a\":\"flex32\"}"},
        "a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}"#,
    8
)]
#[case::not_an_object("[1,2]", 0)]
#[case::nothing("", 0)]
fn hostile_headers_are_corrupt(#[case] header: &str, #[case] data_bytes: u16) {
    let directory = tempfile::tempdir().unwrap();
    let (_, path) = save_small(directory.path());
    forge(&path, TENSORS_FILE, &with_header(header, data_bytes));
    let error = load(&path).unwrap_err();
    assert!(matches!(error, CheckpointError::Corrupt { .. }), "{error}");
}

#[rstest]
#[case(u64::MAX)]
#[case(u64::MAX - 7)]
#[case(1 << 40)]
#[case(100)]
fn a_header_longer_than_the_file_is_not_allocated(#[case] header_bytes: u64) {
    let directory = tempfile::tempdir().unwrap();
    let (_, path) = save_small(directory.path());
    forge(
        &path,
        TENSORS_FILE,
        &[&header_bytes.to_le_bytes()[..], b"{}"].concat(),
    );
    let error = load(&path).unwrap_err();
    assert!(error.to_string().contains("its header claims"), "{error}");
}

#[test]
fn a_boolean_that_is_neither_true_nor_false_is_corrupt() {
    let directory = tempfile::tempdir().unwrap();
    let (_, path) = save_small(directory.path());
    let mut bytes = with_header(
        r#"{"a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}}"#,
        0,
    );
    bytes.push(2);
    forge(&path, TENSORS_FILE, &bytes);
    let error = load(&path).unwrap_err();
    assert!(error.to_string().contains("neither 0 nor 1"), "{error}");
}

#[rstest]
fn every_truncation_is_detected(#[values(TENSORS_FILE, METADATA_FILE, MARKER_FILE)] file: &str) {
    let directory = tempfile::tempdir().unwrap();
    let (_, path) = save_small(directory.path());
    let bytes = fs::read(path.join(file)).unwrap();
    for length in 0..bytes.len() {
        fs::write(path.join(file), &bytes[..length]).unwrap();
        let error = load(&path).unwrap_err();
        assert!(
            matches!(error, CheckpointError::Corrupt { .. }),
            "{length}: {error}"
        );
    }
}

#[test]
fn missing_files_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let (_, path) = save_small(directory.path());
    let missing = directory.path().join("step-00000009");
    let error = load(&missing).unwrap_err();
    assert!(
        matches!(&error, CheckpointError::Missing { path } if *path == missing),
        "{error}"
    );
    fs::remove_file(path.join(TENSORS_FILE)).unwrap();
    let error = load(&path).unwrap_err();
    assert!(error.to_string().contains("tensors.safetensors"), "{error}");
    fs::remove_file(path.join(MARKER_FILE)).unwrap();
    let error = load(&path).unwrap_err();
    assert!(
        matches!(error, CheckpointError::Incomplete { .. }),
        "{error}"
    );
}

#[test]
fn a_directory_in_place_of_a_file_is_corrupt() {
    let directory = tempfile::tempdir().unwrap();
    let (_, path) = save_small(directory.path());
    fs::remove_file(path.join(TENSORS_FILE)).unwrap();
    fs::create_dir(path.join(TENSORS_FILE)).unwrap();
    let error = load(&path).unwrap_err();
    assert!(error.to_string().contains("not a regular file"), "{error}");
}

#[test]
fn latest_goes_back_to_the_newest_undamaged_checkpoint_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let manager = manager(directory.path());
    for step in 1..=4 {
        manager.save(&Checkpoint::new(Metadata::new(step))).unwrap();
    }
    let path = |step: u64| directory.path().join(format!("step-{step:08}"));
    fs::remove_file(path(4).join(MARKER_FILE)).unwrap();
    let mut bytes = fs::read(path(3).join(TENSORS_FILE)).unwrap();
    bytes[9] ^= 1;
    fs::write(path(3).join(TENSORS_FILE), bytes).unwrap();
    fs::write(directory.path().join("step-00000007"), "a file").unwrap();

    let latest = latest(directory.path()).unwrap();
    assert_eq!(latest.found.unwrap().0.step, 2);
    let (loaded_entry, loaded) = load_latest(directory.path()).unwrap().found.unwrap();
    assert_eq!((loaded_entry.step, loaded.metadata.step), (2, 2));
    let parent = directory.path().display().to_string();
    let skipped: Vec<String> = latest
        .skipped
        .iter()
        .map(|skipped| skipped.to_string().replace(&parent, "DIR"))
        .collect();
    insta::assert_snapshot!(skipped.join("\n"), @r"
    skipped: no checkpoint at DIR/step-00000007: check the path, or train without resuming to write one
    skipped: checkpoint DIR/step-00000004 is incomplete (no COMPLETE file: its save did not finish): use an older one or copy it again
    skipped: checkpoint file DIR/step-00000003/tensors.safetensors is corrupt (its SHA-256 does not match): use an older checkpoint
    ");
}

#[test]
fn a_newer_format_is_not_silently_passed_over() {
    let directory = tempfile::tempdir().unwrap();
    let manager = manager(directory.path());
    manager.save(&Checkpoint::new(Metadata::new(1))).unwrap();
    let newer = manager.save(&Checkpoint::new(Metadata::new(2))).unwrap();
    let mut marker = Marker::new(BTreeMap::new());
    marker.format_version = FORMAT_VERSION + 1;
    let marker = marker.encode().unwrap();
    fs::write(newer.entry.path.join(MARKER_FILE), marker).unwrap();
    let error = latest(directory.path()).unwrap_err();
    assert!(
        matches!(error, CheckpointError::Version { found: 2, .. }),
        "{error}"
    );
}

#[test]
fn an_empty_directory_has_no_latest_and_no_directory_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let latest_of_empty = latest(directory.path()).unwrap();
    assert!(latest_of_empty.found.is_none() && latest_of_empty.skipped.is_empty());
    let error = latest(directory.path().join("nowhere")).unwrap_err();
    assert!(matches!(error, CheckpointError::Missing { .. }), "{error}");
}

#[test]
fn damaged_checkpoints_do_not_count_when_old_ones_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let manager = manager(directory.path()).with_max_to_keep(NonZeroUsize::new(2));
    let path = |step: u64| directory.path().join(format!("step-{step:08}"));
    for step in 1..=2 {
        manager.save(&Checkpoint::new(Metadata::new(step))).unwrap();
    }
    fs::write(path(2).join(TENSORS_FILE), "").unwrap();
    let saved = manager.save(&Checkpoint::new(Metadata::new(3))).unwrap();
    assert!(saved.removed.is_empty(), "{saved:?}");
    let saved = manager.save(&Checkpoint::new(Metadata::new(4))).unwrap();
    assert_eq!(saved.removed, [path(1)]);
    assert_eq!(saved.not_removed, Vec::<PathBuf>::new());
    let steps: Vec<u64> = manager
        .list()
        .unwrap()
        .iter()
        .map(|entry| entry.step)
        .collect();
    assert_eq!(steps, [2, 3, 4]);
}

#[test]
fn the_checkpoint_just_saved_is_kept_even_if_its_step_is_lower() {
    let directory = tempfile::tempdir().unwrap();
    let manager = manager(directory.path()).with_max_to_keep(NonZeroUsize::new(1));
    manager.save(&Checkpoint::new(Metadata::new(9))).unwrap();
    let saved = manager.save(&Checkpoint::new(Metadata::new(5))).unwrap();
    verify(&saved.entry.path).unwrap();
    assert_eq!(manager.list().unwrap(), [saved.entry]);
}

#[test]
fn a_step_saved_again_replaces_the_first_one() {
    let directory = tempfile::tempdir().unwrap();
    let (mut checkpoint, first) = save_small(directory.path());
    checkpoint.metadata.epoch = 8;
    let manager = manager(directory.path());
    let second = manager.save(&checkpoint).unwrap();
    assert_eq!(second.removed, [first]);
    let (entry, found) = manager.load_latest().unwrap().found.unwrap();
    assert_eq!((entry, found), (second.entry, checkpoint));
    assert_eq!(manager.list().unwrap().len(), 1);
}

#[test]
fn what_cannot_be_stored_is_refused_before_anything_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let manager = manager(directory.path());
    for name in ["", "__metadata__"] {
        let mut checkpoint = Checkpoint::new(Metadata::new(1));
        let tensor = TensorData::from([1.0_f32]);
        checkpoint.tensors.insert(name.to_string(), tensor);
        let error = manager.save(&checkpoint).unwrap_err();
        assert!(
            matches!(error, CheckpointError::Unsupported { .. }),
            "{error}"
        );
    }
    let mut checkpoint = Checkpoint::new(Metadata::new(1));
    let deep = (0..200).fold(json!(1), |inner, _| json!([inner]));
    checkpoint.metadata.extra.insert("deep".to_string(), deep);
    let error = manager.save(&checkpoint).unwrap_err();
    assert!(
        error.to_string().contains("could not be read again"),
        "{error}"
    );
    assert!(manager.list().unwrap().is_empty());
}

#[test]
fn the_tensor_file_is_plain_safetensors_and_its_data_is_aligned() {
    let directory = tempfile::tempdir().unwrap();
    let (checkpoint, path) = save_small(directory.path());
    let bytes = fs::read(path.join(TENSORS_FILE)).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let kernel = file.tensor("model/kernel").unwrap();
    assert_eq!(kernel.dtype(), safetensors::Dtype::F32);
    assert_eq!(kernel.shape(), [2, 2]);
    assert_eq!(kernel.data(), checkpoint.tensors["model/kernel"].as_bytes());
    let start = kernel.data().as_ptr().addr() - bytes.as_ptr().addr();
    assert_eq!(start % 4, 0);
}
