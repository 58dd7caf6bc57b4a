//! Files that are read as streams: whole, damaged, changed, and from any place on.

use std::fs;
use std::path::{Path, PathBuf};

use distribute_pipeline::{Result, Source, Stream, contract};
use distribute_readers::streams::{
    JsonLines, TarSamples, TextLines, TfRecordSource, TfRecordStream, matching_files,
};
use tempfile::{TempDir, tempdir};

use crate::common::gzip;

/// A file that Python has written: `tests/streams/generate.py`.
fn made(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/streams")
        .join(name)
}

fn written(files: &[(&str, &[u8])]) -> (TempDir, Vec<PathBuf>) {
    let folder = tempdir().unwrap();
    let paths = files.iter().map(|(name, bytes)| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    });
    let paths = paths.collect();
    (folder, paths)
}

fn all<S: Stream>(mut stream: S) -> Result<Vec<S::Item>> {
    let mut items = Vec::new();
    while let Some(item) = stream.next()? {
        items.push(item);
    }
    Ok(items)
}

fn fails<S: Stream>(stream: S, words: &[&str]) {
    let error = all(stream)
        .map(|items| items.len())
        .unwrap_err()
        .to_string();
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
}

#[test]
fn records_of_tensorflow_are_read_in_order_and_by_number() {
    let files = || [made("plain.tfrecord"), made("gzip.tfrecord")];
    let texts: Vec<String> = all(TfRecordStream::new(files()))
        .unwrap()
        .into_iter()
        .map(|record| String::from_utf8(record).unwrap())
        .collect();
    assert_eq!(
        (texts.len(), &*texts[4], &*texts[5]),
        (10, "plain 4", "gzip 0")
    );
    contract::check_stream(|| TfRecordStream::new(files())).unwrap();

    let twice = TfRecordSource::open([made("plain.tfrecord"), made("plain.tfrecord")]).unwrap();
    contract::check_source(&twice).unwrap();
    assert_eq!(
        (twice.len(), twice.get(9).unwrap()),
        (10, b"plain 4".to_vec())
    );
    assert_eq!(twice.file(0, 7), Some(made("plain.tfrecord")));
    let error = TfRecordSource::open([made("gzip.tfrecord")])
        .unwrap_err()
        .to_string();
    assert!(error.contains("gzip"), "{error}");
}

#[test]
fn damaged_records_are_counted_or_named() {
    let good = fs::read(made("plain.tfrecord")).unwrap();
    let mut damaged = good.clone();
    damaged[23 + 12] ^= 1;
    let (_folder, files) = written(&[
        ("damaged", &damaged),
        ("cut", &good[..30]),
        ("html", b"<html><body>not found</body></html>"),
        ("empty", b""),
        ("good", &good),
    ]);
    fails(
        TfRecordStream::new(files.clone()),
        &["damaged", "record 1", "byte 23"],
    );
    let mut stream = TfRecordStream::new(files.clone()).skip_bad(3);
    assert_eq!(all(&mut stream).unwrap().len(), 4 + 1 + 5);
    assert_eq!(stream.skipped().count, 3);
    assert!(stream.skipped().messages[2].contains("HTML"));
    fails(TfRecordStream::new(files.clone()).skip_bad(2), &["html"]);
    contract::check_stream(|| TfRecordStream::new(files.clone()).skip_bad(3)).unwrap();
}

#[test]
fn a_file_that_is_gone_or_changed_is_named() {
    let good = fs::read(made("plain.tfrecord")).unwrap();
    let (_folder, files) = written(&[("a.tfrecord", &good)]);
    let mut stream = TfRecordStream::new(files.clone()).skip_bad(100);
    stream.next().unwrap();
    let state = stream.state().unwrap();
    fs::write(&files[0], [&good[..], &good].concat()).unwrap();
    let error = stream.restore(&state).unwrap_err().to_string();
    assert!(error.contains("another length"), "{error}");
    fs::remove_file(&files[0]).unwrap();
    assert!(stream.restore(&state).is_err());
    fails(TfRecordStream::new(files).skip_bad(100), &["a.tfrecord"]);
}

#[test]
fn lines_are_read_of_plain_and_compressed_files() {
    let (_folder, files) = written(&[
        ("a.txt", b"one\r\n\ntwo"),
        ("b.txt.gz", &gzip("drei\nv\u{ef}er\n".as_bytes())),
        ("c.txt", b""),
    ]);
    let lines = all(TextLines::new(files.clone())).unwrap();
    assert_eq!(lines, ["one", "", "two", "drei", "v\u{ef}er"]);
    contract::check_stream(|| TextLines::new(files.clone())).unwrap();
}

#[test]
fn a_line_without_end_costs_no_memory() {
    let bomb = gzip(&[&vec![b'x'; 1 << 22][..], b"\nend\n"].concat());
    assert!(bomb.len() < 1 << 14);
    let (_folder, files) = written(&[("bomb", &bomb), ("bytes", b"ok\n\xff\xfe\nlast\n")]);
    let lines = || TextLines::new(files.clone()).max_line_bytes(100);
    fails(lines(), &["bomb", "line 1", "100 bytes"]);
    let mut stream = lines().skip_bad(2);
    assert_eq!(all(&mut stream).unwrap(), ["end", "ok", "last"]);
    assert!(stream.skipped().messages[1].contains("line 2: is not UTF-8"));
    contract::check_stream(|| lines().skip_bad(2)).unwrap();
}

#[test]
fn json_lines_name_file_and_line() {
    let (_folder, files) = written(&[("a.jsonl", b"{\"x\": 1}\n\n[2]\n{\"x\":\n")]);
    fails(
        JsonLines::new(files.clone()),
        &["a.jsonl", "line 4", "no JSON"],
    );
    let values = all(JsonLines::new(files.clone()).skip_bad(1)).unwrap();
    assert_eq!(values[0]["x"], 1);
    assert_eq!(values.len(), 2);
    contract::check_stream(|| JsonLines::new(files.clone()).skip_bad(1)).unwrap();
    let (_folder, files) = written(&[("a.jsonl", b"<!DOCTYPE html>\n")]);
    fails(JsonLines::new(files), &["HTML"]);
}

#[test]
fn archives_of_python_are_samples() {
    for name in ["pax.tar", "gnu.tar.gz"] {
        let samples = all(TarSamples::new([made(name)])).unwrap();
        assert_eq!(samples.len(), 3, "{name}");
        assert_eq!(samples[0].key, "train/0001");
        assert_eq!(samples[0].files["cls"], b"3");
        assert!(samples[1].key.len() > 150 && samples[1].key.ends_with("/0002"));
        assert_eq!(samples[1].files["jpg"].len(), 900);
        assert_eq!(samples[2].key, "\u{e4}/0003");
        assert_eq!(samples[2].files["seg.png"], b"mask");
        contract::check_stream(|| TarSamples::new([made(name), made(name)])).unwrap();
        fails(
            TarSamples::new([made(name)]).require(["jpg"]),
            &[name, "sample 3", "lacks `.jpg`"],
        );
        let mut some = TarSamples::new([made(name)]).require(["jpg"]).skip_bad(1);
        assert_eq!(all(&mut some).unwrap().len(), 2);
        assert_eq!(some.skipped().count, 1);
    }
}

#[test]
fn damaged_archives_are_named() {
    let good = fs::read(made("pax.tar")).unwrap();
    let mut damaged = good.clone();
    damaged[513] ^= 1;
    let (_folder, files) = written(&[
        ("damaged.tar", &damaged),
        ("cut.tar", &good[..1100]),
        ("html.tar", &[b'<'; 600]),
        ("empty.tar", b""),
    ]);
    fails(
        TarSamples::new([&files[0]]),
        &["damaged.tar", "byte 512", "checksum"],
    );
    fails(
        TarSamples::new([&files[1]]),
        &["cut.tar", "ends in the member"],
    );
    fails(
        TarSamples::new([&files[2]]),
        &["html.tar", "no tar archive"],
    );
    fails(
        TarSamples::new([made("pax.tar")]).max_member_bytes(100),
        &["900 bytes"],
    );
    // A member that is too large costs its own sample.
    let mut small = TarSamples::new([made("pax.tar")])
        .max_member_bytes(100)
        .skip_bad(1);
    assert_eq!(all(&mut small).unwrap().len(), 2);
    assert_eq!(small.skipped().count, 1);
    // Behind an error the next archive is read, and not the middle of this one.
    let mut after = TarSamples::new([files[0].clone(), made("pax.tar")]);
    assert!(after.next().is_err());
    assert_eq!(all(&mut after).unwrap().len(), 3);
    assert!(all(TarSamples::new(files).skip_bad(3)).unwrap().is_empty());
    // No cut of it makes a sample of a part of a file, and none a panic.
    for cut in (0..good.len()).step_by(97) {
        let (_folder, files) = written(&[("cut.tar", &good[..cut])]);
        let _ = all(TarSamples::new(files).skip_bad(9)).unwrap();
    }
}

#[test]
fn patterns_name_files_in_order() {
    let (folder, _) = written(&[("b.txt", b""), ("a.txt", b""), ("c.csv", b"")]);
    let pattern = |name: &str| folder.path().join(name).display().to_string();
    let found = matching_files(&pattern("*.txt")).unwrap();
    let names: Vec<_> = found.iter().map(|path| path.file_name().unwrap()).collect();
    assert_eq!(names, ["a.txt", "b.txt"]);
    assert_eq!(matching_files(&pattern("c.csv")).unwrap().len(), 1);
    let error = matching_files(&pattern("*.json")).unwrap_err().to_string();
    assert!(error.contains("no file is named"), "{error}");
}
