//! What identifies inputs: names, order, labels or none, orientation; and files that are others.

use std::fs;

use distribute_readers::{
    CsvColumns, CsvOptions, ImageColor, LabelColumn, ReadError, TextOptions, parse_csv, parse_npz,
    parse_npz_arrays, parse_texts, read_image_folder, read_images, read_npz_features,
    read_text_lines,
};
use image::ImageFormat;
use rstest::rstest;
use tempfile::tempdir;

use crate::common::*;

fn named(features: &[&str]) -> CsvOptions {
    CsvOptions {
        columns: CsvColumns::Named {
            features: features.iter().map(ToString::to_string).collect(),
            label: Some("kind".to_owned()),
        },
        ..CsvOptions::default()
    }
}

fn csv(text: &str, options: &CsvOptions) -> Result<distribute_readers::Examples, ReadError> {
    parse_csv(text.as_bytes(), "a.csv", options)
}

#[test]
fn columns_are_found_by_their_names_wherever_they_stand() {
    let table = csv("kind,id,b,a\n1,7,2,3\n", &named(&["a", "b"])).unwrap();
    assert_eq!(table.features_f32(&[0]).unwrap(), [3.0, 2.0]);
    assert_eq!(table.labels_i64(&[0]).unwrap(), [1]);
    assert_eq!(table.column_names(), ["a", "b"]);
    assert_eq!(table.label_name(), Some("kind"));
    assert_eq!(table.unused(), ["id"]);
    // Without names they are what they are by their order.
    let table = csv("3,2,3\n4,5,3\n", &named(&["a", "b"])).unwrap();
    assert_eq!(table.features_f32(&[0]).unwrap(), [3.0, 2.0]);
    assert!(table.column_names().is_empty());
}

#[test]
fn other_columns_are_refused_with_both_lists() {
    let error = csv("a,c,kind\n1,2,0\n", &named(&["a", "b"]))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("needs the columns a, b") && error.contains("has the columns a, c, kind")
    );
    let error = csv("1,2,3,0\n1,2,4,1\n", &named(&["a", "b"]))
        .unwrap_err()
        .to_string();
    assert!(error.contains("4 columns without names"), "{error}");
    let error = csv("a,b\n1,2\n", &named(&["a", "b"]))
        .unwrap_err()
        .to_string();
    assert!(error.contains("\"kind\""), "{error}");
}

#[rstest]
#[case("a,b\n1,2\n", 2)]
#[case("b,kind,a\n2,no matter,1\n", 2)]
#[case("1,2\n3,5\n", 2)]
#[case("1,2,x\n3,5,y\n", 2)]
fn tables_without_labels_are_read_for_a_model_that_answers(
    #[case] text: &str,
    #[case] features: usize,
) {
    let options = CsvOptions {
        label: LabelColumn::Absent,
        ..named(&["a", "b"])
    };
    let table = csv(text, &options).unwrap();
    assert!(!table.is_labelled() && table.feature_shape() == [features]);
    assert_eq!(table.features_f32(&[0]).unwrap(), [1.0, 2.0]);
    let error = table.labels_i64(&[0]).unwrap_err();
    assert!(matches!(error, ReadError::WrongKind { .. }), "{error}");
}

#[test]
fn lines_that_end_with_carriage_returns_alone_are_counted() {
    let error = csv("a,b,label\r1,2,0\r1,two,0\r", &CsvOptions::default()).unwrap_err();
    assert!(
        error.to_string().contains("line 3, column 2 (b)"),
        "{error}"
    );
}

#[rstest]
#[case("a,b,label\n1,2,0\n1,\"2,0\n3,4,1\n5,6,0\n", "line 3")]
#[case("a,b,label\n1,2,0\n\"1,2,0\n", "line 3")]
#[case("a,b,label\r\n\"1,2,0\r\n3,4,1", "line 2")]
fn a_quotation_mark_that_is_not_closed_is_named_with_its_line(
    #[case] text: &str,
    #[case] line: &str,
) {
    let error = csv(text, &CsvOptions::default()).unwrap_err().to_string();
    assert!(
        error.contains(&format!("{line}: a quotation mark")),
        "{error}"
    );
}

#[test]
fn text_behind_an_open_quotation_mark_is_not_swallowed() {
    let text = b"label,text\n1,\"good film\n0,bad film\n";
    let error = parse_texts(text, "a.csv", &TextOptions::default()).unwrap_err();
    assert!(
        error.to_string().contains("line 2: a quotation mark"),
        "{error}"
    );
    let good = b"label,text\n1,\"good\nfilm\"\n0,bad\n";
    assert_eq!(
        parse_texts(good, "a.csv", &TextOptions::default())
            .unwrap()
            .len(),
        2
    );
}

#[test]
fn a_first_line_for_spreadsheets_is_taken_at_its_word() {
    let table = csv("sep=;\na;b;label\n1;2;0\n3;4;1\n", &CsvOptions::default()).unwrap();
    assert_eq!(table.features_f32(&[1]).unwrap(), [3.0, 4.0]);
    let error = csv("sep=;\na;b;label\n1;2,5;0\n", &CsvOptions::default()).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("line 3") && error.contains("decimal points"),
        "{error}"
    );
}

#[test]
fn texts_without_labels_and_plain_lines() {
    let options = TextOptions {
        labelled: false,
        ..TextOptions::default()
    };
    let texts = parse_texts(b"text\ngood\nbad\n", "a.csv", &options).unwrap();
    assert!(texts.len() == 2 && !texts.is_labelled());
    let folder = tempdir().unwrap();
    write(
        folder.path(),
        "lines.txt",
        b"\xef\xbb\xbfa good, long film\r\n\nbad\n",
    );
    let lines = read_text_lines(folder.path().join("lines.txt")).unwrap();
    assert_eq!(lines.texts(&[0, 1]).unwrap(), ["a good, long film", "bad"]);
}

#[rstest]
#[case(b"", "empty (0 bytes)")]
#[case(b"<!DOCTYPE html><html><body>404</body></html>", "HTML")]
#[case(
    b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n",
    "Git LFS"
)]
#[case(b"\x93NUMPY\x01\0", "one NumPy array (.npy)")]
#[case(b"PK\x03\x04 and then nothing", "cut off or damaged")]
fn what_is_no_archive_is_named(#[case] bytes: &[u8], #[case] part: &str) {
    let error = parse_npz(bytes, "a.npz").unwrap_err().to_string();
    assert!(error.contains(part) && !error.contains("EOCD"), "{error}");
    let error = parse_npz_arrays(bytes, "a.npz").unwrap_err().to_string();
    assert!(error.contains(part), "{error}");
}

#[rstest]
#[case(12, "bzip2")]
#[case(14, "LZMA")]
#[case(93, "zstd")]
fn other_compressions_are_named(#[case] method: u8, #[case] name: &str) {
    let x = npy("'|u1'", false, "(2, 2)", &[1, 2, 3, 4]);
    let mut bytes = npz(
        &[("x", x), ("y", npy("'|u1'", false, "(2,)", &[0, 1]))],
        false,
    );
    for (magic, offset) in [(b"PK\x03\x04", 8), (b"PK\x01\x02", 10)] {
        for at in 0..bytes.len() - 4 {
            if bytes[at..].starts_with(magic) {
                bytes[at + offset] = method;
            }
        }
    }
    let error = parse_npz(&bytes, "a.npz").unwrap_err();
    assert!(matches!(error, ReadError::Unsupported { .. }), "{error}");
    let error = error.to_string();
    assert!(
        error.contains(name) && error.contains("savez_compressed"),
        "{error}"
    );
}

/// Names of classes as NumPy stores texts, and numbers that are no classes.
#[test]
fn labels_of_archives_are_names_or_values_too() {
    let x = || npy("'|u1'", false, "(3, 2)", &[1, 2, 3, 4, 5, 6]);
    let read = |y: Vec<u8>| {
        let members = [("x", x()), ("y", y)];
        parse_npz(&npz(&members, true), "a.npz").unwrap().0
    };
    let named = read(npy("'|S3'", false, "(3,)", b"oakashoak"));
    assert_eq!(named.class_names(), ["ash", "oak"]);
    assert_eq!(named.labels_i64(&[0, 1, 2]).unwrap(), [1, 0, 1]);
    let wide: Vec<u8> = "b\0aaa\0"
        .chars()
        .flat_map(|c| (c as u32).to_le_bytes())
        .collect();
    let wide = read(npy("'<U2'", false, "(3,)", &wide));
    assert_eq!(wide.class_names(), ["a", "aa", "b"]);
    let values = read(npy("'|i1'", false, "(3,)", &[0, 200, 1]));
    assert_eq!(values.classes(), None);
    assert_eq!(values.labels_f32(&[1]).unwrap(), [-56.0]);
}

#[test]
fn validation_arrays_are_taken_and_others_are_named() {
    let x = || npy("'|u1'", false, "(2, 2)", &[1, 2, 3, 4]);
    let y = || npy("'|u1'", false, "(2,)", &[0, 1]);
    let weight = ("sample_weight", y());
    let members = [
        ("x_train", x()),
        ("y_train", y()),
        ("x_val", x()),
        ("y_val", y()),
        weight,
    ];
    let (train, val) = parse_npz(&npz(&members, true), "a.npz").unwrap();
    assert!(train.unused().is_empty());
    assert_eq!(train.weights_f32(&[1, 0]).unwrap(), [1.0, 0.0]);
    assert!(!val.as_ref().unwrap().is_weighted());
    assert_eq!(
        (val.unwrap().len(), train.stored_type(), train.divisor()),
        (2, "u8", 255.0)
    );
    let both = [&members[..], &[("x_test", x()), ("y_test", y())]].concat();
    let (train, _) = parse_npz(&npz(&both, true), "a.npz").unwrap();
    assert_eq!(train.unused(), ["x_val", "y_val"]);
    let folder = tempdir().unwrap();
    for (key, member) in [("x", x()), ("arr_0", x())] {
        write(folder.path(), "a.npz", &npz(&[(key, member)], true));
        let read = read_npz_features(folder.path().join("a.npz")).unwrap();
        assert!(read.len() == 2 && !read.is_labelled());
    }
}

#[test]
fn float_and_one_hot_labels_are_classes_if_they_say_classes() {
    let x = || npy("'|u1'", false, "(2, 2)", &[1, 2, 3, 4]);
    let f32s = |shape: &str, values: &[f32]| {
        npy(
            "'<f4'",
            false,
            shape,
            &values
                .iter()
                .flat_map(|x| x.to_le_bytes())
                .collect::<Vec<_>>(),
        )
    };
    let read = |y: Vec<u8>| {
        let (train, _) = parse_npz(&npz(&[("x", x()), ("y", y)], true), "a.npz").unwrap();
        train.with_labels_as_classes()
    };
    let one_hot = read(f32s("(2, 3)", &[0., 1., 0., 1., 0., 0.])).unwrap();
    assert_eq!(one_hot.labels_i64(&[0, 1]).unwrap(), [1, 0]);
    assert_eq!(one_hot.classes(), Some(3));
    let whole = read(f32s("(2, 1)", &[1., 0.])).unwrap();
    assert_eq!(whole.labels_i64(&[0, 1]).unwrap(), [1, 0]);
    for (shape, values) in [("(2,)", vec![0.5, 1.]), ("(2, 2)", vec![1., 1., 0., 1.])] {
        let error = read(f32s(shape, &values)).unwrap_err();
        assert!(
            matches!(error, ReadError::NotClasses { row: 0, .. }),
            "{error}"
        );
    }
}

/// A JPEG image that a camera held on its side wrote: it is shown turned by a quarter.
fn turned(width: u32, height: u32) -> Vec<u8> {
    let jpeg = encode(
        &plain_color(width, height, [200, 10, 10]),
        ImageFormat::Jpeg,
    );
    let tiff = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0";
    let payload = [&b"Exif\0\0"[..], tiff].concat();
    let length = (payload.len() as u16 + 2).to_be_bytes();
    [&jpeg[..2], &[0xff, 0xe1], &length, &payload, &jpeg[2..]].concat()
}

#[test]
fn images_are_read_as_they_are_shown() {
    let folder = tempdir().unwrap();
    let root = folder.path();
    write(
        root,
        "a/1.png",
        &encode(&plain_color(8, 16, [1, 2, 3]), ImageFormat::Png),
    );
    write(root, "b/2.jpg", &turned(16, 8));
    let read = read_image_folder(root, ImageColor::AsStored).unwrap();
    assert_eq!(read.feature_shape(), [16, 8, 3]);
}

#[test]
fn images_without_classes_are_read_for_a_model_that_answers() {
    let folder = tempdir().unwrap();
    let root = folder.path();
    let png = encode(&gray(4, 4, 0), ImageFormat::Png);
    write(root, "2.png", &png);
    write(root, "1.png", &png);
    write(root, "notes.txt", b"not an image");
    let read = read_images(root, ImageColor::AsStored).unwrap();
    assert_eq!(
        (read.len(), read.class_names()),
        (2, &["1.png".into(), "2.png".into()][..])
    );
    let one = read_images(root.join("2.png"), ImageColor::Rgb).unwrap();
    assert_eq!((one.len(), one.feature_shape()), (1, &[4, 4, 3][..]));
    let error = read_image_folder(root, ImageColor::AsStored)
        .unwrap_err()
        .to_string();
    assert!(error.contains("nothing says their classes"), "{error}");
}

#[cfg(unix)]
#[test]
fn links_to_nothing_are_named() {
    let folder = tempdir().unwrap();
    let root = folder.path();
    fs::create_dir(root.join("a")).unwrap();
    let link = |name: &str| std::os::unix::fs::symlink("gone", root.join(name)).unwrap();
    link("a/1.png");
    let error = read_image_folder(root, ImageColor::AsStored)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("a/1.png: is a link to gone, which does not exist"),
        "{error}"
    );
    link("b");
    let error = read_image_folder(root, ImageColor::AsStored)
        .unwrap_err()
        .to_string();
    assert!(error.contains("b: is a link to gone"), "{error}");
}
