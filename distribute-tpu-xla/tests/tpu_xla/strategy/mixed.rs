//! Steps in mixed precision: compiled and on the CPU backend they learn what they learn in `f32`.

use burn::nn::{BatchNorm, BatchNormConfig, Gru, GruConfig};
use burn::prelude::*;
use burn::tensor::DType;
use distribute_core::{
    Adam, LossScale, MirroredStrategy, PerReplica, Policy, ReduceOp, Replicate, Result, Sgd,
    Strategy, StrategyExt, TrainState,
};
use distribute_data::{AverageLoss, sparse_categorical_crossentropy};

use crate::strategy::models::{Cnn, Mlp, Normalized, Transformer};
use crate::strategy::support::{Data, strategy, within};

const REPLICAS: usize = 2;
const EXAMPLES: usize = 8;
const STEPS: usize = 60;

/// A model's logits of one batch, `[examples, classes]`, and the classes.
type Forward<M, B> = fn(Policy, &M, B) -> (Tensor<2>, Tensor<1, Int>);

/// The losses of all steps, on the same batch.
fn losses<M: Module + Sync + 'static, B: distribute_core::Nest + Send + Clone>(
    strategy: &dyn Strategy,
    state: &TrainState<M>,
    batch: &PerReplica<B>,
    policy: Policy,
    forward: Forward<M, B>,
) -> Result<Vec<f32>> {
    let scale = policy.loss_scale();
    let mut state = strategy.scope(|device| state.replicate(device).with_loss_scale(scale))?;
    let step = |_| {
        let loss = strategy.run((&mut state, batch.clone()), |ctx, (state, batch)| {
            let (logits, classes) = forward(policy, &policy.model(&state.model)?, batch);
            assert_eq!(logits.dtype(), DType::from(policy.compute_dtype()));
            let per_example = sparse_categorical_crossentropy(policy.output(logits), classes);
            let loss = AverageLoss::new()
                .global_batch_size(EXAMPLES * REPLICAS)
                .of(ctx, per_example)?;
            let gradients = ctx.gradient(&state.scale_loss(&loss), &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(loss)
        })?;
        Ok(strategy.reduce(ReduceOp::Sum, loss)?.into_scalar())
    };
    (0..STEPS).map(step).collect()
}

/// Compiled and eager, in both types: a hundredth of the first loss from `f32` at the end.
fn compare<M: Module + Sync + 'static, B: distribute_core::Nest + Send + Clone>(
    model: M,
    batch: &PerReplica<B>,
    forward: Forward<M, B>,
) {
    let Some(tpu) = strategy(REPLICAS) else {
        return;
    };
    let cpu = MirroredStrategy::builder()
        .replicas(REPLICAS)
        .build()
        .unwrap();
    let state = TrainState::new(model, Adam::new(0.01));
    let reference = losses(&cpu, &state, batch, Policy::float32(), forward).unwrap();
    let (first, last) = (reference[0], reference[STEPS - 1]);
    assert!(last < 0.5 * first, "{reference:?}");
    for policy in [Policy::mixed_bfloat16(), Policy::mixed_float16()] {
        let strategies: [&dyn Strategy; 2] = [&tpu, &cpu];
        for strategy in strategies {
            let found = losses(strategy, &state, batch, policy, forward).unwrap();
            let text = format!("{policy}: {found:?}, in f32 {reference:?}");
            assert_ne!(found, reference, "{text}");
            assert!((found[STEPS - 1] - last).abs() < 0.01 * first, "{text}");
        }
    }
}

fn device() -> Device {
    Device::flex().autodiff()
}

#[test]
fn an_mlp() {
    within(300, || {
        let batch = Data::new(7, REPLICAS, &[12], 5).batch::<2>(EXAMPLES);
        compare(Mlp::new(&device()), &batch, |policy, model, (x, y)| {
            (model.forward(policy.cast(x)), y)
        });
    });
}

#[test]
fn a_cnn() {
    within(300, || {
        let batch = Data::new(8, REPLICAS, &[1, 8, 8], 10).batch::<4>(EXAMPLES);
        compare(Cnn::new(&device()), &batch, |policy, model, (x, y)| {
            (model.forward(policy.cast(x)), y)
        });
    });
}

#[test]
fn a_transformer() {
    within(300, || {
        let batch = Data::new(9, REPLICAS, &[], 11).tokens(EXAMPLES, 7);
        compare(Transformer::new(&device()), &batch, |_, model, tokens| {
            let next = tokens
                .clone()
                .slice([0..EXAMPLES, 6..7])
                .squeeze_dim::<1>(1);
            let logits = model.forward(tokens.slice([0..EXAMPLES, 0..6]));
            (logits.slice([0..EXAMPLES, 5..6]).squeeze_dim::<2>(1), next)
        });
    });
}

/// The losses of 20 steps and the statistics after them.
fn normalized(
    strategy: &dyn Strategy,
    state: &TrainState<Normalized>,
    policy: Policy,
) -> Result<Vec<f32>> {
    let scale = if policy.loss_scale().is_dynamic() {
        LossScale::fixed(128.0)?
    } else {
        LossScale::default()
    };
    let mut state = strategy.scope(|device| state.replicate(device).with_loss_scale(scale))?;
    let batch = Data::new(3, REPLICAS, &[6], 5).batch::<2>(EXAMPLES);
    let mut found = Vec::new();
    for _ in 0..20 {
        let loss = strategy.run((&mut state, batch.clone()), |ctx, (state, (x, y))| {
            let model = policy.model(&state.model)?;
            let x = model.inputs.forward(policy.cast(x));
            let x = model.norm.forward(model.hidden.forward(x))?;
            let logits = model.output.forward(burn::tensor::activation::relu(x));
            assert_eq!(logits.dtype(), DType::from(policy.compute_dtype()));
            let per_example = sparse_categorical_crossentropy(policy.output(logits), y);
            let loss = AverageLoss::new()
                .global_batch_size(EXAMPLES * REPLICAS)
                .of(ctx, per_example)?;
            let gradients = ctx.gradient(&state.scale_loss(&loss), &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(loss)
        })?;
        found.push(strategy.reduce(ReduceOp::Sum, loss)?.into_scalar());
    }
    let model = &state.primary()?.model;
    for state in [
        &model.inputs.moving_mean,
        &model.inputs.moving_variance,
        &model.norm.running_mean,
        &model.norm.running_var,
    ] {
        let value = state.value_sync().into_data();
        assert_eq!(value.dtype(), DType::F32);
        found.extend(value.iter::<f32>());
    }
    Ok(found)
}

#[test]
fn batch_normalizations_keep_f32() {
    within(300, || {
        let Some(tpu) = strategy(REPLICAS) else {
            return;
        };
        let cpu = MirroredStrategy::builder().replicas(REPLICAS).build();
        let (cpu, device) = (cpu.unwrap(), device());
        let model = Normalized::new(6, 5, &device);
        let state = TrainState::new(model, Sgd::new(0.05));
        let wanted = normalized(&cpu, &state, Policy::float32()).unwrap();
        for policy in [
            Policy::float32(),
            Policy::mixed_bfloat16(),
            Policy::mixed_float16(),
        ] {
            let found = normalized(&tpu, &state, policy).unwrap();
            let bound = if policy == Policy::float32() {
                1e-5
            } else {
                1e-2
            };
            for (found, wanted) in found.iter().zip(&wanted) {
                let bound = bound * wanted.abs().max(1.0);
                assert!((found - wanted).abs() < bound, "{policy}: {found} {wanted}");
            }
        }
    });
}

/// In a captured step only the names of layers tell.
#[test]
fn layers_that_cannot_are_refused_by_name() {
    #[derive(Module, Debug)]
    struct Model {
        norm: BatchNorm,
        memory: Gru,
    }
    within(60, || {
        let Some(tpu) = strategy(1) else { return };
        let state = tpu.scope(|device| {
            let norm = BatchNormConfig::new(3).init(device);
            let memory = GruConfig::new(2, 2, true).init(device);
            TrainState::new(Model { norm, memory }, Adam::new(0.01))
        });
        let mut state = state.unwrap();
        let policy = Policy::mixed_bfloat16();
        let result = tpu.run(&mut state, |_, state| policy.model(&state.model).map(drop));
        let error = result.unwrap_err().to_string();
        assert!(error.contains("the batch normalization `norm`"), "{error}");
        let result = tpu.run(&mut state, |_, state| {
            policy.model(&state.model.memory).map(drop)
        });
        let error = result.unwrap_err().to_string();
        assert!(error.contains("the recurrent layer"), "{error}");
    });
}
