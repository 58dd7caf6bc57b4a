//! Input pipelines of several workers that end after different numbers of steps. Workers are
//! threads here.

use burn::nn::{Linear, LinearConfig};
use distribute_core::{
    Device, Error, InputContext, Nest, ReduceOp, Result, Sgd, Strategy, StrategyExt, Tensor,
    TensorData, TrainState,
};
use distribute_data::{
    AutoShardPolicy, AverageLoss, Batching, Dataset, FnDataset, ReplicationMode, StrategyDataExt,
    Weighted,
};
use distribute_fit::{Fit, Objective, StepContext, predict};
use rstest::rstest;

use super::workers::workers;

#[derive(Nest, Clone)]
struct Batch {
    x: Tensor<2>,
    labels: TensorData,
    weight: f32,
}

fn batch(rows: usize) -> Batch {
    let device = distribute_core::Device::flex();
    Batch {
        x: Tensor::ones([rows, 3], &device),
        labels: TensorData::new(vec![7_i64; rows], [rows]),
        weight: 2.0,
    }
}

/// The rows of every step of every worker, as all of them run a step on each.
fn steps(batches: &'static [usize], replicas: &'static [usize]) -> Vec<Vec<(f32, i64, f32)>> {
    workers(replicas, move |strategy| {
        let index = strategy.workers().unwrap().index();
        let input = strategy.distribute_datasets_from_function(move |context| {
            assert_eq!(context.input_pipeline_id, index);
            Ok((0..batches[index]).map(|_| Ok(batch(2))))
        });
        let mut seen = Vec::new();
        for step in input.epoch().unwrap() {
            let sums = strategy.run(step.unwrap(), |ctx, batch| {
                let rows = batch.labels.shape()[0] as i64;
                assert_eq!(batch.labels.dtype().name(), "i64");
                assert_eq!(batch.x.dims()[1], 3);
                let x = batch.x.sum().into_scalar::<f32>();
                // What training does: all replicas take part in every step.
                ctx.all_reduce(ReduceOp::Sum, (x, rows, batch.weight))
            });
            seen.push(sums.unwrap().into_values()[0]);
        }
        seen
    })
}

#[rstest]
#[case(&[5, 6], 6)]
#[case(&[0, 3], 3)]
#[case(&[3, 0], 3)]
#[case(&[2, 2], 2)]
#[case(&[1, 4, 0], 4)]
#[case(&[0, 0], 0)]
fn all_workers_make_as_many_steps_as_the_longest_pipeline(
    #[case] batches: &'static [usize],
    #[case] expected: usize,
) {
    let ones: &'static [usize] = &[1, 1, 1][..batches.len()];
    let found = steps(batches, ones);
    for worker in &found {
        assert_eq!(worker.len(), expected);
        assert_eq!(*worker, found[0]);
    }
    for (step, (x, rows, weight)) in found[0].iter().enumerate() {
        let full = batches.iter().filter(|count| **count > step).count();
        assert_eq!(
            (*x, *rows),
            (6.0 * full as f32, 2 * full as i64),
            "step {step}"
        );
        assert_eq!(*weight, 2.0 * full as f32, "an empty batch counts nothing");
    }
}

#[test]
fn so_do_workers_with_several_replicas() {
    let found = steps(&[4, 3], &[2, 1]);
    // Worker 0 takes two batches a step, worker 1 one.
    assert_eq!(
        found[0].iter().map(|step| step.1).collect::<Vec<_>>(),
        [6, 6, 2]
    );
    assert_eq!(found[0], found[1]);
}

#[test]
fn workers_with_any_numbers_of_replicas_read_every_example_once() {
    let found = workers(&[2, 1, 3], |strategy| {
        let examples = FnDataset::new(26, |indices: &[usize], _: &Device| Ok(indices.to_vec()));
        let data = strategy
            .distribute_dataset(examples, Batching::global(13))
            .unwrap();
        let steps = data.epoch(0).map(|step| step.unwrap().into_values());
        steps.flatten().flatten().collect::<Vec<usize>>()
    });
    let mut all = found.concat();
    all.sort_unstable();
    assert_eq!(all, (0..26).collect::<Vec<_>>());
    let pipelines = workers(&[2, 1, 3], |strategy| {
        let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let contexts = std::sync::Arc::clone(&seen);
        let input = strategy.distribute_datasets_from_function(move |context: InputContext| {
            let place = (context.input_pipeline_id, context.num_input_pipelines);
            contexts.lock().unwrap().push(place);
            Ok(std::iter::empty::<Result<f32>>())
        });
        let input = input.replication_mode(ReplicationMode::PerReplica);
        assert_eq!(input.epoch().unwrap().count(), 0);
        seen.lock().unwrap().clone()
    });
    let expected: Vec<_> = (0..6).map(|id| (id, 6)).collect();
    assert_eq!(pipelines.concat(), expected);
}

#[test]
fn predictions_come_in_the_order_of_the_source() {
    let rows = workers(&[2, 2], |strategy| {
        let state = strategy
            .scope(|device| TrainState::new(LinearConfig::new(1, 1).init(device), Sgd::new(0.1)))
            .unwrap();
        let examples = FnDataset::new(11, |indices: &[usize], _: &Device| {
            let values: Vec<f32> = indices.iter().map(|index| *index as f32).collect();
            Ok(TensorData::new(values, [indices.len(), 1]))
        });
        let data = strategy
            .distribute_dataset(examples, Batching::global(7))
            .unwrap();
        let rows = predict(&strategy, &state, &data, |_, _, batch: TensorData| {
            Ok(batch)
        });
        rows.unwrap().iter::<f32>().collect::<Vec<_>>()
    });
    let expected: Vec<f32> = (0..11).map(|index| index as f32).collect();
    assert_eq!(rows, [expected.clone(), expected]);
}

#[test]
fn a_pipeline_that_fails_ends_the_others_with_its_error() {
    let outcomes: Vec<Result<usize>> = workers(&[1, 1], |strategy| {
        let index = strategy.workers().unwrap().index();
        let input = strategy.distribute_datasets_from_function(move |_| {
            Ok((0..4).map(move |step| match (index, step) {
                (1, 2) => Err(Error::invalid("the tape is torn")),
                _ => Ok(batch(2)),
            }))
        });
        let mut steps = 0;
        for step in input.epoch()? {
            step?;
            steps += 1;
        }
        Ok(steps)
    });
    let texts: Vec<_> = outcomes
        .into_iter()
        .map(|o| o.unwrap_err().to_string())
        .collect();
    assert_eq!(
        texts[0],
        "the input pipeline of worker 1 failed: the tape is torn"
    );
    assert_eq!(texts[1], "the tape is torn");
}

/// Rows of ones, in files.
#[derive(Debug, Clone)]
struct Rows {
    files: Vec<usize>,
    in_files: bool,
}

impl Dataset for Rows {
    type Batch = Batch;

    fn len(&self) -> usize {
        self.files.iter().sum()
    }

    fn files(&self) -> Option<Vec<std::ops::Range<usize>>> {
        let mut start = 0;
        let ranges = self.files.iter().map(|length| {
            start += length;
            start - length..start
        });
        self.in_files.then(|| ranges.collect())
    }

    fn batch(&self, indices: &[usize], _: &Device) -> Result<Batch> {
        Ok(batch(indices.len()))
    }
}

/// The rows that all workers together have in every step of a loop of one's own, as each worker
/// sees it, over two epochs.
fn rows_of_steps(
    policy: AutoShardPolicy,
    drop: bool,
    lengths: Vec<Vec<usize>>,
    in_files: bool,
) -> Vec<Vec<i64>> {
    workers(&vec![1; lengths.len()], move |strategy| {
        let files = lengths[strategy.workers().unwrap().index()].clone();
        let batching = Batching::global(4).shuffle(3).drop_remainder(drop);
        let batching = batching.auto_shard(policy).allow_empty(true);
        let data = strategy
            .distribute_dataset(Rows { files, in_files }, batching)
            .unwrap();
        let mut rows = Vec::new();
        for epoch in 0..2 {
            let mut steps = 0;
            for step in data.epoch(epoch) {
                let sums = strategy.run(step.unwrap(), |ctx, batch| {
                    let rows = batch.labels.shape()[0] as i64;
                    let x = batch.x.sum().into_scalar::<f32>();
                    let (x, rows) = ctx.all_reduce(ReduceOp::Sum, (x, rows))?;
                    assert_eq!(x, 3.0 * rows as f32);
                    Ok(rows)
                });
                rows.push(sums.unwrap().into_values()[0]);
                steps += 1;
            }
            assert_eq!(steps, data.batches_per_epoch());
        }
        rows
    })
}

#[rstest]
// Of batches of 4 each worker has a half, and the first one all of the last batch of 1.
#[case(AutoShardPolicy::Data, false, &[13, 5], &[4, 2, 2, 1])]
#[case(AutoShardPolicy::Auto, false, &[5, 13], &[4, 3, 2, 0])]
#[case(AutoShardPolicy::Data, true, &[13, 5], &[4, 2, 2])]
#[case(AutoShardPolicy::Off, false, &[5, 9], &[4, 4, 3, 2, 1])]
#[case(AutoShardPolicy::Off, true, &[5, 9], &[4, 4, 2, 2])]
#[case(AutoShardPolicy::Off, false, &[0, 3], &[2, 1])]
// A batch of 4 over 3 workers is 2, 2 and 0.
#[case(AutoShardPolicy::Auto, false, &[0, 3, 9], &[1, 0, 0])]
#[case(AutoShardPolicy::Data, false, &[0, 0], &[])]
fn arrays_of_unequal_lengths_end_together(
    #[case] policy: AutoShardPolicy,
    #[case] drop: bool,
    #[case] lengths: &'static [usize],
    #[case] expected: &'static [i64],
) {
    let lengths = lengths.iter().map(|length| vec![*length]).collect();
    for rows in rows_of_steps(policy, drop, lengths, false) {
        assert_eq!(rows, [expected, expected].concat());
    }
}

#[rstest]
#[case(AutoShardPolicy::File, 2, 3, false, &[4, 3, 2])]
#[case(AutoShardPolicy::Auto, 2, 3, false, &[4, 3, 2])]
#[case(AutoShardPolicy::File, 2, 3, true, &[2, 2])]
#[case(AutoShardPolicy::File, 2, 5, false, &[4, 4, 4, 2, 1])]
#[case(AutoShardPolicy::File, 3, 4, false, &[4, 4, 2, 2])]
#[case(AutoShardPolicy::Off, 2, 3, false, &[4, 4, 4, 4, 2])]
fn workers_with_other_numbers_of_files_end_together(
    #[case] policy: AutoShardPolicy,
    #[case] count: usize,
    #[case] files: usize,
    #[case] drop: bool,
    #[case] expected: &'static [i64],
) {
    let found = rows_of_steps(policy, drop, vec![vec![3; files]; count], true);
    for rows in found {
        assert_eq!(rows, [expected, expected].concat());
    }
}

/// A file that cannot be read from row 4 on.
#[derive(Debug)]
struct Torn(bool);

impl Dataset for Torn {
    type Batch = Batch;

    fn len(&self) -> usize {
        12
    }

    fn batch(&self, indices: &[usize], _: &Device) -> Result<Batch> {
        if self.0 && indices.iter().any(|index| *index >= 4) {
            Err(Error::input("the disk is gone"))
        } else {
            Ok(batch(indices.len()))
        }
    }
}

#[test]
fn a_batch_that_one_worker_cannot_read_ends_the_loops_of_the_others() {
    let all = std::sync::Arc::new(std::sync::Barrier::new(2));
    let texts = workers(&[1, 1], move |strategy| {
        let index = strategy.workers().unwrap().index();
        let data = strategy.distribute_dataset(Torn(index == 1), Batching::global(4));
        let mut steps = 0;
        let outcome: Result<()> = data.unwrap().epoch(0).try_for_each(|step| {
            let ran = strategy.run(step?, |ctx, batch| {
                ctx.all_reduce(ReduceOp::Sum, batch.x.sum())
            });
            steps += 1;
            ran.map(drop)
        });
        // No worker ends before all have the error: they must not get it from a lost connection.
        all.wait();
        assert!(steps <= 2, "worker {index} made {steps} steps");
        outcome.unwrap_err().to_string()
    });
    assert!(texts[0].contains("rank 1"), "{}", texts[0]);
    assert!(texts[0].contains("the disk is gone"), "{}", texts[0]);
    assert_eq!(texts[1], "the disk is gone");
}

/// Trains two epochs with [`Fit`]; the updates and the weights of every worker.
fn fitted(lengths: &'static [usize], from_function: bool) -> Vec<(u64, Vec<f32>)> {
    workers(&vec![1; lengths.len()], move |strategy| {
        let index = strategy.workers().unwrap().index();
        let mut state = strategy
            .scope(|device| TrainState::new(LinearConfig::new(3, 1).init(device), Sgd::new(0.1)))
            .unwrap();
        let objective = |ctx: &StepContext<'_>, model: &Linear, batch: Batch| {
            let examples = batch.x.dims()[0];
            let wrong = model.forward(batch.x) - 1.0;
            let losses = wrong.powi_scalar(2).reshape([examples]);
            let loss = AverageLoss::new().global_batch_size(4).of(ctx, losses)?;
            Ok(Objective::new(loss).examples(examples))
        };
        let fit = Fit::new(&strategy).epochs(2);
        let history = if from_function {
            let rows = lengths[index];
            let input = strategy.distribute_datasets_from_function(move |_| {
                let sizes = (0..rows.div_ceil(2)).map(move |at| 2.min(rows - 2 * at));
                Ok(sizes.map(|size| Ok(batch(size))))
            });
            fit.run(&mut state, &input, objective)
        } else {
            let rows = Rows {
                files: vec![lengths[index]],
                in_files: false,
            };
            let batching = Batching::global(4).allow_empty(true).shuffle(1);
            let data = strategy.distribute_dataset(rows, batching).unwrap();
            fit.run_with_validation(&mut state, &data, &data, objective)
        };
        for record in history.unwrap().epochs {
            assert!(record.logs.loss().is_finite(), "{record:?}");
        }
        let tensors = state.primary().unwrap().to_tensors().unwrap();
        let weights = tensors
            .values()
            .flat_map(|data| data.iter::<f32>().collect::<Vec<_>>());
        (state.primary().unwrap().step(), weights.collect())
    })
}

#[rstest]
#[case(&[13, 5], 4)]
#[case(&[3, 17, 6], 5)]
#[case(&[0, 5], 2)]
fn fit_goes_on_until_the_last_worker_is_through(
    #[case] lengths: &'static [usize],
    #[case] steps_of_arrays: u64,
) {
    for from_function in [false, true] {
        let steps = if from_function {
            lengths.iter().max().unwrap().div_ceil(2) as u64
        } else {
            steps_of_arrays
        };
        let found = fitted(lengths, from_function);
        for (updates, weights) in &found {
            assert_eq!(*updates, 2 * steps, "from a function: {from_function}");
            assert!(weights.iter().all(|weight| weight.is_finite()));
            assert_eq!(*weights, found[0].1);
        }
    }
}

#[rstest]
#[case(Batching::global(8), "the global batch size", "8", "4")]
#[case(Batching::global(4).shuffle(1), "the seed of the shuffle", "1", "none")]
#[case(Batching::global(4).drop_remainder(true), "drop_remainder", "true", "false")]
fn workers_that_cut_their_data_in_other_ways_are_told(
    #[case] other: Batching,
    #[case] what: &str,
    #[case] found: &str,
    #[case] expected: &str,
) {
    let texts: Vec<String> = workers(&[1, 1], move |strategy| {
        let batching = [Batching::global(4), other][strategy.workers().unwrap().index()];
        let in_files = false;
        let rows = Rows {
            files: vec![9],
            in_files,
        };
        let distributed = strategy.distribute_dataset(rows, batching);
        distributed.unwrap_err().to_string()
    });
    let text = format!("{what} of a distributed dataset is {found} on worker 1 and {expected} on");
    assert!(texts[0].starts_with(&text), "{}", texts[0]);
    assert_eq!(texts[0], texts[1]);
}

#[test]
fn a_worker_that_cannot_distribute_its_data_ends_the_others_with_its_error() {
    let outcomes: Vec<Result<usize>> = workers(&[1, 1], |strategy| {
        let index = strategy.workers().unwrap().index();
        let files = vec![7 * index];
        let in_files = false;
        let data = strategy.distribute_dataset(Rows { files, in_files }, Batching::global(4))?;
        Ok(data.batches_per_epoch())
    });
    let texts: Vec<_> = outcomes
        .into_iter()
        .map(|outcome| outcome.unwrap_err().to_string())
        .collect();
    assert!(texts[0].starts_with("the dataset is empty"), "{}", texts[0]);
    assert!(texts[1].contains("worker 0"), "{}", texts[1]);
    assert!(texts[1].contains("the dataset is empty"), "{}", texts[1]);
}

#[test]
fn padded_batches_of_unequal_workers_are_of_one_size() {
    let found = workers(&[1, 1], |strategy| {
        let index = strategy.workers().unwrap().index();
        let rows = Rows {
            files: vec![[1, 3][index]],
            in_files: false,
        };
        let batching = Batching::global(8).pad_remainder(true);
        let data = strategy
            .distribute_dataset(Weighted::new(rows), batching)
            .unwrap();
        let steps = data.epoch(0).map(|step| {
            let (batch, weights) = step.unwrap().into_values().remove(0);
            let weights: Vec<f32> = weights.into_data().iter::<f32>().collect();
            (batch.x.dims()[0], weights)
        });
        steps.collect::<Vec<_>>()
    });
    assert_eq!(found[0], [(2, vec![1.0, 0.0])]);
    assert_eq!(found[1], [(2, vec![1.0, 0.0])]);
}

/// Every worker drops the remainder of its own data, also where another has more steps.
#[test]
fn a_shorter_dataset_drops_its_own_remainder() {
    let lengths = [10, 14];
    let read = workers(&[1, 1], move |strategy| {
        let worker = strategy.input_context().input_pipeline_id;
        let numbers = FnDataset::new(lengths[worker], |indices: &[usize], _: &Device| {
            Ok(indices.to_vec())
        });
        let batching = Batching::global(4)
            .drop_remainder(true)
            .auto_shard(AutoShardPolicy::Data);
        let train = strategy.distribute_dataset(numbers, batching).unwrap();
        let steps = train.epoch(0).map(|step| step.unwrap().into_values());
        steps.map(|mut step| step.remove(0)).collect::<Vec<_>>()
    });
    assert_eq!(read[0], [vec![0, 1], vec![4, 5], vec![]]);
    assert_eq!(read[1], [vec![2, 3], vec![6, 7], vec![10, 11]]);
}

/// Under OFF every worker reads everything, in a stream of its own.
#[test]
fn streams_of_workers_are_repeated_each() {
    let found = workers(&[1, 1], |strategy| {
        let epochs = |batching: Batching| {
            let make = |indices: &[usize], _: &Device| Ok(indices.to_vec());
            let batching = batching.auto_shard(AutoShardPolicy::Off);
            let data = strategy.distribute_dataset(FnDataset::new(5, make), batching);
            let data = data.unwrap();
            let epoch = |epoch: usize| {
                let batches = data.epoch(epoch);
                let batches: Vec<_> = batches.map(|batch| batch.unwrap().into_values()).collect();
                assert_eq!(batches.len(), data.batches_per_epoch());
                batches.concat()
            };
            [epoch(0), epoch(1)]
        };
        let twice = epochs(Batching::global(8).repeat(2));
        let steps = epochs(Batching::global(8).steps_per_epoch(2));
        (twice, steps)
    });
    let expected = [vec![0, 1, 2, 3], vec![4, 0, 1, 2], vec![3, 4]];
    let of_steps = [[[0, 1, 2, 3], [4, 0, 1, 2]], [[3, 4, 0, 1], [2, 3, 4, 0]]];
    for (twice, steps) in found {
        assert_eq!(twice, [expected.clone(), expected.clone()]);
        assert_eq!(steps, of_steps);
    }
}
