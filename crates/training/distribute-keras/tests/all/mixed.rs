//! Models with batch normalization under a mixed policy.

use std::collections::BTreeMap;

use burn::tensor::{DType, Tensor, TensorData};
use distribute_core::{
    DefaultStrategy, LossScale, MirroredStrategy, Policy, Sgd, Strategy, StrategyExt, TrainState,
};
use distribute_keras::{Mode, Model, Plan, parse_keras_json};
use rstest::rstest;
use serde_json::json;

use crate::graphs::{inputs, loss, plan, weights};

const BATCH: usize = 16;

/// The losses of two steps on all replicas, and what the model holds afterwards.
fn trained(
    strategy: &dyn Strategy,
    plan: &Plan,
    policy: Policy,
) -> (Vec<f32>, BTreeMap<String, TensorData>) {
    let mut state = strategy
        .try_scope(|device| {
            let scale = if policy.loss_scale().is_dynamic() {
                LossScale::fixed(128.0)?
            } else {
                LossScale::default()
            };
            let model = Model::new(plan, weights(plan), device)?;
            Ok(TrainState::new(model, Sgd::new(0.01)).with_loss_scale(scale))
        })
        .unwrap();
    let losses = (0..2).map(|step| {
        let losses = strategy.run(&mut state, |ctx, state| {
            let mut rng = ctx.rng(1, step);
            let input = inputs(plan, BATCH, ctx.device());
            let input = if state.model.takes_tokens() {
                input
            } else {
                policy.cast(input)
            };
            let model = policy.model(&state.model)?;
            let inferred = model.logits(input.clone(), &mut Mode::Inference)?;
            assert_eq!(inferred.dtype(), DType::from(policy.compute_dtype()));
            let logits = model.logits(input, &mut Mode::training(ctx, &mut rng))?;
            assert_eq!(logits.dtype(), DType::from(policy.compute_dtype()));
            let loss = loss(model.head(), policy.output(logits));
            let scaled = state.scale_loss(&loss) / ctx.num_replicas_in_sync() as f32;
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&scaled, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(loss)
        });
        losses.unwrap().values()[0].clone().into_scalar::<f32>()
    });
    let losses = losses.collect();
    (losses, state.primary().unwrap().to_tensors().unwrap())
}

/// A normalization of sequences.
fn sequences() -> Plan {
    let layers = json!([
        { "class_name": "Embedding", "config": { "input_dim": 21, "output_dim": 6 } },
        { "class_name": "BatchNormalization", "config": { "momentum": 0.5 } },
        { "class_name": "GlobalAveragePooling1D", "config": {} },
        { "class_name": "Dense", "config": { "units": 3, "activation": "softmax" } },
    ]);
    let text = json!({ "class_name": "Sequential", "config": { "layers": layers } }).to_string();
    let spec = parse_keras_json(&text, "m.json").unwrap();
    spec.plan(&[9]).unwrap()
}

/// Near to what `f32` gives: 16 bits have 8 digits or more.
#[rstest]
fn batch_normalizations_train_in_16_bits_with_statistics_of_32(
    #[values("blocks", "shared", "sequences")] name: &str,
    #[values(1, 2)] replicas: usize,
    #[values(Policy::mixed_bfloat16(), Policy::mixed_float16())] policy: Policy,
) {
    let plan = match name {
        "sequences" => sequences(),
        name => plan(name, "keras3"),
    };
    let mirrored = MirroredStrategy::builder().replicas(replicas).build();
    let (one, several) = (DefaultStrategy::new(), mirrored.unwrap());
    let strategy: &dyn Strategy = if replicas == 1 { &one } else { &several };
    let (losses, found) = trained(strategy, &plan, policy);
    let (expected, wanted) = trained(strategy, &plan, Policy::float32());
    assert_ne!(losses, expected, "{policy} computes in another type");
    for (loss, expected) in losses.iter().zip(&expected) {
        let bound = 2e-2 * expected.abs().max(1.0);
        assert!((loss - expected).abs() < bound, "{loss} {expected}");
    }
    let start = Model::new(&plan, weights(&plan), &burn::tensor::Device::flex()).unwrap();
    let start = TrainState::new(start, Sgd::new(0.01)).to_tensors().unwrap();
    let statistics = |path: &&String| path.contains(".running_");
    let paths: Vec<&String> = found.keys().filter(statistics).collect();
    let [means, variances] = ["mean", "var"].map(|end| {
        let of_end = paths.iter().filter(|path| path.ends_with(end));
        of_end.count()
    });
    assert!(means > 0 && means == variances, "{paths:?}");
    for path in paths {
        assert_eq!(found[path].dtype(), DType::F32, "{path}");
        assert_ne!(found[path], start[path], "{path} moves");
        for (found, wanted) in found[path].iter::<f32>().zip(wanted[path].iter::<f32>()) {
            let bound = 2e-2 * wanted.abs().max(1.0);
            assert!((found - wanted).abs() < bound, "{path}: {found} {wanted}");
        }
    }
}

/// An input of `f32` beside a layer of `f32`, whatever the policy of the others: no type is mixed.
#[test]
fn an_input_that_is_not_cast_is_normalized_in_its_type() {
    let layers = json!([{ "class_name": "BatchNormalization", "config": {} }]);
    let text = json!({ "class_name": "Sequential", "config": { "layers": layers } }).to_string();
    let plan = parse_keras_json(&text, "m.json")
        .unwrap()
        .plan(&[4])
        .unwrap();
    let device = burn::tensor::Device::flex();
    let model = Model::new(&plan, weights(&plan), &device).unwrap();
    let mixed = Policy::mixed_bfloat16().model(&model).unwrap();
    let x = Tensor::<2>::from_floats([[1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 0.5, -2.0]], &device);
    let [ours, expected] = [&mixed, &model].map(|model| {
        let output = model.forward(x.clone(), &mut Mode::Inference);
        output.unwrap().into_data()
    });
    assert_eq!(ours, expected);
}
