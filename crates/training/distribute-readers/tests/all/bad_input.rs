//! Bad files give one line that says what, where and what to do.

use std::fs;
use std::path::Path;

use distribute_readers::{
    CsvHeader, CsvOptions, ImageColor, LabelColumn, ReadError, parse_csv, parse_idx, parse_npy,
    parse_npz, parse_text_csv, read_csv, read_idx, read_image_folder, read_mnist_folder, read_npz,
};
use image::ImageFormat;
use tempfile::tempdir;

use crate::common::*;

/// The messages, with the temporary folder written as `DIR`, and none longer than two lines of a
/// wide terminal.
fn messages(folder: &Path, cases: Vec<(&str, Option<ReadError>)>) -> String {
    let line = |(case, error): (&str, Option<ReadError>)| {
        let message = error
            .unwrap_or_else(|| panic!("{case}: no error"))
            .to_string();
        let message = message.replace(&folder.display().to_string(), "DIR");
        assert!(
            message.len() <= 320 && !message.contains('\n'),
            "{case}: {message}"
        );
        format!("[{case}] {message}\n")
    };
    cases.into_iter().map(line).collect()
}

#[test]
fn idx_files() {
    let folder = tempdir().unwrap();
    let good = idx(8, &[3, 2], &[1, 2, 3, 4, 5, 6]);
    let mut damaged = gzip(&good);
    let crc = damaged.len() - 8;
    damaged[crc] ^= 1;
    let parse = |bytes: &[u8]| parse_idx(bytes, "a.idx").err();
    let cases = vec![
        ("empty", parse(&[])),
        ("only zeros", parse(&[0, 0])),
        ("zip", parse(b"PK\x03\x04 and more")),
        ("unknown type", parse(&[0, 0, 7, 1, 0, 0, 0, 0])),
        ("rank 0", parse(&[0, 0, 8, 0])),
        ("cut header", parse(&good[..9])),
        ("cut data", parse(&good[..good.len() - 1])),
        ("longer", parse(&[&good[..], &[0]].concat())),
        ("giant", parse(&idx(14, &[u32::MAX, 1], &[0; 16]))),
        ("overflow", parse(&idx(8, &[u32::MAX; 40], &[]))),
        (
            "overflow beside zero",
            parse(&idx(8, &[[u32::MAX; 9], [0; 9]].concat(), &[])),
        ),
        (
            "giant gzip",
            parse(&gzip(&idx(8, &[60_000, 1_000, 1_000], &[0; 64]))),
        ),
        ("cut gzip", parse(&gzip(&idx(8, &[999], &[7; 999]))[..30])),
        (
            "cut gzip checksum",
            parse(&gzip(&good)[..gzip(&good).len() - 3]),
        ),
        ("damaged gzip", parse(&damaged)),
        ("gzip longer", parse(&gzip(&[&good[..], &[0]].concat()))),
        ("no file", read_idx(folder.path().join("none")).err()),
        ("directory", read_idx(folder.path()).err()),
    ];
    insta::assert_snapshot!(messages(folder.path(), cases));
}

#[test]
fn mnist_folders() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    let read = |classes| read_mnist_folder(path, classes).err();
    let empty = read(None);
    write_mnist(path, false);
    let out_of_range = read(Some(3));
    write(path, "train-labels-idx1-ubyte", &idx(8, &[4], &[0; 4]));
    let mismatch = read(None);
    write(path, "train-labels-idx1-ubyte", &idx(8, &[5, 2], &[0; 10]));
    let shape = read(None);
    write(
        path,
        "train-labels-idx1-ubyte",
        &idx(9, &[5], &[0, 0, 0, 255, 0]),
    );
    let negative = read(None);
    let halves: Vec<u8> = [0.0f32, 1.0, 0.0, 0.0, 1.5]
        .iter()
        .flat_map(|x| x.to_be_bytes())
        .collect();
    write(path, "train-labels-idx1-ubyte", &idx(13, &[5], &halves));
    let half = read(None);
    write(path, "train-labels-idx1-ubyte", &idx(8, &[0], &[]));
    write(path, "train-images-idx3-ubyte", &idx(8, &[0, 28, 28], &[]));
    let no_examples = read(None);
    fs::remove_file(path.join("t10k-labels-idx1-ubyte")).unwrap();
    let cases = vec![
        ("empty folder", empty),
        ("label out of range", out_of_range),
        ("fewer labels", mismatch),
        ("two labels each", shape),
        ("negative label", negative),
        ("half a label", half),
        ("no examples", no_examples),
        ("a file is missing", read(None)),
        (
            "no folder",
            read_mnist_folder(path.join("none"), None).err(),
        ),
        (
            "a file as folder",
            read_mnist_folder(path.join("t10k-images-idx3-ubyte"), None).err(),
        ),
    ];
    insta::assert_snapshot!(messages(path, cases));
}

/// The headers say it: the values, one of which is none, are not read first.
#[test]
fn training_images_of_another_size_are_refused_before_they_are_read() {
    let folder = tempdir().unwrap();
    write_mnist(folder.path(), false);
    let bytes = [f32::NAN; 5].map(f32::to_be_bytes).concat();
    let images = idx(13, &[5, 1], &bytes);
    write(folder.path(), "train-images-idx3-ubyte", &images);
    let error = read_mnist_folder(folder.path(), None).err();
    assert!(
        matches!(&error, Some(ReadError::ShapesDiffer { shape, other, .. })
            if shape == &[1] && other == &[4, 4]),
        "{error:?}"
    );
}

#[test]
fn tables() {
    let folder = tempdir().unwrap();
    let with =
        |text: &str, options: &CsvOptions| parse_csv(text.as_bytes(), "a.csv", options).err();
    let parse = |text: &str| with(text, &CsvOptions::default());
    let present = CsvOptions {
        header: CsvHeader::Present,
        ..CsvOptions::default()
    };
    let absent = CsvOptions {
        header: CsvHeader::Absent,
        ..CsvOptions::default()
    };
    let named = CsvOptions {
        label: LabelColumn::Name("y".into()),
        ..CsvOptions::default()
    };
    let named_absent = CsvOptions {
        header: CsvHeader::Absent,
        ..named.clone()
    };
    let wide: String = (0..30).map(|i| format!("column{i},")).collect();
    let long = format!("a,b\n{},0\n", "x".repeat(10_000));
    let text = |text: &[u8]| parse_text_csv(text, "a.csv").err();
    let cases = vec![
        ("empty", parse("")),
        ("blank lines", parse("\n\n\r\n")),
        ("only a header", parse("a,b,c\n")),
        ("one column", parse("1\n2\n")),
        ("short line", parse("a,b,c\n1,2,0\n1,0\n")),
        ("long line", parse("1,2,0\n\n1,2,3,0\n")),
        ("after a quoted newline", parse("a,b\n\"1\n\",0\n2,3,4\n")),
        ("word", parse("a,b,c\n1,2,0\n1,two,0\n")),
        ("empty field", parse("a,b,c\n1,,0\n")),
        ("nan", parse("1,nan,0\n")),
        ("too large", parse("1,1e999,0\n")),
        ("header with numbers", parse("0,1,target\n1,2,0\n")),
        ("header taken for data", with("a,b,c\n1,2,0\n", &absent)),
        ("data taken for a header", with("1,2,0\n", &present)),
        ("long field", parse(&long)),
        ("control characters", parse("a,b\n\u{1b}[31m,0\n")),
        ("label that is no number", parse("a,b,c\n1,2,cat\n")),
        ("half a label", parse("a,b,c\n1,2,1.5\n")),
        ("negative label", parse("a,b,c\n1,2,0\n1,2,-1\n")),
        ("giant label", parse("a,b,c\n1,2,123456789012\n")),
        ("no such column", with("a,b\n1,0\n", &named)),
        (
            "no such column of many",
            with(&format!("{wide}z\n"), &named),
        ),
        ("no header to name a column", with("1,0\n", &named_absent)),
        (
            "no file",
            read_csv(folder.path().join("none.csv"), &named).err(),
        ),
        ("texts: empty", text(b"")),
        ("texts: only a header", text(b"text,label\n")),
        ("texts: no header", text(b"good film,1\n")),
        ("texts: no label", text(b"text,Label\ngood film,1\n")),
        ("texts: ragged", text(b"text,label\ngood, very good,1\n")),
        ("texts: label", text(b"text,label\ngood,positive\n")),
        ("texts: not UTF-8", text(b"label,text\n1,gr\xfc\xdf\n")),
    ];
    insta::assert_snapshot!(messages(folder.path(), cases));
}

#[test]
fn npy_files() {
    let folder = tempdir().unwrap();
    let parse = |bytes: &[u8]| parse_npy(bytes, "a.npy").err();
    let text = |text: &str| parse(&npy_text(text, &[1, 2]));
    let good = npy("'|u1'", false, "(2,)", &[1, 2]);
    let mut version = good.clone();
    version[6] = 9;
    let mut long = good[..8].to_vec();
    long[6] = 2;
    long.extend(u32::MAX.to_le_bytes());
    let descr = |descr: &str| parse(&npy(descr, false, "(2,)", &[1, 2]));
    let shape = |shape: &str| parse(&npy("'<f8'", false, shape, &[1, 2]));
    let axes = format!("({})", "1, ".repeat(65));
    let cases = vec![
        ("empty", parse(b"")),
        ("gif", parse(b"GIF89a.")),
        ("version 9", parse(&version)),
        ("giant header", parse(&long)),
        ("cut header", parse(&good[..40])),
        ("cut data", parse(&good[..good.len() - 1])),
        ("longer", parse(&[&good[..], &[0]].concat())),
        ("pickles", descr("'|O'")),
        ("records", descr("[('a', '<f4'), ('b', '<i8')]")),
        ("texts", descr("'<U5'")),
        ("complex", descr("'<c8'")),
        ("no byte order", descr("'|f4'")),
        ("not ASCII", descr("'\u{e9}f4'")),
        ("giant", shape("(4294967296, 4294967295)")),
        ("overflow", shape("(18446744073709551615, 2)")),
        ("beyond 64 bits", shape("(18446744073709551616,)")),
        ("negative", shape("(-1,)")),
        ("65 axes", shape(&axes)),
        ("no dictionary", text("[1, 2]")),
        ("unknown key", text("{'descr': '|u1', 'order': 3}")),
        ("twice", text("{'descr': '|u1', 'descr': '|u1'}")),
        ("missing", text("{'descr': '|u1', 'shape': (2,)}")),
        (
            "text after it",
            text("{'descr': '|u1', 'fortran_order': False, 'shape': (2,)} x"),
        ),
        ("open text", text("{'descr': '|u1")),
        ("order", text("{'descr': '|u1', 'fortran_order': 1}")),
        ("u64", parse(&npy("'<u8'", false, "(1,)", &[255; 8]))),
    ];
    insta::assert_snapshot!(messages(folder.path(), cases));
}

#[test]
fn npz_files() {
    let folder = tempdir().unwrap();
    let parse = |bytes: &[u8]| parse_npz(bytes, "a.npz").err();
    let bytes = |shape: &str, values: &[u8]| npy("'|u1'", false, shape, values);
    let members = |members: &[(&str, Vec<u8>)]| parse(&npz(members, true));
    let x = || bytes("(2, 2)", &[1, 2, 3, 4]);
    let y = || bytes("(2,)", &[0, 1]);
    let good = npz(&[("x", x()), ("y", y())], false);
    let mut damaged = good.clone();
    let at = good
        .windows(4)
        .position(|window| window == [1, 2, 3, 4])
        .unwrap();
    damaged[at] = 9;
    let cases = vec![
        ("empty", parse(b"")),
        (
            "no zip",
            parse(b"no zip archive, but some text that is long enough to be one"),
        ),
        ("cut", parse(&good[..good.len() - 30])),
        ("damaged", parse(&damaged)),
        ("no keys", members(&[])),
        ("other keys", members(&[("images", x()), ("labels", y())])),
        ("no y", members(&[("x", x())])),
        (
            "no y_test",
            members(&[("x_train", x()), ("y_train", y()), ("x_test", x())]),
        ),
        (
            "counts",
            members(&[("x", x()), ("y", bytes("(3,)", &[0, 1, 2]))]),
        ),
        ("scalar", members(&[("x", bytes("()", &[1])), ("y", y())])),
        (
            "no examples",
            members(&[("x", bytes("(0, 2)", &[])), ("y", bytes("(0,)", &[]))]),
        ),
        (
            "member is no npy",
            members(&[("x", b"text".to_vec()), ("y", y())]),
        ),
        (
            "giant member",
            members(&[("x", bytes("(9999999999,)", &[1])), ("y", y())]),
        ),
        ("no file", read_npz(folder.path().join("none.npz")).err()),
    ];
    insta::assert_snapshot!(messages(folder.path(), cases));
}

#[test]
fn numbers_that_are_none_are_found_when_reading_not_when_training() {
    let folder = tempdir().unwrap();
    let f32s = |values: [f32; 4]| {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        npy("'<f4'", false, "(2, 2)", &bytes)
    };
    let f64s = |values: [f64; 2]| {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        npy("'<f8'", false, "(2,)", &bytes)
    };
    let y = || npy("'|u1'", false, "(2,)", &[0, 1]);
    let read = |x, y| parse_npz(&npz(&[("x", x), ("y", y)], true), "a.npz").err();
    let mnist = folder.path();
    write_mnist(mnist, false);
    let bytes: Vec<u8> = [1.0, 2.0, f32::NAN, 3.0, 4.0]
        .map(f32::to_be_bytes)
        .concat();
    fs::write(
        mnist.join("train-images-idx3-ubyte"),
        idx(13, &[5, 1], &bytes),
    )
    .unwrap();
    let test = idx(8, &[3, 1], &[0, 1, 2]);
    fs::write(mnist.join("t10k-images-idx3-ubyte"), test).unwrap();
    let csv = |text: &str| parse_csv(text.as_bytes(), "a.csv", &CsvOptions::default()).err();
    let cases = vec![
        ("nan", read(f32s([0.0, 1.0, 2.0, f32::NAN]), y())),
        (
            "infinite",
            read(f32s([0.0, f32::NEG_INFINITY, 2.0, 3.0]), y()),
        ),
        ("beyond f32", read(f64s([0.0, 1e200]), y())),
        ("target", read(f32s([0.0; 4]), f64s([f64::NAN, 1.0]))),
        ("idx", read_mnist_folder(mnist, None).err()),
        ("csv", csv("a,label\n1,0\nnan,1\n")),
        ("csv infinite", csv("a,label\n1,0\n-inf,1\n")),
    ];
    insta::assert_snapshot!(messages(folder.path(), cases));
}

#[test]
fn images_and_labels_that_are_mixed_up_are_told_apart() {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let read = || read_mnist_folder(folder.path(), None).err();
    let [images, labels] = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"];
    write_mnist(folder.path(), false);
    fs::copy(path(labels), path(images)).unwrap();
    let labels_for_images = read();
    write_mnist(folder.path(), false);
    fs::copy(path(images), path(labels)).unwrap();
    let images_for_labels = read();
    // Only the fourth byte is another one: then the length is wrong as well.
    write_mnist(folder.path(), false);
    let mut bytes = fs::read(path(images)).unwrap();
    bytes[3] = 1;
    fs::write(path(images), bytes).unwrap();
    let cases = vec![
        ("labels for images", labels_for_images),
        ("images for labels", images_for_labels),
        ("rank of labels", read()),
    ];
    insta::assert_snapshot!(messages(folder.path(), cases));
}

#[test]
fn image_folders() {
    let folder = tempdir().unwrap();
    let root = folder.path();
    let read = |name: &str| read_image_folder(root.join(name), ImageColor::AsStored).err();
    let png = |image| encode(&image, ImageFormat::Png);
    let small = png(gray(4, 4, 0));
    fs::create_dir(root.join("empty")).unwrap();
    fs::create_dir_all(root.join("no-images/cat")).unwrap();
    write(root, "size/a/1.png", &small);
    write(root, "size/a/2.png", &png(gray(4, 5, 0)));
    write(root, "colour/a/1.png", &small);
    write(root, "colour/b/1.png", &png(plain_color(4, 4, [1, 2, 3])));
    write(root, "other/a/1.png", &small);
    write(root, "other/a/notes.txt", b"a note");
    write(root, "nested/a/1.png/deep.png", &small);
    write(root, "cut/a/1.png", &small[..small.len() / 2]);
    write(root, "text/a/1.png", b"this is not an image");
    write(root, "gif/a/1.png", b"GIF89a\x01\x00\x01\x00");
    // A header that claims 60,000 x 60,000 pixels; in one of two files its checksum is right.
    let mut giant = small.clone();
    giant[16..24].copy_from_slice(&[0, 0, 0xea, 0x60, 0, 0, 0xea, 0x60]);
    write(root, "checksum/a/1.png", &giant);
    let mut checksum = flate2::Crc::new();
    checksum.update(&giant[12..29]);
    giant[29..33].copy_from_slice(&checksum.sum().to_be_bytes());
    write(root, "giant/a/1.png", &giant);
    let mut jpeg = encode(&gray(8, 8, 0), ImageFormat::Jpeg);
    let sof = jpeg
        .windows(2)
        .position(|window| window == [0xff, 0xc0])
        .unwrap();
    jpeg[sof + 5..sof + 9].copy_from_slice(&[0xff; 4]);
    write(root, "giant-jpeg/a/1.jpg", &jpeg);
    let cases = [
        "empty",
        "no-images",
        "size",
        "colour",
        "other",
        "nested",
        "cut",
        "text",
        "gif",
        "checksum",
        "giant",
        "giant-jpeg",
        "none",
        "size/a/1.png",
    ];
    let cases = cases.into_iter().map(|name| (name, read(name))).collect();
    insta::assert_snapshot!(messages(root, cases));
}
