//! Every option of Keras' layers is honoured or refused by name, and what a model ends with
//! decides its loss.

use burn::tensor::{Device, Tensor};
use distribute_keras::{Head, Loss, Mode, Model, ModelError, parse_keras_json};
use rstest::rstest;
use serde_json::{Value, json};

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

fn unsupported(layers: &[Value]) -> String {
    match parse_keras_json(&model(layers), "m.json").unwrap_err() {
        ModelError::Unsupported { found, .. } => found[0].what.clone(),
        other => panic!("{other}"),
    }
}

/// What an activation makes of these numbers, in a layer of its own and inside another layer.
fn activated(activation: &Value, x: &[f32]) -> Vec<f32> {
    let identity = json!({ "units": x.len(), "kernel_initializer": "ones", "use_bias": false });
    let outputs = [true, false].map(|inside| {
        let mut first = layer("Dense", identity.clone());
        let layers = if inside {
            first["config"]["activation"] = activation.clone();
            vec![first]
        } else {
            vec![first, activation.clone()]
        };
        let spec = parse_keras_json(&model(&layers), "m.json").unwrap();
        let plan = spec.plan(&[1]).unwrap();
        let model = Model::initialized(&plan, 1, &Device::flex()).unwrap();
        let mut all = Vec::new();
        for x in x {
            let input = Tensor::<2>::from_data([[*x]], &Device::flex());
            let output = model
                .forward(input, &mut Mode::Inference)
                .unwrap()
                .into_data();
            all.push(output.try_to_vec::<f32>().unwrap()[0]);
        }
        all
    });
    let [inside, own] = outputs;
    assert_eq!(inside, own);
    own
}

/// The numbers are those that Keras 3's layers give.
#[rstest]
#[case("ReLU", json!({ "name": "relu", "max_value": 0.05 }), [0.0, 0.0, 0.0, 0.03, 0.05])]
#[case("ReLU", json!({ "name": "relu" }), [0.0, 0.0, 0.0, 0.03, 2.0])]
#[case("ReLU", json!({ "negative_slope": 0.5 }), [-1.0, -0.01, 0.0, 0.03, 2.0])]
#[case("ReLU", json!({ "threshold": 1.0 }), [0.0, 0.0, 0.0, 0.0, 2.0])]
#[case(
    "ReLU",
    json!({ "max_value": 1.5, "negative_slope": 0.1, "threshold": 1.0 }),
    [-0.3, -0.102, -0.1, -0.097, 1.5]
)]
#[case("LeakyReLU", json!({ "name": "relu", "negative_slope": 0.9 }), [-1.8, -0.018, 0.0, 0.03, 2.0])]
#[case("LeakyReLU", json!({}), [-0.6, -0.006, 0.0, 0.03, 2.0])]
#[case("LeakyReLU", json!({ "alpha": 0.25 }), [-0.5, -0.005, 0.0, 0.03, 2.0])]
#[case("ELU", json!({ "alpha": 2.0 }), [-1.729_329_5, -0.039_602_65, 0.0, 0.03, 2.0])]
#[case("Activation", json!({ "activation": "leaky_relu" }), [-0.4, -0.004, 0.0, 0.03, 2.0])]
fn activations_have_their_options(
    #[case] class: &str,
    #[case] config: Value,
    #[case] expected: [f32; 5],
) {
    let found = activated(&layer(class, config), &[-2.0, -0.02, 0.0, 0.03, 2.0]);
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
}

#[rstest]
#[case(json!({ "max_value": -1.0 }), "activation.max_value")]
#[case(json!({ "negative_slope": "0.1" }), "activation.negative_slope")]
#[case(json!({ "dtype": "float16" }), "activation.dtype")]
#[case(json!({ "trainable": "no" }), "activation.trainable")]
#[case(json!({ "a_later_option": false }), "activation.a_later_option")]
fn options_of_an_activation_are_refused_by_name(#[case] config: Value, #[case] name: &str) {
    let what = unsupported(&[dense(3, layer("ReLU", config))]);
    assert!(what.starts_with(&format!("option `{name}` = ")), "{what}");
}

#[rstest]
#[case("Dense", json!({ "units": 3, "a_later_option": 0 }), "a_later_option")]
#[case("Dense", json!({ "units": 3, "activity_regularizer": "l3" }), "activity_regularizer")]
#[case("Dense", json!({ "units": 3, "kernel_constraint": "radial" }), "kernel_constraint")]
#[case(
    "Dense",
    json!({ "units": 3, "bias_constraint": { "class_name": "MinMaxNorm",
            "config": { "min_value": 2.0, "max_value": 1.0 } } }),
    "bias_constraint.min_value"
)]
#[case(
    "MultiHeadAttention",
    json!({ "num_heads": 2, "key_dim": 4, "activity_regularizer": "l2" }),
    "activity_regularizer"
)]
#[case("Dense", json!({ "units": 3, "data_format": "channels_last" }), "data_format")]
#[case("Dense", json!({ "units": 3, "dtype": 32 }), "dtype")]
#[case(
    "Dense",
    json!({ "units": 3, "dtype": { "class_name": "QuantizedDTypePolicy",
            "config": { "mode": "int8", "source_name": "float32" } } }),
    "dtype"
)]
#[case(
    "Dense",
    json!({ "units": 3, "kernel_regularizer": { "class_name": "L2",
            "config": { "l2": 0.1, "l1": 0.1 } } }),
    "kernel_regularizer.l1"
)]
#[case(
    "Dense",
    json!({ "units": 3, "kernel_initializer": { "class_name": "VarianceScaling",
            "config": { "distribution": "untruncated_normal" } } }),
    "kernel_initializer.distribution"
)]
#[case(
    "Dense",
    json!({ "units": 3, "activation": { "module": "mine", "class_name": "ReLU", "config": {},
            "registered_name": "mine>ReLU" } }),
    "activation.module"
)]
#[case("Dropout", json!({ "rate": 0.5, "noise_shape": [1, 3] }), "noise_shape")]
#[case("BatchNormalization", json!({ "synchronized": "yes" }), "synchronized")]
#[case("BatchNormalization", json!({ "renorm": true }), "renorm")]
#[case("BatchNormalization", json!({ "momentum": 1.5 }), "momentum")]
#[case("BatchNormalization", json!({ "epsilon": 0.0 }), "epsilon")]
#[case("Normalization", json!({ "invert": 1 }), "invert")]
#[case("Normalization", json!({ "mean": 1.0 }), "mean")]
#[case("MultiHeadAttention", json!({ "num_heads": 2, "key_dim": 4, "attention_axes": [2] }),
    "attention_axes")]
#[case("MultiHeadAttention", json!({ "num_heads": 2, "key_dim": 4, "use_gate": true }),
    "use_gate")]
#[case("MultiHeadAttention", json!({ "num_heads": 2, "key_dim": 4, "sliding_window": 3 }),
    "sliding_window")]
#[case("ZeroPadding2D", json!({ "padding": [[1, 2], [3]] }), "padding")]
#[case("Cropping2D", json!({ "cropping": -1 }), "cropping")]
#[case("Reshape", json!({ "target_shape": [-1, -1] }), "target_shape")]
#[case("Rescaling", json!({ "scale": "x" }), "scale")]
#[case("DepthwiseConv2D", json!({ "kernel_size": 3, "groups": 2 }), "groups")]
#[case("SeparableConv2D", json!({ "filters": 3, "kernel_size": 3, "depthwise_constraint": "x" }),
    "depthwise_constraint")]
#[case("Concatenate", json!({ "axis": "last" }), "axis")]
#[case("Softmax", json!({ "axis": [1, 2] }), "axis")]
#[case("Dense", json!({ "units": 3, "bias_regularizer": "l3" }), "bias_regularizer")]
#[case("Resizing", json!({ "height": 3, "width": 3, "pad_to_aspect_ratio": true }), "pad_to_aspect_ratio")]
#[case("RandomZoom", json!({ "height_factor": "x" }), "height_factor")]
#[case("CategoryEncoding", json!({ "num_tokens": 3, "output_mode": "x" }), "output_mode")]
#[case("Discretization", json!({ "bin_boundaries": [2.0, 1.0] }), "bin_boundaries")]
#[case("EinsumDense", json!({ "equation": "aa,b->c", "output_shape": 3 }), "equation")]
#[case("GlobalAveragePooling2D", json!({ "keepdims": 1 }), "keepdims")]
#[case("GlobalAveragePooling1D", json!({ "keepdims": 1 }), "keepdims")]
#[case("MaxPooling2D", json!({ "pool_size": 2, "padding": 1 }), "padding")]
#[case("LSTM", json!({ "units": 2, "stateful": true }), "stateful")]
#[case("GRU", json!({ "units": 2, "time_major": true }), "time_major")]
#[case("SimpleRNN", json!({ "units": 2, "recurrent_constraint": "x" }), "recurrent_constraint")]
#[case("LSTM", json!({ "units": 2, "dropout": 1.0 }), "dropout")]
#[case("RNN", json!({ "cell": { "class_name": "MyCell", "config": {} } }), "cell")]
#[case("RNN", json!({ "cell": { "class_name": "LSTM", "config": { "units": 2 } } }), "cell")]
#[case("Bidirectional", json!({ "layer": { "class_name": "Dense", "config": { "units": 2 } } }),
    "layer")]
#[case("Bidirectional", json!({ "merge_mode": "max" }), "merge_mode")]
#[case("TimeDistributed", json!({ "layer": 3 }), "layer")]
#[case("Conv1D", json!({ "filters": 2, "kernel_size": 3, "padding": "full" }), "padding")]
#[case("Conv2D", json!({ "filters": 2, "kernel_size": 3, "padding": "causal" }), "padding")]
#[case("Conv3D", json!({ "filters": 2, "kernel_size": [3, 3] }), "kernel_size")]
#[case("Conv2DTranspose", json!({ "filters": 2, "kernel_size": 3, "output_padding": -1 }),
    "output_padding")]
#[case("UpSampling2D", json!({ "interpolation": "lanczos3" }), "interpolation")]
#[case("Permute", json!({ "dims": [1, 1] }), "dims")]
#[case("RepeatVector", json!({ "n": 0 }), "n")]
#[case("ZeroPadding3D", json!({ "padding": [1, 2] }), "padding")]
#[case("InputLayer", json!({ "batch_shape": [null, 4], "sparse": true }), "sparse")]
#[case("InputLayer", json!({ "batch_shape": [null, 4], "dtype": "float16" }), "dtype")]
fn options_of_a_layer_are_refused_by_name(
    #[case] class: &str,
    #[case] config: Value,
    #[case] name: &str,
) {
    let what = unsupported(&[layer(class, config), dense(2, "linear")]);
    assert!(what.starts_with(&format!("option `{name}` = ")), "{what}");
}

#[test]
fn a_class_of_another_package_is_not_keras() {
    let mut own = dense(3, "relu");
    own["module"] = json!("my_layers");
    own["registered_name"] = json!("mine>Dense");
    assert_eq!(
        unsupported(&[own]),
        "this class of your own (`module` = \"my_layers\")"
    );
}

fn ending(layers: &[Value], features: &[usize]) -> Result<(Head, Loss), ModelError> {
    let spec = parse_keras_json(&model(layers), "m.json").unwrap();
    let plan = spec.plan(features).unwrap();
    plan.check_head()?;
    let model = Model::initialized(&plan, 1, &Device::flex()).unwrap();
    // What Keras' model returns is what the loss is of, with one softmax and not two.
    let input =
        Tensor::<1, burn::tensor::Int>::arange(0..plan.input().elements() as i64, &Device::flex());
    let input = input.float().div_scalar(7.0);
    let input = input.reshape([1, plan.input().elements()]);
    let forward = model.forward(input.clone(), &mut Mode::Inference).unwrap();
    let logits = model.logits(input, &mut Mode::Inference).unwrap();
    let outputs = logits.dims()[1];
    if model.head() != Head::Linear {
        let probabilities = model.probabilities(logits);
        assert_eq!(forward.into_data(), probabilities.into_data());
    }
    Ok((model.head(), model.head().loss(outputs)))
}

fn conv(activation: &str, kernel: usize) -> Value {
    layer(
        "Conv2D",
        json!({ "filters": 3, "kernel_size": kernel, "activation": activation }),
    )
}

#[test]
fn the_head_is_found_behind_layers_that_change_nothing() {
    let flatten = || layer("Flatten", json!({}));
    let nothing = || layer("Dropout", json!({ "rate": 0.0 }));
    let linear = || layer("Activation", json!({ "activation": "linear" }));
    let categorical = (Head::Softmax, Loss::Categorical);
    for layers in [
        vec![flatten(), dense(3, "softmax")],
        vec![flatten(), dense(3, "softmax"), nothing()],
        vec![flatten(), dense(3, "softmax"), linear(), flatten()],
        vec![
            flatten(),
            dense(3, "relu"),
            layer("Softmax", json!({})),
            nothing(),
        ],
        vec![flatten(), dense(3, layer("Softmax", json!({ "axis": -1 })))],
        vec![conv("softmax", 4), flatten()],
        vec![
            conv("softmax", 4),
            layer("GlobalAveragePooling2D", json!({})),
        ],
        vec![
            conv("linear", 4),
            layer("Softmax", json!({})),
            flatten(),
            nothing(),
        ],
    ] {
        assert_eq!(
            ending(&layers, &[4, 4, 1]).unwrap(),
            categorical,
            "{layers:?}"
        );
    }
    let per_class = (Head::Sigmoid, Loss::BinaryPerClass);
    let places = [conv("sigmoid", 3), flatten()];
    assert_eq!(ending(&places, &[4, 4, 1]).unwrap(), per_class);
    assert_eq!(
        ending(&[dense(1, "sigmoid")], &[4]).unwrap().1,
        Loss::Binary
    );
    assert_eq!(ending(&[dense(1, "linear")], &[4]).unwrap().1, Loss::Binary);
    let hidden = [dense(3, "softmax"), dense(3, "relu")];
    let linear_head = (Head::Linear, Loss::Categorical);
    assert_eq!(ending(&hidden, &[4]).unwrap(), linear_head);
}

#[test]
fn probabilities_that_are_changed_afterwards_are_refused() {
    let flatten = || layer("Flatten", json!({}));
    let pool = layer("GlobalAveragePooling2D", json!({}));
    let cases = [
        (
            vec![
                flatten(),
                dense(3, "softmax"),
                layer("Dropout", json!({ "rate": 0.5 })),
            ],
            "Dropout",
        ),
        (vec![conv("softmax", 3), pool], "GlobalAveragePooling2D"),
        (
            vec![flatten(), dense(3, "sigmoid"), layer("ReLU", json!({}))],
            "Activation",
        ),
        (vec![conv("softmax", 3), flatten()], "at each of 4 places"),
        (
            vec![flatten(), dense(1, "softmax")],
            "of one output is always 1",
        ),
    ];
    for (layers, reason) in cases {
        let error = ending(&layers, &[4, 4, 1]).unwrap_err();
        assert!(matches!(error, ModelError::Head { .. }));
        assert!(error.to_string().contains(reason), "{error}");
    }
}
