//! Files on disk: by number, in order, with every kind of compression, and damaged.

use std::fs;
use std::io::Cursor;
use std::path::PathBuf;

use distribute_records::{
    Compression, Cut, RecordError, RecordIndex, RecordReader, RecordWriter, encode,
};
use tempfile::TempDir;

const KINDS: [Compression; 3] = [Compression::Plain, Compression::Gzip, Compression::Zlib];

fn records() -> Vec<Vec<u8>> {
    (0..20_u8)
        .map(|number| vec![number; 7 * usize::from(number)])
        .collect()
}

fn file(compression: Compression) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tfrecord");
    let mut writer = RecordWriter::create(&path, compression).unwrap();
    for record in records() {
        writer.write(&record).unwrap();
    }
    assert_eq!(writer.records(), 20);
    writer.finish().unwrap();
    (folder, path)
}

#[test]
fn files_are_read_whatever_their_compression() {
    for kind in KINDS {
        let (_folder, path) = file(kind);
        for told in [None, Some(kind)] {
            let reader = RecordReader::open(&path, told).unwrap();
            assert_eq!(reader.compression(), kind);
            let read: Result<Vec<_>, _> = reader.collect();
            assert_eq!(read.unwrap(), records());
        }
    }
}

#[test]
fn an_index_reads_any_record() {
    let (_folder, path) = file(Compression::Plain);
    let index = RecordIndex::open(&path).unwrap();
    assert_eq!((index.len(), index.is_empty()), (20, false));
    for number in [19, 0, 7, 7] {
        assert_eq!(index.read(number).unwrap(), records()[number]);
        assert_eq!(index.record_bytes(number), Some(7 * number as u64));
    }
    let error = index.read(20).unwrap_err();
    assert!(
        matches!(error, RecordError::NoRecord { count: 20, .. }),
        "{error}"
    );
    fs::write(&path, b"other").unwrap();
    let error = index.read(3).unwrap_err();
    assert!(
        matches!(error, RecordError::Changed { record: 3, .. }),
        "{error}"
    );
    fs::remove_file(&path).unwrap();
    let error = index.read(3).unwrap_err();
    assert!(matches!(error, RecordError::File { .. }), "{error}");
    fs::write(&path, b"").unwrap();
    assert!(RecordIndex::open(&path).unwrap().is_empty());
}

#[test]
fn an_index_of_a_compressed_or_damaged_file_is_refused() {
    for kind in [Compression::Gzip, Compression::Zlib] {
        let (_folder, path) = file(kind);
        let error = RecordIndex::open(&path).unwrap_err();
        assert!(matches!(error, RecordError::NotSeekable { .. }), "{error}");
    }
    let (_folder, path) = file(Compression::Plain);
    let good = fs::read(&path).unwrap();
    for cut in 1..good.len() {
        fs::write(&path, &good[..cut]).unwrap();
        let by_number = RecordIndex::open(&path)
            .err()
            .map(|error| error.to_string());
        let mut reader = RecordReader::open(&path, None).unwrap();
        let in_order = reader.find_map(Result::err).map(|error| error.to_string());
        assert_eq!(by_number, in_order, "{cut}");
    }
    let mut damaged = good.clone();
    damaged[16 + 1] ^= 1;
    fs::write(&path, &damaged).unwrap();
    let error = RecordIndex::open(&path).unwrap_err();
    let RecordError::CorruptLength { record, offset, .. } = error else {
        panic!("{error}")
    };
    assert_eq!((record, offset), (1, 16));
}

#[test]
fn only_a_damaged_record_is_left_out() {
    let mut bytes = [encode(b"one"), encode(b"two"), encode(b"three")].concat();
    bytes[19 + 12] ^= 0x80;
    let mut reader = RecordReader::new(bytes.as_slice(), "a", None).unwrap();
    assert_eq!(reader.next().unwrap().unwrap(), b"one");
    let error = reader.next().unwrap().unwrap_err();
    assert!(error.is_of_one_record() && error.is_permanent());
    assert!(
        error.to_string().contains("`a`: record 1 at byte 19"),
        "{error}"
    );
    assert_eq!(reader.next().unwrap().unwrap(), b"three");
    assert_eq!((reader.record(), reader.offset()), (3, bytes.len() as u64));
    assert!(reader.next().is_none());
}

#[test]
fn after_a_damaged_length_nothing_is_read() {
    let mut bytes = [encode(b"one"), encode(b"two")].concat();
    bytes[0] ^= 1;
    let mut reader = RecordReader::new(bytes.as_slice(), "a", None).unwrap();
    assert!(reader.next().unwrap().is_err());
    assert!(reader.next().is_none());
}

#[test]
fn other_files_are_named() {
    let kinds: [(&[u8], &str); 6] = [
        (b"<!DOCTYPE html><html>", "HTML"),
        (b"PAR1 and so on ......", "Parquet"),
        (b"PK\x03\x04 and so on ......", "zip"),
        (b"{\"label\": 3, \"size\": 2}", "JSON"),
        (b"a,b,label\n1,2,3\n4,5,6", "is this a TFRecord file?"),
        (b"\x1f\x8b\x08 and so on ......", "gzip"),
    ];
    for (bytes, word) in kinds {
        let plain = Some(Compression::Plain);
        let mut reader = RecordReader::new(bytes, "a", plain).unwrap();
        let error = reader.next().unwrap().unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn a_long_record_is_refused_before_it_is_read() {
    let bytes = encode(&[7; 100]);
    let reader = RecordReader::new(Cursor::new(bytes), "a", None).unwrap();
    let error = reader.max_record_bytes(99).next().unwrap().unwrap_err();
    assert!(
        matches!(
            error,
            RecordError::TooLong {
                bytes: 100,
                limit: 99,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none.tfrecord");
    for error in [
        RecordReader::open(&path, None).map(drop).unwrap_err(),
        RecordIndex::open(&path).map(drop).unwrap_err(),
    ] {
        assert!(error.to_string().contains("none.tfrecord"), "{error}");
        assert!(error.is_permanent());
    }
}

#[test]
fn a_file_that_ends_early_says_where() {
    let bytes = [encode(b"one"), encode(b"two")].concat();
    let mut reader = RecordReader::new(&bytes[..25], "a", None).unwrap();
    assert!(reader.next().unwrap().is_ok());
    let error = reader.next().unwrap().unwrap_err();
    let RecordError::Truncated {
        record,
        offset,
        cut,
        found,
        expected,
        ..
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!(
        (record, offset, cut, found, expected),
        (1, 19, Cut::Header, 6, 12)
    );
}

#[test]
fn a_reader_goes_on_where_another_one_was() {
    for kind in KINDS {
        let (_folder, path) = file(kind);
        let mut first = RecordReader::open(&path, None).unwrap();
        assert_eq!(first.by_ref().take(7).count(), 7);
        let mut second = RecordReader::open(&path, None).unwrap();
        second.resume(first.record(), first.offset()).unwrap();
        let rest: Result<Vec<_>, _> = second.by_ref().collect();
        assert_eq!(rest.unwrap(), records()[7..]);
        assert_eq!(second.record(), 20);
        // The file is shorter now.
        std::fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(30)
            .unwrap();
        let mut third = RecordReader::open(&path, None).unwrap();
        assert!(third.resume(first.record(), first.offset()).is_err());
    }
}
