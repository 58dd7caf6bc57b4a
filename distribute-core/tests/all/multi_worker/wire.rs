//! Gradients in 16 bits between workers, and nothing else.

use burn::module::Param;
use burn::tensor::{DType, Device, Tensor, TensorData};
use distribute_core::collectives::WireType;
use distribute_core::metric::Mean;
use distribute_core::{
    Adam, CommunicationOptions, MultiWorkerMirroredStrategy, MultiWorkerMirroredStrategyBuilder,
    ReduceOp, Sgd, Strategy, StrategyExt, SyncBatchNormConfig, TrainState, VariableAggregation,
    VariableOptions,
};
use rstest::rstest;

use crate::multi_worker::group::{Between, SHARED_MEMORY, THREADS, workers};
use crate::multi_worker::options::{GRPC, workers_with};
use crate::multi_worker::training::train;

type Builder = MultiWorkerMirroredStrategyBuilder;

fn on(builder: Builder, wire: WireType, bytes_per_pack: usize) -> Builder {
    let options = CommunicationOptions {
        bytes_per_pack,
        ..CommunicationOptions::default()
    };
    builder.communication_options(options.wire(wire))
}

fn bf16(builder: Builder) -> Builder {
    on(builder, WireType::Bf16, 0)
}

fn f16(builder: Builder) -> Builder {
    on(builder, WireType::F16, 0)
}

/// What a wire type makes of a number.
fn rounded(value: f32, dtype: DType) -> f32 {
    let data = TensorData::from([value]).convert_dtype(dtype);
    data.convert_dtype(DType::F32).as_slice::<f32>().unwrap()[0]
}

#[rstest]
#[case(&[1, 1], THREADS)]
#[case(&[2, 1], SHARED_MEMORY)]
#[case(&[1, 2, 1], GRPC)]
fn training_is_as_good_and_as_reproducible(#[case] replicas: &[usize], #[case] between: Between) {
    let program = |strategy| train(&strategy, Adam::new(0.01));
    let exact = workers(between, replicas, program);
    for (options, packed) in [
        (
            bf16 as fn(Builder) -> Builder,
            (|b| on(b, WireType::Bf16, 40)) as fn(Builder) -> Builder,
        ),
        (f16, |b| on(b, WireType::F16, 1)),
    ] {
        let found = workers_with(between, replicas, program, options);
        assert!(
            found.iter().all(|one| *one == found[0]),
            "the workers differ"
        );
        assert_ne!(found[0].0, exact[0].0, "it takes effect");
        let [last, expected] = [&found, &exact].map(|all| *all[0].1.last().unwrap());
        assert!(
            (last - expected).abs() < 0.01 * expected,
            "{last} is not about {expected}"
        );
        assert_eq!(
            workers_with(between, replicas, program, options),
            found,
            "the same bits"
        );
        assert_eq!(
            workers_with(between, replicas, program, packed),
            found,
            "packs change none"
        );
    }
}

/// Gradients are rounded on each replica, and so is each node of the tree of sums: the bits do not
/// depend on how the replicas lie in workers.
#[rstest]
#[case(DType::BF16, bf16)]
#[case(DType::F16, f16)]
fn a_gradient_is_rounded_at_every_node_of_the_tree(
    #[case] dtype: DType,
    #[case] options: fn(Builder) -> Builder,
) {
    const FACTORS: [f32; 4] = [1.0001, 0.4999, 0.33333, -0.010101];
    let program = |strategy: MultiWorkerMirroredStrategy| {
        let mut state = strategy.scope(|device| {
            let weight = Tensor::<1>::from_floats([0.0], device);
            TrainState::new(vec![Param::from_tensor(weight)], Sgd::new(1.0))
        })?;
        let factors = strategy.values_from(|id| FACTORS[id]);
        strategy.run((&mut state, factors), |ctx, (state, factor)| {
            let loss = state.model[0].val() * factor;
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(())
        })?;
        Ok(state.primary()?.model[0].val().into_scalar::<f32>())
    };
    let [a, b, c, d] = FACTORS;
    let node = |a: f32, b: f32| rounded(rounded(a, dtype) + rounded(b, dtype), dtype);
    let expected = -node(node(a, b), node(c, d));
    for layout in [&[2, 1, 1][..], &[1, 3], &[1, 1, 1, 1]] {
        let found = workers_with(THREADS, layout, program, options);
        assert_eq!(found, vec![expected; layout.len()], "{layout:?}");
    }
}

/// Clipping reduces gradients before the update, and replicas that take turns do it by a way of
/// their own: the bits are the same as with a core each, and others than with `f32`.
#[test]
fn clipped_gradients_of_replicas_that_take_turns_are_rounded_too() {
    let program = |strategy: MultiWorkerMirroredStrategy| {
        let mut state = strategy.scope(|device| {
            TrainState::new(model(device, 1.0), Sgd::new(1.0)).clip_by_global_norm(0.37)
        })?;
        strategy.run(&mut state, |ctx, state| {
            let factor = 0.333_33 * (1 + ctx.replica_id()) as f32;
            let loss = (state.model[0].val() * factor).powi_scalar(2).sum();
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients).map(drop)
        })?;
        Ok(state.primary()?.model[0].val().into_data())
    };
    let rounded = workers_with(THREADS, &[2, 1], program, |builder| bf16(builder).cores(2));
    let in_turns = workers_with(THREADS, &[2, 1], program, |builder| bf16(builder).cores(1));
    assert_eq!(in_turns, rounded);
    assert_ne!(
        workers(THREADS, &[2, 1], program),
        rounded,
        "it takes effect"
    );
}

/// Numbers that no 16 bits hold.
const FINE: [f32; 2] = [1.000_123_4, 100.015_625];

fn model(device: &Device, scale: f32) -> Vec<Param<Tensor<1>>> {
    let values = FINE.map(|value| value * scale);
    vec![Param::from_tensor(Tensor::from_floats(values, device))]
}

/// Everything but gradients that workers exchange, with whatever options.
fn exchange(strategy: MultiWorkerMirroredStrategy) -> distribute_core::Result<Vec<f64>> {
    let index = strategy.workers().map_or(0, |workers| workers.index());
    let scale = 1.0 + index as f32;
    // The chief's initial values.
    let state = strategy.scope(|device| TrainState::new(model(device, scale), Sgd::new(0.1)))?;
    let tensors = state.primary()?.to_tensors()?;
    let mut found: Vec<f64> = tensors["model/0"].iter::<f64>().collect();
    let sum = VariableOptions::default().aggregation(VariableAggregation::Sum);
    let variable = strategy.variable(FINE[0] * scale, sum)?;
    let summed = VariableOptions::on_read_sum();
    let seen = strategy.variable(FINE[0], summed)?;
    let mean = Mean::new(&strategy);
    let own = strategy.values_from(|id| FINE[0] * (1 + id) as f32);
    found.push(strategy.reduce(ReduceOp::Sum, own.clone())?.into());
    found.push(strategy.reduce(ReduceOp::Mean, own)?.into());
    let mut norm = strategy.try_scope(|device| {
        let norm = SyncBatchNormConfig::new(1).init(device);
        norm.map(|norm| TrainState::new(norm, Sgd::new(0.1)))
    })?;
    let in_step = strategy.run(&mut norm, |ctx, norm| {
        mean.update_state(ctx, FINE[1])?;
        variable.assign_add(ctx, FINE[1])?;
        seen.assign_add(ctx, FINE[1])?;
        let id = ctx.replica_id() as f32;
        let sum = ctx.all_reduce(ReduceOp::Sum, FINE[0] + id)?;
        let x = Tensor::<1>::from_floats(FINE, ctx.device()).require_grad();
        let total = ctx.all_reduce_tensor(ReduceOp::Sum, x.clone())?;
        let gradients = (total.clone() * total * (id + 0.1)).sum().backward();
        let back = x.grad(&gradients).map(|tensor| tensor.into_data());
        let x = Tensor::<2>::from_floats([[FINE[0] + id], [FINE[1]]], ctx.device());
        let y = norm.model.forward(x).into_data();
        let statistic = norm.model.moving_mean.value().into_data();
        let mut all = vec![f64::from(sum)];
        all.extend(
            back.into_iter()
                .flat_map(|data| data.iter::<f64>().collect::<Vec<_>>()),
        );
        all.extend(y.iter::<f64>().chain(statistic.iter::<f64>()));
        Ok(all)
    })?;
    found.extend(strategy.local_results(in_step).into_iter().flatten());
    found.push(variable.read(&strategy)?.into());
    found.push(seen.read(&strategy)?.into());
    found.push(mean.result()?);
    Ok(found)
}

#[test]
fn nothing_but_gradients_is_rounded() {
    let expected = workers(THREADS, &[1, 1], exchange);
    assert_eq!(expected[0][..2], FINE.map(f64::from), "the chief's");
    for options in [bf16 as fn(Builder) -> Builder, f16] {
        assert_eq!(workers_with(THREADS, &[1, 1], exchange, options), expected);
    }
}

/// A parameter that one of many replicas has a gradient of has one, and other types are as before.
#[test]
fn flags_and_wide_gradients_stay() {
    let program = |strategy: MultiWorkerMirroredStrategy| {
        let mut state = strategy.scope(|device| {
            let wide = Tensor::<1>::from_data([0.0_f64], (device, DType::F64));
            let models = (Param::from_tensor(wide), model(device, 1.0));
            TrainState::new(models, Sgd::new(1.0))
        })?;
        strategy.run(&mut state, |ctx, state| {
            let model = &state.model;
            let loss = match ctx.replica_id() {
                0 => model.0.val().mul_scalar(1.000_000_001_f64).cast(DType::F32),
                _ => model.1[0].val().sum(),
            };
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients).map(drop)
        })?;
        let tensors = state.primary()?.to_tensors()?;
        Ok(tensors
            .into_values()
            .flat_map(|data| data.iter::<f64>().collect::<Vec<_>>())
            .collect::<Vec<_>>())
    };
    let expected = workers(THREADS, &[2, 1], program);
    assert_eq!(workers_with(THREADS, &[2, 1], program, bf16), expected);
}
