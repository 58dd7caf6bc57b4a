//! burn's own data loaders and datasets under strategies: every example once per pass, whatever
//! the number of replicas, workers and threads. Needs the feature `dataset`, which builds burn with
//! more of its features.

use std::sync::Arc;
use std::sync::mpsc::{self, channel};
use std::time::Duration;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::{Dataset as BurnDataset, DatasetError, InMemDataset};
use distribute_core::collectives::{GroupOptions, in_process};
use distribute_core::{
    BatchSource, CentralStorageStrategy, Device, Error, MirroredStrategy,
    MultiWorkerMirroredStrategy, Nest, ReduceOp, Result, Strategy, StrategyExt, Tensor, TensorData,
};
use distribute_data::{Batching, DataError, DistributedDataLoader, FnDataset, StrategyDataExt};
use rstest::rstest;

/// A batch of burn's habit.
#[derive(Nest, Clone, Debug)]
struct Batch {
    rows: Tensor<2>,
    names: Vec<String>,
}

/// Makes no batch of nothing, and none of an item that is broken.
struct Rows {
    broken: Option<usize>,
}

const SOUND: Rows = Rows { broken: None };

impl Batcher<usize, Batch> for Rows {
    fn batch(&self, items: Vec<usize>, device: &Device) -> Batch {
        assert!(!items.is_empty(), "a batch of nothing");
        let broken = self.broken.filter(|broken| items.contains(broken));
        assert_eq!(broken, None, "a broken item");
        let values: Vec<f32> = items.iter().flat_map(|&item| [item as f32, 1.0]).collect();
        Batch {
            rows: Tensor::from_data(TensorData::new(values, [items.len(), 2]), device),
            names: items.iter().map(usize::to_string).collect(),
        }
    }
}

type Loader = Arc<dyn DataLoader<Batch>>;

fn loader(count: usize, batch: usize, threads: usize, seed: Option<u64>) -> Loader {
    let builder = DataLoaderBuilder::new(SOUND)
        .batch_size(batch)
        .num_workers(threads);
    let builder = match seed {
        Some(seed) => builder.shuffle(seed),
        None => builder,
    };
    builder.build(InMemDataset::new((0..count).collect()))
}

fn mirrored(replicas: usize) -> MirroredStrategy {
    let builder = MirroredStrategy::builder().replicas(replicas);
    builder.build().unwrap()
}

/// Fails instead of hanging.
fn within_a_minute<R: Send + 'static>(body: impl FnOnce() -> R + Send + 'static) -> R {
    let (sender, receiver) = channel();
    std::thread::spawn(move || sender.send(body()));
    receiver.recv_timeout(Duration::from_secs(60)).unwrap()
}

/// `[step][replica][example]` of one pass.
fn pass(data: &DistributedDataLoader<Batch>, strategy: &dyn Strategy) -> Vec<Vec<Vec<usize>>> {
    let step = |step: Result<distribute_core::PerReplica<Batch>>| {
        let parts = step.unwrap().into_values();
        let parts = parts.into_iter().zip(strategy.replicas());
        let part = |(part, replica): (Batch, &distribute_core::Replica)| {
            assert_eq!(part.rows.device(), replica.device);
            let [rows, columns] = part.rows.dims();
            assert_eq!(columns, 2);
            let values = part.rows.into_data().iter::<f32>().collect::<Vec<_>>();
            assert_eq!(values.len(), 2 * rows);
            values
                .chunks(2)
                .map(|row| row[0] as usize)
                .collect::<Vec<_>>()
        };
        parts.map(part).collect::<Vec<_>>()
    };
    data.iter().map(step).collect()
}

fn sorted(steps: &[Vec<Vec<usize>>]) -> Vec<usize> {
    let mut all = steps.concat().concat();
    all.sort_unstable();
    all
}

#[rstest]
fn every_example_comes_once_per_pass(
    #[values(1, 2, 3)] replicas: usize,
    #[values(0, 1, 2, 5)] threads: usize,
    #[values(None, Some(7))] seed: Option<u64>,
    #[values(1, 2, 9, 16, 17)] count: usize,
) {
    within_a_minute(move || {
        let strategy = mirrored(replicas);
        let data = strategy.distribute_data_loader(&*loader(count, 4, threads, seed));
        for _ in 0..3 {
            let steps = pass(&data, &strategy);
            assert_eq!(sorted(&steps), (0..count).collect::<Vec<_>>());
            // The first slice is the longest.
            let longest = count.div_ceil(replicas);
            assert_eq!(steps.len(), longest.div_ceil(4));
            assert!(steps.iter().flatten().all(|part| part.len() <= 4));
            let own = steps.iter().map(|step| step[0].len());
            assert_eq!(own.sum::<usize>(), longest);
        }
    });
}

#[test]
fn without_threads_and_shuffle_the_order_is_that_of_the_slices() {
    let strategy = mirrored(2);
    let data = strategy.distribute_data_loader(&*loader(9, 2, 0, None));
    let expected = [
        [vec![0, 1], vec![5, 6]],
        [vec![2, 3], vec![7, 8]],
        [vec![4], vec![]],
    ];
    for _ in 0..2 {
        assert_eq!(pass(&data, &strategy), expected);
    }
    let rest = BatchSource::epoch(&data, 5, 2).unwrap();
    let rest: Vec<_> = rest.map(|step| step.unwrap().into_values()).collect();
    assert_eq!(rest.len(), 1);
    assert_eq!(rest[0][0].names, ["4"]);
    assert_eq!(BatchSource::epoch(&data, 0, 7).unwrap().count(), 0);
}

#[test]
fn each_pass_over_a_shuffled_loader_has_another_order() {
    let strategy = mirrored(2);
    let data = strategy.distribute_data_loader(&*loader(40, 4, 0, Some(3)));
    let mut orders: Vec<_> = (0..3).map(|_| pass(&data, &strategy)).collect();
    orders.dedup();
    assert_eq!(orders.len(), 3);
}

/// No example is lost where TensorFlow's central storage would drop a step that is not whole.
#[test]
fn central_storage_reads_the_last_step_too() {
    let strategy = CentralStorageStrategy::with_replicas(2).unwrap();
    let data = strategy.distribute_data_loader(&*loader(9, 2, 2, None));
    assert_eq!(sorted(&pass(&data, &strategy)), (0..9).collect::<Vec<_>>());
}

#[test]
fn a_loader_without_items_has_no_steps() {
    within_a_minute(|| {
        for threads in [0, 2] {
            let strategy = mirrored(2);
            let data = strategy.distribute_data_loader(&*loader(0, 4, threads, Some(1)));
            assert!(data.iter().next().is_none());
        }
    });
}

/// Runs a program on workers with these numbers of replicas, each a thread.
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
    let receive = || {
        results
            .recv_timeout(Duration::from_secs(60))
            .expect("a worker hangs")
    };
    let mut outcomes: Vec<_> = replicas.iter().map(|_| receive()).collect();
    outcomes.sort_by_key(|(index, _)| *index);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

#[rstest]
fn workers_read_every_example_once_and_end_together(
    #[values(vec![1, 1], vec![2, 1], vec![1, 3])] replicas: Vec<usize>,
    #[values(0, 2)] threads: usize,
    #[values(None, Some(7))] seed: Option<u64>,
    // With one example most replicas never have a batch.
    #[values(1, 10, 33)] count: usize,
) {
    let total: usize = replicas.iter().sum();
    let found = workers(&replicas, move |strategy| {
        let rows = rows_loader(count, threads, seed);
        let data = strategy.distribute_data_loader(&*rows);
        (0..2).map(|_| rows_of(&data)).collect::<Vec<_>>()
    });
    for pass in 0..2 {
        let all: Vec<_> = found.iter().map(|worker| worker[pass].clone()).collect();
        let lengths: Vec<_> = all.iter().map(Vec::len).collect();
        let steps = count.div_ceil(total).div_ceil(3);
        assert_eq!(lengths, vec![steps; replicas.len()]);
        assert_eq!(sorted(&all.concat()), (0..count).collect::<Vec<_>>());
    }
}

/// The same without anything but a tensor.
struct Numbers;

impl Batcher<usize, Tensor<1>> for Numbers {
    fn batch(&self, items: Vec<usize>, device: &Device) -> Tensor<1> {
        let values: Vec<f32> = items.into_iter().map(|item| item as f32).collect();
        Tensor::from_floats(&values[..], device)
    }
}

fn rows_loader(count: usize, threads: usize, seed: Option<u64>) -> Arc<dyn DataLoader<Tensor<1>>> {
    let builder = DataLoaderBuilder::new(Numbers)
        .batch_size(3)
        .num_workers(threads);
    let items = InMemDataset::new((0..count).collect());
    match seed {
        Some(seed) => builder.shuffle(seed).build(items),
        None => builder.build(items),
    }
}

fn rows_of(data: &DistributedDataLoader<Tensor<1>>) -> Vec<Vec<Vec<usize>>> {
    let numbers = |part: Tensor<1>| -> Vec<usize> {
        part.into_data()
            .iter::<f32>()
            .map(|item| item as usize)
            .collect()
    };
    let step = |step: Result<distribute_core::PerReplica<Tensor<1>>>| {
        step.unwrap()
            .into_values()
            .into_iter()
            .map(numbers)
            .collect()
    };
    data.iter().map(step).collect()
}

/// The bits of a training depend on the number of replicas, not on the processes they are in.
#[rstest]
fn a_replicas_batches_do_not_depend_on_the_worker_it_is_in(#[values(0, 1)] threads: usize) {
    let read = move |strategy: &dyn Strategy| {
        let data = strategy.distribute_data_loader(&*rows_loader(40, threads, Some(5)));
        (0..2).map(|_| rows_of(&data)).collect::<Vec<_>>()
    };
    let together = read(&mirrored(3));
    let apart = workers(&[1, 2], move |strategy| read(&strategy));
    for (pass, together) in together.iter().enumerate() {
        let parts = apart[0][pass].iter().zip(&apart[1][pass]);
        let joined = parts.map(|(first, second)| [&first[..], &second[..]].concat());
        assert_eq!(joined.collect::<Vec<_>>(), *together);
    }
}

/// A dataset of which one item cannot be read.
struct Broken(usize);

impl BurnDataset<usize> for Broken {
    fn get(&self, index: usize) -> std::result::Result<usize, DatasetError> {
        if index == 13 {
            return Err(DatasetError::new(std::io::Error::other("no item 13")));
        }
        Ok(index)
    }

    fn len(&self) -> usize {
        self.0
    }
}

#[rstest]
fn an_error_of_the_dataset_is_the_last_item(
    #[values(1, 2)] replicas: usize,
    #[values(0, 1, 2)] threads: usize,
) {
    within_a_minute(move || {
        let builder = DataLoaderBuilder::new(SOUND)
            .batch_size(2)
            .num_workers(threads);
        let data = mirrored(replicas).distribute_data_loader(&*builder.build(Broken(20)));
        for _ in 0..2 {
            let mut steps = data.iter();
            let error = steps.find_map(Result::err).expect("an error");
            assert!(error.to_string().contains("no item 13"), "{error}");
            assert!(steps.next().is_none());
        }
    });
}

/// The worker whose item cannot be read tells the others, which would wait for it.
#[rstest]
fn an_error_of_one_worker_ends_the_pass_of_all(#[values(0, 2)] threads: usize) {
    let errors = workers(&[1, 1], move |strategy| {
        let builder = DataLoaderBuilder::new(SOUND)
            .batch_size(2)
            .num_workers(threads);
        // Item 13 is in the slice of worker 1.
        let data = strategy.distribute_data_loader(&*builder.build(Broken(20)));
        data.iter()
            .find_map(Result::err)
            .map(|error| error.to_string())
    });
    for error in &errors {
        let error = error.as_ref().expect("an error");
        assert!(error.contains("no item 13"), "{error}");
    }
    assert!(
        errors[0].as_ref().unwrap().contains("worker 1"),
        "{errors:?}"
    );
}

#[rstest]
fn a_panic_of_the_batcher_is_an_error(
    #[values(1, 2)] replicas: usize,
    #[values(0, 1, 2, 3)] threads: usize,
) {
    within_a_minute(move || {
        let batcher = Rows { broken: Some(13) };
        let builder = DataLoaderBuilder::new(batcher)
            .batch_size(2)
            .num_workers(threads);
        let items = InMemDataset::new((0..20).collect());
        let data = mirrored(replicas).distribute_data_loader(&*builder.build(items));
        let mut steps = data.iter();
        let error = steps.find_map(Result::err).expect("an error");
        assert!(steps.next().is_none());
        let Error::Input(source) = &error else {
            panic!("{error:?}");
        };
        match source.downcast_ref::<DataError>() {
            Some(DataError::Panicked { message }) if threads == 0 => {
                assert!(message.contains("a broken item"), "{message}");
            }
            Some(DataError::LoaderEnded { read, items }) if threads > 0 => {
                assert_eq!(*items, 20_usize.div_ceil(replicas));
                assert!(read < items);
            }
            _ => panic!("{error:?}"),
        }
        // The loader's thread is gone, or panics again.
        assert!(data.iter().any(|step| step.is_err()));
    });
}

#[rstest]
fn a_pass_that_is_left_early_ends(#[values(0, 2)] threads: usize) {
    within_a_minute(move || {
        let strategy = mirrored(2);
        for prefetch in [0, 1, 3] {
            let data = strategy.distribute_data_loader(&*loader(1000, 2, threads, None));
            let data = data.prefetch(prefetch);
            assert_eq!((&data).into_iter().take(3).count(), 3);
            assert_eq!(
                sorted(&pass(&data, &strategy)),
                (0..1000).collect::<Vec<_>>()
            );
        }
    });
}

/// The mean over the examples of both replicas, of batches that differ in size.
#[test]
fn a_mean_loss_counts_every_example_once() {
    let strategy = mirrored(2);
    let data = strategy.distribute_data_loader(&*loader(9, 5, 0, None));
    for batch in &data {
        let losses = strategy.run(batch.unwrap(), |ctx, batch| {
            ctx.mean_loss(batch.rows.slice([0..batch.names.len(), 0..1]).mean())
        });
        let loss = strategy.reduce(ReduceOp::Sum, losses.unwrap()).unwrap();
        assert!((loss.into_scalar::<f32>() - 4.0).abs() < 1e-6);
    }
}

/// burn's dataset and batcher in a dataset of this library, as docs/data.md says.
#[rstest]
fn a_dataset_and_a_batcher_of_burn_are_a_dataset(
    #[values(1, 2)] replicas: usize,
    #[values(1, 3)] threads: usize,
) {
    let items = InMemDataset::new((0..9).collect::<Vec<usize>>());
    let data = FnDataset::new(items.len(), move |indices: &[usize], device: &Device| {
        let items = items.get_many(indices.to_vec()).map_err(Error::input)?;
        Ok(SOUND.batch(items, device))
    });
    let batching = Batching::global(4).shuffle(1).num_parallel_calls(threads);
    let data = mirrored(replicas)
        .distribute_dataset(data, batching)
        .unwrap();
    let mut names = Vec::new();
    for batch in &data {
        for part in batch.unwrap().into_values() {
            assert_eq!(part.rows.dims(), [part.names.len(), 2]);
            names.extend(part.names);
        }
    }
    names.sort();
    assert_eq!(
        names,
        (0..9)
            .map(|item: usize| item.to_string())
            .collect::<Vec<_>>()
    );
}
