//! What a model file ends with decides how the program trains it.

use std::fs;
use std::path::Path;

use distribute_core::checkpoint::load_latest;
use rstest::rstest;
use serde_json::{Value, json};

use crate::common::{self, Process, last_event, run, succeed};
use crate::job;

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

/// A convolution and two normalizations that are not trained, and a `Dense` layer that is.
fn frozen(trainable: bool) -> String {
    let fixed = |class: &str, mut config: Value| {
        config["trainable"] = json!(trainable);
        layer(class, config)
    };
    let regularizer = json!({ "class_name": "L2", "config": { "l2": 0.01 } });
    let conv = json!({ "filters": 4, "kernel_size": 3, "activation": "relu",
                       "kernel_regularizer": regularizer });
    model(&[
        fixed("Conv2D", conv),
        fixed("BatchNormalization", json!({ "momentum": 0.5 })),
        fixed("LayerNormalization", json!({})),
        layer("Flatten", json!({})),
        dense(10, "softmax"),
    ])
}

/// The weights in the newest checkpoint, by name.
fn saved(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let (_, checkpoint) = load_latest(folder).unwrap().found.unwrap();
    let tensors = checkpoint.tensors.into_iter();
    let weights = tensors.filter(|(name, _)| name.starts_with("model/"));
    weights
        .map(|(name, data)| (name, data.as_bytes().to_vec()))
        .collect()
}

/// Trains in a folder for this number of steps.
fn train_frozen(folder: &Path, strategy: &str, steps: usize) -> Vec<(String, Vec<u8>)> {
    let flags = format!(
        "train --model m.json --steps {steps} --optimizer adamw --weight-decay 0.1 --ema 0.9 \
         --checkpoint-dir {strategy}-{steps} --strategy {strategy}"
    );
    match strategy {
        "multi-worker" => drop(job::succeed(folder, 2, &format!("{flags} --output json"))),
        "parameter-server" => {
            let mut launch = common::plain(folder);
            launch.args(["launch", "--ps", "1", "--workers", "1", "--"]);
            launch.arg(assert_cmd::cargo::cargo_bin("distribute-cli"));
            launch.args(flags.replace("--ema 0.9", "").split_whitespace());
            let ended = Process::start(&mut launch, &[]).finish();
            assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        }
        "default" | "one-device" => drop(succeed(folder, &flags)),
        _ => drop(succeed(folder, &format!("{flags} --replicas 2"))),
    }
    saved(&folder.join(format!("{strategy}-{steps}")))
}

#[rstest]
fn frozen_layers_keep_their_weights_under_every_strategy(
    #[values(
        "default",
        "one-device",
        "mirrored",
        "central-storage",
        "multi-worker",
        "parameter-server"
    )]
    strategy: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("m.json"), frozen(false)).unwrap();
    let [few, many] = [2, 5].map(|steps| train_frozen(folder.path(), strategy, steps));
    assert_eq!(few.len(), many.len());
    assert_eq!(few.len(), 10, "frozen weights and statistics are saved");
    for ((name, few), (_, many)) in few.iter().zip(&many) {
        let is_last = name.contains("layers.4");
        assert_eq!(few != many, is_last, "{name}");
    }
    let trained = |steps| {
        fs::write(folder.path().join("m.json"), frozen(true)).unwrap();
        train_frozen(folder.path(), strategy, steps)
    };
    let changed = trained(3).into_iter().zip(&few);
    let changed = changed.filter(|((_, trained), (_, frozen))| trained != frozen);
    assert_eq!(changed.count(), 10, "the same model, trained, changes all");
}

#[test]
fn a_model_with_nothing_to_train_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut all: Value = serde_json::from_str(&frozen(true)).unwrap();
    all["config"]["trainable"] = json!(false);
    fs::write(folder.path().join("m.json"), all.to_string()).unwrap();
    let finished = run(folder.path(), "train --model m.json --steps 1");
    assert_eq!(finished.code, Some(2));
    insta::assert_snapshot!(finished.stderr, @"error: m.json: there is nothing to train; set `trainable` of a layer with weights, and of the models around it, to true");
}

#[test]
fn a_model_with_several_outputs_needs_data_with_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let mut model: Value = serde_json::from_str(&residual()).unwrap();
    model["config"]["output_layers"] = json!([["e", 0, 0], ["d", 0, 0]]);
    fs::write(folder.path().join("m.json"), model.to_string()).unwrap();
    let finished = run(folder.path(), "train --model m.json --steps 1");
    assert_eq!(finished.code, Some(2));
    insta::assert_snapshot!(finished.stderr, @"error: m.json: digits has one array of inputs and one of labels; name csv:FILE, with columns, or npz:FILE, with arrays, that are called as the inputs and outputs");
}

/// The same global batches in other parts: of the digits the last one is short, and leaves a
/// replica of eight without examples.
#[test]
fn synchronized_statistics_do_not_depend_on_the_number_of_replicas() {
    let folder = tempfile::tempdir().unwrap();
    let normalization = json!({ "synchronized": true, "momentum": 0.5 });
    let text = model(&[
        layer(
            "Conv2D",
            json!({ "filters": 4, "kernel_size": 3, "activation": "relu" }),
        ),
        layer("BatchNormalization", normalization),
        layer("Flatten", json!({})),
        dense(10, "softmax"),
    ]);
    fs::write(folder.path().join("m.json"), text).unwrap();
    let losses = |replicas: usize| {
        let train = format!(
            "train --model m.json --replicas {replicas} --batch-size {} --epochs 1 --output json",
            16 / replicas
        );
        let done = last_event(&succeed(folder.path(), &train));
        done["val_loss"].as_f64().unwrap()
    };
    let one = losses(1);
    for replicas in [2, 4, 8] {
        let loss = losses(replicas);
        assert!((loss - one).abs() < 2e-4, "{replicas}: {loss} {one}");
    }
}
