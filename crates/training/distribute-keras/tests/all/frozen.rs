//! Layers that are not trained keep their weights, whatever an optimizer does to the others.

use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::{
    CentralStorageStrategy, DefaultStrategy, MirroredStrategy, MovingAverage, Policy, Sgd,
    Strategy, StrategyExt, TrainState, WeightDecay,
};
use distribute_keras::{Mode, Model, ModelSpec, Plan, parse_keras_json};
use rstest::rstest;
use serde_json::{Value, json};

use crate::graphs::{numbers, weights};

fn layer(class: &str, name: &str, mut config: Value, trainable: bool) -> Value {
    config["name"] = json!(name);
    config["trainable"] = json!(trainable);
    json!({ "class_name": class, "config": config })
}

/// A normalization and a `Dense` layer, both trained or not, then a `Dense` layer that is. The two
/// stand in a model inside of the model.
fn model(inner: bool, layers: bool) -> ModelSpec {
    let dense = json!({ "units": 5, "activation": "tanh", "kernel_regularizer":
        { "class_name": "L2", "config": { "l2": 0.1 } } });
    let base = json!({ "class_name": "Sequential", "config": { "name": "base", "trainable": inner,
        "layers": [layer("BatchNormalization", "norm", json!({ "momentum": 0.5 }), layers),
                   layer("LayerNormalization", "each", json!({}), layers),
                   layer("Dense", "first", dense, layers)] } });
    let last = layer("Dense", "last", json!({ "units": 2 }), true);
    let text = json!({ "class_name": "Sequential", "config": { "layers": [base, last] } });
    parse_keras_json(&text.to_string(), "m.json").unwrap()
}

fn batch(stream: u32, device: &Device) -> Tensor<2> {
    let values: Vec<f32> = numbers(stream, 6 * 4)
        .map(|u| u as f32 * 3.0 + 1.0)
        .collect();
    Tensor::from_data(TensorData::new(values, [6, 4]), device)
}

/// Everything that adds to what a gradient changes.
fn optimizer() -> MovingAverage<WeightDecay<Sgd>> {
    let decayed = WeightDecay::of(Sgd::new(0.05).momentum(0.9), 0.1);
    MovingAverage::of(decayed, 0.5)
        .unwrap()
        .overwrite_every(2)
        .unwrap()
}

/// Only the last layer changes.
fn check<S: Strategy>(strategy: &S, plan: &Plan) {
    let mut state = strategy
        .try_scope(|device| {
            let model = Model::new(plan, weights(plan), device)?;
            Ok(TrainState::new(model, optimizer()))
        })
        .unwrap();
    let bits = |state: &TrainState<Model>| -> Vec<(String, TensorData)> {
        let tensors = state.to_tensors().unwrap().into_iter();
        tensors
            .filter(|(name, _)| name.starts_with("model/"))
            .collect()
    };
    let before = bits(state.primary().unwrap());
    assert_eq!(
        before.len(),
        10,
        "frozen weights and statistics are saved too"
    );
    for step in 0..3 {
        strategy
            .run(&mut state, |ctx, state| {
                let mut rng = ctx.rng(1, step);
                let x = batch(step as u32, ctx.device());
                let logits = state.model.logits(x, &mut Mode::training(ctx, &mut rng))?;
                let loss = logits.powi_scalar(2).sum();
                ctx.loss_is_scaled();
                let gradients = ctx.gradient(&loss, &state.model)?;
                assert_eq!(gradients.len(), 2, "kernel and bias of the last layer");
                state.apply_gradients(ctx, gradients)?;
                Ok(())
            })
            .unwrap();
    }
    let after = bits(state.primary().unwrap());
    assert_eq!(before.len(), after.len());
    for ((name, before), (_, after)) in before.iter().zip(&after) {
        let is_last = name.contains("layers.3");
        assert_eq!(before != after, is_last, "{name}");
    }
}

#[rstest]
#[case::the_layers(true, false)]
#[case::the_model_around_them(false, true)]
#[case::both(false, false)]
fn frozen_weights_and_statistics_stay(#[case] inner: bool, #[case] layers: bool) {
    let plan = model(inner, layers).plan(&[4]).unwrap();
    assert_eq!((plan.parameters(), plan.trained_parameters()), (61, 12));
    check(&DefaultStrategy::new(), &plan);
    let strategy = MirroredStrategy::builder().replicas(3).build().unwrap();
    check(&strategy, &plan);
    check(&CentralStorageStrategy::with_replicas(2).unwrap(), &plan);
}

#[test]
fn a_frozen_normalization_infers_while_the_model_trains() {
    let device = Device::flex().autodiff();
    for (trainable, same) in [(false, true), (true, false)] {
        let plan = model(true, trainable).plan(&[4]).unwrap();
        let strategy = DefaultStrategy::new();
        let mut model = strategy
            .try_scope(|device| Ok(Model::new(&plan, weights(&plan), device)?))
            .unwrap();
        let x = batch(7, &device);
        let inferred = model.primary().unwrap();
        let inferred = inferred.logits(x.clone(), &mut Mode::Inference).unwrap();
        let outputs = strategy.run(&mut model, |ctx, model| {
            let mut rng = ctx.rng(1, 0);
            model.logits(x.clone(), &mut Mode::training(ctx, &mut rng))
        });
        let trained = outputs.unwrap().into_values().remove(0);
        assert_eq!(trained.to_data() == inferred.to_data(), same);
    }
}

/// Keras 3: only what is trained is regularized.
#[test]
fn the_kernels_of_frozen_layers_are_not_in_the_loss() {
    let loss = |trainable| {
        let plan = model(true, trainable).plan(&[4]).unwrap();
        let model = Model::new(&plan, weights(&plan), &Device::flex()).unwrap();
        model.regularization_loss().is_some()
    };
    assert!(loss(true) && !loss(false));
}

/// A model of one layer, none of whose weights stays `f32` under a mixed policy.
fn dense() -> ModelSpec {
    let layers = [layer("Dense", "only", json!({ "units": 3 }), true)];
    let text = json!({ "class_name": "Sequential", "config": { "layers": layers } });
    parse_keras_json(&text.to_string(), "m.json").unwrap()
}

/// A replica without examples has gradients of 0 of what the others train, also behind weights
/// that were cast.
#[rstest]
#[case(model(true, false), Policy::float32())]
#[case(dense(), Policy::mixed_bfloat16())]
fn the_loss_of_no_examples_is_on_the_graph_of_the_trained_weights(
    #[case] spec: ModelSpec,
    #[case] policy: Policy,
) {
    let plan = spec.plan(&[4]).unwrap();
    let strategy = DefaultStrategy::new();
    let mut model = strategy
        .try_scope(|device| Ok(Model::new(&plan, weights(&plan), device)?))
        .unwrap();
    let zeros = strategy.run(&mut model, |ctx, model| {
        let loss = policy.model(&*model)?.zero_loss(ctx.device());
        let gradients = ctx.gradient(&loss, &*model)?;
        let given = (0..gradients.len()).filter_map(|index| gradients.get(index).unwrap());
        let values = given.flat_map(|gradient| gradient.iter::<f32>().collect::<Vec<_>>());
        Ok(values.collect::<Vec<_>>())
    });
    let zeros = zeros.unwrap().into_values().remove(0);
    assert!(
        !zeros.is_empty() && zeros.iter().all(|x| *x == 0.0),
        "{zeros:?}"
    );
}
