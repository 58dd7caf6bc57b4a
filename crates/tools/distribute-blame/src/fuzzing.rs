//! What a fuzz target calls: any bytes as flight records. A panic is a find.
//!
//! Not part of the interface of this crate; compiled for tests and with the feature `fuzzing`.

use crate::{Blame, Record};

/// A target's name and function.
type Target = (&'static str, fn(&[u8]));

/// The target by its name.
pub const TARGETS: [Target; 1] = [("flight_record", flight_record)];

/// Reads records, which a zero byte separates, writes them again, and judges them.
#[expect(clippy::expect_used, reason = "a fuzz target fails by a panic")]
pub fn flight_record(bytes: &[u8]) {
    let texts = bytes
        .split(|byte| *byte == 0)
        .filter_map(|text| std::str::from_utf8(text).ok());
    let records: Vec<Record> = texts.filter_map(|text| Record::parse(text).ok()).collect();
    for record in &records {
        let text = to_text(record).expect("it came from text");
        assert_eq!(Record::parse(&text).as_ref(), Ok(record));
    }
    if let Some(blame) = Blame::of(records) {
        assert!(blame.ranks().iter().all(|rank| *rank < blame.world_size));
        assert!(!blame.to_string().is_empty());
    }
}

/// The content of a file.
fn to_text(record: &Record) -> serde_json::Result<String> {
    let mut text = serde_json::to_string(&record.head)? + "\n";
    for line in &record.lines {
        text += &(serde_json::to_string(line)? + "\n");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use distribute_collectives::flight_record::FlightRecorder;
    use distribute_collectives::{
        CollectiveError, DType, OperationHeader, OperationKind, ReduceOp,
    };
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_corpus_has_the_seeds_and_the_target_fails_with_no_file_of_it() {
        hostile::corpus::check(TARGETS[0], &seeds());
    }

    /// What a recorder writes, but for the times, which count up from 1.
    fn with_fixed_times(recorder: &FlightRecorder) -> String {
        let directory = tempfile::tempdir().unwrap();
        let written = recorder.write(directory.path()).unwrap();
        let mut record = crate::record::read(&written).unwrap();
        (record.head.started_unix_us, record.head.written_us) = (1, 1);
        for (index, line) in record.lines.iter_mut().enumerate() {
            line.begin_us = 10 * index as u64 + 1;
            line.end_us = line.end_us.map(|_| line.begin_us + 1);
        }
        to_text(&record).unwrap()
    }

    fn record_of(rank: usize, operations: u64, fail: bool) -> String {
        let recorder = FlightRecorder::new("seeds", 3, rank, 2);
        for sequence in 0..operations {
            let header = OperationHeader::new(OperationKind::AllReduce, 3, sequence);
            let ticket = recorder.begin(&header.with_dtype(DType::F32).with_op(ReduceOp::Sum));
            let timeout = CollectiveError::Timeout {
                missing: vec![1],
                op: OperationKind::AllReduce,
                sequence,
                elapsed: std::time::Duration::from_secs(1),
            };
            let failed = fail && sequence + 1 == operations;
            recorder.end(ticket, &if failed { Err(timeout) } else { Ok(()) });
        }
        with_fixed_times(&recorder)
    }

    fn seeds() -> hostile::corpus::Seeds {
        let (zero, one) = (record_of(0, 3, true), record_of(1, 2, false));
        let huge = zero
            .replace("_us\":1,", "_us\":18446744073709551615,")
            .replace("\"count\":0", "\"count\":18446744073709551615");
        BTreeMap::from([
            ("one", zero.clone().into_bytes()),
            ("two", format!("{zero}\0{one}").into_bytes()),
            ("huge-numbers", format!("{huge}\0{one}").into_bytes()),
            (
                "number-too-large",
                zero.replace(":3,", ":99999999999999999999,").into_bytes(),
            ),
            (
                "version",
                zero.replace("\"version\":1", "\"version\":2").into_bytes(),
            ),
            (
                "many-ranks",
                zero.replace("\"world_size\":2", "\"world_size\":65536")
                    .into_bytes(),
            ),
            (
                "too-many-ranks",
                zero.replace("\"world_size\":2", "\"world_size\":65537")
                    .into_bytes(),
            ),
            ("truncated", zero.as_bytes()[..zero.len() / 2].to_vec()),
            ("deep", "[".repeat(1000).into_bytes()),
        ])
    }
}
