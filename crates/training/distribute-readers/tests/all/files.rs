//! What the readers make of correct files.

use std::fs;

use distribute_readers::{
    Array, CsvHeader, CsvLabels, CsvOptions, ImageColor, LabelColumn, Values, parse_csv, parse_idx,
    parse_npy, parse_npz, parse_text_csv, read_csv, read_idx, read_image_folder, read_mnist_folder,
    read_npy, read_npz, read_text_csv,
};
use image::ImageFormat;
use proptest::prelude::*;
use rstest::rstest;
use tempfile::tempdir;

use crate::common::*;

fn big_endian<const N: usize, T: Copy>(values: &[T], bytes: fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| bytes(value)).collect()
}

#[rstest]
#[case(0x08, vec![0, 1, 2, 3, 254, 255], Values::U8(vec![0, 1, 2, 3, 254, 255]))]
#[case(0x09, vec![0, 1, 2, 3, 254, 255], Values::I8(vec![0, 1, 2, 3, -2, -1]))]
#[case(0x0b, big_endian(&[0, 1, -1, 256, 5, i16::MIN], i16::to_be_bytes),
    Values::I16(vec![0, 1, -1, 256, 5, i16::MIN]))]
#[case(0x0c, big_endian(&[0, 1, -1, 256, 5, i32::MIN], i32::to_be_bytes),
    Values::I32(vec![0, 1, -1, 256, 5, i32::MIN]))]
#[case(0x0d, big_endian(&[0.5, 1e9, -1.0, 2.0, 3.0, 0.1], f32::to_be_bytes),
    Values::F32(vec![0.5, 1e9, -1.0, 2.0, 3.0, 0.1]))]
#[case(0x0e, big_endian(&[0.5, 1e99, -1.0, 2.0, 3.0, 0.1], f64::to_be_bytes),
    Values::F64(vec![0.5, 1e99, -1.0, 2.0, 3.0, 0.1]))]
fn idx_of_every_type(#[case] code: u8, #[case] raw: Vec<u8>, #[case] values: Values) {
    let expected = Array::new(vec![3, 1, 2], values).unwrap();
    let file = idx(code, &[3, 1, 2], &raw);
    assert_eq!(parse_idx(&file, "plain").unwrap(), expected);
    // Gzip is seen by its magic: the name says nothing.
    let folder = tempdir().unwrap();
    let path = folder.path().join("no-extension");
    fs::write(&path, gzip(&file)).unwrap();
    assert_eq!(read_idx(&path).unwrap(), expected);
}

#[test]
fn gzip_of_several_members_is_one_file() {
    let file = idx(8, &[4], &[1, 2, 3, 4]);
    let halves = [gzip(&file[..5]), gzip(&file[5..])].concat();
    assert_eq!(
        parse_idx(&halves, "x").unwrap().values(),
        &Values::U8(vec![1, 2, 3, 4])
    );
}

#[rstest]
fn an_mnist_folder(#[values(false, true)] compressed: bool) {
    let folder = tempdir().unwrap();
    write_mnist(folder.path(), compressed);
    let sets = read_mnist_folder(folder.path(), None).unwrap();
    assert_eq!((sets.train.len(), sets.test.len()), (5, 3));
    assert_eq!(sets.train.feature_shape(), [4, 4]);
    // Label 3 is only in the test set: both must know of it.
    assert_eq!(
        (sets.train.classes(), sets.test.classes()),
        (Some(4), Some(4))
    );
    assert_eq!(sets.train.class_counts(), [2, 2, 1, 0]);
    assert_eq!(sets.test.labels_i64(&[2, 0, 1, 1]).unwrap(), [0, 2, 3, 3]);
    let pixels = u8_images(5, 4);
    let expected: Vec<f32> = pixels[16..32]
        .iter()
        .chain(&pixels[..16])
        .map(|&x| x as f32 / 255.0)
        .collect();
    assert_eq!(sets.train.features_f32(&[1, 0]).unwrap(), expected);
    assert_eq!(sets.train.files().len(), 2);
    assert_eq!(
        read_mnist_folder(folder.path(), Some(10))
            .unwrap()
            .train
            .classes(),
        Some(10)
    );
}

#[test]
fn an_mnist_folder_with_dots_in_its_names() {
    let folder = tempdir().unwrap();
    write_mnist(folder.path(), false);
    for entry in fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        let name = path
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .replace("-idx", ".idx");
        fs::rename(&path, folder.path().join(name)).unwrap();
    }
    assert_eq!(
        read_mnist_folder(folder.path(), None).unwrap().test.len(),
        3
    );
}

#[rstest]
#[case("1,2,0\n3,4,1\n", CsvHeader::Detect)]
#[case("a,b,c\n1,2,0\n3,4,1\n", CsvHeader::Detect)]
#[case("\u{feff}a,b,c\r\n1,2,0\r\n\r\n3,4,1", CsvHeader::Detect)]
#[case("0,1,target\n1,2,0\n3,4,1\n", CsvHeader::Present)]
#[case(" 1 ,\"2\",0.0\n3e0,+4,1\n", CsvHeader::Absent)]
#[case("label,x,y\n0,1,2\n1,3,4\n", CsvHeader::Detect)]
fn a_table_of_numbers(#[case] text: &str, #[case] header: CsvHeader) {
    let options = CsvOptions {
        header,
        ..CsvOptions::default()
    };
    let folder = tempdir().unwrap();
    let path = folder.path().join("points.csv.gz");
    fs::write(&path, gzip(text.as_bytes())).unwrap();
    for table in [
        parse_csv(text.as_bytes(), "points.csv", &options),
        read_csv(&path, &options),
    ] {
        let table = table.unwrap();
        assert_eq!(
            (table.name(), table.len(), table.feature_shape()),
            ("points", 2, &[2][..])
        );
        assert_eq!(table.features_f32(&[0, 1]).unwrap(), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(table.labels_i64(&[1, 0]).unwrap(), [1, 0]);
        assert_eq!(table.classes(), Some(2));
    }
}

#[test]
fn a_table_for_regression() {
    let options = CsvOptions {
        labels: CsvLabels::Numbers,
        label: LabelColumn::Name("price".into()),
        delimiter: b';',
        ..CsvOptions::default()
    };
    let table = parse_csv(b"area;price;rooms\n70;1.5;3\n50;-1;2\n", "flats", &options).unwrap();
    assert_eq!((table.classes(), table.label_shape()), (None, &[][..]));
    assert_eq!(table.labels_f32(&[0, 1]).unwrap(), [1.5, -1.0]);
    assert_eq!(table.features_f32(&[1]).unwrap(), [50.0, 2.0]);
    assert!(table.class_counts().is_empty());
}

#[test]
fn a_table_of_images() {
    let table = parse_csv(
        b"1,0,255,51,102\n",
        "x",
        &CsvOptions {
            label: LabelColumn::Last,
            labels: CsvLabels::Numbers,
            ..CsvOptions::default()
        },
    );
    let table = table
        .unwrap()
        .with_feature_shape(&[2, 2])
        .unwrap()
        .with_divisor(255.0);
    assert_eq!(table.feature_shape(), [2, 2]);
    assert_eq!(
        table.features_f32(&[0]).unwrap(),
        [1.0 / 255.0, 0.0, 1.0, 0.2]
    );
}

#[test]
fn a_table_of_texts() {
    let bytes = "id,label,text\n7,1,\"Good, very\ngood\"\n8,0,Schlecht \u{1f614}\n".as_bytes();
    let folder = tempdir().unwrap();
    let path = folder.path().join("reviews.csv");
    fs::write(&path, bytes).unwrap();
    for table in [parse_text_csv(bytes, "reviews.csv"), read_text_csv(&path)] {
        let table = table.unwrap();
        assert!(table.is_text() && table.feature_shape().is_empty());
        assert_eq!(
            table.texts(&[1, 0]).unwrap(),
            ["Schlecht \u{1f614}", "Good, very\ngood"]
        );
        assert_eq!(table.labels_i64(&[0, 1]).unwrap(), [1, 0]);
        assert_eq!((table.name(), table.classes()), ("reviews", Some(2)));
    }
}

#[rstest]
#[case("|b1", vec![0, 1, 1, 0, 1, 0], Values::I8(vec![0, 1, 1, 0, 1, 0]))]
#[case("|u1", vec![1, 2, 3, 4, 5, 255], Values::U8(vec![1, 2, 3, 4, 5, 255]))]
#[case("<i2", vec![1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 255, 255], Values::I16(vec![1, 2, 3, 4, 5, -1]))]
#[case(">u2", vec![0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 255, 255],
    Values::I32(vec![1, 2, 3, 4, 5, 65_535]))]
#[case("<f2", vec![0, 0x3c, 0, 0x40, 0, 0, 0, 0x38, 0, 0xbc, 0, 0x7b],
    Values::F32(vec![1.0, 2.0, 0.0, 0.5, -1.0, 57_344.0]))]
#[case(">f4", big_endian(&[1.0, 2.0, 3.0, 4.0, 5.0, 0.1], f32::to_be_bytes),
    Values::F32(vec![1.0, 2.0, 3.0, 4.0, 5.0, 0.1]))]
#[case("<f8", big_endian(&[1.0, 2.0, 3.0, 4.0, 5.0, 0.1], f64::to_le_bytes),
    Values::F64(vec![1.0, 2.0, 3.0, 4.0, 5.0, 0.1]))]
#[case("<u8", big_endian(&[1, 2, 3, 4, 5, 6], u64::to_le_bytes),
    Values::I64(vec![1, 2, 3, 4, 5, 6]))]
#[case("<i4", big_endian(&[1, 2, 3, 4, 5, -6], i32::to_le_bytes),
    Values::I32(vec![1, 2, 3, 4, 5, -6]))]
fn npy_of_every_type(#[case] descr: &str, #[case] raw: Vec<u8>, #[case] values: Values) {
    let file = npy(&format!("'{descr}'"), false, "(2, 3)", &raw);
    assert_eq!(
        parse_npy(&file, "x").unwrap(),
        Array::new(vec![2, 3], values).unwrap()
    );
}

#[test]
fn npy_headers_that_numpy_writes_or_wrote() {
    let values = [1u8, 2, 3, 4, 5, 6];
    let expected = Array::new(vec![6], Values::U8(values.to_vec())).unwrap();
    for text in [
        "{'descr': '|u1', 'fortran_order': False, 'shape': (6,), }",
        "{\"shape\":(6L,),\"fortran_order\":True,\"descr\":\"|u1\"}",
        "  { 'fortran_order' :False , 'shape': ( 6 , ) , 'descr':'|u1'}  ",
    ] {
        assert_eq!(
            parse_npy(&npy_text(text, &values), "x").unwrap(),
            expected,
            "{text}"
        );
    }
    // Version 2 has a 4-byte length.
    let mut file = npy("'|u1'", false, "(6,)", &values);
    file[6] = 2;
    file.splice(10..10, [0, 0]);
    let folder = tempdir().unwrap();
    let path = folder.path().join("x.npy");
    fs::write(&path, gzip(&file)).unwrap();
    assert_eq!(read_npy(&path).unwrap(), expected);
    let scalar = parse_npy(&npy("'|u1'", false, "()", &[7]), "x").unwrap();
    assert!(scalar.shape().is_empty());
}

proptest! {
    /// Column-major data is the transposed row-major data, for any shape.
    #[test]
    fn npy_in_fortran_order(shape in proptest::collection::vec(1usize..5, 1..5)) {
        let count: usize = shape.iter().product();
        let mut column_major = vec![0u8; count];
        let mut index = vec![0; shape.len()];
        for value in 0..count {
            let at = (0..shape.len()).rev().fold(0, |at, axis| at * shape[axis] + index[axis]);
            column_major[at] = value as u8;
            for axis in (0..shape.len()).rev() {
                index[axis] += 1;
                if index[axis] < shape[axis] {
                    break;
                }
                index[axis] = 0;
            }
        }
        let extents: String = shape.iter().map(|extent| format!("{extent}, ")).collect();
        let file = npy("'|u1'", true, &format!("({extents})"), &column_major);
        let expected = Array::new(shape, Values::U8((0..count).map(|v| v as u8).collect()));
        prop_assert_eq!(parse_npy(&file, "x").unwrap(), expected.unwrap());
    }
}

#[rstest]
fn npz_in_the_layout_of_keras(#[values(false, true)] deflated: bool) {
    let archive = npz(
        &[
            ("x_test", npy("'|u1'", false, "(2, 2, 2)", &u8_images(2, 2))),
            (
                "x_train",
                npy("'|u1'", false, "(3, 2, 2)", &u8_images(3, 2)),
            ),
            ("y_train", npy("'|u1'", false, "(3, 1)", &[0, 1, 0])),
            (
                "y_test",
                npy(
                    "'<i8'",
                    false,
                    "(2,)",
                    &[2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                ),
            ),
        ],
        deflated,
    );
    let folder = tempdir().unwrap();
    let path = folder.path().join("tiny.npz");
    fs::write(&path, &archive).unwrap();
    for sets in [read_npz(&path), parse_npz(&archive, &path)] {
        let (train, test) = sets.unwrap();
        let test = test.unwrap();
        assert_eq!(
            (train.name(), train.len(), test.len()),
            ("tiny train", 3, 2)
        );
        assert_eq!((train.classes(), test.classes()), (Some(3), Some(3)));
        assert_eq!(test.labels_i64(&[0, 1]).unwrap(), [2, 0]);
        assert_eq!(train.features_f32(&[0]).unwrap()[1], 7.0 / 255.0);
        assert_eq!(train.files(), std::slice::from_ref(&path));
    }
}

#[test]
fn npz_of_one_set_with_labels_of_any_shape() {
    let floats = big_endian(&[1.0, 2.0, 300.0, 4.0], f32::to_le_bytes);
    let archive = npz(
        &[
            ("x", npy("'<f4'", false, "(2, 2)", &floats)),
            ("y", npy("'|u1'", false, "(2, 3)", &[0, 0, 1, 0, 1, 0])),
        ],
        true,
    );
    let (set, test) = parse_npz(&archive, "one.npz").unwrap();
    assert!(test.is_none());
    assert_eq!((set.classes(), set.label_shape()), (None, &[3][..]));
    assert_eq!(set.labels_i64(&[1]).unwrap(), [0, 1, 0]);
    assert_eq!(set.labels_f32(&[0]).unwrap(), [0.0, 0.0, 1.0]);
    assert_eq!(set.features_f32(&[1, 0]).unwrap(), [300.0, 4.0, 1.0, 2.0]);
}

#[test]
fn a_folder_of_images() {
    let folder = tempdir().unwrap();
    let root = folder.path();
    write(
        root,
        "dog/2.png",
        &encode(&gray(3, 2, 100), ImageFormat::Png),
    );
    write(
        root,
        "dog/1.PNG",
        &encode(&gray(3, 2, 10), ImageFormat::Png),
    );
    write(
        root,
        "cat/a.jpg",
        &encode(&gray(3, 2, 50), ImageFormat::Jpeg),
    );
    write(root, "cat/.hidden", b"ignored");
    write(root, ".git/a.png", b"ignored");
    write(root, "README.txt", b"ignored");
    let images = read_image_folder(root, ImageColor::AsStored).unwrap();
    assert_eq!((images.len(), images.feature_shape()), (3, &[2, 3][..]));
    assert_eq!(images.class_names(), ["cat", "dog"]);
    assert_eq!(images.labels_i64(&[0, 1, 2]).unwrap(), [0, 1, 1]);
    let expected = [10, 11, 12, 13, 14, 15].map(|x| x as f32 / 255.0);
    assert_eq!(images.features_f32(&[1]).unwrap(), expected);
    // JPEG is lossy.
    let jpeg = images.features_f32(&[0]).unwrap();
    assert!(
        jpeg.iter()
            .enumerate()
            .all(|(i, x)| (x * 255.0 - (50.0 + i as f32)).abs() < 4.0)
    );

    let color = read_image_folder(root, ImageColor::Rgb).unwrap();
    assert_eq!(color.feature_shape(), [2, 3, 3]);
    assert_eq!(color.features_f32(&[1]).unwrap()[3..6], [11.0 / 255.0; 3]);
}

#[test]
fn a_folder_of_colour_images_and_one_that_mixes() {
    let folder = tempdir().unwrap();
    let red = plain_color(2, 2, [255, 0, 51]);
    write(folder.path(), "a/1.png", &encode(&red, ImageFormat::Png));
    let images = read_image_folder(folder.path(), ImageColor::AsStored).unwrap();
    assert_eq!(images.feature_shape(), [2, 2, 3]);
    assert_eq!(images.features_f32(&[0]).unwrap()[..3], [1.0, 0.0, 0.2]);

    write(
        folder.path(),
        "b/1.png",
        &encode(&gray(2, 2, 0), ImageFormat::Png),
    );
    let gray = read_image_folder(folder.path(), ImageColor::Grayscale).unwrap();
    assert_eq!((gray.len(), gray.feature_shape()), (2, &[2, 2][..]));
    // Transparency and 16 bits are reduced to plain 8-bit pixels.
    let deep = image::ImageBuffer::from_pixel(2, 2, image::LumaA([0x8080u16, 0x1234]));
    write(
        folder.path(),
        "b/2.png",
        &encode(&deep.into(), ImageFormat::Png),
    );
    let gray = read_image_folder(folder.path(), ImageColor::Grayscale).unwrap();
    assert_eq!(gray.features_f32(&[2]).unwrap(), [128.0 / 255.0; 4]);
}
