//! Sizes are compared before values are read, and what cannot be held is said to be that; and
//! whether a table's first line is a header.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use distribute_readers::{
    CsvHeader, CsvOptions, ReadError, parse_csv, parse_idx, parse_npz, read_idx, read_mnist_folder,
    read_npy,
};
use flate2::Compression;
use flate2::write::GzEncoder;
use rstest::rstest;
use tempfile::tempdir;

use crate::common::*;

/// Bytes that deflate leaves as long as they are.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn arrays_of_an_archive_are_compared_by_their_headers() {
    // As long as its header says it is not: a reader finds it truncated.
    let x = npy("'|u1'", false, "(134217728, 1)", &noise(1 << 20));
    let labels = |count: usize| npy("'|u1'", false, &format!("({count},)"), &vec![0; count]);
    let mismatch = parse_npz(&npz(&[("x", x.clone()), ("y", labels(40))], true), "a.npz");
    let mismatch = mismatch.unwrap_err();
    assert!(
        matches!(
            mismatch,
            ReadError::CountMismatch {
                examples: 134_217_728,
                labels: 40,
                ..
            }
        ),
        "{mismatch}"
    );
    let small = npy("'|u1'", false, "(2, 3)", &[0; 6]);
    let refused = |train: &[u8], of_train: usize, of_test: usize| {
        let members = [
            ("x_train", train.to_vec()),
            ("y_train", labels(of_train)),
            ("x_test", small.clone()),
            ("y_test", labels(of_test)),
        ];
        parse_npz(&npz(&members, true), "a.npz").unwrap_err()
    };
    let error = refused(&x, 2, 2);
    assert!(
        matches!(error, ReadError::CountMismatch { labels: 2, .. }),
        "{error}"
    );
    // The test set's sizes, too, before the training set's values.
    let cut = npy("'<f4'", false, "(300, 100)", &noise(30_000));
    let error = refused(&cut, 300, 3);
    assert!(
        matches!(error, ReadError::CountMismatch { labels: 3, .. }),
        "{error}"
    );
    let error = refused(&cut, 300, 2);
    insta::assert_snapshot!(error, @"a.npz[x_train]: the examples have the shape [100], the test examples [3] (a.npz[x_test]); take two sets of one kind");
}

#[test]
fn images_and_labels_of_a_folder_are_compared_by_their_headers() {
    let folder = tempdir().unwrap();
    write_mnist(folder.path(), true);
    let images = gzip(&idx(8, &[1000, 28, 28], &noise(50_000)));
    std::fs::remove_file(folder.path().join("t10k-images-idx3-ubyte.gz")).unwrap();
    write(folder.path(), "t10k-images-idx3-ubyte.gz", &images);
    let error = read_mnist_folder(folder.path(), None).unwrap_err();
    assert!(
        matches!(error, ReadError::CountMismatch { examples: 1000, .. }),
        "{error}"
    );
}

#[test]
fn data_that_explodes_is_not_decompressed() {
    let bytes = noise(600_000);
    let claim = idx(8, &[300 << 20], &bytes);
    let error = parse_idx(&gzip(&claim), "bomb.gz").unwrap_err();
    assert!(matches!(error, ReadError::Bomb { .. }), "{error}");
    let x = npy("'|u1'", false, "(100, 3145728)", &bytes);
    let y = npy("'|u1'", false, "(100,)", &[0; 100]);
    let error = parse_npz(&npz(&[("x", x), ("y", y)], true), "bomb.npz").unwrap_err();
    assert!(matches!(error, ReadError::Bomb { .. }), "{error}");
}

/// Compresses this many zeros behind these bytes.
fn zeros(path: &Path, start: &[u8], count: usize) {
    let mut out = GzEncoder::new(File::create(path).unwrap(), Compression::fast());
    out.write_all(start).unwrap();
    let piece = vec![0; 1 << 20];
    for _ in 0..count / piece.len() {
        out.write_all(&piece).unwrap();
    }
    out.finish().unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn memory_that_is_not_there_is_said_to_be_missing() {
    let folder = tempdir().unwrap();
    zeros(
        &folder.path().join("small.gz"),
        &idx(8, &[250 << 20], &[]),
        250 << 20,
    );
    let large = File::create(folder.path().join("large.npy")).unwrap();
    let header = npy("'<f4'", false, "(1024, 1048576)", &[]);
    (&large).write_all(&header).unwrap();
    large.set_len(header.len() as u64 + (4 << 30)).unwrap();
    let status = std::process::Command::new("sh")
        .args([
            "-c",
            "ulimit -v 200000 && exec \"$0\" --exact sizes::with_little_memory",
        ])
        .arg(std::env::current_exe().unwrap())
        .env("RUST_TEST_THREADS", "1")
        .env("FOLDER", folder.path())
        .status()
        .unwrap();
    assert!(status.success());
}

/// What the test above runs in a process that may use 200 MB of address space.
#[test]
fn with_little_memory() {
    let Some(folder) = std::env::var_os("FOLDER") else {
        return;
    };
    let folder = Path::new(&folder);
    for error in [
        read_idx(folder.join("small.gz")).unwrap_err(),
        read_npy(folder.join("large.npy")).unwrap_err(),
    ] {
        assert!(matches!(error, ReadError::OutOfMemory { .. }), "{error}");
        assert!(!error.to_string().contains("permissions"), "{error}");
    }
}

fn rows(text: &str, header: CsvHeader) -> Result<usize, ReadError> {
    let options = CsvOptions {
        header,
        ..CsvOptions::default()
    };
    parse_csv(text.as_bytes(), "t.csv", &options).map(|table| table.len())
}

#[rstest]
#[case::column_numbers("0,1,2\n0.5,7,0\n3,1,1\n")]
#[case::years("2019,2020,2021\n5,4,0\n3,9,1\n7,7,0\n")]
#[case::downwards("3,2,1\n4,5,0\n3,9,1\n1,7,0\n4,9,1\n")]
#[case::whole_above_fractions("7,3,5\n0.5,0.25,0\n0.75,0.5,1\n")]
#[case::missing("NA,nan,?\n1,2,0\n3,4,1\n")]
#[case::missing_twice("nan,nan,nan\n1,2,0\n3,4,1\n")]
#[case::same_name("a,a,b\n1,2,0\n3,4,1\n")]
fn a_first_line_that_may_be_either_is_refused(#[case] text: &str) {
    let error = rows(text, CsvHeader::Detect).unwrap_err();
    assert!(
        matches!(error, ReadError::AmbiguousHeader { line: 1, .. }),
        "{error}"
    );
    assert!(
        error.to_string().contains("--csv-header yes or no"),
        "{error}"
    );
    let lines = text.lines().count();
    assert_eq!(rows(text, CsvHeader::Present).unwrap(), lines - 1);
}

#[rstest]
#[case::names("a,b,c\n1,2,0\n3,4,1\n", 2)]
#[case::numbers("1,2,0\n3,4,1\n", 2)]
#[case::rising_as_others("0,1,2\n1,2,3\n4,5,6\n2,9,4\n", 4)]
#[case::fractions("0.5,1,0\n0.25,2,1\n", 2)]
#[case::label_says_it("0,1,label\n1,2,0\n3,4,1\n", 2)]
fn a_first_line_that_says_what_it_is_is_read(#[case] text: &str, #[case] expected: usize) {
    assert_eq!(rows(text, CsvHeader::Detect).unwrap(), expected);
}
