//! Files of h5py, of which `tests/keras/weights.py` has written one in each form.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use serde_json::Value;

use super::*;
use crate::Weight;

/// A file of `tests/keras/weights`.
pub(crate) fn stored(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/keras/weights");
    let file = std::fs::File::open(folder.join(format!("{name}.gz"))).unwrap();
    let mut bytes = Vec::new();
    let mut decoder = flate2::read::GzDecoder::new(file);
    decoder.read_to_end(&mut bytes).unwrap();
    bytes
}

/// What is in a file, by path.
fn all(file: &File<'_>) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    let mut open = vec![(String::new(), file.root_address())];
    while let Some((path, address)) = open.pop() {
        for (name, address) in file.links(&file.object(address).unwrap()).unwrap() {
            let path = format!("{path}/{name}").trim_start_matches('/').to_string();
            found.insert(path.clone(), address);
            open.push((path, address));
        }
    }
    found
}

#[test]
fn every_type_and_way_of_storage_is_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/keras/weights");
    let text = std::fs::read_to_string(folder.join("hdf5.expected.json")).unwrap();
    let expected: BTreeMap<String, Value> = serde_json::from_str(&text).unwrap();
    for name in ["earliest", "v108", "latest"] {
        let bytes = stored(&format!("hdf5.{name}.h5"));
        let file = File::open(&bytes).unwrap();
        let found = all(&file);
        let mut read = 0;
        for (path, value) in &expected {
            let object = file.object(found[path]).unwrap();
            assert!(object.is_dataset());
            let numbers = file.numbers(&object);
            if name == "latest" && path == "chunks/grows" {
                assert!(numbers.unwrap_err().contains("it can grow"));
                continue;
            }
            let numbers = numbers.unwrap_or_else(|what| panic!("{name} {path}: {what}"));
            let shape: Vec<usize> = serde_json::from_value(value["shape"].clone()).unwrap();
            assert_eq!(numbers.shape, shape, "{name} {path}");
            let wanted: Vec<f64> = serde_json::from_value(value["values"].clone()).unwrap();
            let same = |(x, wanted): (&f32, &f64)| (f64::from(*x) - wanted).abs() < 1e-6;
            assert_eq!(numbers.values.len(), wanted.len(), "{name} {path}");
            let mut pairs = numbers.values.iter().zip(&wanted);
            assert!(pairs.all(same), "{name} {path}");
            read += 1;
        }
        assert!(read > 80, "{name}: {read}");
    }
}

#[test]
fn texts_are_read_wherever_attributes_are() {
    for name in ["earliest", "v108", "latest"] {
        let bytes = stored(&format!("hdf5.{name}.h5"));
        let file = File::open(&bytes).unwrap();
        let texts = file.object(all(&file)["texts"]).unwrap();
        let read = |name: &str| file.texts(&texts, name).unwrap().unwrap();
        assert_eq!(read("variable"), ["some {\"json\": 1} text"]);
        assert_eq!(read("fixed"), ["fixed"]);
        assert_eq!(read("list"), ["one", "three", ""]);
        assert_eq!(read("names"), ["eins", "zwei"]);
        // The parts of a long list, joined.
        let parts: String = (0..20).map(|count| "x".repeat(count) + ".").collect();
        assert_eq!(read("more").concat(), parts);
        assert_eq!(file.text(&texts, "none").unwrap(), None);
        assert!(file.text(&texts, "number").is_err());
        if name == "latest" {
            assert_eq!(read("long"), ["y".repeat(70_000)]);
            assert_eq!(read("longer"), ["z".repeat(70_000)]);
        }
    }
}

#[test]
fn what_is_written_is_read() {
    let weights: Vec<Weight> = (0..40)
        .map(|count| Weight {
            shape: vec![count % 3, count],
            values: (0..count % 3 * count).map(|x| x as f32 - 0.5).collect(),
        })
        .collect();
    let scalar = Weight {
        shape: Vec::new(),
        values: vec![7.0],
    };
    let mut root = Group::default();
    for (number, weight) in weights.iter().enumerate() {
        root.group(&format!("layers/group_{number}/vars"))
            .add(number.to_string(), weight);
    }
    root.group("empty");
    root.add("scalar", &scalar);
    let bytes = written(&root);
    let file = File::open(&bytes).unwrap();
    let found = all(&file);
    assert_eq!(found.len(), 1 + 40 * 3 + 2);
    let numbers = |path: &str| file.numbers(&file.object(found[path]).unwrap()).unwrap();
    for (number, weight) in weights.iter().enumerate() {
        assert!(numbers(&format!("layers/group_{number}/vars/{number}")) == *weight);
    }
    assert!(numbers("scalar") == scalar);
}

#[test]
fn a_file_that_is_cut_off_is_an_error() {
    let bytes = stored("chain.h5");
    for length in (0..bytes.len()).step_by(97) {
        let cut = &bytes[..length];
        let read = || -> Result<()> {
            let file = File::open(cut)?;
            let mut open = vec![file.root_address()];
            while let Some(address) = open.pop() {
                let object = file.object(address)?;
                if object.is_dataset() {
                    file.numbers(&object)?;
                }
                open.extend(file.links(&object)?.into_iter().map(|(_, address)| address));
            }
            Ok(())
        };
        assert!(read().is_err(), "{length} bytes");
    }
}
