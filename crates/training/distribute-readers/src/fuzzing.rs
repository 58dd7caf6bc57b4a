//! What the fuzz targets call: any bytes as data files. A panic is a find.
//!
//! Not part of the interface of this crate; compiled for tests and with the feature `fuzzing`.

use crate::{
    Array, CsvColumns, CsvHeader, CsvLabels, CsvOptions, Examples, LabelColumn, parse_csv,
    parse_idx, parse_npy, parse_npz, parse_npz_arrays, parse_text_csv,
};

/// A target's name and function.
type Target = (&'static str, fn(&[u8]));

/// The targets by their names.
pub const TARGETS: [Target; 4] = [
    ("data_csv", csv),
    ("data_idx", idx),
    ("data_npy", npy),
    ("data_npz", npz),
];

/// A table, read in each way.
pub fn csv(bytes: &[u8]) {
    for header in [CsvHeader::Detect, CsvHeader::Present, CsvHeader::Absent] {
        for labels in [CsvLabels::Classes, CsvLabels::Numbers] {
            let options = CsvOptions {
                header,
                labels,
                ..CsvOptions::default()
            };
            parse_csv(bytes, "a.csv", &options)
                .iter()
                .for_each(examples);
        }
    }
    for (columns, label) in [
        (CsvColumns::Count(2), LabelColumn::Absent),
        (wanted_columns(), LabelColumn::Detect),
        (wanted_columns(), LabelColumn::Absent),
    ] {
        let options = CsvOptions {
            columns,
            label,
            ..CsvOptions::default()
        };
        parse_csv(bytes, "a.csv", &options)
            .iter()
            .for_each(features_of);
    }
    parse_text_csv(bytes, "a.csv").iter().for_each(examples);
}

fn wanted_columns() -> CsvColumns {
    CsvColumns::Named {
        features: vec!["b".to_owned(), "a".to_owned()],
        label: None,
    }
}

/// As many features as each example has.
fn features_of(read: &Examples) {
    let values = read.features_f32(&[0]).map_or(0, |values| values.len());
    assert_eq!(values, read.feature_shape().iter().product::<usize>());
}

/// MNIST's format.
pub fn idx(bytes: &[u8]) {
    parse_idx(bytes, "a.idx").iter().for_each(array);
}

/// One array of NumPy's.
pub fn npy(bytes: &[u8]) {
    parse_npy(bytes, "a.npy").iter().for_each(array);
}

/// NumPy's archives.
pub fn npz(bytes: &[u8]) {
    for (_, array) in parse_npz_arrays(bytes, "a.npz").unwrap_or_default() {
        let extents = array.shape().iter().product::<usize>();
        assert_eq!(extents, array.values().len());
    }
    let Ok((train, test)) = parse_npz(bytes, "a.npz") else {
        return;
    };
    examples(&train);
    test.iter().for_each(examples);
}

/// The shape and the values go together.
fn array(read: &Array) {
    let expected = read.rows().checked_mul(read.row_len());
    assert_eq!(expected, Some(read.values().len()));
}

/// The first and the last of them can be had.
fn examples(read: &Examples) {
    let count = read.len();
    let ends = [0, count.saturating_sub(1)];
    assert_eq!(read.subset(&ends).is_ok(), count > 0);
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write as _};

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use hostile::corpus::Seeds;
    use zip::CompressionMethod;
    use zip::write::{SimpleFileOptions, ZipWriter};

    use super::*;

    #[test]
    fn the_corpus_has_the_seeds_and_no_target_fails_with_a_file_of_it() {
        for target in TARGETS {
            let seeds = match target.0 {
                "data_csv" => tables(),
                "data_idx" => idx_files(),
                "data_npy" => npy_files(),
                _ => npz_files(),
            };
            hostile::corpus::check(target, &seeds);
        }
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn tables() -> Seeds {
        let text = |text: &str| text.as_bytes().to_vec();
        Seeds::from([
            ("numbers", text("1.5,2,0\n-3e2,.5,1\n")),
            ("header", text("x,label,y\r\n1,0,2\r\n3,1,4")),
            ("texts", text("text,label\n\"a \"\"b\"\"\n\",0\nä,1\n")),
            ("ragged", text("1,2\n3\n")),
            ("class-giant", text("1,99999999999999999999\n")),
            ("not-finite", text("1,NaN,0\n1e99,inf,1\n")),
            ("compressed", gzip(b"1,0\n2,1\n")),
        ])
    }

    fn idx_of(code: u8, extents: &[u32], values: &[u8]) -> Vec<u8> {
        let extents_bytes = extents.iter().flat_map(|extent| extent.to_be_bytes());
        let mut bytes = vec![0, 0, code, extents.len() as u8];
        bytes.extend(extents_bytes);
        bytes.extend_from_slice(values);
        bytes
    }

    fn idx_files() -> Seeds {
        let images = || idx_of(0x08, &[2, 2, 2], &[7; 8]);
        Seeds::from([
            ("images", images()),
            ("labels", idx_of(0x08, &[3], &[0, 1, 9])),
            ("doubles", idx_of(0x0e, &[1, 2], &[0x40; 16])),
            ("compressed", gzip(&images())),
            ("extents-giant", idx_of(0x0d, &[u32::MAX; 4], &[])),
            ("extents-zero", idx_of(0x0b, &[0, u32::MAX, u32::MAX], &[])),
            ("rank-0", idx_of(0x08, &[], &[1])),
            ("truncated", images()[..12].to_vec()),
        ])
    }

    fn npy_of(descr: &str, fortran: bool, shape: &str, values: &[u8]) -> Vec<u8> {
        let order = if fortran { "True" } else { "False" };
        let header =
            format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n");
        let length = (header.len() as u16).to_le_bytes();
        [b"\x93NUMPY\x01\0", &length[..], header.as_bytes(), values].concat()
    }

    fn npy_files() -> Seeds {
        Seeds::from([
            ("floats", npy_of("<f4", false, "(2, 2)", &[0x3f; 16])),
            (
                "columns",
                npy_of("|u1", true, "(2, 3)", &[1, 2, 3, 4, 5, 6]),
            ),
            ("scalar", npy_of(">i8", false, "()", &[0; 8])),
            ("unsigned-giant", npy_of("<u8", false, "(1,)", &[0xff; 8])),
            ("objects", npy_of("|O", false, "(1,)", &[0; 8])),
            (
                "shape-giant",
                npy_of("<f8", false, "(99999999999, 99999999999)", &[]),
            ),
            ("shape-zero", npy_of("<f8", true, "(0, 4294967296)", &[])),
            ("header-giant", b"\x93NUMPY\x02\0\xff\xff\xff\xff".to_vec()),
        ])
    }

    fn npz_of(method: CompressionMethod, members: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, bytes) in members {
            let options = SimpleFileOptions::default().compression_method(method);
            writer.start_file(format!("{name}.npy"), options).unwrap();
            writer.write_all(bytes).unwrap();
        }
        writer.finish().unwrap().into_inner()
    }

    fn npz_files() -> Seeds {
        let x = |rows: u8| {
            npy_of(
                "|u1",
                false,
                &format!("({rows}, 2)"),
                &vec![9; 2 * rows as usize],
            )
        };
        let y = |rows: u8| npy_of("|u1", false, &format!("({rows},)"), &vec![1; rows as usize]);
        let stored = npz_of(CompressionMethod::Stored, &[("x", x(2)), ("y", y(2))]);
        let four = [
            ("x_train", x(2)),
            ("y_train", y(2)),
            ("x_test", x(1)),
            ("y_test", y(1)),
        ];
        Seeds::from([
            ("truncated", stored[..stored.len() / 2].to_vec()),
            ("stored", stored),
            ("keras", npz_of(CompressionMethod::Deflated, &four)),
            (
                "no-labels",
                npz_of(CompressionMethod::Stored, &[("x", x(1))]),
            ),
            (
                "counts",
                npz_of(CompressionMethod::Stored, &[("x", x(2)), ("y", y(1))]),
            ),
        ])
    }
}
