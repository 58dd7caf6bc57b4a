//! What TensorFlow reads of good and bad files and messages: `tests/tensorflow/generate.py`.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use distribute_records::{
    Compression, Cut, DType, Example, Feature, FeatureSpec, ParseError, Parsed, RecordError,
    RecordReader, RecordWriter, RowPartition, Schema, SequenceExample, Values, parse_example,
    parse_sequence_example,
};
use serde_json::{Value, json};

fn cases() -> Vec<Value> {
    let text = include_str!("../tensorflow/cases.json");
    let mut root: Value = serde_json::from_str(text).unwrap();
    match root["cases"].take() {
        Value::Array(cases) => cases,
        other => panic!("{other}"),
    }
}

fn bytes(value: &Value) -> Vec<u8> {
    BASE64_STANDARD.decode(value.as_str().unwrap()).unwrap()
}

fn text(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

/// Runs all cases of an operation, and names all that differ.
fn all(op: &str, run: impl Fn(&Value, &Value, &Value) -> Result<(), String>) {
    let (mut count, mut failed) = (0, Vec::new());
    for case in cases().iter().filter(|case| case["inputs"]["op"] == op) {
        count += 1;
        if let Err(what) = run(&case["inputs"], &case["expect"], &case["error"]["message"]) {
            failed.push(format!("{}: {what}", case["name"]));
        }
    }
    assert!(count > 0);
    let number = failed.len();
    assert!(
        failed.is_empty(),
        "{number} of {count}:\n{}",
        failed.join("\n")
    );
}

fn same(found: &Value, wanted: &Value) -> Result<(), String> {
    if found == wanted {
        return Ok(());
    }
    Err(format!("{found} in place of {wanted}"))
}

#[test]
fn files_are_written() {
    all("write", |inputs, expect, _| {
        let mut writer = RecordWriter::new(Vec::new(), "x", Compression::Plain);
        for record in inputs["records"].as_array().unwrap() {
            writer.write(&bytes(record)).unwrap();
        }
        same(&json!({"file": text(&writer.finish().unwrap())}), expect)
    });
}

#[test]
fn files_are_read() {
    all("read", |inputs, expect, error| {
        let compression = match inputs["compression"].as_str() {
            Some("GZIP") => Compression::Gzip,
            Some("ZLIB") => Compression::Zlib,
            _ => Compression::Plain,
        };
        let file = bytes(&inputs["file"]);
        let mut reader = RecordReader::new(file.as_slice(), "x", Some(compression)).unwrap();
        let (mut records, mut failure) = (Vec::new(), None);
        for record in reader.by_ref() {
            match record {
                Ok(record) => records.push(text(&record)),
                Err(found) => {
                    failure = Some(found);
                    break;
                }
            }
        }
        match (failure, error.as_str()) {
            (None, None) => same(&json!({"records": records}), expect),
            // TensorFlow takes the file for complete, after the same records.
            (
                Some(
                    RecordError::Truncated {
                        cut: Cut::Header, ..
                    }
                    | RecordError::Compressed { .. }
                    | RecordError::Behind { .. },
                ),
                None,
            ) => same(&json!({"records": records}), expect),
            (Some(found), Some(error)) => {
                let known = tensorflow(&found)
                    .into_iter()
                    .any(|text| error.contains(&text));
                known
                    .then_some(())
                    .ok_or(format!("{found} in place of {error}"))
            }
            (found, error) => Err(format!("{found:?} in place of {error:?}")),
        }
    });
}

/// The stable parts of TensorFlow's messages for an error.
fn tensorflow(error: &RecordError) -> Vec<String> {
    match error {
        RecordError::CorruptLength { offset: 0, .. } => {
            vec!["corrupted record at 0 (Is this even a TFRecord file?)".to_string()]
        }
        RecordError::CorruptLength { offset, .. } => vec![format!("corrupted record at {offset}")],
        RecordError::CorruptData { offset, .. } => {
            vec![format!("corrupted record at {}", offset + 12)]
        }
        RecordError::Truncated {
            offset,
            cut: Cut::Data,
            ..
        } => {
            vec![format!("truncated record at {offset}")]
        }
        RecordError::TooLong { .. } => vec![
            "record size too large".to_string(),
            "truncated record at 0".to_string(),
        ],
        RecordError::Compressed { offset, .. } => vec![
            "inflate() failed".to_string(),
            format!("truncated record at {offset}"),
        ],
        other => panic!("{other}"),
    }
}

fn feature(feature: &Feature) -> Value {
    match feature {
        Feature::Empty => Value::Null,
        Feature::Bytes(all) => {
            json!({"bytes_list": all.iter().map(|one| text(one)).collect::<Vec<_>>()})
        }
        Feature::Floats(all) => json!({"float_list": doubles(all)}),
        Feature::Ints(all) => json!({"int64_list": all}),
        other => panic!("{other:?}"),
    }
}

fn doubles(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

fn features(all: &BTreeMap<String, Feature>) -> Value {
    all.iter()
        .map(|(key, value)| (key.clone(), feature(value)))
        .collect()
}

#[test]
fn examples_are_read_and_written() {
    all("example", |inputs, expect, error| {
        match (Example::parse(&bytes(&inputs["message"])), error.as_str()) {
            (Ok(found), None) => {
                assert_eq!(Example::parse(&found.to_bytes()).as_ref(), Ok(&found));
                same(&json!({"features": features(&found.features)}), expect)
            }
            (Err(_), Some(error)) if error.contains("Error parsing message") => Ok(()),
            (found, error) => Err(format!("{found:?} in place of {error:?}")),
        }
    });
}

#[test]
fn sequence_examples_are_read_and_written() {
    all("sequence_example", |inputs, expect, error| {
        let found = SequenceExample::parse(&bytes(&inputs["message"]));
        match (found, error.as_str()) {
            (Ok(found), None) => {
                assert_eq!(
                    SequenceExample::parse(&found.to_bytes()).as_ref(),
                    Ok(&found)
                );
                let lists: Value = found
                    .lists
                    .iter()
                    .map(|(key, steps)| (key.clone(), steps.iter().map(feature).collect::<Value>()))
                    .collect();
                let found = json!({"context": features(&found.context), "lists": lists});
                same(&found, expect)
            }
            (Err(_), Some(error)) if error.contains("Error parsing message") => Ok(()),
            (found, error) => Err(format!("{found:?} in place of {error:?}")),
        }
    });
}

fn schema(spec: &Value) -> Option<Schema> {
    let all = spec.as_object().unwrap().iter();
    all.map(|(key, spec)| Some((key.clone(), feature_spec(spec)?)))
        .collect()
}

fn shape(value: &Value) -> Vec<usize> {
    serde_json::from_value(value.clone()).unwrap()
}

/// None of types that an example cannot have.
fn feature_spec(spec: &Value) -> Option<FeatureSpec> {
    let dtype = match spec["dtype"].as_str() {
        Some("int64") => DType::Int64,
        Some("float32") => DType::Float32,
        Some("string") => DType::Bytes,
        _ => return None,
    };
    if spec["variable"] == true {
        return Some(FeatureSpec::variable(dtype));
    }
    if !spec["sequence"].is_null() {
        return Some(FeatureSpec::Sequence {
            dtype,
            shape: shape(&spec["sequence"]),
            allow_missing: spec["allow_missing"] == true,
        });
    }
    if let Some(partitions) = spec["ragged"].as_array() {
        let partitions = partitions
            .iter()
            .map(|partition| match partition[0].as_str() {
                None => RowPartition::Uniform(partition.as_u64().unwrap() as usize),
                kind => {
                    let key = partition[1].as_str().unwrap().to_string();
                    match kind {
                        Some("row_splits") => RowPartition::Splits(key),
                        _ => RowPartition::Lengths(key),
                    }
                }
            });
        return Some(FeatureSpec::Ragged {
            dtype,
            value_key: spec["value_key"].as_str().map(str::to_string),
            partitions: partitions.collect(),
        });
    }
    let default = match &spec["default"] {
        Value::Null => None,
        Value::Array(all) => Some(all.clone()),
        one => Some(vec![one.clone()]),
    };
    let default = default.map(|all| match dtype {
        DType::Int64 => Values::Int64(all.iter().map(|v| v.as_i64().unwrap()).collect()),
        DType::Float32 => Values::Float32(all.iter().map(|v| v.as_f64().unwrap() as f32).collect()),
        _ => Values::Bytes(all.iter().map(|v| v.as_str().unwrap().into()).collect()),
    });
    Some(FeatureSpec::Fixed {
        dtype,
        shape: shape(&spec["fixed"]),
        default,
    })
}

fn list(values: &Values) -> Vec<Value> {
    match values {
        Values::Int64(all) => all.iter().map(|one| json!(one)).collect(),
        Values::Float32(all) => doubles(all).into_iter().map(|one| json!(one)).collect(),
        Values::Bytes(all) => all.iter().map(|one| json!(text(one))).collect(),
        other => panic!("{other:?}"),
    }
}

/// A feature as TensorFlow's array, or as nested lists. Lists of several lengths are filled up, as
/// `tf.sparse.to_dense` does, if `dense`.
fn parsed(found: &Parsed, wanted: &Value) -> Value {
    let data = list(&found.values);
    let (dtype, zero) = match found.values {
        Values::Int64(_) => ("int64", json!(0)),
        Values::Float32(_) => ("float32", json!(0.0)),
        _ => ("string", json!("")),
    };
    let Some(splits) = found.splits.last() else {
        return json!({"dtype": dtype, "shape": found.shape, "data": data});
    };
    let rows = splits.windows(2).map(|ends| &data[ends[0]..ends[1]]);
    if !wanted["ragged"].is_null() {
        return json!({"ragged": rows.collect::<Vec<_>>()});
    }
    let width = rows.clone().map(<[_]>::len).max().unwrap_or(0);
    let filled = rows.flat_map(|row| {
        let rest = vec![zero.clone(); width - row.len()];
        [row.to_vec(), rest].concat()
    });
    let data: Vec<Value> = filled.collect();
    json!({"dtype": dtype, "shape": [found.shape[0], width], "data": data})
}

fn parsed_all(found: &BTreeMap<String, Parsed>, wanted: &Value) -> Value {
    let all = found.iter();
    all.map(|(key, value)| (key.clone(), parsed(value, &wanted[key])))
        .collect()
}

/// Whether an error begins as TensorFlow's.
fn same_error(found: &ParseError, error: &str) -> Result<(), String> {
    let found = found.to_string();
    let stable = [
        "Could not parse example input",
        "Invalid protocol message input",
        "Unsupported datatype.",
        "Key: a.  Can't parse serialized Example",
        "Name: <unknown>, Feature list 't' is required but could not be found.",
        "Feature list 't' has an unexpected number of values.  Total values size: 3",
        "features cannot be empty",
        "Unsupported: FixedLenSequenceFeature requires allow_missing to be True",
    ];
    // The type of a list of any length is said in other words.
    let types = "Data types don't match.";
    let start = error.find(types).map(|at| &error[..at + types.len()]);
    let other_shape = found.starts_with("the default of") || found.contains("rows of length");
    let known = stable
        .iter()
        .any(|part| error.contains(part) && found.starts_with(part))
        || found == error
        || start.is_some_and(|start| found.starts_with(start))
        || (error.contains("Input to reshape") && other_shape);
    known
        .then_some(())
        .ok_or(format!("{found} in place of {error}"))
}

#[test]
fn examples_are_parsed_by_a_schema() {
    all("parse", |inputs, expect, error| {
        let Some(schema) = schema(&inputs["features"]) else {
            return Ok(());
        };
        let found = parse_example(&bytes(&inputs["message"]), &schema);
        match (found, error.as_str()) {
            (Ok(found), None) => same(&parsed_all(&found, expect), expect),
            // Where TensorFlow's own Python code fails.
            (Ok(_), Some(error)) if error.contains("has no attribute") => Ok(()),
            (Err(found), Some(error)) => same_error(&found, error),
            // Rows that are not there: TensorFlow drops all values.
            (Err(ParseError::Rows { .. }), None) if expect["a"]["ragged"] == json!([]) => Ok(()),
            (Err(ParseError::Rows { .. }), None) if expect["t"]["ragged"].is_array() => Ok(()),
            (found, error) => Err(format!("{found:?} in place of {error:?} {expect}")),
        }
    });
}

#[test]
fn sequence_examples_are_parsed_by_schemas() {
    all("parse_sequence", |inputs, expect, error| {
        let schemas = [&inputs["context"], &inputs["lists"]].map(|spec| schema(spec).unwrap());
        let found = parse_sequence_example(&bytes(&inputs["message"]), &schemas[0], &schemas[1]);
        match (found, error.as_str()) {
            (Ok(found), None) => {
                let context = parsed_all(&found.context, &expect["context"]);
                let lists = parsed_all(&found.lists, &expect["lists"]);
                same(&json!({"context": context, "lists": lists}), expect)
            }
            (Err(found), Some(error)) => same_error(&found, error),
            (found, error) => Err(format!("{found:?} in place of {error:?}")),
        }
    });
}
