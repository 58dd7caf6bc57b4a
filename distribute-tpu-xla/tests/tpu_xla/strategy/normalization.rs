//! `SyncBatchNorm` trains in compiled steps as in steps that run as they are.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::nn::{Linear, LinearConfig};
use burn::prelude::*;
use burn::tensor::activation::relu;
use distribute_core::{
    Adam, Error, Mirrored, PerReplica, Replicate, Result, Strategy, StrategyExt, SyncBatchNorm,
    SyncBatchNormConfig, TensorData, TrainState, trace,
};
use distribute_data::{AverageLoss, Batching, FnDataset, StrategyDataExt, Weighted};

use crate::strategy::models::with_fixed_weights;
use crate::strategy::support::{assert_close, mirrored, strategy, within};

/// A layer on the inputs, whose batch is nothing that is trained, and one on channels of two.
#[derive(Module, Debug)]
struct Net {
    inputs: SyncBatchNorm,
    first: Linear,
    norm: SyncBatchNorm,
    last: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        let norm = |features| SyncBatchNormConfig::new(features).with_momentum(0.9);
        with_fixed_weights(Self {
            inputs: norm(3).init(device).unwrap(),
            first: LinearConfig::new(3, 8).init(device),
            norm: norm(4).with_center(false).init(device).unwrap(),
            last: LinearConfig::new(8, 1).init(device),
        })
    }

    /// With the weights of the examples where batches are filled up.
    fn forward(&self, x: Tensor<2>, weights: Option<Tensor<1>>) -> Tensor<2> {
        let examples = x.dims()[0];
        let normalized = of(&self.inputs, x, &weights);
        let hidden = self.first.forward(normalized).reshape([examples, 4, 2]);
        let hidden = relu(of(&self.norm, hidden, &weights));
        self.last.forward(hidden.reshape([examples, 8]))
    }
}

fn of<const D: usize>(
    norm: &SyncBatchNorm,
    x: Tensor<D>,
    weights: &Option<Tensor<1>>,
) -> Tensor<D> {
    match weights {
        Some(weights) => norm.forward_weighted(x, weights.clone()),
        None => norm.forward(x),
    }
}

/// The features of this many examples, around other centres than 0.
fn rows(indices: &[usize], device: &Device) -> Result<Tensor<2>> {
    let value = |i: usize| (i as f32 * 78.233).sin() * 2.0 + (i % 3) as f32 - 0.5;
    let values = indices.iter().flat_map(|i| i * 3..i * 3 + 3).map(value);
    let data = TensorData::new(values.collect::<Vec<_>>(), [indices.len(), 3]);
    Ok(Tensor::from_data(data, device))
}

/// The examples of an epoch, and how they are cut into batches. The last batch is short; where the
/// shapes are fixed and `pads`, it is filled up. Without padding the layers get no weights.
#[derive(Clone, Copy)]
struct Epoch {
    examples: usize,
    batch: usize,
    pads: bool,
}

const PADDED: Epoch = Epoch {
    examples: 45,
    batch: 12,
    pads: true,
};

/// Trains on some epochs.
fn train(
    strategy: &dyn Strategy,
    state: &mut Mirrored<TrainState<Net>>,
    epoch: Epoch,
    epochs: Range<usize>,
) {
    let Epoch {
        examples, batch, ..
    } = epoch;
    let pads = epoch.pads && strategy.tracer().is_some();
    let batching = Batching::global(batch).shuffle(3).pad_remainder(pads);
    let dataset = Weighted::new(FnDataset::new(examples, rows));
    let dataset = strategy.distribute_dataset(dataset, batching).unwrap();
    for epoch in epochs {
        for part in dataset.epoch(epoch) {
            let arguments = (&mut *state, part.unwrap(), pads);
            let step = strategy.run(arguments, |ctx, (state, (x, weights), pads)| {
                let target = x.clone().sum_dim(1).sin();
                let given = pads.then(|| weights.clone());
                let error = state.model.forward(x, given) - target;
                let losses: Tensor<1> = error.powi_scalar(2).flatten(0, 1);
                let loss = AverageLoss::new().weights(weights).global_batch_size(batch);
                let loss = loss.of(ctx, losses)?;
                let gradients = ctx.gradient(&loss, &state.model)?;
                state.apply_gradients(ctx, gradients).map(drop)
            });
            step.unwrap();
        }
    }
}

fn tensors(state: &Mirrored<TrainState<Net>>) -> BTreeMap<String, TensorData> {
    let copies = state.values().unwrap().iter();
    let mut copies = copies.map(|copy| copy.to_tensors().unwrap());
    let first = copies.next().unwrap();
    assert!(copies.all(|copy| copy == first), "the same bits");
    let moved = &first["model/norm.moving_mean"];
    assert!(moved.iter::<f32>().all(|mean| mean != 0.0), "{moved:?}");
    first
}

fn net() -> TrainState<Net> {
    TrainState::new(Net::new(&Device::flex().autodiff()), Adam::new(1e-2))
}

/// 45 examples leave 9 of which two replicas get 5 and 4; 40 leave 4. Of batches of 40 the examples
/// are summed in more than one chain.
#[test]
fn weights_and_statistics_are_those_of_steps_that_run_as_they_are() {
    within(300, || {
        for (replicas, examples, batch, pads) in [
            (1, 45, 12, false),
            (1, 45, 12, true),
            (2, 40, 12, false),
            (2, 45, 12, true),
            (4, 45, 12, true),
            (1, 90, 40, false),
            (2, 90, 40, true),
        ] {
            let Some(tpu) = strategy(replicas) else {
                return;
            };
            let (cpu, start) = (mirrored(replicas), net());
            let [mut on_tpu, mut on_cpu] = [&tpu as &dyn Strategy, &cpu]
                .map(|strategy| strategy.scope(|device| start.replicate(device)).unwrap());
            let epoch = Epoch {
                examples,
                batch,
                pads,
            };
            train(&tpu, &mut on_tpu, epoch, 0..5);
            train(&cpu, &mut on_cpu, epoch, 0..5);
            assert_close(&tensors(&on_tpu), &tensors(&on_cpu), 1e-5);
            // The statistics stay on the devices, in the same program.
            let programs = if pads { 1 } else { 2 };
            assert_eq!(tpu.statistics().programs, programs);
        }
    });
}

/// Over other numbers of replicas, compiled and not.
#[test]
fn a_checkpoint_goes_on_with_the_same_statistics() {
    within(300, || {
        let (Some(one), Some(two)) = (strategy(1), strategy(2)) else {
            return;
        };
        let (cpu, start) = (mirrored(2), net());
        let on = |strategy: &dyn Strategy| {
            let state = strategy.scope(|device| start.replicate(device));
            state.unwrap()
        };
        let mut whole = on(&cpu);
        train(&cpu, &mut whole, PADDED, 0..4);
        let mut first = on(&two);
        train(&two, &mut first, PADDED, 0..2);
        let (step, saved) = first.primary().unwrap().save().unwrap();
        for strategy in [&one as &dyn Strategy, &two, &cpu] {
            let mut second = on(strategy);
            // What it had before is not in the way.
            train(strategy, &mut second, PADDED, 7..8);
            second
                .update(|state| state.load_tensors(&saved, step))
                .unwrap();
            train(strategy, &mut second, PADDED, 2..4);
            assert_close(&tensors(&second), &tensors(&whole), 2e-5);
        }
    });
}

/// A batch of which nothing counts leaves the statistics as they are.
#[test]
fn a_batch_without_weight_moves_nothing() {
    within(60, || {
        let Some(tpu) = strategy(2) else { return };
        let config = SyncBatchNormConfig::new(3);
        let mut norm = tpu.try_scope(|device| config.init(device)).unwrap();
        let device = Device::flex().autodiff();
        let part = || {
            (
                rows(&[1, 2], &device).unwrap(),
                Tensor::<1>::zeros([2], &device),
            )
        };
        let parts = PerReplica::new(vec![part(), part()]);
        let outputs = tpu.run((&mut norm, parts), |_, (norm, (x, weights))| {
            Ok(norm.forward_weighted(x, weights))
        });
        let output = outputs.unwrap().values()[1].to_data();
        assert!(output.iter::<f32>().all(f32::is_finite));
        let norm = norm.primary().unwrap();
        for (moving, start) in [(&norm.moving_mean, 0.0), (&norm.moving_variance, 1.0)] {
            assert!(moving.value().to_data().iter::<f32>().all(|x| x == start));
        }
    });
}

#[test]
fn evaluation_and_frozen_layers_use_the_moving_statistics() {
    within(60, || {
        let Some(tpu) = strategy(2) else { return };
        let mut state = tpu.scope(|_| net()).unwrap();
        train(&tpu, &mut state, PADDED, 0..1);
        let x = rows(&[4, 5, 6], &Device::flex().autodiff()).unwrap();
        let parts = || PerReplica::new(vec![x.clone(); 2]);
        let outputs = tpu.run((&state, parts()), |_, (state, x)| {
            Ok(trace::valid(&state.model)?.forward(x, None))
        });
        let found = outputs.unwrap().values()[1].to_data();
        let before = state.primary().unwrap().model.clone();
        let plain = before.valid();
        let expected = mirrored(1);
        let expected = expected.run((), |_, ()| {
            Ok(plain.forward(x.clone().without_autodiff(), None))
        });
        let expected = expected.unwrap().values()[0].to_data();
        found.assert_approx_eq::<f32>(&expected, burn::tensor::Tolerance::absolute(1e-5));
        // In a step that changes the state, too.
        let statistic = |state: &Mirrored<TrainState<Net>>| {
            let inputs = &state.primary().unwrap().model.inputs;
            inputs.moving_mean.value().to_data()
        };
        let mut frozen = before;
        frozen.inputs = frozen.inputs.freeze();
        let frozen = TrainState::new(frozen, Adam::new(1e-2));
        let mut frozen = tpu.scope(|device| frozen.replicate(device)).unwrap();
        let mean = statistic(&frozen);
        train(&tpu, &mut frozen, PADDED, 1..2);
        assert_eq!(statistic(&frozen), mean);
        assert_eq!(mean, statistic(&state));
    });
}

/// The statistics cover all replicas, so the error names the first one.
#[test]
fn statistics_that_are_not_finite_are_named_and_nothing_is_lost() {
    within(120, || {
        for replicas in [1, 2] {
            let Some(tpu) = strategy(replicas) else {
                return;
            };
            let start = net();
            let on = || tpu.scope(|device| start.replicate(device)).unwrap();
            let [mut found, mut expected] = [on(), on()];
            let step = |state: &mut Mirrored<TrainState<Net>>, value: f32| {
                let device = Device::flex().autodiff();
                let mut parts: Vec<_> = (0..replicas)
                    .map(|replica| rows(&[replica, replica + 3, replica + 8], &device).unwrap())
                    .collect();
                let last = parts.pop().unwrap();
                let bad = Tensor::full([1, 1], value, &device);
                parts.push(last.slice_assign([2..3, 1..2], bad));
                let ran = tpu.run((state, PerReplica::new(parts)), |ctx, (state, x)| {
                    let loss = state.model.forward(x, None).powi_scalar(2).sum();
                    ctx.loss_is_scaled();
                    let gradients = ctx.gradient(&loss, &state.model)?;
                    state.apply_gradients(ctx, gradients).map(drop)
                });
                ran.map(drop)
            };
            for state in [&mut found, &mut expected] {
                step(state, 1.0).unwrap();
            }
            let error = step(&mut found, f32::NEG_INFINITY).unwrap_err();
            let Error::StatisticsNotFinite {
                path,
                replica,
                updates,
            } = &error
            else {
                panic!("{error}");
            };
            assert_eq!(
                (path.as_str(), *replica, *updates),
                ("inputs.moving_mean", 0, 1)
            );
            assert_eq!(tensors(&found), tensors(&expected));
            for state in [&mut found, &mut expected] {
                step(state, 2.0).unwrap();
            }
            assert_eq!(tensors(&found), tensors(&expected));
            let programs = tpu.statistics().programs;
            assert_eq!(programs, 2, "one for each state");
        }
    });
}
