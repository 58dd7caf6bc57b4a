//! `records.json`: TFRecord files read and written, and messages of `tf.train`.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use distribute_records::{
    Compression, Cut, DType, Example, Feature, FeatureSpec, MessageError, ParseError, Parsed,
    RecordError, RecordReader, RecordWriter, Schema, SequenceExample, Values, parse_example,
};
use serde_json::{Map, Value, json};

use super::support::expected;
use crate::case::{Case, Expected};
use crate::compare::equal;
use crate::env::Env;
use crate::json::{Fields, counts};
use crate::outcome::{Checked, Deviation, Failure, Outcome, passed};
use crate::tensors::number;

pub(super) fn check(case: &Case, _: &Env<'_>) -> Checked {
    match case.op() {
        "read" => read(case),
        "write" => write(case),
        "example" => example(case),
        "sequence_example" => sequence_example(case),
        "parse" => parse(case),
        other => Err(Failure::schema(format!("unknown operation `{other}`"))),
    }
}

fn bytes(value: &Value) -> Result<Vec<u8>, Failure> {
    let text = value.as_str().ok_or_else(|| Failure::schema("no bytes"))?;
    BASE64_STANDARD.decode(text).map_err(Failure::schema)
}

fn text(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

fn compression(case: &Case) -> Result<Compression, Failure> {
    let name = case.inputs["compression"].as_str().unwrap_or_default();
    let all = [Compression::Plain, Compression::Gzip, Compression::Zlib];
    let found = all.into_iter().find(|one| one.tensorflow_name() == name);
    found.ok_or_else(|| Failure::schema(format!("unknown compression `{name}`")))
}

fn read(case: &Case) -> Checked {
    let file = bytes(case.inputs.field("file")?)?;
    let mut reader = RecordReader::new(file.as_slice(), "file", Some(compression(case)?))?;
    let (mut records, mut failure) = (Vec::new(), None);
    for record in reader.by_ref() {
        match record {
            Ok(record) => records.push(text(&record)),
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    match (&case.expected, failure) {
        (Expected::Error { class, message }, Some(error)) => {
            same_text(class, message, "DataLossError", &tensorflow(&error), &error)
        }
        (_, Some(error)) if loses_data(&error) => {
            equal(expected(case)?.field("records")?, &json!(records))?;
            Ok(Outcome::Deviation(Deviation::CutFile))
        }
        (_, Some(error)) => Err(Failure::got(error)),
        (_, None) => passed(equal(expected(case)?, &json!({"records": records}))),
    }
}

/// Where TensorFlow takes a file for complete that is not.
fn loses_data(error: &RecordError) -> bool {
    matches!(
        error,
        RecordError::Truncated {
            cut: Cut::Header,
            ..
        } | RecordError::Compressed { .. }
            | RecordError::Behind { .. }
    )
}

/// What TensorFlow may say of an error. Of a damaged stream it says what its buffer meets first.
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
        } => vec![format!("truncated record at {offset}'")],
        RecordError::TooLong { offset, .. } => vec![
            "record size too large".to_string(),
            format!("truncated record at {offset}'"),
        ],
        RecordError::Compressed { offset, .. } => vec![
            "inflate() failed".to_string(),
            format!("truncated record at {offset}'"),
        ],
        _ => Vec::new(),
    }
}

/// Passed, if TensorFlow's error has this class and one of these texts.
fn same_text(
    class: &str,
    message: &str,
    wanted_class: &str,
    texts: &[String],
    error: &dyn std::fmt::Display,
) -> Checked {
    if class == wanted_class && texts.iter().any(|text| message.contains(text.as_str())) {
        return Ok(Outcome::Passed);
    }
    Err(Failure::new(format!("{class}: {message}"), error))
}

fn write(case: &Case) -> Checked {
    let mut writer = RecordWriter::new(Vec::new(), "file", compression(case)?);
    for record in case.inputs.list("records")? {
        writer.write(&bytes(record)?)?;
    }
    let file = writer.finish()?;
    let wanted = expected(case)?.field("file")?;
    if compression(case)? == Compression::Plain {
        return passed(equal(wanted, &json!(text(&file))));
    }
    // Other compressors give other bytes of the same content.
    let content = |file: &[u8]| {
        let records = RecordReader::new(file, "file", Some(compression(case)?))?;
        records
            .collect::<Result<Vec<_>, _>>()
            .map_err(Failure::from)
    };
    let (wanted, found) = (content(&bytes(wanted)?)?, content(&file)?);
    passed(equal(&json!(wanted), &json!(found)))
}

fn same_message(case: &Case, error: &MessageError) -> Checked {
    match &case.expected {
        Expected::Error { class, message } => {
            let texts = ["Error parsing message".to_string()];
            same_text(class, message, "DecodeError", &texts, error)
        }
        _ => Err(Failure::got(error)),
    }
}

fn example(case: &Case) -> Checked {
    let message = bytes(case.inputs.field("message")?)?;
    let found = match Example::parse(&message) {
        Ok(found) => found,
        Err(error) => return same_message(case, &error),
    };
    let again = Example::parse(&found.to_bytes())?;
    equal(&features(&found.features), &features(&again.features))?;
    let found = features(&found.features);
    passed(same_features(expected(case)?.field("features")?, &found))
}

fn sequence_example(case: &Case) -> Checked {
    let message = bytes(case.inputs.field("message")?)?;
    let found = match SequenceExample::parse(&message) {
        Ok(found) => found,
        Err(error) => return same_message(case, &error),
    };
    let wanted = expected(case)?;
    let context = features(&found.context);
    same_features(wanted.field("context")?, &context)?;
    let lists = found.lists.iter().map(|(name, steps)| {
        let steps = steps.iter().map(feature).collect();
        (name.clone(), Value::Array(steps))
    });
    passed(same_features(wanted.field("lists")?, &lists.collect()))
}

fn features(all: &BTreeMap<String, Feature>) -> Value {
    let all = all.iter().map(|(name, one)| (name.clone(), feature(one)));
    Value::Object(all.collect::<Map<_, _>>())
}

fn feature(feature: &Feature) -> Value {
    match feature {
        Feature::Bytes(all) => {
            let all: Vec<String> = all.iter().map(|one| text(one)).collect();
            json!({"bytes_list": all})
        }
        Feature::Floats(all) => json!({"float_list": all.iter().map(float).collect::<Vec<_>>()}),
        Feature::Ints(all) => json!({"int64_list": all}),
        _ => Value::Null,
    }
}

/// A float as the golden files write it.
fn float(value: &f32) -> Value {
    match value {
        value if value.is_nan() => json!("NaN"),
        value if value.is_infinite() && *value > 0.0 => json!("Infinity"),
        value if value.is_infinite() => json!("-Infinity"),
        value => json!(value),
    }
}

/// Equal values, where floats are written in any number of digits.
fn same_features(wanted: &Value, found: &Value) -> Result<(), Failure> {
    equal(&narrowed(wanted), &narrowed(found))
}

/// The same with all numbers that are no integers as `f32`.
fn narrowed(value: &Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => {
            json!(number.as_f64().unwrap_or_default() as f32)
        }
        Value::Array(all) => all.iter().map(narrowed).collect(),
        Value::Object(all) => {
            let all = all.iter().map(|(key, one)| (key.clone(), narrowed(one)));
            Value::Object(all.collect())
        }
        other => other.clone(),
    }
}

fn parse(case: &Case) -> Checked {
    let message = bytes(case.inputs.field("message")?)?;
    let specs = case.inputs["features"].as_object().into_iter().flatten();
    let specs = specs.map(|(name, spec)| Ok((name.clone(), feature_spec(spec)?)));
    let schema = specs.collect::<Result<Schema, Failure>>()?;
    let found = match parse_example(&message, &schema) {
        Ok(found) => found,
        Err(error) => return same_parse_error(case, &error),
    };
    let found = found.iter().map(|(name, one)| (name.clone(), tensor(one)));
    let found = Value::Object(found.collect());
    passed(same_features(
        &as_floats(expected(case)?),
        &as_floats(&found),
    ))
}

/// The data of float tensors as floats: JSON of Python writes `1.0`, and other writers `1`.
fn as_floats(value: &Value) -> Value {
    let mut value = value.clone();
    for one in value.as_object_mut().into_iter().flat_map(Map::values_mut) {
        if one["dtype"] == json!("float32")
            && let Some(data) = one["data"].as_array_mut()
        {
            for number in data.iter_mut() {
                if let Some(float) = number.as_f64() {
                    *number = json!(float);
                }
            }
        }
    }
    value
}

fn feature_spec(spec: &Value) -> Result<FeatureSpec, Failure> {
    let dtype = match spec.text("dtype")? {
        "int64" => DType::Int64,
        "float32" => DType::Float32,
        "string" => DType::Bytes,
        other => return Err(Failure::schema(format!("unknown type `{other}`"))),
    };
    if spec["variable"] == json!(true) {
        return Ok(FeatureSpec::variable(dtype));
    }
    let shape = |name: &str| {
        counts(&spec[name]).ok_or_else(|| Failure::schema(format!("`{name}` is no shape")))
    };
    if spec.get("sequence").is_some() {
        return Ok(FeatureSpec::sequence(dtype, shape("sequence")?));
    }
    let shape = shape("fixed")?;
    let default = match &spec["default"] {
        Value::Null => return Ok(FeatureSpec::fixed(dtype, shape)),
        Value::Array(all) => all.clone(),
        one => vec![one.clone()],
    };
    let default = match dtype {
        DType::Int64 => {
            let all = default.iter().map(|one| {
                let one = one.as_i64();
                one.ok_or_else(|| Failure::schema("a default that is no integer"))
            });
            Values::Int64(all.collect::<Result<_, _>>()?)
        }
        DType::Float32 => {
            let all = default.iter().map(|one| Ok(number(one)? as f32));
            Values::Float32(all.collect::<Result<_, Failure>>()?)
        }
        _ => Values::Bytes(default.iter().map(bytes).collect::<Result<_, _>>()?),
    };
    Ok(FeatureSpec::with_default(shape, default))
}

fn tensor(found: &Parsed) -> Value {
    let (dtype, data): (_, Vec<Value>) = match &found.values {
        Values::Int64(all) => ("int64", all.iter().map(|one| json!(one)).collect()),
        Values::Float32(all) => ("float32", all.iter().map(float).collect()),
        Values::Bytes(all) => ("string", all.iter().map(|one| json!(text(one))).collect()),
        _ => ("unknown", Vec::new()),
    };
    json!({"dtype": dtype, "shape": found.shape, "data": data})
}

fn same_parse_error(case: &Case, error: &ParseError) -> Checked {
    let Expected::Error { class, message } = &case.expected else {
        return Err(Failure::got(error));
    };
    let text = match error {
        ParseError::NotAnExample => "Could not parse example input".to_string(),
        ParseError::UnknownKind { .. } => "Unsupported datatype.".to_string(),
        ParseError::DType { key, .. } => format!("Key: {key}.  Data types don't match."),
        ParseError::Malformed { key, .. } | ParseError::Count { key, .. } => {
            format!("Key: {key}.  Can't parse serialized Example")
        }
        ParseError::Default { .. } => "Input to reshape is a tensor with".to_string(),
        other => other.to_string(),
    };
    let wanted_class = match error {
        ParseError::NoFeatures | ParseError::AllowMissing { .. } => "ValueError",
        _ => "InvalidArgumentError",
    };
    same_text(class, message, wanted_class, &[text], error)
}
