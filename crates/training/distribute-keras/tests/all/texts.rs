//! Layers that read texts give the numbers of real Keras, which `keras/texts.py` wrote down.

use std::io::Read;

use burn::tensor::{DType, Device, Tensor, TensorData};
use distribute_core::Policy;
use distribute_keras::{
    Mode, Model, ModelError, ModelSpec, WeightFormat, model_file, parse_keras_json, parse_weights,
    written_weights,
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
        ("IntegerLookup", "vocabulary", json!([4, 7, 4])),
        ("IntegerLookup", "vocabulary", json!([-1, -1])),
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

/// A vocabulary of special tokens alone: every number is one of the others, or the mask.
#[test]
fn a_vocabulary_of_special_tokens_knows_no_number() {
    let config = json!({
        "vocabulary": [0, -1], "mask_token": 0, "oov_token": -1, "output_mode": "int",
    });
    let layers = json!([{ "class_name": "IntegerLookup", "config": config }]);
    let model = json!({ "class_name": "Sequential", "config": { "layers": layers } });
    let spec = parse_keras_json(&model.to_string(), "m.json").unwrap();
    let model = Model::initialized(&spec.plan(&[3]).unwrap(), 1, &Device::flex()).unwrap();
    assert_eq!(outputs(&model, vec![vec![7.0, 0.0, -1.0]]), [1.0, 0.0, 1.0]);
    let mut repeated = config;
    repeated["vocabulary"] = json!([4, 0]);
    let layers = json!([{ "class_name": "IntegerLookup", "config": repeated }]);
    let model = json!({ "class_name": "Sequential", "config": { "layers": layers } });
    let error = parse_keras_json(&model.to_string(), "m.json").unwrap_err();
    assert!(
        error.to_string().contains("use each number once"),
        "{error}"
    );
}

/// Numbers above 256, which bfloat16 does not hold, beside numbers to compute with.
#[test]
fn policies_of_16_bits_keep_numbers_of_classes() {
    let layer = |class: &str, name: &str, config: Value, from: &[&str]| {
        let nodes: Vec<Value> = from.iter().map(|from| json!([from, 0, 0, {}])).collect();
        let nodes = if nodes.is_empty() {
            json!([])
        } else {
            json!([nodes])
        };
        let mut config = config;
        config["name"] = json!(name);
        json!({ "class_name": class, "name": name, "config": config, "inbound_nodes": nodes })
    };
    let vocabulary: Vec<i64> = (250..300).collect();
    let layers = json!([
        layer(
            "InputLayer",
            "ids",
            json!({ "batch_shape": [null, 2] }),
            &[]
        ),
        layer("InputLayer", "x", json!({ "batch_shape": [null, 3] }), &[]),
        layer(
            "IntegerLookup",
            "look",
            json!({ "vocabulary": vocabulary }),
            &["ids"]
        ),
        layer(
            "CategoryEncoding",
            "code",
            json!({ "num_tokens": 51 }),
            &["look"]
        ),
        layer("Dense", "a", json!({ "units": 4 }), &["code"]),
        layer("Dense", "b", json!({ "units": 4 }), &["x"]),
        layer("Concatenate", "both", json!({}), &["a", "b"]),
        layer("Dense", "out", json!({ "units": 2 }), &["both"]),
    ]);
    let config = json!({
        "layers": layers, "input_layers": [["ids", 0, 0], ["x", 0, 0]],
        "output_layers": [["out", 0, 0]],
    });
    let text = json!({ "class_name": "Functional", "config": config }).to_string();
    let plan = parse_keras_json(&text, "m.json").unwrap();
    let plan = plan.plan_all(&[&[2], &[3]]).unwrap();
    let device = Device::flex();
    let model = Model::initialized(&plan, 1, &device).unwrap();
    assert!(model.takes_tokens());
    let given = || {
        vec![
            Tensor::from_floats([[257.0, 299.0], [259.0, 261.0]], &device),
            Tensor::from_floats([[0.5, 1.0, -0.25], [0.0, 2.0, 0.75]], &device),
        ]
    };
    let of = |model: &Model| {
        let outputs = model.forward_all(given(), &mut Mode::Inference).unwrap();
        outputs[0].clone().into_data()
    };
    let exact: Vec<f32> = of(&model).try_into_vec().unwrap();
    let mixed = of(&Policy::mixed_bfloat16().model(&model).unwrap());
    assert_ne!(mixed.dtype(), DType::F32);
    for (ours, exact) in mixed.iter::<f32>().zip(exact) {
        assert!((ours - exact).abs() < 0.05, "{ours} {exact}");
    }
}

/// The weights of a vocabulary stand where Keras reads them.
#[test]
fn a_written_model_has_the_weights_of_its_vocabulary() {
    let expected = expected();
    let mut cases = list(&expected["models"]).iter();
    let case = cases.rfind(|case| case["name"] == "weighted").unwrap();
    let bytes = unpacked("texts.weighted.keras.gz");
    let file = model_file(bytes.clone(), "weighted").unwrap();
    let spec = parse_keras_json(&file.text, "weighted").unwrap();
    let rows = rows(&spec, &case["texts"]);
    let plan = spec.plan(&[rows[0].len()]).unwrap();
    let weights = parse_weights(&bytes, "m.keras", &plan).unwrap();
    let written = written_weights(WeightFormat::WeightsH5, &plan, &weights, None).unwrap();
    let names = ["idf_weights", "_lookup_layer"];
    for name in names {
        let found = written
            .windows(name.len())
            .any(|bytes| bytes == name.as_bytes());
        assert!(found, "{name}");
    }
    assert_eq!(
        parse_weights(&written, "m.weights.h5", &plan).unwrap(),
        weights
    );
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
