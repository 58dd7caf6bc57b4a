//! Input pipelines of several workers that end after different numbers of steps. Workers are
//! threads here.

use std::sync::mpsc;
use std::time::Duration;

use burn::nn::LinearConfig;
use distribute_core::collectives::{GroupOptions, in_process};
use distribute_core::fit::predict;
use distribute_core::{
    Device, Error, InputContext, MultiWorkerMirroredStrategy, Nest, ReduceOp, Result, Sgd,
    Strategy, StrategyExt, Tensor, TensorData, TrainState,
};
use distribute_data::{Batching, FnDataset, ReplicationMode, StrategyDataExt};
use rstest::rstest;

/// A hang fails, and is not waited for.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs a program on workers with these numbers of replicas.
fn workers<T: Send + 'static>(
    replicas: &[usize],
    program: impl Fn(MultiWorkerMirroredStrategy) -> T + Send + Clone + 'static,
) -> Vec<T> {
    let (done, results) = mpsc::channel();
    let group = in_process(replicas.len(), GroupOptions::default()).unwrap();
    for (index, endpoint) in group.into_iter().enumerate() {
        let (done, program, count) = (done.clone(), program.clone(), replicas[index]);
        std::thread::spawn(move || {
            let builder = MultiWorkerMirroredStrategy::builder().replicas(count);
            let strategy = builder.communicator(Box::new(endpoint)).build().unwrap();
            let _ = done.send((index, program(strategy)));
        });
    }
    let mut outcomes: Vec<_> = replicas
        .iter()
        .map(|_| {
            results
                .recv_timeout(LIMIT)
                .expect("a worker hangs or panicked")
        })
        .collect();
    outcomes.sort_by_key(|(index, _)| *index);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

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
            let sums = strategy.run((step.unwrap(),), |ctx, (batch,)| {
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
