//! Batches that are filled up: every replica gets the same number of rows, the added rows have the
//! weight 0, and training, evaluation and prediction give the numbers of the short batches.

use std::ops::Range;

use burn::nn::{Linear, LinearConfig};
use distribute_core::{
    Device, Mirrored, MirroredStrategy, Result, Sgd, Strategy, StrategyExt, Tensor, TensorData,
    TrainState,
};
use distribute_data::{
    AutoShardPolicy, AverageLoss, Batching, Dataset, FnDataset, StrategyDataExt, Weighted,
    mean_squared_error,
};
use distribute_fit::{Fit, Logs, Objective, StepContext, evaluate, predict};
use proptest::prelude::*;
use rstest::rstest;

use super::workers::workers;

fn mirrored(replicas: usize) -> MirroredStrategy {
    let builder = MirroredStrategy::builder().replicas(replicas);
    builder.build().unwrap()
}

fn indices(indices: &[usize], _: &Device) -> Result<Vec<usize>> {
    Ok(indices.to_vec())
}

fn values(weights: Tensor<1>) -> Vec<f32> {
    weights.into_data().try_to_vec().unwrap()
}

/// `[step][replica]`: the examples, and their weights.
fn steps<D: Dataset<Batch = Vec<usize>>>(
    strategy: &dyn Strategy,
    dataset: D,
    batching: Batching,
) -> Vec<Vec<(Vec<usize>, Vec<f32>)>> {
    let dataset = Weighted::new(dataset);
    let distributed = strategy.distribute_dataset(dataset, batching).unwrap();
    let steps = distributed.epoch(3);
    let of_step = |step: Result<distribute_core::PerReplica<(Vec<usize>, Tensor<1>)>>| {
        let parts = step.unwrap().into_values().into_iter();
        parts.map(|(rows, weights)| (rows, values(weights)))
    };
    steps.map(|step| of_step(step).collect()).collect()
}

/// Each padded part is the plain part followed by rows of the weight 0.
fn assert_padded(
    padded: &[Vec<(Vec<usize>, Vec<f32>)>],
    plain: &[Vec<(Vec<usize>, Vec<f32>)>],
    rows: usize,
    examples: usize,
) {
    assert_eq!(padded.len(), plain.len());
    for (padded, plain) in padded.iter().flatten().zip(plain.iter().flatten()) {
        let own = plain.0.len();
        assert_eq!(padded.0.len(), rows);
        assert_eq!(padded.0[..own], plain.0);
        assert!(padded.0.iter().all(|example| *example < examples));
        assert_eq!(plain.1, vec![1.0; own]);
        let weights: Vec<f32> = (0..rows).map(|row| f32::from(row < own)).collect();
        assert_eq!(padded.1, weights);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_replica_gets_full_batches_of_its_own_examples(
        count in 1usize..90,
        batch in 1usize..40,
        replicas in 1usize..9,
        seed in proptest::option::of(any::<u64>()),
        drop in any::<bool>(),
    ) {
        let mut batching = Batching::global(batch).drop_remainder(drop).prefetch(0);
        if let Some(seed) = seed {
            batching = batching.shuffle(seed);
        }
        let strategy = mirrored(replicas);
        let plain = steps(&strategy, FnDataset::new(count, indices), batching);
        let padded = batching.pad_remainder(true);
        let padded = steps(&strategy, FnDataset::new(count, indices), padded);
        assert_padded(&padded, &plain, batch.min(count).div_ceil(replicas), count);
    }
}

/// Examples in files, of which one is empty.
struct Files(Vec<Range<usize>>);

impl Dataset for Files {
    type Batch = Vec<usize>;

    fn len(&self) -> usize {
        self.0.last().map_or(0, |file| file.end)
    }

    fn files(&self) -> Option<Vec<Range<usize>>> {
        Some(self.0.clone())
    }

    fn batch(&self, indices: &[usize], _: &Device) -> Result<Vec<usize>> {
        Ok(indices.to_vec())
    }
}

#[rstest]
fn workers_fill_up_what_they_read_alone(
    #[values(
        AutoShardPolicy::Auto,
        AutoShardPolicy::Data,
        AutoShardPolicy::File,
        AutoShardPolicy::Off
    )]
    policy: AutoShardPolicy,
    #[values(None, Some(5))] seed: Option<u64>,
) {
    let found = workers(&[2, 2], move |strategy| {
        let files = || Files(vec![0..9, 9..9, 9..11]);
        let mut batching = Batching::global(6).auto_shard(policy);
        if let Some(seed) = seed {
            batching = batching.shuffle(seed);
        }
        let plain = steps(&strategy, files(), batching);
        (
            plain,
            steps(&strategy, files(), batching.pad_remainder(true)),
        )
    });
    for (plain, padded) in &found {
        assert_padded(padded, plain, 2, 11);
    }
    assert_eq!(found[0].1.len(), found[1].1.len());
}

#[test]
fn padding_needs_weights_to_say_so() {
    let strategy = mirrored(2);
    let batching = Batching::global(4).pad_remainder(true);
    let error = strategy.distribute_dataset(FnDataset::new(3, indices), batching);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("Weighted::new(dataset)"), "{error}");
    let unweighted = FnDataset::new(3, indices);
    assert!(
        unweighted
            .padded_batch(0, &[0, 0], 1, &Device::flex())
            .is_err()
    );
    let empty = FnDataset::new(0, indices);
    let none = batching.allow_empty(true);
    assert!(steps(&strategy, empty, none).is_empty());
}

type Row = ((Tensor<2>, Tensor<2>), Tensor<1>);

/// Points on a curve.
fn points(count: usize) -> impl Dataset<Batch = Row> {
    Weighted::new(FnDataset::new(
        count,
        |indices: &[usize], device: &Device| {
            let x = indices
                .iter()
                .flat_map(|i| [(*i as f32).sin(), (*i as f32).cos()]);
            let y = indices.iter().map(|i| (*i as f32 * 0.7).sin());
            let x = TensorData::new(x.collect::<Vec<_>>(), [indices.len(), 2]);
            let y = TensorData::new(y.collect::<Vec<_>>(), [indices.len(), 1]);
            Ok((Tensor::from_data(x, device), Tensor::from_data(y, device)))
        },
    ))
}

fn objective(ctx: &StepContext<'_>, model: &Linear, ((x, y), weights): Row) -> Result<Objective> {
    let predicted = model.forward(x);
    let close = (predicted.clone() - y.clone()).abs().lower_elem(0.5);
    let close = close.float().flatten::<1>(0, 1) * weights.clone();
    let losses = mean_squared_error(predicted, y);
    let examples = weights.clone().sum();
    let loss = AverageLoss::new().weights(weights).of(ctx, losses)?;
    let objective = Objective::new(loss).examples(examples.clone());
    Ok(objective.metric("close", close.sum(), examples))
}

/// The weights after two epochs, what was said of the second, an evaluation, and predictions.
fn trained<S: Strategy>(strategy: &S, count: usize, pad: bool) -> (Vec<f32>, [Logs; 2], Vec<f32>) {
    let batching = Batching::global(10).pad_remainder(pad);
    let data = |batching| {
        strategy
            .distribute_dataset(points(count), batching)
            .unwrap()
    };
    let mut state: Mirrored<TrainState<Linear>> = strategy
        .scope(|device| {
            let weights = TensorData::from([[0.5_f32], [-0.25]]);
            let weights = burn::module::Param::from_tensor(Tensor::from_data(weights, device));
            let model = LinearConfig::new(2, 1).with_bias(false).init(device);
            TrainState::new(
                Linear {
                    weight: weights,
                    ..model
                },
                Sgd::new(0.1),
            )
        })
        .unwrap();
    let train = data(batching.shuffle(3));
    let fit = Fit::new(strategy).epochs(2);
    let history = fit.run(&mut state, &train, objective).unwrap();
    let test = data(batching);
    let found = evaluate(strategy, &state, &test, objective).unwrap();
    assert_eq!(found.examples, count as u64);
    let outputs: Tensor<2> = predict(strategy, &state, &test, |_, model: &Linear, row: Row| {
        Ok(model.forward(row.0.0))
    })
    .unwrap();
    let outputs: Vec<f32> = outputs.into_data().try_to_vec().unwrap();
    assert_eq!(outputs.len(), count);
    let tensors = state.primary().unwrap().to_tensors().unwrap();
    let weights = tensors.get("model/weight").unwrap();
    let weights = weights.try_to_vec::<f32>().unwrap();
    (weights, [history.last_logs().clone(), found.logs], outputs)
}

fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (a, b) in found.iter().zip(expected) {
        assert!(
            (a - b).abs() <= 1e-6 * b.abs().max(1.0),
            "{found:?}, {expected:?}"
        );
    }
}

#[rstest]
fn padded_batches_give_the_numbers_of_short_ones(
    #[values(1, 2, 3, 8)] replicas: usize,
    #[values(1, 5, 10, 20, 23, 37)] count: usize,
) {
    let strategy = mirrored(replicas);
    let (weights, logs, outputs) = trained(&strategy, count, false);
    let (padded_weights, padded_logs, padded_outputs) = trained(&strategy, count, true);
    assert_close(&padded_weights, &weights);
    assert_close(&padded_outputs, &outputs);
    for (padded, plain) in padded_logs.iter().zip(&logs) {
        for (name, value) in plain.iter() {
            let found = padded.get(name).unwrap();
            assert!((found - value).abs() < 1e-6, "{name}: {found}, {value}");
        }
    }
}
