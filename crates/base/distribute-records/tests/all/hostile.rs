//! No bytes make a reader panic, and what was written is read.

use std::collections::BTreeMap;

use distribute_records::{
    Compression, Example, Feature, RecordReader, RecordWriter, SequenceExample,
};
use proptest::prelude::*;

fn feature() -> impl Strategy<Value = Feature> {
    let bytes = proptest::collection::vec(any::<u8>(), 0..5);
    prop_oneof![
        Just(Feature::Empty),
        proptest::collection::vec(bytes, 0..4).prop_map(Feature::Bytes),
        proptest::collection::vec(-1e9_f32..1e9, 0..4).prop_map(Feature::Floats),
        proptest::collection::vec(any::<i64>(), 0..4).prop_map(Feature::Ints),
    ]
}

fn features() -> impl Strategy<Value = BTreeMap<String, Feature>> {
    proptest::collection::btree_map(".{0,3}", feature(), 0..4)
}

proptest! {
    #[test]
    fn examples_are_read_as_they_were_written(features in features()) {
        let example = Example { features };
        prop_assert_eq!(Example::parse(&example.to_bytes()), Ok(example));
    }

    #[test]
    fn sequence_examples_are_read_as_they_were_written(
        context in features(),
        lists in proptest::collection::btree_map(
            ".{0,3}", proptest::collection::vec(feature(), 0..4), 0..4
        ),
    ) {
        let example = SequenceExample { context, lists };
        prop_assert_eq!(SequenceExample::parse(&example.to_bytes()), Ok(example));
    }

    #[test]
    fn records_are_read_as_they_were_written(
        records in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..6),
    ) {
        for kind in [Compression::Plain, Compression::Gzip, Compression::Zlib] {
            let mut writer = RecordWriter::new(Vec::new(), "a", kind);
            records.iter().try_for_each(|record| writer.write(record)).unwrap();
            let bytes = writer.finish().unwrap();
            let reader = RecordReader::new(bytes.as_slice(), "a", None).unwrap();
            let found: Vec<Vec<u8>> = reader.map(Result::unwrap).collect();
            prop_assert_eq!(&found, &records);
        }
    }
}
