//! What a step may do besides training, with the same results as under `MirroredStrategy`: metrics,
//! variables, gathering, arguments of all kinds.

use std::sync::atomic::{AtomicUsize, Ordering};

use burn::prelude::*;
use distribute_core::metric::{BinaryAccuracy, Mean, SparseCategoricalAccuracy, Sum};
use distribute_core::{
    DefaultStrategy, MirroredStrategy, PerReplica, ReduceOp, ReplicaContext, Replicate, Replicated,
    Result, Sgd, Strategy, StrategyExt, TensorData, TrainState, VariableAggregation,
    VariableOptions,
};
use distribute_data::sparse_categorical_crossentropy;
use distribute_tpu_xla::TpuStrategy;

use crate::strategy::models::Mlp;
use crate::strategy::support::{Data, strategy, system, within};

/// Runs `test` under both strategies and compares the numbers that it returns.
fn compare(replicas: &[usize], test: fn(&dyn Strategy) -> Result<Vec<f64>>) {
    for replicas in replicas {
        let Some(tpu) = strategy(*replicas) else {
            return;
        };
        let cpu = MirroredStrategy::builder().replicas(*replicas);
        let expected = test(&cpu.build().unwrap()).unwrap();
        let found = test(&tpu).unwrap();
        assert_eq!(found.len(), expected.len());
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!(
                (found - expected).abs() <= 1e-5 * expected.abs().max(1.0),
                "{replicas} replicas, {index}: {found}, expected {expected}"
            );
        }
    }
}

fn part(id: usize) -> Tensor<2> {
    let row = [id as f32 + 0.5, -1.0, 2.0 * id as f32];
    Tensor::from_floats([row, [3.0, 0.25, -0.5]], &Device::flex())
}

fn parts(strategy: &dyn Strategy) -> PerReplica<Tensor<2>> {
    strategy.values_from(part)
}

fn numbers<const D: usize>(values: PerReplica<Tensor<D>>) -> Vec<f64> {
    let values = values.into_values().into_iter();
    values
        .flat_map(|tensor| tensor.into_data().iter::<f64>().collect::<Vec<_>>())
        .collect()
}

#[test]
fn metrics_in_a_training_step() {
    within(120, || {
        compare(&[1, 2], |strategy| {
            let state = TrainState::new(fixed(), Sgd::new(0.1));
            let mut state = strategy.scope(|device| state.replicate(device))?;
            let loss = Mean::new(strategy);
            let accuracy = strategy.metric(SparseCategoricalAccuracy);
            let (positive, examples) = (
                strategy.metric(BinaryAccuracy::default()),
                Sum::new(strategy),
            );
            let replicas = strategy.num_replicas_in_sync();
            let mut data = Data::new(5, replicas, &[12], 5);
            let mut found = Vec::new();
            for _epoch in 0..2 {
                for _ in 0..6 {
                    strategy.run((&mut state, data.batch::<2>(4)), |ctx, (state, (x, y))| {
                        let count = x.dims()[0];
                        let logits = state.model.forward(x);
                        accuracy.update_state(ctx, &y, &logits)?;
                        let sides = y.clone().float().greater_elem(1.5).float();
                        positive.update_state(
                            ctx,
                            &sides,
                            &logits.clone().slice([0..count, 0..1]).flatten(0, 1),
                        )?;
                        examples.update_state(ctx, count as f32)?;
                        let per_example = sparse_categorical_crossentropy(logits, y.clone());
                        loss.update_state_weighted(ctx, per_example.clone(), y.float() + 1.0)?;
                        ctx.loss_is_scaled();
                        let gradients = ctx.gradient(&per_example.sum(), &state.model)?;
                        state.apply_gradients(ctx, gradients).map(drop)
                    })?;
                }
                found.extend([loss.result()?, accuracy.result()?]);
                found.extend([positive.result()?, examples.result()?]);
                loss.reset_state()?;
                accuracy.reset_state()?;
            }
            Ok(found)
        });
    });
}

/// A model with the same weights in every call.
fn fixed() -> Mlp {
    let model = Mlp::new(&Device::flex().autodiff());
    let mut state = TrainState::new(model, Sgd::new(0.1));
    let mut tensors = state.to_tensors().unwrap();
    for data in tensors.values_mut() {
        let count = data.num_elements();
        let values: Vec<f32> = (0..count)
            .map(|i| ((i * 7 % 13) as f32 - 6.0) / 20.0)
            .collect();
        *data = TensorData::new(values, data.shape().clone());
    }
    state.load_tensors(&tensors, 0).unwrap();
    state.model
}

#[test]
fn gathering_and_broadcasting() {
    within(120, || {
        compare(&[1, 2, 4], |strategy| {
            let last = strategy.num_replicas_in_sync() - 1;
            let found = strategy.run(parts(strategy), move |ctx, x| {
                let labels = x.clone().int();
                let nan = x.clone().div_scalar(0.0) * ctx.replica_id_tensor().float().unsqueeze();
                Ok((
                    (ctx.all_gather(x.clone(), 0)?, ctx.all_gather(x.clone(), 1)?),
                    (
                        ctx.broadcast(last, x)?,
                        ctx.broadcast(0, nan.nan_to_zero())?,
                    ),
                    (
                        ctx.all_gather(labels.clone(), 1)?,
                        ctx.broadcast(last, labels)?,
                    ),
                ))
            })?;
            let mut all = Vec::new();
            for ((rows, columns), (sent, nan), (labels, label)) in found.into_values() {
                all.extend(numbers(PerReplica::new(vec![rows, columns, sent, nan])));
                all.extend(numbers(PerReplica::new(vec![
                    labels.float(),
                    label.float(),
                ])));
            }
            Ok(all)
        });
    });
}

/// Zero where there is no number.
trait NanToZero {
    fn nan_to_zero(self) -> Self;
}

impl NanToZero for Tensor<2> {
    fn nan_to_zero(self) -> Self {
        let is_nan = self.clone().is_nan();
        self.mask_fill(is_nan, 0.0)
    }
}

#[test]
fn variables_of_every_kind() {
    within(120, || {
        compare(&[1, 2, 4], |strategy| {
            let make = |aggregation| VariableOptions::default().aggregation(aggregation);
            let mean =
                strategy.variable(TensorData::from([1.0_f32]), make(VariableAggregation::Mean))?;
            let sum = strategy.variable(
                TensorData::from([1.0_f32, 2.0]),
                make(VariableAggregation::Sum),
            )?;
            let first = strategy.variable(7_i32, make(VariableAggregation::OnlyFirstReplica))?;
            let seen = strategy.variable(0_i64, VariableOptions::on_read_sum())?;
            let mut found = Vec::new();
            for _ in 0..3 {
                let read = strategy.run(parts(strategy), |ctx, x| {
                    let before: Tensor<1> = sum.read_tensor(ctx)?;
                    let row: Tensor<1> = x.clone().slice([0..1, 0..2]).flatten(0, 1);
                    sum.assign_add(ctx, row)?;
                    let after: Tensor<1> = sum.read_tensor(ctx)?;
                    sum.assign_sub(ctx, before.clone())?;
                    mean.assign(ctx, x.clone().sum())?;
                    first.assign_add(ctx, 2_i32)?;
                    seen.assign_add(ctx, 5_i64)?;
                    seen.assign_sub(ctx, 1_i64)?;
                    Ok(before + after)
                })?;
                found.extend(numbers(read));
                for variable in [&mean, &sum] {
                    found.extend(variable.read(strategy)?.iter::<f64>());
                }
                found.push(f64::from(first.read(strategy)?));
                found.push(seen.read(strategy)? as f64);
                sum.assign(strategy, TensorData::from([0.5_f32, -1.0]))?;
            }
            Ok(found)
        });
    });
}

#[test]
fn a_variable_is_returned_as_it_is_and_one_of_no_strategy_is_not_changed() {
    within(120, || {
        let Some(tpu) = strategy(2) else { return };
        let initial = TensorData::from([1.0_f32, -2.0]);
        let own = tpu.variable(initial.clone(), VariableOptions::default());
        let own = own.unwrap();
        let read = tpu.run((), |ctx, ()| own.read_tensor::<1>(ctx)).unwrap();
        assert_eq!(numbers(read), [1.0, -2.0, 1.0, -2.0]);
        let other = DefaultStrategy::new();
        let plain = other.variable(initial, VariableOptions::default()).unwrap();
        let one = TensorData::from([1.0_f32, 1.0]);
        let error = tpu.run((), |ctx, ()| plain.assign_add(ctx, one.clone()));
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("create it with `strategy.variable`"),
            "{error}"
        );
    });
}

#[test]
fn arguments_of_all_kinds() {
    within(120, || {
        compare(&[1, 2], |strategy| {
            let lent = parts(strategy);
            let mut found = Vec::new();
            for number in 0..4 {
                let same = Replicated((
                    part(number),
                    2.0_f32,
                    vec![Tensor::<1, Int>::from_ints(
                        [number as i32],
                        &Device::flex(),
                    )],
                ));
                let result = strategy.run(
                    (same, &lent, parts(strategy), 0.5_f64),
                    |ctx, ((shift, factor, counts), lent, x, scale)| {
                        let count = counts[0].clone().float().unsqueeze();
                        let all = (x * factor + lent.clone() * scale + shift) * count;
                        ctx.all_reduce(ReduceOp::Mean, all)
                    },
                )?;
                found.extend(numbers(result));
            }
            Ok(found)
        });
        // Tensors that change are inputs: one program.
        let Some(tpu) = strategy(2) else { return };
        for number in 0..4 {
            let same = Replicated(part(number));
            tpu.run(same, |_, x| Ok(x)).unwrap();
        }
        assert_eq!(tpu.statistics().programs, 1);
    });
}

#[test]
fn a_captured_value_that_changes_never_runs_with_an_old_program() {
    within(120, || {
        let Some(tpu) = strategy(1) else { return };
        for number in 0..6 {
            let factor = f64::from(number % 3);
            let step = |factor: f64| move |_: &_, (x,): (Tensor<2>,)| Ok(x.sum() * factor);
            let sum = tpu.run((parts(&tpu),), step(factor)).unwrap();
            let expected = f64::from(part(0).sum().into_scalar::<f32>()) * factor;
            assert_eq!(numbers(sum), [expected]);
        }
        assert_eq!(tpu.statistics().programs, 3);
    });
}

/// The step is called twice to make its program, and after that only to be compared with it.
#[test]
fn steps_that_are_not_checked_are_not_called_again() {
    within(60, || {
        let Some(system) = system(1) else { return };
        let calls = |checks: bool| {
            let builder = TpuStrategy::builder(&system).check_steps(checks);
            let tpu = builder.build().unwrap();
            let calls = AtomicUsize::new(0);
            for _ in 0..10 {
                let step = |_: &ReplicaContext, x: Tensor<2>| {
                    calls.fetch_add(1, Ordering::Relaxed);
                    Ok(x * 2.0)
                };
                tpu.run(parts(&tpu), step).unwrap();
            }
            calls.into_inner()
        };
        assert_eq!(calls(false), 2);
        assert!(calls(true) > 2);
    });
}
