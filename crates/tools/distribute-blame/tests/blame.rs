//! Flight records, and which rank they blame.

use std::path::Path;
use std::sync::{Barrier, Mutex};
use std::time::Duration;

use distribute_blame::blame;
use distribute_collectives::flight_record::{
    FlightRecordError, FlightRecorder, Head, Line, RECORDED_OPERATIONS, Recorded,
};
use distribute_collectives::{
    CollectiveError, Communicator, GroupOptions, InProcessCommunicator, ReduceOp, Result,
    in_process,
};

#[path = "../../../../distribute-collectives/src/testing.rs"]
#[expect(dead_code, reason = "each test program uses its own part")]
mod testing;

use testing::within_limit;

fn all_reduce(endpoint: &mut dyn Communicator, len: usize) -> Result<()> {
    let mut vector = vec![1.0_f32; len];
    endpoint.all_reduce(ReduceOp::Sum, &mut [(&mut vector).into()])
}

/// Runs four recorded ranks, each on its own thread.
fn recorded_ranks(dir: &Path, run: impl Fn(Recorded<InProcessCommunicator>) + Sync) {
    let options = GroupOptions::default()
        .name("train")
        .timeout(Duration::from_secs(1));
    std::thread::scope(|scope| {
        for endpoint in in_process(4, options).unwrap() {
            let recorded = Recorded::new(endpoint).directory(dir);
            let run = &run;
            scope.spawn(move || run(recorded));
        }
    });
}

#[test]
fn a_skipped_operation_is_blamed_on_the_rank_that_skipped_it() {
    within_limit(|| {
        let dir = tempfile::tempdir().unwrap();
        let failed = Barrier::new(4);
        recorded_ranks(dir.path(), |mut endpoint| {
            for _ in 0..8 {
                all_reduce(&mut endpoint, 1000).unwrap();
                endpoint.barrier().unwrap();
            }
            if endpoint.rank() != 2 {
                let error = all_reduce(&mut endpoint, 1000).unwrap_err();
                let named = matches!(&error, CollectiveError::Timeout { missing, .. }
                    if missing.contains(&2));
                assert!(named, "{error}");
            }
            // Rank 2 is alive, but not in the operation; its watchdog writes the record.
            failed.wait();
            endpoint.recorder().write(dir.path()).unwrap();
        });
        let blame = blame(dir.path()).unwrap();
        assert_eq!(
            (blame.ranks(), blame.sequence),
            (vec![2], Some(16)),
            "{blame}"
        );
        assert_eq!((&*blame.group, blame.world_size), ("train", 4));
        let text = blame.to_string();
        let expected = "rank 2 never began operation 16 (all_reduce f32 x 1000), ranks 0, 1, 3 \
                        waited 1.";
        assert!(text.contains(expected), "{text}");
        assert!(
            text.contains("its last operation was 15 (barrier), done"),
            "{text}"
        );
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            4,
            "nothing else is left"
        );
    });
}

#[test]
fn a_rank_that_comes_too_late_is_blamed() {
    within_limit(|| {
        let dir = tempfile::tempdir().unwrap();
        let failed = Barrier::new(4);
        recorded_ranks(dir.path(), |mut endpoint| {
            endpoint.barrier().unwrap();
            if endpoint.rank() == 1 {
                failed.wait();
            }
            all_reduce(&mut endpoint, 10).unwrap_err();
            if endpoint.rank() != 1 {
                failed.wait();
            }
        });
        let blame = blame(dir.path()).unwrap();
        assert_eq!(
            (blame.ranks(), &*blame.late),
            (vec![1], &[1][..]),
            "{blame}"
        );
        let text = blame.to_string();
        assert!(
            text.contains("rank 1 began operation 1 (all_reduce f32 x 10)"),
            "{text}"
        );
    });
}

#[test]
fn another_call_is_blamed_on_the_rank_that_made_it() {
    within_limit(|| {
        let dir = tempfile::tempdir().unwrap();
        recorded_ranks(dir.path(), |mut endpoint| {
            endpoint.barrier().unwrap();
            let len = if endpoint.rank() == 3 { 7 } else { 8 };
            all_reduce(&mut endpoint, len).unwrap_err();
        });
        let blame = blame(dir.path()).unwrap();
        assert_eq!(
            (blame.ranks(), &*blame.diverging),
            (vec![3], &[3][..]),
            "{blame}"
        );
        let expected = "the calls differ in operation 1: rank 3 called all_reduce f32 x 7 sum; \
                        ranks 0, 1, 2 called all_reduce f32 x 8 sum";
        assert!(blame.to_string().contains(expected), "{blame}");
    });
}

#[test]
fn a_rank_that_is_lost_without_a_record_is_named() {
    within_limit(|| {
        let dir = tempfile::tempdir().unwrap();
        recorded_ranks(dir.path(), |mut endpoint| {
            endpoint.barrier().unwrap();
            if endpoint.rank() != 0 {
                all_reduce(&mut endpoint, 8).unwrap_err();
            }
        });
        let blame = blame(dir.path()).unwrap();
        assert_eq!(
            (blame.ranks(), &*blame.missing),
            (vec![0], &[0][..]),
            "{blame}"
        );
        let text = blame.to_string();
        assert!(text.contains("rank 0 left no record"), "{text}");
        assert!(
            text.contains("ranks 1, 2, 3 reported: rank 0 was lost"),
            "{text}"
        );
    });
}

#[test]
fn a_rank_that_panics_leaves_its_record() {
    within_limit(|| {
        let dir = tempfile::tempdir().unwrap();
        let mut endpoint = in_process(1, GroupOptions::default()).unwrap();
        let recorded = Recorded::new(endpoint.remove(0)).directory(dir.path());
        let thread = std::thread::spawn(move || {
            let mut recorded = recorded;
            recorded.barrier().unwrap();
            std::panic::resume_unwind(Box::new("on purpose"));
        });
        assert!(thread.join().is_err());
        let text = blame(dir.path()).unwrap().to_string();
        assert!(
            text.contains("no difference: all ended operation 0 (barrier)"),
            "{text}"
        );
    });
}

fn head(rank: usize, lines: usize) -> String {
    format!(
        "{{\"format\":\"distribute-flight-record\",\"version\":1,\"group\":\"train\",\
         \"generation\":3,\"rank\":{rank},\"world_size\":4,\"started_unix_us\":1000000,\
         \"written_us\":31000000,\"operations\":{lines},\"lines\":{lines}}}\n"
    )
}

fn line(sequence: u64, call: &str, begin_us: u64, rest: &str) -> String {
    let (kind, dtype, op, count) = match call {
        "barrier" => ("barrier", "null", "null", 0),
        _ => ("all_reduce", "\"f32\"", "\"sum\"", 1000),
    };
    format!(
        "{{\"sequence\":{sequence},\"kind\":\"{kind}\",\"dtype\":{dtype},\"op\":{op},\
         \"root\":null,\"count\":{count},\"buffers\":1,\"layout\":\"00000000000000aa\",\
         \"begin_us\":{begin_us},{rest}}}\n"
    )
}

const DONE: &str = "\"end_us\":900000,\"outcome\":\"done\",\"error\":null";
const FAILED: &str =
    "\"end_us\":31000000,\"outcome\":\"timeout\",\"error\":\"operation 17 timed out\"";

fn write_example(dir: &Path) {
    for rank in [0, 1, 3] {
        let text = head(rank, 2)
            + &line(16, "barrier", 800_000, DONE)
            + &line(17, "all_reduce", 1_000_000 + rank as u64, FAILED);
        std::fs::write(dir.join(format!("flight-train-g3-rank{rank}.jsonl")), text).unwrap();
    }
    let text = head(2, 1) + &line(16, "barrier", 800_000, DONE);
    std::fs::write(dir.join("flight-train-g3-rank2.jsonl"), text).unwrap();
}

/// The text as a whole, and the format of the files.
#[test]
fn the_text_says_who_what_and_how_long() {
    let dir = tempfile::tempdir().unwrap();
    write_example(dir.path());
    assert_eq!(
        blame(dir.path()).unwrap().to_string(),
        "train (generation 3): 4 ranks\n\
         rank 2 never began operation 17 (all_reduce f32 x 1000), ranks 0, 1, 3 waited 30.0 s in \
         it; its last operation was 16 (barrier), done\n\
         ranks 0, 1, 3 reported: operation 17 timed out"
    );
}

#[test]
fn damaged_files_are_skipped_and_noted() {
    let dir = tempfile::tempdir().unwrap();
    write_example(dir.path());
    let path = dir.path().join("flight-train-g3-rank2.jsonl");
    let whole = std::fs::read(&path).unwrap();
    for len in 0..whole.len() - 1 {
        std::fs::write(&path, &whole[..len]).unwrap();
        let blame = blame(dir.path()).unwrap();
        assert_eq!(
            (blame.ranks(), &*blame.missing),
            (vec![2], &[2][..]),
            "{len}: {blame}"
        );
        assert!(blame.notes[0].starts_with("flight-train-g3-rank2.jsonl was skipped"));
    }
    for damage in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[damage] ^= 0x15;
        std::fs::write(&path, &bytes).unwrap();
        // Another digit is a readable record; whatever comes out, it is no panic.
        let _ = blame(dir.path()).unwrap().to_string();
    }
    std::fs::write(&path, [0xff, 0xfe, 0, 1]).unwrap();
    assert_eq!(blame(dir.path()).unwrap().missing, [2]);
    std::fs::write(&path, "x".repeat(2 << 20)).unwrap();
    let large = blame(dir.path()).unwrap();
    assert!(large.notes[0].contains("larger than"), "{large}");
    std::fs::write(
        &path,
        head(2, 0).replace("\"world_size\":4", "\"world_size\":99999999999"),
    )
    .unwrap();
    assert!(blame(dir.path()).unwrap().notes[0].contains("cannot be"));
}

#[test]
fn directories_without_records_are_typed_errors() {
    let dir = tempfile::tempdir().unwrap();
    let missing = blame(dir.path().join("none")).unwrap_err();
    assert!(matches!(missing, FlightRecordError::Io { .. }), "{missing}");
    let empty = blame(dir.path()).unwrap_err();
    assert!(matches!(&empty, FlightRecordError::NoRecords { notes, .. } if notes.is_empty()));
    std::fs::write(dir.path().join("flight-a-g0-rank0.jsonl"), "{}").unwrap();
    let unreadable = blame(dir.path()).unwrap_err();
    assert!(
        unreadable
            .to_string()
            .contains("flight-a-g0-rank0.jsonl was skipped: line 1")
    );
    let file = dir.path().join("flight-a-g0-rank0.jsonl");
    let recorder = FlightRecorder::new("a", 0, 0, 1);
    assert!(matches!(
        recorder.write(file).unwrap_err(),
        FlightRecordError::Io { .. }
    ));
}

/// The newest generation counts, and names of groups cannot lead out of the directory.
#[test]
fn other_generations_are_noted() {
    let dir = tempfile::tempdir().unwrap();
    write_example(dir.path());
    let recorder = FlightRecorder::new("../train", 4, 0, 1);
    let path = recorder.write(dir.path()).unwrap();
    assert_eq!(path, dir.path().join("flight-.._train-g4-rank0.jsonl"));
    let blame = blame(dir.path()).unwrap();
    assert_eq!((blame.generation, blame.notes.len()), (4, 4), "{blame}");
    assert!(blame.to_string().contains("no operation has begun"));
}

/// More operations than are kept, and a watchdog that looks at a running one.
#[test]
fn the_last_operations_are_kept() {
    within_limit(|| {
        let dir = tempfile::tempdir().unwrap();
        let endpoints = in_process(2, GroupOptions::default()).unwrap();
        let recorders = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for endpoint in endpoints {
                let recorders = &recorders;
                scope.spawn(move || {
                    let mut endpoint = Recorded::new(endpoint);
                    recorders.lock().unwrap().push(endpoint.recorder());
                    for _ in 0..RECORDED_OPERATIONS + 10 {
                        endpoint.barrier().unwrap();
                    }
                    let own = endpoint.rank();
                    assert!(endpoint.send(own, (&mut vec![1_u8]).into()).is_err());
                });
            }
        });
        for recorder in recorders.into_inner().unwrap() {
            let path = recorder.write(dir.path()).unwrap();
            let text = std::fs::read_to_string(path).unwrap();
            assert_eq!(text.lines().count(), 1 + RECORDED_OPERATIONS);
            let last = text.lines().last().unwrap();
            assert!(
                last.contains("\"send\"") && last.contains("cannot send to itself"),
                "{last}"
            );
        }
        let blame = blame(dir.path()).unwrap();
        assert!(blame.ranks().is_empty(), "{blame}");
        let last = RECORDED_OPERATIONS as u64 + 9;
        assert_eq!(blame.sequence, Some(last), "{blame}");
    });
}

/// The record of rank 1 is full of sends, so nothing is left of its operations but their number.
fn write_many_sends(dir: &Path, last_of_the_others: u64) {
    for rank in [0, 2, 3] {
        let count = last_of_the_others as usize + 1;
        let mut text = head(rank, count);
        for sequence in 0..=last_of_the_others {
            let rest = if sequence == 6 { FAILED } else { DONE };
            text += &line(sequence, "all_reduce", 1_000_000, rest);
        }
        std::fs::write(dir.join(format!("flight-train-g3-rank{rank}.jsonl")), text).unwrap();
    }
    let send = line(6, "barrier", 1_000_000, DONE)
        .replace("\"kind\":\"barrier\"", "\"kind\":\"send\"")
        .replace("\"root\":null", "\"root\":0");
    let begun = format!("\"operations\":{}", 6 + RECORDED_OPERATIONS);
    let kept = format!("\"operations\":{RECORDED_OPERATIONS}");
    let text =
        head(1, RECORDED_OPERATIONS).replace(&kept, &begun) + &send.repeat(RECORDED_OPERATIONS);
    std::fs::write(dir.join("flight-train-g3-rank1.jsonl"), text).unwrap();
}

#[test]
fn operations_before_many_sends_were_begun() {
    let dir = tempfile::tempdir().unwrap();
    write_many_sends(dir.path(), 6);
    let found = blame(dir.path()).unwrap();
    assert_eq!(
        (found.ranks(), found.sequence),
        (vec![1], Some(6)),
        "{found}"
    );
    let text = found.to_string();
    assert!(text.contains("rank 1 never began operation 6 "), "{text}");
    assert!(!text.contains("operation 0"), "{text}");

    // No rank has begun operation 6, so none is behind.
    write_many_sends(dir.path(), 5);
    let found = blame(dir.path()).unwrap();
    assert_eq!((found.ranks(), found.sequence), (vec![], None), "{found}");
    let text = found.to_string();
    assert!(
        text.contains("no difference in the remaining records: rank 1 "),
        "{text}"
    );
}

/// Four ranks, of which one takes longer between its operations from the tenth on, and then does
/// not come any more.
#[test]
fn a_rank_that_was_slow_before_the_group_failed_is_named() {
    within_limit(|| {
        let dir = tempfile::tempdir().unwrap();
        let failed = Barrier::new(4);
        recorded_ranks(dir.path(), |mut endpoint| {
            for operation in 0..60 {
                let is_slow = endpoint.rank() == 3 && operation >= 10;
                let busy = Duration::from_millis(if is_slow { 12 } else { 2 });
                std::thread::sleep(busy);
                all_reduce(&mut endpoint, 100).unwrap();
            }
            if endpoint.rank() != 3 {
                endpoint.barrier().unwrap_err();
            }
            failed.wait();
            endpoint.recorder().write(dir.path()).unwrap();
        });
        let blame = blame(dir.path()).unwrap();
        assert_eq!((blame.ranks(), &blame.slow), (vec![3], &vec![3]), "{blame}");
        let text = blame.to_string();
        let said = text
            .lines()
            .find(|line| line.starts_with("rank 3 computed, or waited"));
        let said = said.unwrap_or_else(|| panic!("{text}"));
        assert!(said.contains(" x as long as the median between operations, since operation "));
        assert!(!said.contains("until"), "{said}");
    });
}

/// The record of a rank of which each operation begins this long after the one before has ended.
fn record_of(dir: &Path, rank: usize, between_us: impl Fn(u64) -> u64) {
    const OPERATIONS: u64 = 100;
    let endpoint = in_process(1, GroupOptions::default().name("train")).unwrap();
    let mut recorded = Recorded::new(endpoint.into_iter().next().unwrap());
    for _ in 0..OPERATIONS {
        recorded.barrier().unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let path = recorded.recorder().write(folder.path()).unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let mut head: Head = serde_json::from_str(lines.next().unwrap()).unwrap();
    (head.rank, head.world_size) = (rank, 4);
    let mut written = serde_json::to_string(&head).unwrap();
    let mut end_us = 0;
    for line in lines {
        let mut line: Line = serde_json::from_str(line).unwrap();
        line.begin_us = end_us + between_us(line.sequence);
        end_us = 100_000 * (line.sequence + 1);
        line.end_us = Some(end_us);
        written += &format!("\n{}", serde_json::to_string(&line).unwrap());
    }
    std::fs::write(
        dir.join(format!("flight-train-g0-rank{rank}.jsonl")),
        written,
    )
    .unwrap();
}

/// What rank 2 takes between operations, and the ranks that are slow then.
type Case = (fn(u64) -> u64, &'static [usize]);

#[test]
fn only_ranks_that_are_slow_for_long_are_called_slow() {
    let cases: [Case; 4] = [
        (|_| 20_000, &[]),
        (|sequence| 20_000 + 60_000 * u64::from(sequence == 50), &[]),
        (
            |sequence| 20_000 + 30_000 * u64::from(sequence % 20 < 5),
            &[],
        ),
        (|sequence| 20_000 + 30_000 * u64::from(sequence >= 50), &[2]),
    ];
    for (number, (of_rank_2, slow)) in cases.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        for rank in 0..4 {
            let of_others = |sequence| 20_000 + 300 * ((sequence + rank as u64) % 3);
            record_of(dir.path(), rank, |sequence| match rank {
                2 => of_rank_2(sequence),
                _ => of_others(sequence),
            });
        }
        let blame = blame(dir.path()).unwrap();
        assert_eq!(blame.slow, slow, "case {number}: {blame}");
        if let Some(finding) = blame.findings.last().filter(|_| !slow.is_empty()) {
            assert_eq!(
                finding,
                "rank 2 computed, or waited for data, 2.4 x as long as the median between \
                 operations, since operation 46"
            );
        }
    }
}
