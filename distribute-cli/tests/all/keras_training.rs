//! What a model file ends with decides how the program trains it.

use std::fs;

use serde_json::{Value, json};

use crate::common::{last_event, run, succeed};

fn layer(class: &str, config: Value) -> Value {
    json!({ "class_name": class, "config": config })
}

fn model(layers: &[Value]) -> String {
    json!({ "class_name": "Sequential", "config": { "layers": layers } }).to_string()
}

fn dense(units: usize, activation: impl Into<Value>) -> Value {
    layer(
        "Dense",
        json!({ "units": units, "activation": activation.into() }),
    )
}

/// The digits, five steps: the weights' hash.
fn trained(layers: &[Value]) -> String {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("m.json"), model(layers)).unwrap();
    let train = "train --model m.json --replicas 2 --steps 5 --output json";
    let done = last_event(&succeed(folder.path(), train));
    done["weights_sha256"].as_str().unwrap().to_string()
}

#[test]
fn a_softmax_trains_alike_wherever_it_stands() {
    let flatten = || layer("Flatten", json!({}));
    let logits = trained(&[flatten(), dense(10, "linear")]);
    let nothing = || layer("Dropout", json!({ "rate": 0.0 }));
    assert_eq!(
        trained(&[flatten(), dense(10, "softmax"), nothing()]),
        logits
    );
    assert_eq!(
        trained(&[flatten(), dense(10, "softmax"), flatten()]),
        logits
    );
    let per_class = trained(&[flatten(), dense(10, "sigmoid")]);
    assert_ne!(per_class, logits);
    assert_eq!(
        trained(&[flatten(), dense(10, "sigmoid"), nothing()]),
        per_class
    );
}

#[test]
fn a_bounded_relu_trains_another_model_than_a_plain_one() {
    let with = |activation: Value| {
        let first = dense(8, activation);
        trained(&[layer("Flatten", json!({})), first, dense(10, "linear")])
    };
    let plain = with(json!("relu"));
    assert_eq!(with(layer("ReLU", json!({ "name": "relu" }))), plain);
    let bounded = with(layer("ReLU", json!({ "name": "relu", "max_value": 0.05 })));
    assert_ne!(bounded, plain);
}

#[test]
fn training_refuses_a_head_without_a_loss() {
    let folder = tempfile::tempdir().unwrap();
    let layers = [
        layer("Flatten", json!({})),
        dense(10, "softmax"),
        layer("Dropout", json!({ "rate": 0.5 })),
    ];
    fs::write(folder.path().join("m.json"), model(&layers)).unwrap();
    let finished = run(folder.path(), "train --model m.json --steps 1");
    assert_eq!(finished.code, Some(2));
    insta::assert_snapshot!(finished.stderr, @"error: m.json: layer dense (Dense): Dropout follows a softmax, so the outputs are neither logits nor the probabilities that the loss wants; make the softmax the last layer");
}

/// A normalized convolution beside its input, both flattened into a softmax: no chain.
fn residual() -> String {
    let received = |name: &str| json!({ "class_name": "__keras_tensor__", "config": { "keras_history": [name, 0, 0] } });
    let named = |class: &str, name: &str, config: Value, arguments: Value| {
        let nodes = json!([{ "args": [arguments], "kwargs": {} }]);
        json!({ "class_name": class, "name": name, "config": config, "inbound_nodes": nodes })
    };
    let conv = json!({ "filters": 4, "kernel_size": 3, "padding": "same", "activation": "relu" });
    let layers = json!([
        { "class_name": "InputLayer", "name": "a", "inbound_nodes": [],
          "config": { "batch_shape": [null, 8, 8, 1] } },
        named("Conv2D", "b", conv, received("a")),
        named("BatchNormalization", "n", json!({ "scale": false }), received("b")),
        named("Add", "c", json!({}), json!([received("a"), received("n")])),
        named("Flatten", "d", json!({}), received("c")),
        named("Dense", "e", json!({ "units": 10, "activation": "softmax" }), received("d")),
    ]);
    let config = json!({ "layers": layers, "input_layers": ["a", 0, 0],
                         "output_layers": ["e", 0, 0] });
    json!({ "class_name": "Functional", "config": config }).to_string()
}

#[test]
fn a_graph_trains_and_its_checkpoint_is_evaluated_without_the_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("m.json"), residual()).unwrap();
    let train = "train --model m.json --replicas 2 --epochs 5 --seed 3 --checkpoint-dir c \
                 --output json";
    let done = last_event(&succeed(folder.path(), train));
    let accuracy = done["val_accuracy"].as_f64().unwrap();
    assert!(accuracy > 0.7, "{accuracy}");
    fs::remove_file(folder.path().join("m.json")).unwrap();
    let evaluated = succeed(folder.path(), "evaluate --checkpoint-dir c --output json");
    let again = last_event(&evaluated)["accuracy"].as_f64().unwrap();
    assert!((again - accuracy).abs() < 1e-6, "{again} {accuracy}");
}
