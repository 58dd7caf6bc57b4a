//! What is computed depends on the number of replicas, not on how they are placed on workers: four
//! replicas of one worker, two and two, three and one, one each. Sums over replicas are sums of
//! small whole numbers here, which are exact in any order: the order is tested elsewhere.

use std::collections::BTreeMap;
use std::fmt::Debug;

use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::Int;
use distribute_core::metric::{Mean, SparseCategoricalAccuracy, Sum};
use distribute_core::optim;
use distribute_core::{
    Device, LossScale, MultiWorkerMirroredStrategy, ReduceOp, Result, Sgd, Strategy, StrategyExt,
    SyncBatchNorm, SyncBatchNormConfig, Tensor, TensorData, TrainState, VariableOptions, dropout,
};
use distribute_data::{
    AutoShardPolicy, AverageLoss, Batching, FnDataset, StrategyDataExt, Weighted,
};
use distribute_fit::{Fit, Objective, StepContext, evaluate, predict};
use rand::Rng;
use rstest::rstest;

use super::workers::workers;

/// Replicas of each worker.
const LAYOUTS: [&[usize]; 4] = [&[4], &[2, 2], &[3, 1], &[1, 1, 1, 1]];

/// Runs a program that returns a value per replica of its worker, and compares the replicas'.
fn same_in_all_layouts<T: PartialEq + Debug + Send + 'static>(
    program: impl Fn(&MultiWorkerMirroredStrategy) -> Vec<T> + Send + Clone + 'static,
) -> Vec<T> {
    let of = |layout: &[usize]| {
        let program = program.clone();
        workers(layout, move |strategy| {
            assert_eq!(strategy.num_replicas_in_sync(), 4);
            program(&strategy)
        })
    };
    let [expected, others @ ..] = LAYOUTS.map(|layout| {
        let all: Vec<T> = of(layout).into_iter().flatten().collect();
        assert_eq!(all.len(), 4, "a value of each replica");
        (layout, all)
    });
    for (layout, found) in others {
        assert!(
            found == expected.1,
            "{layout:?}: {found:?}, {:?}",
            expected.1
        );
    }
    expected.1
}

fn indices(indices: &[usize], _: &Device) -> Result<Vec<usize>> {
    Ok(indices.to_vec())
}

#[rstest]
#[case::in_order(Batching::global(7))]
#[case::shuffled(Batching::global(8).shuffle(3))]
#[case::per_replica(Batching::per_replica(3).shuffle(4))]
#[case::without_remainder(Batching::global(9).shuffle(5).drop_remainder(true))]
#[case::again_and_again(Batching::global(6).shuffle(6).steps_per_epoch(7))]
#[case::repeated(Batching::global(10).shuffle(7).repeat(2))]
#[case::with_more_ready(Batching::global(8).shuffle(3).prefetch(5))]
#[case::with_none_ready(Batching::global(8).shuffle(3).prefetch(0))]
#[case::by_several_threads(Batching::global(8).shuffle(3).num_parallel_calls(3))]
#[case::smaller_than_the_replicas(Batching::global(3))]
#[case::by_replicas(Batching::global(7).shuffle(8).auto_shard(AutoShardPolicy::Replicas))]
fn a_replica_reads_the_same_examples(#[case] batching: Batching) {
    let read = same_in_all_layouts(move |strategy| {
        let data = strategy
            .distribute_dataset(FnDataset::new(26, indices), batching)
            .unwrap();
        let mut of_replicas = vec![Vec::new(); strategy.replicas().len()];
        for epoch in 0..3 {
            for step in data.epoch(epoch) {
                let parts = step.unwrap().into_values().into_iter();
                of_replicas
                    .iter_mut()
                    .zip(parts)
                    .for_each(|(of, part)| of.push(part));
            }
        }
        of_replicas
    });
    assert!(read[0].iter().flatten().count() > 0);
}

#[test]
fn padded_batches_and_their_weights_are_the_same() {
    same_in_all_layouts(|strategy| {
        let weighted = Weighted::new(FnDataset::new(22, indices));
        let batching = Batching::global(8).shuffle(3).pad_remainder(true);
        let data = strategy.distribute_dataset(weighted, batching).unwrap();
        let mut of_replicas = vec![Vec::new(); strategy.replicas().len()];
        for step in data.epoch(0) {
            let parts = step.unwrap().into_values().into_iter();
            for (of, (rows, weights)) in of_replicas.iter_mut().zip(parts) {
                of.push((rows, weights.into_data().try_to_vec::<f32>().unwrap()));
            }
        }
        of_replicas
    });
}

/// TensorFlow's policy gives the parts out in another order where workers have several replicas.
#[test]
fn under_the_policy_data_the_parts_depend_on_the_workers() {
    let parts = |layout: &'static [usize]| {
        let parts = workers(layout, |strategy| {
            let batching = Batching::global(8).auto_shard(AutoShardPolicy::Data);
            let data = strategy.distribute_dataset(FnDataset::new(8, indices), batching);
            let data = data.unwrap();
            data.epoch(0).next().unwrap().unwrap().into_values()
        });
        parts.concat()
    };
    assert_eq!(parts(&[4]), [[0, 1], [2, 3], [4, 5], [6, 7]]);
    assert_eq!(parts(&[2, 2]), [[0, 1], [4, 5], [2, 3], [6, 7]]);
}

#[test]
fn random_streams_depend_on_seed_replica_and_step() {
    let drawn = same_in_all_layouts(|strategy| {
        let drawn = strategy.run((), |ctx, ()| {
            let mut drawn = Vec::new();
            for (seed, step) in [(1, 0), (1, 1), (2, 0), (u64::MAX, 12345)] {
                let mut rng = ctx.rng(seed, step);
                drawn.extend([rng.next_u64(), rng.next_u64()]);
                let ones = Tensor::<2>::ones([3, 5], ctx.device());
                let dropped = dropout(ones, 0.5, &mut rng).into_data();
                let kept = dropped.iter::<f32>().map(|value| u64::from(value > 0.0));
                drawn.extend(kept);
            }
            Ok(drawn)
        });
        drawn.unwrap().into_values()
    });
    for (replica, of) in drawn.iter().enumerate() {
        assert!(!drawn[..replica].contains(of), "a stream each");
    }
}

#[test]
fn all_start_with_the_values_of_the_chief() {
    let values = same_in_all_layouts(|strategy| {
        let index = strategy
            .workers()
            .map_or(0, distribute_core::WorkerGroup::index);
        let build = |device: &Device| {
            let weight = Tensor::<1>::full([3], 1.0 + index as f64, device);
            TrainState::new(vec![Param::from_tensor(weight)], Sgd::new(0.1))
        };
        let mut state = strategy.scope(build).unwrap();
        let variable = strategy.variable(1.0 + index as f32, VariableOptions::default());
        let variable = variable.unwrap();
        let values = strategy.run(&mut state, |ctx, state| {
            let mut values = state.model[0]
                .val()
                .into_data()
                .try_to_vec::<f32>()
                .unwrap();
            values.push(variable.read(ctx)?);
            Ok(values)
        });
        values.unwrap().into_values()
    });
    assert_eq!(values, vec![vec![1.0; 4]; 4]);
}

fn model(device: &Device) -> Linear {
    let mut linear = LinearConfig::new(3, 2).init(device);
    let weight = TensorData::new(vec![0.3_f32, -0.7, 0.11, 0.9, -0.05, 0.23], [3, 2]);
    linear.weight = Param::from_tensor(Tensor::from_data(weight, device).require_grad());
    let bias = Tensor::from_data(TensorData::new(vec![0.1_f32, -0.2], [2]), device);
    linear.bias = Some(Param::from_tensor(bias.require_grad()));
    linear
}

/// Small whole numbers, so that sums of them are exact in any order.
fn features(indices: &[usize], device: &Device) -> Result<Tensor<2>> {
    let value = |i: usize| ((i * 37 + i / 3 * 11) % 17) as f32 - 8.0;
    let values = indices
        .iter()
        .flat_map(|index| (0..3).map(move |k| value(index * 3 + k)));
    let data = TensorData::new(values.collect::<Vec<_>>(), [indices.len(), 3]);
    Ok(Tensor::from_data(data, device))
}

/// Every tensor of a state, bit by bit.
fn bits(tensors: BTreeMap<String, TensorData>) -> Vec<(String, Vec<u8>)> {
    let tensors = tensors.into_iter();
    tensors
        .map(|(name, tensor)| (name, tensor.as_bytes().to_vec()))
        .collect()
}

/// Trains with a loss that is linear in the weights: its gradients are exact, whatever the
/// optimizer makes of the weights.
fn trained(
    strategy: &MultiWorkerMirroredStrategy,
    state: impl FnOnce(&Device) -> TrainState<Linear>,
) -> Vec<Vec<(String, Vec<u8>)>> {
    let mut state = strategy.scope(state).unwrap();
    let data = FnDataset::new(22, features);
    // The last batch of an epoch is short: one of the replicas has none of it.
    let batching = Batching::global(8).shuffle(3);
    let data = strategy.distribute_dataset(data, batching).unwrap();
    for step in (0..4).flat_map(|epoch| data.epoch(epoch)) {
        let done = strategy.run((&mut state, step.unwrap()), |ctx, (state, x)| {
            let loss = state.model.forward(x).sum().div_scalar(8.0);
            let loss = state.scale_loss(&loss);
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients).map(drop)
        });
        done.unwrap();
    }
    let states = strategy.run(&mut state, |_, state: &mut TrainState<Linear>| {
        state.to_tensors()
    });
    states
        .unwrap()
        .into_values()
        .into_iter()
        .map(bits)
        .collect()
}

#[test]
fn every_optimizer_ends_with_the_same_bits() {
    for name in optim::names() {
        let ends = same_in_all_layouts(move |strategy| {
            let optimizer = optim::from_config(name, &serde_json::json!({})).unwrap();
            trained(strategy, |device| {
                TrainState::with_optimizer(model(device), optimizer)
            })
        });
        assert!(ends.iter().all(|end| *end == ends[0]), "{name}");
    }
}

type Configured = fn(TrainState<Linear>) -> TrainState<Linear>;

#[rstest]
#[case::clipped(|state: TrainState<Linear>| state.clip_by_global_norm(0.5))]
#[case::accumulated(|state: TrainState<Linear>| state.accumulate(2))]
#[case::accumulated_mean(|state: TrainState<Linear>| state.accumulate_mean(4))]
#[case::scaled(|state: TrainState<Linear>| state.with_loss_scale(LossScale::dynamic()))]
fn what_is_done_with_gradients_gives_the_same_bits(#[case] configured: Configured) {
    same_in_all_layouts(move |strategy| {
        trained(strategy, |device| {
            let sgd = Sgd::new(0.01).momentum(0.9);
            configured(TrainState::new(model(device), sgd))
        })
    });
}

/// The label of an example, and scores that predict it for two of three examples.
fn scores(indices: &[usize], device: &Device) -> (Tensor<1, Int>, Tensor<2>) {
    let labels: Vec<i64> = indices.iter().map(|index| (*index % 2) as i64).collect();
    let right = |index: usize| {
        if index.is_multiple_of(3) {
            1 - index % 2
        } else {
            index % 2
        }
    };
    let scores = indices.iter().flat_map(|index| {
        let said = right(*index);
        [f32::from(said == 0), f32::from(said == 1)]
    });
    let scores: Vec<f32> = scores.collect();
    let count = indices.len();
    let labels = Tensor::from_data(TensorData::new(labels, [count]), device);
    let scores = Tensor::from_data(TensorData::new(scores, [count, 2]), device);
    (labels, scores)
}

#[test]
fn metrics_and_reductions_give_the_same_numbers() {
    let found = same_in_all_layouts(|strategy| {
        let accuracy = strategy.metric(SparseCategoricalAccuracy);
        let (mean, sum) = (Mean::new(strategy), Sum::new(strategy));
        let data = strategy
            .distribute_dataset(FnDataset::new(26, indices), Batching::global(7))
            .unwrap();
        let mut reduced = Vec::new();
        for step in data.epoch(0) {
            let parts = strategy.run(step.unwrap(), |ctx, part| {
                let (labels, scores) = scores(&part, ctx.device());
                accuracy.update_state(ctx, &labels, &scores)?;
                let values: Vec<f32> = part.iter().map(|index| *index as f32).collect();
                let values = TensorData::new(values, [part.len()]);
                mean.update_state(ctx, values.clone())?;
                sum.update_state(ctx, values.clone())?;
                let all = ctx.all_gather(values.clone(), 0)?;
                let first = ctx.broadcast(2, part.len() as i64)?;
                let most = ctx.all_reduce(ReduceOp::Max, part.len() as i64)?;
                let all = all.iter::<f32>().map(f64::from).collect::<Vec<_>>();
                Ok((part.len() as i64, all, first, most))
            });
            let parts = parts.unwrap();
            for (_, all, first, most) in &parts.values()[..1] {
                reduced.extend_from_slice(all);
                reduced.extend([*first as f64, *most as f64]);
            }
            let counts = parts.map(|part| part.0);
            let gathered = counts
                .clone()
                .map(|count| TensorData::new(vec![count], [1]));
            let gathered = strategy.gather(gathered, 0).unwrap();
            reduced.extend(gathered.iter::<i64>().map(|count| count as f64));
            reduced.push(strategy.reduce(ReduceOp::Sum, counts).unwrap() as f64);
        }
        let results = [
            accuracy.result().unwrap(),
            mean.result().unwrap(),
            sum.result().unwrap(),
        ];
        vec![(results, reduced); strategy.replicas().len()]
    });
    assert_eq!(found[0].0[1], 12.5);
    assert_eq!(found[0].0[2], 325.0);
}

/// What `Fit` and `evaluate` report: losses are whole numbers.
#[test]
fn training_and_evaluation_report_the_same() {
    let found = same_in_all_layouts(|strategy| {
        let examples = Weighted::new(FnDataset::new(21, |indices: &[usize], device: &Device| {
            let values: Vec<f32> = indices.iter().map(|index| *index as f32).collect();
            let data = TensorData::new(values, [indices.len(), 1]);
            Ok(Tensor::<2>::from_data(data, device))
        }));
        let data = strategy
            .distribute_dataset(examples, Batching::global(8).shuffle(1))
            .unwrap();
        let build = |device: &Device| {
            let mut model = LinearConfig::new(1, 1).with_bias(false).init(device);
            model.weight = Param::from_tensor(Tensor::ones([1, 1], device).require_grad());
            TrainState::new(model, Sgd::new(0.25))
        };
        let mut state = strategy.scope(build).unwrap();
        let objective = |ctx: &StepContext<'_>, model: &Linear, (x, weights): (Tensor<2>, _)| {
            let weights: Tensor<1> = weights;
            let rows = x.dims()[0];
            let losses = model.forward(x).reshape([rows]);
            let average = AverageLoss::new()
                .weights(weights.clone())
                .global_batch_size(8);
            let loss = average.of(ctx, losses.clone())?;
            let objective = Objective::new(loss).examples(weights.sum());
            Ok(objective.metric("largest", losses.sum(), rows as f32))
        };
        let before = evaluate(strategy, &state, &data, objective).unwrap();
        let fit = Fit::new(strategy).epochs(2);
        let history = fit
            .run_with_validation(&mut state, &data, &data, objective)
            .unwrap();
        let rows = predict(strategy, &state, &data, |_, model: &Linear, (x, _)| {
            Ok(model.forward(x).into_data())
        });
        let rows = rows
            .unwrap()
            .iter::<f32>()
            .map(f32::to_bits)
            .collect::<Vec<_>>();
        let numbers = |logs: &distribute_fit::Logs| {
            let logs = logs.iter();
            logs.map(|(name, value)| (name.to_string(), value.to_bits()))
                .collect::<Vec<_>>()
        };
        let reported = (numbers(&before.logs), numbers(&history.last_logs()), rows);
        vec![reported; strategy.replicas().len()]
    });
    assert_eq!(found[0].2.len(), 21);
}

#[derive(Module, Debug)]
struct Norms {
    own: BatchNorm,
    synchronized: SyncBatchNorm,
}

/// Each replica's running statistics come from its own part of the batch, synchronized ones from
/// the whole batch. Here the values are whole numbers, as many as a power of two, so that means are
/// exact.
#[test]
fn running_statistics_of_a_replica_are_the_same() {
    same_in_all_layouts(|strategy| {
        let build = |device: &Device| {
            let norms = Norms {
                own: BatchNormConfig::new(3).init(device),
                synchronized: SyncBatchNormConfig::new(3).init(device).unwrap(),
            };
            TrainState::new(norms, Sgd::new(0.1))
        };
        let mut state = strategy.scope(build).unwrap();
        let data = FnDataset::new(32, features);
        let data = strategy
            .distribute_dataset(data, Batching::global(16).shuffle(3))
            .unwrap();
        let mut of_replicas = vec![Vec::new(); strategy.replicas().len()];
        for step in (0..2).flat_map(|epoch| data.epoch(epoch)) {
            let seen = strategy.run((&mut state, step.unwrap()), |_, (state, x)| {
                let norms: &Norms = &state.model;
                let own = norms.own.forward(x.clone());
                let synchronized = norms.synchronized.forward(x);
                let tensors = [
                    own.into_data(),
                    synchronized.into_data(),
                    norms.own.running_mean.value_sync().into_data(),
                    norms.own.running_var.value_sync().into_data(),
                    norms.synchronized.moving_mean.value().into_data(),
                    norms.synchronized.moving_variance.value().into_data(),
                ];
                Ok(tensors.map(|data| data.as_bytes().to_vec()))
            });
            let seen = seen.unwrap().into_values().into_iter();
            of_replicas
                .iter_mut()
                .zip(seen)
                .for_each(|(of, seen)| of.push(seen));
        }
        of_replicas
    });
}
