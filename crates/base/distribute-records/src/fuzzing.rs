//! What the fuzz targets call: any bytes as files of records and as messages. A panic is a find.
//!
//! Not part of the interface of this crate; compiled for tests and with the feature `fuzzing`.

use crate::{
    Compression, DType, Example, FeatureSpec, RecordReader, RowPartition, Schema, SequenceExample,
    encode, parse_example, parse_sequence_example,
};

/// A target's name and function.
type Target = (&'static str, fn(&[u8]));

/// The targets by their names.
pub const TARGETS: [Target; 2] = [("tfrecord", tfrecord), ("tf_example", tf_example)];

/// A file of records; a plain one begins with the bytes themselves.
pub fn tfrecord(bytes: &[u8]) {
    for kind in [None, Some(Compression::Plain), Some(Compression::Zlib)] {
        let Ok(mut reader) = RecordReader::new(bytes, "a", kind) else {
            continue;
        };
        let (mut data, mut offset) = (Vec::new(), 0);
        while let Ok(true) = reader.read(&mut data) {
            let record = encode(&data);
            assert_eq!(reader.offset(), offset + record.len() as u64);
            if reader.compression() == Compression::Plain {
                assert!(bytes[offset as usize..].starts_with(&record));
            }
            offset = reader.offset();
        }
    }
}

/// A message: read as it is, and by a schema.
#[expect(clippy::expect_used, reason = "a fuzz target fails by a panic")]
pub fn tf_example(bytes: &[u8]) {
    if let Ok(example) = Example::parse(bytes) {
        let again = Example::parse(&example.to_bytes()).expect("it was written here");
        assert_eq!(again.features.len(), example.features.len());
        assert_eq!(again.to_bytes(), example.to_bytes());
    }
    if let Ok(example) = SequenceExample::parse(bytes) {
        let again = SequenceExample::parse(&example.to_bytes()).expect("it was written here");
        assert_eq!(again.to_bytes(), example.to_bytes());
    }
    for dtype in [DType::Int64, DType::Float32, DType::Bytes] {
        for (name, spec) in specs(dtype) {
            let schema = Schema::from([(name, spec)]);
            for parsed in parse_example(bytes, &schema)
                .iter()
                .flat_map(|all| all.values())
            {
                let extents: usize = parsed.shape.iter().product();
                let rows = parsed
                    .splits
                    .last()
                    .map_or(extents, |ends| ends[ends.len() - 1]);
                assert_eq!(rows, parsed.values.len());
            }
            let _ = parse_sequence_example(bytes, &schema, &schema);
            let _ = parse_sequence_example(bytes, &Schema::default(), &schema);
        }
    }
}

fn specs(dtype: DType) -> [(&'static str, FeatureSpec); 5] {
    let ragged = |partition| FeatureSpec::Ragged {
        dtype,
        value_key: None,
        partitions: vec![partition],
    };
    [
        ("a", FeatureSpec::fixed(dtype, [2])),
        ("a", FeatureSpec::variable(dtype)),
        ("a", FeatureSpec::sequence(dtype, [2])),
        ("a", ragged(RowPartition::Lengths("b".to_string()))),
        ("a", ragged(RowPartition::RowIds("b".to_string()))),
    ]
}

#[cfg(test)]
mod tests {
    use hostile::corpus::Seeds;

    use super::*;
    use crate::{Feature, RecordWriter};

    #[test]
    fn the_corpus_has_the_seeds_and_no_target_fails_with_a_file_of_it() {
        hostile::corpus::check(TARGETS[0], &files());
        hostile::corpus::check(TARGETS[1], &messages());
    }

    fn file(kind: Compression) -> Vec<u8> {
        let mut writer = RecordWriter::new(Vec::new(), "a", kind);
        for record in [&b"one"[..], b"", b"three"] {
            writer.write(record).unwrap();
        }
        writer.finish().unwrap()
    }

    fn files() -> Seeds {
        let plain = file(Compression::Plain);
        let changed = |at: usize| {
            let mut bytes = plain.clone();
            bytes[at] ^= 1;
            bytes
        };
        Seeds::from([
            ("gzip", file(Compression::Gzip)),
            ("zlib", file(Compression::Zlib)),
            ("cut", plain[..plain.len() - 2].to_vec()),
            ("cut-length", plain[..24].to_vec()),
            ("bad-length", changed(19)),
            ("bad-data", changed(12)),
            ("giant", crate::frame::header(u64::MAX).to_vec()),
            ("html", b"<html></html>".to_vec()),
            ("plain", plain),
        ])
    }

    fn messages() -> Seeds {
        let ints = |values: &[i64]| Feature::Ints(values.to_vec());
        let all = [
            ("a", ints(&[1, -1, 300])),
            ("b", ints(&[1, 2])),
            ("c", Feature::Floats(vec![0.5, -2.0])),
            ("d", Feature::Bytes(vec![b"x".to_vec(), Vec::new()])),
            ("e", Feature::Empty),
        ];
        let sequence = SequenceExample {
            context: Example::from(all.clone()).features,
            lists: [("a".to_string(), vec![ints(&[1, 2]), Feature::Empty])].into(),
        };
        let pair = |values: Feature| Example::from([("a", values), ("b", ints(&[0, 1]))]);
        Seeds::from([
            ("all", Example::from(all).to_bytes()),
            ("ints", pair(ints(&[3, 4])).to_bytes()),
            ("floats", pair(Feature::Floats(vec![1.0, 2.0])).to_bytes()),
            (
                "row-giant",
                Example::from([("b", ints(&[i64::MAX])), ("a", ints(&[1]))]).to_bytes(),
            ),
            ("sequence", sequence.to_bytes()),
            ("groups", vec![0x4b; 200]),
            ("nothing", Vec::new()),
        ])
    }
}
