//! Event files read back: the framing, the messages, and the bytes that TensorBoard accepted.

use std::time::Duration;

use distribute_records::RecordReader;
use proptest::prelude::*;

use super::*;

/// The records of an event file, whose checksums are right.
fn records(bytes: &[u8]) -> Vec<Vec<u8>> {
    let reader = RecordReader::new(bytes, "events", None).unwrap();
    reader.map(Result::unwrap).collect()
}

fn events(path: &Path) -> Vec<Event> {
    records(&fs::read(path).unwrap())
        .iter()
        .map(|record| Event::decode(record.as_slice()).unwrap())
        .collect()
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

fn scalar_of(event: &Event) -> (&str, f32) {
    let Some(What::Summary(summary)) = &event.what else {
        panic!("no summary in {event:?}")
    };
    let Some(Value::SimpleValue(value)) = summary.value[0].value else {
        panic!("no scalar in {event:?}")
    };
    (&summary.value[0].tag, value)
}

#[test]
fn a_file_starts_with_its_version_and_holds_the_scalars() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = EventWriter::create(directory.path().join("run/train")).unwrap();
    let path = writer.path().to_path_buf();
    writer.scalar("loss", 2.5, 0, at(1_700_000_000)).unwrap();
    writer
        .scalar("loss", f32::NAN, 7, at(1_700_000_001))
        .unwrap();
    writer.flush().unwrap();

    let events = events(&path);
    let version = Some(What::FileVersion("brain.Event:2".to_string()));
    assert_eq!((events[0].step, &events[0].what), (0, &version));
    assert_eq!(events[1].wall_time, 1_700_000_000.0);
    assert_eq!(scalar_of(&events[1]), ("loss", 2.5));
    assert_eq!(events[2].step, 7);
    assert!(scalar_of(&events[2]).1.is_nan());
    assert_eq!(events.len(), 3);
}

#[test]
fn dropping_the_writer_writes_what_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = EventWriter::create(directory.path()).unwrap();
    let path = writer.path().to_path_buf();
    writer.scalar("loss", 1.0, 1, at(1)).unwrap();
    assert_eq!(events(&path).len(), 1, "the scalar is still in the buffer");
    drop(writer);
    assert_eq!(events(&path).len(), 2);
}

#[test]
fn writers_of_the_same_second_get_files_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let first = EventWriter::create_at(directory.path(), at(1_700_000_000)).unwrap();
    let second = EventWriter::create_at(directory.path(), at(1_700_000_000)).unwrap();
    assert_ne!(first.path(), second.path());
    for writer in [&first, &second] {
        let name = writer.path().file_name().unwrap().to_str().unwrap();
        assert!(
            name.starts_with("events.out.tfevents.1700000000."),
            "{name}"
        );
    }
}

#[test]
fn bad_input_is_refused_and_leaves_the_file_readable() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = EventWriter::create(directory.path()).unwrap();
    let long = "x".repeat(MAX_TAG_BYTES + 1);
    for tag in ["", long.as_str()] {
        let error = writer.scalar(tag, 0.0, 0, at(0)).unwrap_err();
        assert!(matches!(error, FitError::EventTag { .. }), "{error}");
        assert!(error.to_string().len() < 200, "{error}");
    }
    let error = writer.scalar("loss", 0.0, u64::MAX, at(0)).unwrap_err();
    assert!(matches!(error, FitError::EventStep { .. }), "{error}");
    let error = writer.histogram("w", [f64::NAN], 0, at(0)).unwrap_err();
    assert!(
        matches!(error, FitError::NonFiniteHistogram { count: 1, .. }),
        "{error}"
    );
    writer.flush().unwrap();
    assert_eq!(events(writer.path()).len(), 1);
}

#[test]
fn the_largest_record_fits_the_buffer() {
    let mut limit_everywhere = Vec::new();
    for exponent in -120..=200 {
        for step in 0..24 {
            let value = 10.0_f64.powf(f64::from(exponent) / 10.0 + f64::from(step) / 240.0);
            limit_everywhere.extend([value, -value]);
        }
    }
    let histogram = histogram::histogram(limit_everywhere).unwrap();
    assert!(histogram.bucket.len() > 1_500, "{}", histogram.bucket.len());
    assert!(histogram.encoded_len() + MAX_TAG_BYTES + 100 < BUFFER_BYTES);
}

#[test]
fn a_file_in_the_way_is_an_error_with_its_path() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let error = EventWriter::create(file.join("logs")).unwrap_err();
    assert!(error.to_string().contains("file/logs"), "{error}");
}

proptest! {
    #[test]
    fn scalars_round_trip(points in prop::collection::vec(
        ("[a-z/]{1,20}", any::<f32>(), 0..=i64::MAX as u64, 0_u32..4_000_000_000), 0..20)) {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(directory.path()).unwrap();
        for (tag, value, step, seconds) in &points {
            writer.scalar(tag, *value, *step, at(u64::from(*seconds))).unwrap();
        }
        writer.flush().unwrap();
        let events = events(writer.path());
        prop_assert_eq!(events.len(), points.len() + 1);
        for ((tag, value, step, seconds), event) in points.iter().zip(&events[1..]) {
            let (found_tag, found_value) = scalar_of(event);
            prop_assert_eq!(found_tag, tag);
            prop_assert_eq!(found_value.to_bits(), value.to_bits());
            prop_assert_eq!(event.step as u64, *step);
            prop_assert_eq!(event.wall_time, f64::from(*seconds));
        }
    }
}

/// The records that TensorBoard 2.21.0's own `RecordWriter` makes of the events below, which its
/// `EventAccumulator` read back; what this module wrote was read by it in the same way.
const GOLDEN: [&str; 3] = [
    "1800000000000000a37f4b220900002040fc54d9411a0d627261696e2e4576656e743a322b353110",
    "200000000000000029eda9500900005040fc54d94110072a130a110a0a65706f63685f6c6f737315\
     0000803ec77c83f5",
    "720000000000000025053a820900008040fc54d94110ac022a640a620a066b65726e656c2a580900\
     0000000000f0bf19000000000000004021000000000000f0bf29000000000000f03f321800000000\
     0000f8bf000000000000e03f00000000000000403a18000000000000000000000000000000400000\
     000000000000a00d5caf",
];

#[test]
fn a_file_has_the_bytes_that_tensorboard_writes() {
    let directory = tempfile::tempdir().unwrap();
    let start = UNIX_EPOCH + Duration::from_millis(1_700_000_000_500);
    let mut writer = EventWriter::create_at(directory.path(), start).unwrap();
    let time = start + Duration::from_millis(750);
    writer.scalar("epoch_loss", 0.25, 7, time).unwrap();
    writer.flush().unwrap();
    let bytes = fs::read(writer.path()).unwrap();
    assert_eq!(hex::encode(&bytes), GOLDEN[..2].concat());
}

#[test]
fn a_histogram_has_the_bytes_that_tensorboard_writes() {
    let histogram = event::HistogramProto {
        min: -1.0,
        max: 0.0,
        num: 2.0,
        sum: -1.0,
        sum_squares: 1.0,
        bucket_limit: vec![-1.5, 0.5, 2.0],
        bucket: vec![0.0, 2.0, 0.0],
    };
    let value = SummaryValue {
        tag: "kernel".to_string(),
        value: Some(Value::Histo(histogram)),
    };
    let event = Event {
        wall_time: 1_700_000_002.0,
        step: 300,
        what: Some(What::Summary(Summary { value: vec![value] })),
    };
    let record = distribute_records::encode(&event.encode_to_vec());
    assert_eq!(hex::encode(&record), GOLDEN[2]);
}
