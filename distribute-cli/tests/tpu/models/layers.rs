//! Every layer and activation that a model can have: several captured steps against eager ones, and
//! what a dropout drops.

use std::sync::Arc;

use burn::tensor::FloatDType;
use distribute_core::{
    Adam, Device, MirroredStrategy, PerReplica, ReduceOp, ReplicaContext, Replicate, Result, Sgd,
    Strategy, StrategyExt, Tensor, TrainState,
};
use distribute_keras::{Activation, Mode, Model, parse_keras_json};
use rstest::rstest;

use super::support::strategy;
use super::task::{Task, step};
use super::weights::distance;
use crate::plugins::within;

const DENSE: &str = r#"{"class_name": "Flatten", "config": {}},
    {"class_name": "Dense", "config": {"units": 10}}"#;

/// Five steps of both, in f64, so that rounding decides nothing.
fn compare(layers: &str, texts: bool, replicas: usize) {
    let Some(tpu) = strategy(replicas) else {
        return;
    };
    let cpu = MirroredStrategy::builder().replicas(replicas).build();
    let cpu = cpu.unwrap();
    let mut task = Task::of_layers(layers, texts, FloatDType::F64);
    let state = task.state(Arc::new(Adam::new(1e-2)), &Device::flex().autodiff());
    let mut on_tpu = tpu.scope(|device| state.replicate(device)).unwrap();
    let mut on_cpu = cpu.scope(|device| state.replicate(device)).unwrap();
    let step = step(task.global_batch());
    for number in 0..5 {
        let batch = task.batch(replicas);
        let found = tpu.run((&mut on_tpu, batch.clone()), step).unwrap();
        let expected = cpu.run((&mut on_cpu, batch), step).unwrap();
        let found: f64 = tpu.reduce(ReduceOp::Sum, found).unwrap().into_scalar();
        let expected: f64 = cpu.reduce(ReduceOp::Sum, expected).unwrap().into_scalar();
        let tolerance = 1e-6 * expected.max(1.0);
        assert!(
            (found - expected).abs() <= tolerance,
            "{layers}, step {number}: loss {found}, expected {expected}"
        );
    }
    let found = on_tpu.primary().unwrap().to_tensors().unwrap();
    let expected = on_cpu.primary().unwrap().to_tensors().unwrap();
    let (worst, what) = distance(&found, &expected);
    assert!(worst <= 1e-6, "{layers}: {what}");
}

#[rstest]
#[case::convolution(
    r#"{"class_name": "Conv2D", "config": {"filters": 4, "kernel_size": [3, 3],
        "padding": "same", "strides": [2, 2], "activation": "relu"}},"#
)]
#[case::dilated(
    r#"{"class_name": "Conv2D", "config": {"filters": 4, "kernel_size": [3, 3],
        "dilation_rate": [2, 2]}},"#
)]
#[case::in_groups(
    r#"{"class_name": "Conv2D", "config": {"filters": 4, "kernel_size": [2, 2]}},
       {"class_name": "Conv2D", "config": {"filters": 6, "kernel_size": [3, 3], "groups": 2}},"#
)]
#[case::largest(
    r#"{"class_name": "MaxPooling2D", "config": {"pool_size": [3, 3], "strides": [2, 2],
        "padding": "same"}},"#
)]
#[case::average(
    r#"{"class_name": "AveragePooling2D", "config": {"pool_size": [3, 3], "padding": "same"}},"#
)]
#[case::all_of_an_image(
    r#"{"class_name": "Conv2D", "config": {"filters": 12, "kernel_size": [3, 3]}},
       {"class_name": "GlobalAveragePooling2D", "config": {}},"#
)]
#[case::regularized(
    r#"{"class_name": "Flatten", "config": {}},
       {"class_name": "Dense", "config": {"units": 12, "use_bias": false, "kernel_regularizer":
        {"class_name": "L2", "config": {"l2": 0.01}}}},"#
)]
#[case::channel_by_channel(
    r#"{"class_name": "DepthwiseConv2D", "config": {"kernel_size": [3, 2], "padding": "same",
        "depth_multiplier": 3, "strides": [2, 2]}},
       {"class_name": "SeparableConv2D", "config": {"filters": 5, "kernel_size": 3}},"#
)]
#[case::padded_and_cut(
    r#"{"class_name": "ZeroPadding2D", "config": {"padding": [[1, 2], [0, 3]]}},
       {"class_name": "Conv2D", "config": {"filters": 4, "kernel_size": [3, 3]}},
       {"class_name": "Cropping2D", "config": {"cropping": [[1, 0], [2, 1]]}},"#
)]
#[case::normalized(
    r#"{"class_name": "Rescaling", "config": {"scale": [2.0], "offset": -0.5}},
       {"class_name": "Normalization", "config": {"mean": 0.3, "variance": 0.2}},
       {"class_name": "Conv2D", "config": {"filters": 4, "kernel_size": [3, 3]}},
       {"class_name": "LayerNormalization", "config": {}},
       {"class_name": "Dense", "config": {"units": 6, "activation": "silu"}},"#
)]
#[case::largest_of_an_image(
    r#"{"class_name": "Conv2D", "config": {"filters": 12, "kernel_size": [3, 3]}},
       {"class_name": "GlobalMaxPooling2D", "config": {"keepdims": true}},
       {"class_name": "Reshape", "config": {"target_shape": [3, -1]}},"#
)]
#[case::nothing_dropped(r#"{"class_name": "Dropout", "config": {"rate": 0.0}},"#)]
fn layers_of_images(#[case] layers: &str, #[values(1, 2)] replicas: usize) {
    within(120, || {
        compare(&format!("{layers}{DENSE}"), false, replicas)
    });
}

/// A call of a layer inside of a model, in the form of Keras 2.
fn call(class: &str, name: &str, config: &str, inputs: &[&str]) -> String {
    let inputs: Vec<String> = inputs
        .iter()
        .map(|input| format!(r#"["{input}", 0, 0, {{}}]"#))
        .collect();
    let node = if inputs.is_empty() {
        String::new()
    } else {
        format!("[{}]", inputs.join(", "))
    };
    format!(
        r#"{{"class_name": "{class}", "name": "{name}", "config": {{{config}}},
            "inbound_nodes": [{node}]}}"#
    )
}

/// A graph as a layer of a chain, from its first layer to its last.
fn graph(layers: &[String], output: &str) -> String {
    let layers = layers.join(", ");
    format!(
        r#"{{"class_name": "Functional", "config": {{"layers": [{layers}],
            "input_layers": [["a", 0, 0]], "output_layers": [["{output}", 0, 0]]}}}},"#
    )
}

#[test]
fn merges_of_branches() {
    let conv = |name: &str| {
        let config = r#""filters": 4, "kernel_size": 3, "padding": "same", "activation": "tanh""#;
        call("Conv2D", name, config, &["a"])
    };
    let layers = [
        call(
            "InputLayer",
            "a",
            r#""batch_input_shape": [null, 8, 8, 1]"#,
            &[],
        ),
        conv("b"),
        conv("c"),
        call("Add", "d", "", &["a", "b"]),
        call("Maximum", "e", "", &["c", "d", "a"]),
        call("Subtract", "f", "", &["b", "c"]),
        call("Minimum", "g", "", &["e", "f"]),
        call("GlobalAveragePooling2D", "h", r#""keepdims": true"#, &["g"]),
        call("Multiply", "i", "", &["g", "h"]),
        call("Average", "j", "", &["i", "b", "c"]),
        call("Concatenate", "k", r#""axis": 1"#, &["j", "e"]),
    ];
    within(120, || {
        compare(&format!("{}{DENSE}", graph(&layers, "k")), false, 2)
    });
}

#[test]
fn attention_over_texts() {
    let table = r#""input_dim": 3000, "output_dim": 4"#;
    let node = r#"[["b", 0, 0, {"value": ["b", 0, 0], "use_causal_mask": true}]]"#;
    let attention = format!(
        r#"{{"class_name": "MultiHeadAttention", "name": "c", "inbound_nodes": [{node}],
            "config": {{"num_heads": 2, "key_dim": 3}}}}"#
    );
    let layers = [
        call("InputLayer", "a", "", &[]),
        call("Embedding", "b", table, &["a"]),
        attention,
        call("Add", "d", "", &["b", "c"]),
        call("LayerNormalization", "e", "", &["d"]),
        call("GlobalAveragePooling1D", "f", "", &["e"]),
    ];
    let dense = r#"{"class_name": "Dense", "config": {"units": 2}}"#;
    within(120, || {
        compare(&format!("{}{dense}", graph(&layers, "f")), true, 2)
    });
}

#[rstest]
fn layers_of_texts(
    #[values("GlobalAveragePooling1D", "Flatten")] after: &str,
    #[values(true, false)] mask_zero: bool,
) {
    let mask_zero = mask_zero && after != "Flatten";
    let layers = format!(
        r#"{{"class_name": "Embedding", "config": {{"input_dim": 3000, "output_dim": 4,
            "mask_zero": {mask_zero}}}}}, {{"class_name": "{after}", "config": {{}}}},
           {{"class_name": "Dense", "config": {{"units": 2}}}}"#
    );
    within(120, || compare(&layers, true, 2));
}

#[test]
fn every_activation() {
    within(300, || {
        for name in Activation::names() {
            let layers = format!(
                r#"{{"class_name": "Flatten", "config": {{}}}},
                   {{"class_name": "Dense", "config": {{"units": 12, "activation": "{name}"}}}},
                   {{"class_name": "Dense", "config": {{"units": 10}}}}"#
            );
            compare(&layers, false, 2);
        }
    });
}

/// Activations that are layers, with options that decide: as a layer of a flat input, as one of an
/// image, and as another layer's activation.
#[rstest]
fn activations_with_options(
    #[values(
        r#""ReLU", "config": {"max_value": 0.3}"#,
        r#""ReLU", "config": {"negative_slope": 0.4}"#,
        r#""ReLU", "config": {"max_value": 0.6, "negative_slope": 0.2, "threshold": 0.1}"#,
        r#""LeakyReLU", "config": {"negative_slope": 0.9}"#,
        r#""LeakyReLU", "config": {}"#,
        r#""ELU", "config": {"alpha": 0.4}"#,
        r#""Softmax", "config": {}"#
    )]
    activation: &str,
) {
    let activation = format!(r#"{{"class_name": {activation}}}"#);
    let flatten = r#"{"class_name": "Flatten", "config": {}}"#;
    let dense = r#"{"class_name": "Dense", "config": {"units": 12}}"#;
    let inside = format!(
        r#"{{"class_name": "Dense", "config": {{"units": 12, "activation": {activation}}}}}"#
    );
    let image = r#"{"class_name": "Conv2D", "config": {"filters": 4, "kernel_size": [3, 3]}}"#;
    for layers in [
        format!("{flatten},{dense},{activation},{DENSE}"),
        format!("{flatten},{inside},{DENSE}"),
        format!("{image},{activation},{DENSE}"),
    ] {
        within(120, || compare(&layers, false, 2));
    }
}

/// Inputs of ones, each the result of a dense layer or of a convolution, behind a dropout.
fn dropped(rate: f64, image: bool, device: &Device) -> TrainState<Model> {
    let ones = r#""kernel_initializer": {"class_name": "Zeros", "config": {}},
                  "bias_initializer": {"class_name": "Ones", "config": {}}"#;
    let first = if image {
        format!(
            r#"{{"class_name": "Conv2D", "config": {{"filters": 64, "kernel_size": [1, 1],
                {ones}}}}}"#
        )
    } else {
        format!(r#"{{"class_name": "Dense", "config": {{"units": 4096, {ones}}}}}"#)
    };
    let flatten = r#"{"class_name": "Flatten", "config": {}}"#;
    let before = if image {
        String::new()
    } else {
        format!("{flatten},")
    };
    let json = format!(
        r#"{{"class_name": "Sequential", "config": {{"layers": [{before} {first},
            {{"class_name": "Dropout", "config": {{"rate": {rate}}}}}, {flatten}]}}}}"#
    );
    let plan = parse_keras_json(&json, "a test").unwrap();
    let plan = plan.plan(&[8, 8]).unwrap();
    TrainState::new(Model::initialized(&plan, 1, device).unwrap(), Sgd::new(0.0))
}

/// What each replica got in each of three steps.
fn masks(strategy: &dyn Strategy, rate: f64, image: bool, seed: u64) -> Vec<Vec<f32>> {
    let replicas = strategy.replicas().len();
    let mut state = strategy
        .scope(|device| dropped(rate, image, device))
        .unwrap();
    let inputs = || PerReplica::new(vec![Tensor::<2>::ones([2, 64], &Device::flex()); replicas]);
    let step = |ctx: &ReplicaContext,
                (state, x): (&mut TrainState<Model>, Tensor<2>)|
     -> Result<Tensor<2>> {
        let mut rng = ctx.rng(seed, state.step());
        let found = state.model.logits(x, &mut Mode::training(ctx, &mut rng))?;
        ctx.loss_is_scaled();
        let gradients = ctx.gradient(&found.clone().sum(), &state.model)?;
        state.apply_gradients(ctx, gradients)?;
        Ok(found)
    };
    let mut masks = Vec::new();
    for _ in 0..3 {
        let found = strategy.run((&mut state, inputs()), step).unwrap();
        let values = found.into_values().into_iter();
        masks.extend(values.map(|value| value.into_data().try_to_vec().unwrap()));
    }
    masks
}

/// Of 8192 units, in each step and on each replica others, by the same rule as eagerly.
#[rstest]
fn a_dropout_layer_drops_others_in_every_step_and_replica(
    #[values(0.25, 0.6)] rate: f64,
    #[values(false, true)] image: bool,
) {
    within(120, || {
        let Some(tpu) = strategy(2) else { return };
        let cpu = MirroredStrategy::builder().replicas(2).build().unwrap();
        for strategy in [&tpu as &dyn Strategy, &cpu] {
            let found = masks(strategy, rate, image, 5);
            assert_eq!(found.len(), 6);
            let scaled = (1.0 / (1.0 - rate)) as f32;
            for mask in &found {
                assert_eq!(mask.len(), 8192);
                let allowed = |unit: &f32| *unit == 0.0 || (unit - scaled).abs() < 1e-6;
                assert!(mask.iter().all(allowed), "{}", strategy.name());
                let dropped = mask.iter().filter(|unit| **unit == 0.0).count() as f64 / 8192.0;
                assert!((dropped - rate).abs() < 0.03, "{dropped} of {rate}");
            }
            for (index, mask) in found.iter().enumerate() {
                let other = found[..index].iter().position(|other| other == mask);
                assert_eq!(other, None, "{}: {index} again", strategy.name());
            }
            assert_eq!(found, masks(strategy, rate, image, 5), "the same seed");
            assert_ne!(found, masks(strategy, rate, image, 6), "another seed");
        }
    });
}
