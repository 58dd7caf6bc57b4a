//! Layers that read texts give the numbers of real Keras, which `keras/texts.py` wrote down.

use std::io::Read;

use burn::tensor::{Device, Tensor, TensorData};
use distribute_keras::{
    Mode, Model, ModelError, ModelSpec, model_file, parse_keras_json, parse_weights,
};
use serde_json::{Value, json};

fn expected() -> Value {
    let text = std::fs::read_to_string(crate::folder().join("texts.expected.json"));
    serde_json::from_str(&text.unwrap()).unwrap()
}

fn unpacked(name: &str) -> Vec<u8> {
    let file = std::fs::File::open(crate::folder().join(name)).unwrap();
    let mut bytes = Vec::new();
    let mut reader = flate2::read::GzDecoder::new(file);
    reader.read_to_end(&mut bytes).unwrap();
    bytes
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn numbers(value: &Value) -> Vec<f32> {
    let numbers = list(&value["values"]).iter();
    numbers.map(|x| x.as_f64().unwrap() as f32).collect()
}

/// The rows that the model's first input makes of texts, all of one length.
fn rows(spec: &ModelSpec, texts: &Value) -> Vec<Vec<f32>> {
    let input = spec.text_input(0).unwrap().unwrap();
    let rows = list(texts).iter().map(|example| {
        let texts: Vec<&str> = list(example).iter().filter_map(Value::as_str).collect();
        input.encode(&texts).unwrap()
    });
    let mut rows: Vec<Vec<f32>> = rows.collect();
    let longest = rows.iter().map(Vec::len).max().unwrap();
    for row in &mut rows {
        assert!(input.width().is_none_or(|width| width == row.len()));
        row.resize(longest, 0.0);
    }
    rows
}

/// What a model makes of texts.
fn outputs(model: &Model, rows: Vec<Vec<f32>>) -> Vec<f32> {
    let dims = [rows.len(), rows[0].len()];
    let data = TensorData::new(rows.concat(), dims);
    let input = Tensor::<2>::from_data(data, &Device::flex());
    let output = model.forward(input, &mut Mode::Inference).unwrap();
    output.into_data().try_into_vec().unwrap()
}

fn check(name: &str, ours: &[f32], keras: &[f32]) {
    assert_eq!(ours.len(), keras.len(), "{name}");
    for (at, (ours, keras)) in ours.iter().zip(keras).enumerate() {
        let near = (ours - keras).abs() <= 1e-5 * keras.abs().max(1.0);
        assert!(near, "{name}: number {at} is {ours}, Keras has {keras}");
    }
}

#[test]
fn layers_make_the_numbers_of_keras_of_texts() {
    let expected = expected();
    for case in list(&expected["layers"]) {
        let name = case["name"].as_str().unwrap();
        let spec = parse_keras_json(case["keras3"].as_str().unwrap(), name).unwrap();
        let rows = rows(&spec, &case["texts"]);
        let plan = spec.plan(&[rows[0].len()]).unwrap();
        let shape: Vec<u64> = list(&case["outputs"]["shape"])
            .iter()
            .filter_map(Value::as_u64)
            .collect();
        let ours: Vec<u64> = plan.output().dims().iter().map(|x| *x as u64).collect();
        assert_eq!(ours, shape[1..], "{name}");
        let model = Model::initialized(&plan, 1, &Device::flex()).unwrap();
        check(name, &outputs(&model, rows), &numbers(&case["outputs"]));
    }
}

#[test]
fn a_saved_model_has_the_vocabulary_that_was_adapted() {
    let expected = expected();
    for case in list(&expected["models"]) {
        let name = case["name"].as_str().unwrap();
        let bytes = unpacked(&format!("texts.{name}.keras.gz"));
        let file = model_file(bytes.clone(), name).unwrap();
        let spec = parse_keras_json(&file.text, name).unwrap();
        let rows = rows(&spec, &case["texts"]);
        let plan = spec.plan(&[rows[0].len()]).unwrap();
        let weights = parse_weights(&bytes, "m.keras", &plan).unwrap();
        let model = Model::new(&plan, weights, &Device::flex()).unwrap();
        check(name, &outputs(&model, rows), &numbers(&case["outputs"]));
    }
}

/// A model of texts with this layer, and a `Dense` one behind it.
fn spec(class: &str, config: &Value, dtype: &str) -> Result<ModelSpec, ModelError> {
    let input = json!({ "batch_shape": [null, 1], "dtype": dtype });
    let layers = json!([
        { "class_name": "InputLayer", "config": input },
        { "class_name": class, "config": config },
        { "class_name": "Dense", "config": { "units": 2 } },
    ]);
    let model = json!({ "class_name": "Sequential", "config": { "layers": layers } });
    parse_keras_json(&model.to_string(), "m.json")
}

#[test]
fn what_cannot_be_read_is_said() {
    let refused = |class, config: Value| match spec(class, &config, "string") {
        Err(ModelError::Unsupported { found, .. }) => found[0].to_string(),
        other => panic!("{other:?}"),
    };
    let adapted = refused("TextVectorization", json!({ "output_sequence_length": 3 }));
    assert!(adapted.contains("model.save(\"model.keras\")"), "{adapted}");
    let words = json!(["a", "b"]);
    for (class, option, value) in [
        ("TextVectorization", "ragged", json!(true)),
        (
            "TextVectorization",
            "standardize",
            json!({ "class_name": "function" }),
        ),
        ("TextVectorization", "split", json!("lines")),
        ("TextVectorization", "ngrams", json!(0)),
        ("TextVectorization", "output_mode", json!("one_hot")),
        ("StringLookup", "invert", json!(true)),
        ("StringLookup", "vocabulary", json!(["a", "a"])),
        ("StringLookup", "max_tokens", json!(1)),
        ("StringLookup", "salt", json!([1, 2, 3])),
        ("IntegerLookup", "oov_method", json!("farmhash")),
        ("Hashing", "output_mode", json!("tf_idf")),
    ] {
        let vocabulary = if class == "IntegerLookup" {
            json!([1])
        } else {
            words.clone()
        };
        let mut config = json!({ "vocabulary": vocabulary });
        if class == "Hashing" {
            config = json!({ "num_bins": 3, "idf_weights": [] });
        }
        config[option] = value;
        let said = refused(class, config);
        assert!(said.contains(&format!("`{option}`")), "{option}: {said}");
    }
}

#[test]
fn texts_and_numbers_are_not_mixed_up() {
    let config = json!({ "vocabulary": ["a", "b"], "num_oov_indices": 0 });
    let numbers = spec("StringLookup", &config, "float32").unwrap();
    let error = numbers.plan(&[1]).unwrap_err().to_string();
    assert!(error.contains("dtype=\"string\""), "{error}");
    let texts = spec("StringLookup", &config, "string").unwrap();
    assert!(texts.plan(&[2]).is_err());
    assert!(texts.plan(&[1]).is_ok());
    let input = texts.text_input(0).unwrap().unwrap();
    assert_eq!(input.encode(&["b"]).unwrap(), [1.0]);
    let unknown = input.encode(&["c"]).unwrap_err().to_string();
    assert!(
        unknown.contains("\"c\"") && unknown.contains("num_oov_indices"),
        "{unknown}"
    );
    assert!(
        input
            .encode(&["a", "b"])
            .unwrap_err()
            .to_string()
            .contains("gets 2")
    );
    let read_by_dense = spec("Flatten", &json!({}), "string").unwrap();
    let error = read_by_dense.plan(&[1]).unwrap_err().to_string();
    assert!(error.contains("TextVectorization"), "{error}");
}
