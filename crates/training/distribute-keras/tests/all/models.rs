//! Model files written by real Keras: shapes, parameter counts, outputs and losses agree with the
//! numbers that Keras printed. `keras/generate.py` wrote the files.

use burn::tensor::{Device, Tensor, TensorData};
use distribute_keras::{Mode, Model, ModelError, Weight, parse_keras_json, read_keras_json};
use rstest::rstest;
use serde_json::Value;

use crate::folder;

fn expected(name: &str) -> Value {
    let text = std::fs::read_to_string(folder().join(format!("{name}.expected.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn usizes(value: &Value) -> Vec<usize> {
    let list = value.as_array().unwrap().iter();
    list.map(|x| x.as_u64().unwrap() as usize).collect()
}

fn weight(value: &Value) -> Weight {
    let values = value["values"].as_array().unwrap().iter();
    Weight {
        shape: usizes(&value["shape"]),
        values: values.map(|x| x.as_f64().unwrap() as f32).collect(),
    }
}

#[rstest]
fn shapes_and_parameters_are_those_of_keras(
    #[values(
        "documents_cnn",
        "same_padding",
        "flatten_order",
        "ends_with_flatten",
        "text"
    )]
    name: &str,
    #[values("keras3", "keras2")] version: &str,
) {
    let expected = expected(name);
    let spec = read_keras_json(folder().join(format!("{name}.{version}.json"))).unwrap();
    let declared: Vec<usize> = spec.inputs[0]
        .shape
        .iter()
        .flatten()
        .map(|x| x.unwrap())
        .collect();
    let plan = spec.plan(&declared).unwrap();
    let layers = expected["layers"].as_array().unwrap();
    assert_eq!(plan.layers.len(), layers.len());
    for ((ours, call), keras) in plan.layers.iter().zip(&plan.calls).zip(layers) {
        assert_eq!(ours.spec.class(), keras["class"]);
        assert_eq!(call.output.dims(), usizes(&keras["output_shape"]));
        assert_eq!(ours.parameters() as u64, keras["parameters"]);
    }
    assert_eq!(plan.parameters() as u64, expected["parameters"]);
}

#[rstest]
fn outputs_and_losses_are_those_of_keras(
    #[values("same_padding", "flatten_order", "ends_with_flatten", "text")] name: &str,
    #[values("keras3", "keras2")] version: &str,
) {
    let expected = expected(name);
    let spec = read_keras_json(folder().join(format!("{name}.{version}.json"))).unwrap();
    let input = weight(&expected["input"]);
    let plan = spec.plan(&input.shape[1..]).unwrap();
    let weights = expected["weights"].as_array().unwrap();
    let device = Device::flex().autodiff();
    let model = Model::new(&plan, weights.iter().map(weight).collect(), &device).unwrap();

    let [batch, values] = [input.shape[0], plan.input().elements()];
    let data = TensorData::new(input.values, [batch, values]);
    let input = Tensor::<2>::from_data(data, &device);
    let output = model.forward(input, &mut Mode::Inference).unwrap();
    let keras = weight(&expected["output"]);
    assert_eq!(output.dims().to_vec(), keras.shape);
    let output = output.into_data().try_into_vec::<f32>().unwrap();
    for (ours, theirs) in output.iter().zip(&keras.values) {
        assert!((ours - theirs).abs() <= 1e-5, "{ours} {theirs}");
    }

    let loss = model.regularization_loss();
    let loss = loss.map_or(0.0, |loss| f64::from(loss.into_scalar::<f32>()));
    let keras = expected["regularization_loss"].as_f64().unwrap();
    assert!(
        (loss - keras).abs() <= 1e-5 * keras.max(1.0),
        "{loss} {keras}"
    );
}

#[test]
fn the_documents_cnn_is_the_built_in_mnist_cnn() {
    let mut file = read_keras_json(folder().join("documents_cnn.keras3.json")).unwrap();
    let built_in = distribute_keras::built_in("mnist-cnn", 10, 0).unwrap();
    file.name.clone_from(&built_in.name);
    file.inputs.clone_from(&built_in.inputs);
    assert_eq!(file, built_in);
}

/// What a change of one value in a real file is answered with.
#[rstest]
#[case("\"valid\"", "\"causal\"", "padding")]
#[case("\"channels_last\"", "\"channels_middle\"", "data_format")]
#[case("\"Flatten\"", "\"Unheard\"", "layer")]
#[case("\"relu\"", "\"my_function\"", "activation")]
#[case("\"GlorotUniform\"", "\"MyInitializer\"", "initializer")]
#[case(
    "\"class_name\": \"L2\"",
    "\"class_name\": \"Orthogonal\"",
    "regularizer"
)]
#[case("\"l2\": 1e-05", "\"l2\": -1e-05", "negative_regularizer")]
#[case("\"filters\": 32", "\"filters\": -32", "size")]
#[case(
    "\"bias_constraint\": null",
    "\"bias_constraint\": {\"a\": 1}",
    "constraint"
)]
#[case("\"name\": \"float32\"", "\"name\": \"mixed_float16\"", "dtype")]
#[case(
    "\"class_name\": \"Sequential\"",
    "\"class_name\": \"MyModel\"",
    "model"
)]
#[case("{", "[", "not_json")]
fn what_is_not_supported_is_named(#[case] from: &str, #[case] to: &str, #[case] name: &str) {
    let text = std::fs::read_to_string(folder().join("documents_cnn.keras3.json")).unwrap();
    assert!(text.contains(from));
    // The root's own dtype is not looked at: change them all.
    let changed = match name {
        "dtype" => text.replace(from, to),
        _ => text.replacen(from, to, 1),
    };
    let error = parse_keras_json(&changed, "model.json").unwrap_err();
    insta::assert_snapshot!(format!("unsupported_{name}"), error);
}

#[test]
fn layers_that_do_not_fit_are_named_with_their_shapes() {
    let spec = read_keras_json(folder().join("documents_cnn.keras3.json")).unwrap();
    let error = spec.plan(&[8, 8]).unwrap_err();
    insta::assert_snapshot!(error, @"documents_cnn.keras3.json is made for inputs of shape (28, 28, 1), the data has (8, 8); choose another model or data set");
    let mut any = spec.clone();
    any.inputs[0].shape = Some(vec![None, None, Some(1)]);
    let error = any.plan(&[4, 8]).unwrap_err();
    insta::assert_snapshot!(error, @"documents_cnn.keras3.json: layer conv2d_1 (Conv2D): a window of (3, 3) does not fit into (1, 3); remove a pool or use larger images");
    assert!(any.plan(&[20, 30]).is_ok());
    let mut twice = any;
    twice.calls[2].inputs = vec![0, 1];
    let error = twice.plan(&[20, 30]).unwrap_err();
    insta::assert_snapshot!(error, @"documents_cnn.keras3.json: layer conv2d_1 (Conv2D): needs one value, gets 2");
}

#[test]
fn weights_of_another_model_are_refused() {
    let spec = read_keras_json(folder().join("flatten_order.keras3.json")).unwrap();
    let plan = spec.plan(&[5, 4, 2]).unwrap();
    let weights = expected("text")["weights"].as_array().unwrap().clone();
    let weights: Vec<Weight> = weights.iter().map(weight).collect();
    let error = Model::new(&plan, weights, &Device::flex()).unwrap_err();
    assert!(matches!(error, ModelError::Weights { .. }), "{error}");
}
