//! Files whose layers do not make a graph, or make one that cannot be computed: each is an error
//! that says what, where, and what to do.

use burn::tensor::Device;
use distribute_keras::{Model, ModelError, parse_keras_json};
use rstest::rstest;
use serde_json::{Value, json};

/// A layer that receives output 0 of a call of each of these layers.
fn layer(class: &str, name: &str, config: Value, inputs: &[(&str, usize)]) -> Value {
    let tensor = |(name, node): &(&str, usize)| {
        json!({ "class_name": "__keras_tensor__",
                "config": { "keras_history": [name, node, 0] } })
    };
    let tensors: Vec<Value> = inputs.iter().map(tensor).collect();
    let nodes = match tensors.as_slice() {
        [] => json!([]),
        [one] => json!([{ "args": [one], "kwargs": {} }]),
        all => json!([{ "args": [all], "kwargs": {} }]),
    };
    json!({ "class_name": class, "config": config, "name": name, "inbound_nodes": nodes })
}

fn input(name: &str) -> Value {
    layer("InputLayer", name, json!({ "batch_shape": [null, 4] }), &[])
}

fn dense(name: &str, inputs: &[(&str, usize)]) -> Value {
    layer("Dense", name, json!({ "units": 4 }), inputs)
}

fn model(layers: &[Value], inputs: Value, outputs: Value) -> String {
    let config = json!({ "name": "m", "layers": layers, "input_layers": inputs,
                         "output_layers": outputs });
    json!({ "class_name": "Functional", "config": config }).to_string()
}

fn error(layers: &[Value], output: &str) -> ModelError {
    let text = model(layers, json!(["a", 0, 0]), json!([output, 0, 0]));
    parse_keras_json(&text, "m.json").unwrap_err()
}

#[test]
fn a_circle_is_named_by_its_layers() {
    let layers = [
        input("a"),
        layer("Add", "b", json!({}), &[("a", 0), ("d", 0)]),
        dense("c", &[("b", 0)]),
        dense("d", &[("c", 0)]),
        dense("e", &[("d", 0)]),
    ];
    let error = error(&layers, "e");
    assert!(matches!(error, ModelError::Cycle { .. }));
    insta::assert_snapshot!(error, @"m.json: the layers feed each other in a circle (c -> d -> b -> c), so none can begin; take one of these inputs away");
}

#[test]
fn a_layer_that_feeds_itself_is_a_circle() {
    let error = error(&[input("a"), dense("b", &[("b", 0)])], "b");
    insta::assert_snapshot!(error, @"m.json: the layers feed each other in a circle (b -> b), so none can begin; take one of these inputs away");
}

#[test]
fn a_layer_that_is_not_there_is_named_with_who_wants_it() {
    let missing = error(&[input("a"), dense("b", &[("x", 0)])], "b");
    assert!(matches!(missing, ModelError::MissingLayer { .. }));
    insta::assert_snapshot!(missing, @"m.json: the layer b receives output 0 of call 0 of the layer x, which is not there; the file is damaged or was edited: write it again with `model.to_json()`");
    let call = error(&[input("a"), dense("b", &[("a", 3)])], "b");
    insta::assert_snapshot!(call, @"m.json: the layer b receives output 0 of call 3 of the layer a, which is not there; the file is damaged or was edited: write it again with `model.to_json()`");
    let output = error(&[input("a"), dense("b", &[("a", 0)])], "x");
    insta::assert_snapshot!(output, @"m.json: the model's output receives output 0 of call 0 of the layer x, which is not there; the file is damaged or was edited: write it again with `model.to_json()`");
}

#[test]
fn two_layers_of_one_name_are_refused() {
    let error = error(
        &[input("a"), dense("b", &[("a", 0)]), dense("b", &[("a", 0)])],
        "b",
    );
    assert!(matches!(error, ModelError::SameName { .. }));
    insta::assert_snapshot!(error, @"m.json: two layers have the name b, so it is unclear which one an input or a weight is of; give one of them another name and write the file again");
}

#[test]
fn two_layers_of_one_name_are_refused_in_chains_and_inner_models_too() {
    let chain = |layers: Value| {
        json!({ "class_name": "Sequential", "name": "inner", "config": { "layers": layers },
                "inbound_nodes": [{ "args": [{ "class_name": "__keras_tensor__",
                    "config": { "keras_history": ["a", 0, 0] } }], "kwargs": {} }] })
    };
    let twice = chain(json!([dense("b", &[]), dense("b", &[])]));
    let alone = parse_keras_json(&twice.to_string(), "m.json").unwrap_err();
    insta::assert_snapshot!(alone, @"m.json: two layers have the name b, so it is unclear which one an input or a weight is of; give one of them another name and write the file again");
    let inside = error(&[input("a"), twice], "inner");
    assert!(
        matches!(&inside, ModelError::SameName { layer, .. } if layer == "inner/b"),
        "{inside}"
    );
}

/// Keras 2 writes a layer's inputs in another way.
#[test]
fn keras_2_files_of_no_graph_are_refused_alike() {
    let model = |first: &str, second: &str| {
        let layer = |name: &str, from: &str| {
            json!({ "class_name": "Dense", "name": name, "config": { "units": 4 },
                    "inbound_nodes": [[[from, 0, 0, {}]]] })
        };
        let a = json!({ "class_name": "InputLayer", "name": "a", "inbound_nodes": [],
                        "config": { "batch_input_shape": [null, 4] } });
        json!({ "class_name": "Functional", "keras_version": "2.15.0", "config": {
            "layers": [a, layer("b", first), layer("c", second)],
            "input_layers": [["a", 0, 0]], "output_layers": [["c", 0, 0]] } })
    };
    let error =
        |first, second| parse_keras_json(&model(first, second).to_string(), "m.json").unwrap_err();
    assert!(parse_keras_json(&model("a", "b").to_string(), "m.json").is_ok());
    insta::assert_snapshot!(error("c", "b"), @"m.json: the layers feed each other in a circle (c -> b -> c), so none can begin; take one of these inputs away");
    insta::assert_snapshot!(error("a", "x"), @"m.json: the layer c receives output 0 of call 0 of the layer x, which is not there; the file is damaged or was edited: write it again with `model.to_json()`");
}

#[test]
fn a_layer_without_a_use_is_named() {
    let error = error(
        &[input("a"), dense("b", &[("a", 0)]), dense("c", &[("b", 0)])],
        "b",
    );
    insta::assert_snapshot!(error, @"m.json: layer c: nothing that the model returns depends on it; leave it out");
}

#[rstest]
#[case::class("ConvLSTM2D", json!({ "units": 4 }), json!([]), "LSTM")]
#[case::option("Dense", json!({ "units": 4, "lora_rank": 2 }), json!([]), "`lora_rank` = 2")]
#[case::trainable("Dense", json!({ "units": 4, "trainable": 1 }), json!([]), "`trainable` = 1")]
#[case::argument("Dense", json!({ "units": 4 }), json!({ "training": true }), "`training` = true")]
#[case::mask("Dense", json!({ "units": 4 }), json!({ "mask": 3 }), "`mask` = 3")]
fn what_is_not_known_is_named_with_its_layer(
    #[case] class: &str,
    #[case] config: Value,
    #[case] arguments: Value,
    #[case] named: &str,
) {
    let mut odd = layer(class, "odd_one", config, &[("a", 0)]);
    if arguments.is_object() {
        odd["inbound_nodes"][0]["kwargs"] = arguments;
    }
    let error = error(&[input("a"), odd], "odd_one").to_string();
    assert!(
        error.contains("odd_one") && error.contains(named),
        "{error}"
    );
    assert!(error.contains("not supported"), "{error}");
}

#[test]
fn everything_that_is_not_supported_is_named_at_once() {
    let mut own = dense("mine", &[("a", 0)]);
    own["module"] = json!("my_layers");
    let argued = |name: &str| {
        let mut layer = dense(name, &[("a", 0)]);
        layer["inbound_nodes"][0]["kwargs"] = json!({ "training": true });
        layer
    };
    let odd = json!({ "units": 4, "lora_rank": 2, "use_bias": 1, "trainable": 3 });
    let layers = [
        input("a"),
        layer("Lambda", "f", json!({ "function": "4wEA" }), &[("a", 0)]),
        layer("Lambda", "g", json!({ "function": "4wEA" }), &[("f", 0)]),
        own,
        layer("Dense", "odd", odd, &[("g", 0)]),
        argued("argued"),
        layer("Unheard", "h", json!({}), &[("odd", 0)]),
    ];
    let error = error(&layers, "h");
    let ModelError::Unsupported { found, .. } = &error else {
        panic!("{error}");
    };
    let names: Vec<_> = found.iter().map(|one| one.layer.as_str()).collect();
    assert_eq!(
        names,
        ["f", "g", "mine", "odd", "odd", "odd", "h", "argued"]
    );
    let text = error.to_string();
    for part in [
        "6 layers are not supported as they are, for 8 reasons",
        "layers f (Lambda), g (Lambda): this layer",
        "this class of your own (`module` = \"my_layers\")",
        "`lora_rank` = 2",
        "`use_bias` = 1",
        "`trainable` = 3",
        "`training` = true",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn options_that_change_no_number_are_accepted() {
    let config = json!({ "units": 4, "name": "b", "dtype": "float32", "autocast": true,
        "kernel_initializer": { "class_name": "HeNormal", "config": { "seed": 3 } },
        "kernel_constraint": null, "lora_rank": null, "quantization_config": null });
    let mut first = input("a");
    first["config"] = json!({ "batch_shape": [8, 4], "dtype": "int32", "sparse": false });
    let layers = [
        first,
        layer("Dense", "b", config, &[("a", 0)]),
        layer(
            "Dropout",
            "c",
            json!({ "rate": 0.5, "seed": 7 }),
            &[("b", 0)],
        ),
    ];
    let text = model(&layers, json!(["a", 0, 0]), json!(["c", 0, 0]));
    let plan = parse_keras_json(&text, "m.json").unwrap().plan(&[4]);
    assert_eq!(plan.unwrap().parameters(), 20);
}

#[test]
fn operations_that_would_mix_examples_are_refused() {
    let operation = |class: &str, config: Value, second: Value| {
        let mut op = layer(class, "x", config, &[("a", 0)]);
        op["module"] = json!("keras.src.ops.numpy");
        if !second.is_null() {
            let arguments = op["inbound_nodes"][0]["args"].as_array_mut().unwrap();
            arguments.push(second);
        }
        let text = model(&[input("a"), op], json!(["a", 0, 0]), json!(["x", 0, 0]));
        parse_keras_json(&text, "m.json").and_then(|spec| spec.plan(&[4]).map(|_| ()))
    };
    operation("Add", json!({}), json!(2)).unwrap();
    for (class, config, second, reason) in [
        (
            "Mean",
            json!({ "axis": 0 }),
            json!(null),
            "axis of the batch",
        ),
        (
            "Mean",
            json!({ "axis": null }),
            json!(null),
            "axis of the batch",
        ),
        ("GetItem", json!({}), json!([0]), "out of the batch"),
        (
            "GetItem",
            json!({}),
            json!([{ "class_name": "__slice__", "config": {} }, 9]),
            "position 9",
        ),
        (
            "Reshape",
            json!({ "newshape": [3, -1] }),
            json!(null),
            "batch",
        ),
        (
            "Reshape",
            json!({ "newshape": [-1, 3] }),
            json!(null),
            "another number",
        ),
        ("Add", json!({}), json!([1, 2, 3]), "4 and 3"),
        ("Fft", json!({}), json!(null), "this operation"),
    ] {
        let error = operation(class, config, second).unwrap_err().to_string();
        assert!(error.contains(reason), "{class}: {error}");
    }
}

#[test]
fn padding_that_a_sum_or_a_list_would_read_is_refused() {
    for (class, config, inputs) in [
        ("Add", json!({}), [("e", 0), ("f", 0)]),
        ("Concatenate", json!({ "axis": 1 }), [("e", 0), ("e", 0)]),
    ] {
        let last = layer(class, "last", config, &inputs);
        let table = |mask| json!({ "input_dim": 9, "output_dim": 3, "mask_zero": mask });
        let layers = [
            input("a"),
            layer("Embedding", "e", table(true), &[("a", 0)]),
            layer("Embedding", "f", table(false), &[("a", 0)]),
            last,
            layer(
                "Concatenate",
                "z",
                json!({ "axis": 1 }),
                &[("last", 0), ("f", 0)],
            ),
        ];
        let text = model(&layers, json!(["a", 0, 0]), json!(["z", 0, 0]));
        let spec = parse_keras_json(&text, "m.json").unwrap();
        let error = spec.plan(&[4]).unwrap_err().to_string();
        assert!(
            error.contains("layer last") && error.contains("mask_zero=False"),
            "{error}"
        );
    }
}

#[rstest]
#[case("Concatenate", json!({ "axis": 3 }), &["a", "b"], "axis")]
#[case("Add", json!({}), &["a", "b"], "fit each other")]
#[case("Multiply", json!({}), &["a", "c"], "one rank")]
#[case("Add", json!({}), &["a"], "two values or more")]
#[case("Subtract", json!({}), &["a", "a", "a"], "two values, gets 3")]
#[case("Reshape", json!({ "target_shape": [3, -1] }), &["a"], "4 values")]
#[case("BatchNormalization", json!({ "axis": 2 }), &["a"], "axis")]
#[case("Rescaling", json!({ "scale": [1, 2] }), &["a"], "2 values")]
#[case("MultiHeadAttention", json!({ "num_heads": 1, "key_dim": 1 }), &["a"], "a query and a value")]
fn shapes_that_do_not_fit_are_named(
    #[case] class: &str,
    #[case] config: Value,
    #[case] inputs: &[&str],
    #[case] reason: &str,
) {
    let inputs: Vec<(&str, usize)> = inputs.iter().map(|name| (*name, 0)).collect();
    let layers = [
        input("a"),
        layer("Dense", "b", json!({ "units": 3 }), &[("a", 0)]),
        layer(
            "Reshape",
            "c",
            json!({ "target_shape": [2, 2] }),
            &[("a", 0)],
        ),
        layer("Flatten", "d", json!({}), &[("c", 0)]),
        layer(class, "x", config, &inputs),
        layer("Flatten", "e", json!({}), &[("x", 0)]),
        layer(
            "Concatenate",
            "f",
            json!({}),
            &[("b", 0), ("d", 0), ("e", 0)],
        ),
    ];
    let text = model(&layers, json!(["a", 0, 0]), json!(["f", 0, 0]));
    let spec = parse_keras_json(&text, "m.json").unwrap();
    let error = spec.plan(&[4]).unwrap_err();
    assert!(
        matches!(&error, ModelError::Shape { layer, .. } if layer == "x"),
        "{error}"
    );
    assert!(error.to_string().contains(reason), "{error}");
}

#[test]
fn a_layer_cannot_be_shared_by_values_of_different_widths() {
    let mut shared = dense("b", &[("a", 0)]);
    let again = layer("Dense", "", json!({}), &[("c", 0)])["inbound_nodes"][0].clone();
    shared["inbound_nodes"].as_array_mut().unwrap().push(again);
    let layers = [
        input("a"),
        shared,
        layer("Dense", "c", json!({ "units": 3 }), &[("a", 0)]),
        layer("Add", "d", json!({}), &[("b", 0), ("b", 1)]),
    ];
    let text = model(&layers, json!(["a", 0, 0]), json!(["d", 0, 0]));
    let spec = parse_keras_json(&text, "m.json").unwrap();
    insta::assert_snapshot!(spec.plan(&[4]).unwrap_err(), @"m.json: layer b (Dense): it is called on values of different widths, (3) among them, and has its weights once; use a layer for each");
}

#[test]
fn a_small_file_cannot_be_a_model_without_end() {
    let mut inner = dense("d", &[("a", 0)]);
    for _ in 0..18 {
        let text = model(
            &[
                input("a"),
                inner,
                layer("Add", "s", json!({}), &[("d", 0), ("d", 1)]),
            ],
            json!(["a", 0, 0]),
            json!(["s", 0, 0]),
        );
        let mut model: Value = serde_json::from_str(&text).unwrap();
        model["name"] = json!("d");
        let call = &layer("", "", json!({}), &[("a", 0)])["inbound_nodes"][0];
        model["inbound_nodes"] = json!([call, call]);
        if let Value::Array(layers) = &mut model["config"]["layers"] {
            let twice = &mut layers[1]["inbound_nodes"];
            *twice = json!([call, call]);
        }
        inner = model;
    }
    let error = parse_keras_json(&inner.to_string(), "m.json").unwrap_err();
    assert!(
        error.to_string().contains("more than 65536 calls"),
        "{error}"
    );
}

#[test]
fn weights_of_another_model_are_named() {
    let layers = [input("a"), dense("b", &[("a", 0)])];
    let text = model(&layers, json!(["a", 0, 0]), json!(["b", 0, 0]));
    let plan = parse_keras_json(&text, "m.json")
        .unwrap()
        .plan(&[4])
        .unwrap();
    let weights = |shapes: &[&[usize]]| {
        let weight = |shape: &&[usize]| distribute_keras::Weight {
            shape: shape.to_vec(),
            values: vec![0.0; shape.iter().product()],
        };
        shapes.iter().map(weight).collect()
    };
    let device = Device::flex();
    let few = Model::new(&plan, weights(&[&[4, 4]]), &device).unwrap_err();
    insta::assert_snapshot!(few, @"m.json: 1 weights were given, the model has 2; use the weights of the same model (`model.get_weights()`)");
    let many = Model::new(&plan, weights(&[&[4, 4], &[4], &[4]]), &device).unwrap_err();
    insta::assert_snapshot!(many, @"m.json: 3 weights were given, the model has 2; use the weights of the same model (`model.get_weights()`)");
    let other = Model::new(&plan, weights(&[&[4, 4], &[3]]), &device).unwrap_err();
    insta::assert_snapshot!(other, @"m.json: weight 1 has the shape [3], where b/bias of the model has [4]; use the weights of the same model (`model.get_weights()`)");
}
