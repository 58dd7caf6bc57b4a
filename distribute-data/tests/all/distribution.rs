//! What every replica gets: each example once per epoch, the same global batches for any number
//! of replicas, the same order for ever, and nothing left behind when things go wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use burn::tensor::{GradientCheckpointingStrategy, Int};
use distribute_core::{
    Device, Error, InputContext, LogicalDevice, MirroredStrategy, OneDeviceStrategy, Replica,
    ReplicaStep, Result, Strategy, StrategyId, Tensor, TensorData,
};
use distribute_data::split::{batch_sizes_for_worker, per_replica_sizes, replica_range, shuffled};
use distribute_data::{
    AutoShardPolicy, Batching, DataError, Dataset, FnDataset, Position, ShardHint, StrategyDataExt,
};
use hostile::settles::settles;
use proptest::prelude::*;

use crate::mirrored;

pub fn indices(indices: &[usize], _: &Device) -> Result<Vec<usize>> {
    Ok(indices.to_vec())
}

/// `[step][replica][example]`.
fn steps(strategy: &dyn Strategy, count: usize, batching: Batching) -> Vec<Vec<Vec<usize>>> {
    let dataset = FnDataset::new(count, indices);
    let distributed = strategy.distribute_dataset(dataset, batching).unwrap();
    let steps = distributed.epoch(3);
    assert!(steps.size_hint().1 == Some(distributed.batches_per_epoch()));
    steps.map(|step| step.unwrap().into_values()).collect()
}

/// Fails instead of hanging.
pub fn within_a_minute<R: Send + 'static>(body: impl FnOnce() -> R + Send + 'static) -> R {
    hostile::limit::within(Duration::from_secs(60), body)
}

#[test]
fn batches_are_on_the_replicas_devices_with_their_gradient_checkpointing() {
    let builder = MirroredStrategy::builder().replicas(2);
    let strategy = builder.gradient_checkpointing().build().unwrap();
    let rows = |indices: &[usize], device: &Device| {
        let ids: Vec<i64> = indices.iter().map(|index| *index as i64).collect();
        Ok((
            Tensor::<2>::ones([indices.len(), 3], device),
            Tensor::<1, Int>::from_data(TensorData::new(ids, [indices.len()]), device),
        ))
    };
    let batching = Batching::global(4);
    let batches = strategy.distribute_dataset(FnDataset::new(10, rows), batching);
    for batch in batches.unwrap().epoch(0) {
        for (x, labels) in batch.unwrap().into_values() {
            let wanted = strategy.replicas()[0]
                .device
                .gradient_checkpointing_strategy();
            assert!(wanted == Some(GradientCheckpointingStrategy::Balanced));
            assert_eq!(x.gradient_checkpointing_strategy(), wanted);
            assert_eq!(labels.gradient_checkpointing_strategy(), wanted);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_example_comes_once_per_epoch_and_batches_do_not_depend_on_the_replicas(
        count in 1usize..120,
        batch in 1usize..40,
        replicas in 1usize..7,
        seed in proptest::option::of(any::<u64>()),
        drop in any::<bool>(),
        prefetch in 0usize..4,
    ) {
        let mut batching = Batching::global(batch).drop_remainder(drop).prefetch(prefetch);
        if let Some(seed) = seed {
            batching = batching.shuffle(seed);
        }
        let found = steps(&mirrored(replicas), count, batching);
        let one = OneDeviceStrategy::new(LogicalDevice::cpu(0)).unwrap();
        let alone = steps(&one, count, batching);
        let global = |steps: &[Vec<Vec<usize>>]| -> Vec<Vec<usize>> {
            steps.iter().map(|step| step.concat()).collect()
        };
        prop_assert_eq!(global(&found), global(&alone));
        for step in &found {
            let sizes: Vec<usize> = step.iter().map(Vec::len).collect();
            prop_assert_eq!(&sizes, &per_replica_sizes(sizes.iter().sum(), replicas));
        }
        let mut seen = found.concat().concat();
        if seed.is_none() {
            prop_assert!(seen.is_sorted());
        }
        seen.sort_unstable();
        seen.dedup();
        let expected = if drop { count / batch * batch } else { count };
        prop_assert_eq!(seen.len(), expected);
        prop_assert_eq!(found.concat().concat().len(), expected);
    }

    #[test]
    fn an_epoch_can_be_gone_on_with_anywhere(
        count in 1usize..60,
        batch in 1usize..10,
        skip in 0usize..70,
    ) {
        let dataset = FnDataset::new(count, indices);
        let strategy = mirrored(2);
        let batching = Batching::global(batch).shuffle(9);
        let distributed = strategy.distribute_dataset(dataset, batching).unwrap();
        let whole: Vec<_> = distributed.epoch(1).map(Result::unwrap).collect();
        let mut first = distributed.epoch(1);
        first.by_ref().take(skip).for_each(drop);
        let position = first.position();
        prop_assert_eq!(position, Position { epoch: 1, batch: skip.min(whole.len()) });
        let stored = serde_json::to_string(&position).unwrap();
        let rest = distributed.resume(serde_json::from_str(&stored).unwrap());
        let rest: Vec<_> = rest.map(Result::unwrap).collect();
        prop_assert_eq!(&rest[..], &whole[position.batch..]);
        prop_assert_eq!(distributed.epoch_from(1, skip).count(), whole.len().saturating_sub(skip));
    }

    #[test]
    fn a_batch_by_its_place_is_the_epochs(
        count in 1usize..60,
        batch in 1usize..10,
        replicas in 1usize..4,
        seed in proptest::option::of(any::<u64>()),
        places in proptest::collection::vec((0usize..3, 0usize..70), 1..12),
    ) {
        let mut batching = Batching::global(batch);
        if let Some(seed) = seed {
            batching = batching.shuffle(seed);
        }
        let dataset = FnDataset::new(count, indices);
        let distributed = mirrored(replicas).distribute_dataset(dataset, batching).unwrap();
        for (epoch, batch) in places {
            let expected = distributed.epoch(epoch).nth(batch).transpose().unwrap();
            let found = distributed.batch_at(Position { epoch, batch }).unwrap();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn parts_are_in_order_and_complete(examples in 0usize..300, replicas in 1usize..20) {
        let parts = (0..replicas).map(|replica| replica_range(examples, replicas, replica));
        let joined: Vec<usize> = parts.flatten().collect();
        prop_assert_eq!(joined, (0..examples).collect::<Vec<_>>());
    }

    #[test]
    fn a_shuffled_order_holds_every_index_once(len in 0usize..500, seed: u64, epoch: u64) {
        let mut order = shuffled(len, seed, epoch);
        order.sort_unstable();
        prop_assert_eq!(order, (0..len).collect::<Vec<_>>());
    }
}

/// Checkpoints keep a position in this order: it must never change.
#[test]
fn the_order_is_the_same_for_ever() {
    assert_eq!(shuffled(16, 42, 0), GOLDEN_EPOCH_0);
    assert_eq!(shuffled(16, 42, 1), GOLDEN_EPOCH_1);
    assert_ne!(shuffled(16, 43, 0), GOLDEN_EPOCH_0);
}

// From an implementation of ChaCha8 and of the shuffle in another language.
const GOLDEN_EPOCH_0: [usize; 16] = [10, 8, 13, 1, 11, 7, 15, 3, 2, 12, 0, 9, 14, 6, 4, 5];
const GOLDEN_EPOCH_1: [usize; 16] = [15, 3, 5, 4, 0, 7, 13, 14, 12, 1, 9, 11, 10, 6, 2, 8];

#[test]
fn the_numbers_of_the_documents() {
    let sizes = |m, r| per_replica_sizes(m, r);
    assert_eq!(sizes(10, 3), [4, 4, 2]);
    assert_eq!(sizes(5, 4), [2, 2, 1, 0]);
    assert_eq!(sizes(1, 2), [1, 0]);
    assert_eq!(sizes(256, 4), [64; 4]);
    assert!(sizes(7, 0).is_empty());
    assert!(replica_range(7, 0, 0).is_empty());
    assert!(replica_range(usize::MAX, 3, 2).len() >= usize::MAX / 3 - 1);
    let strategy = mirrored(4);
    let dataset = || FnDataset::new(1000, indices);
    let per_replica = strategy
        .distribute_dataset(dataset(), Batching::per_replica(64))
        .unwrap();
    assert_eq!(per_replica.global_batch_size(), 256);
    assert_eq!(per_replica.batches_per_epoch(), 4);
    assert_eq!(per_replica.len(), 1000);
}

#[test]
fn bad_arguments_are_refused() {
    let strategy = mirrored(2);
    let refused = |count, batching| {
        let dataset = FnDataset::new(count, indices);
        match strategy.distribute_dataset(dataset, batching) {
            Err(Error::InvalidArgument { what }) => what,
            other => panic!("{other:?}"),
        }
    };
    assert!(refused(10, Batching::global(0)).contains("batch size is 0"));
    assert!(refused(10, Batching::per_replica(0)).contains("batch size is 0"));
    assert!(refused(10, Batching::per_replica(usize::MAX)).contains("too large"));
    assert!(refused(0, Batching::global(4)).contains("empty"));
    let more_replicas_than_examples = steps(&mirrored(4), 2, Batching::global(64));
    assert_eq!(
        more_replicas_than_examples,
        [[vec![0], vec![1], vec![], vec![]]]
    );
    let all_dropped = steps(&strategy, 3, Batching::global(64).drop_remainder(true));
    assert!(all_dropped.is_empty());
    let dataset = FnDataset::new(0, indices);
    let batching = Batching::global(4).allow_empty(true).shuffle(1);
    let empty = strategy.distribute_dataset(dataset, batching).unwrap();
    assert!(empty.is_empty() && empty.epoch(0).next().is_none());
}

/// One of several workers: a strategy of this process that says there are others.
#[derive(Debug, Clone)]
pub struct OneWorker {
    local: MirroredStrategy,
    replicas: Vec<Replica>,
    context: InputContext,
}

impl OneWorker {
    /// Worker `index` of `workers`, with `replicas` replicas each.
    pub fn new(index: usize, workers: usize, replicas: usize) -> Self {
        let own = index * replicas..(index + 1) * replicas;
        Self {
            local: mirrored(replicas),
            replicas: own
                .map(|id| Replica::new(id, LogicalDevice::cpu(id)))
                .collect(),
            context: InputContext {
                num_input_pipelines: workers,
                input_pipeline_id: index,
                num_replicas_in_sync: workers * replicas,
            },
        }
    }
}

impl Strategy for OneWorker {
    fn name(&self) -> &'static str {
        "one-worker"
    }

    fn num_replicas_in_sync(&self) -> usize {
        self.context.num_replicas_in_sync
    }

    fn replicas(&self) -> &[Replica] {
        &self.replicas
    }

    fn input_context(&self) -> InputContext {
        self.context
    }

    fn id(&self) -> StrategyId {
        self.local.id()
    }

    fn handle(&self) -> Arc<dyn Strategy> {
        Arc::new(self.clone())
    }

    fn run_replicas(&self, step: ReplicaStep<'_>) -> Result<()> {
        self.local.run_replicas(step)
    }
}

#[test]
fn workers_read_their_parts_of_every_global_batch_as_under_the_policy_data() {
    for (workers, replicas, count, batch) in [(2, 1, 16, 4), (2, 2, 11, 5), (3, 2, 40, 13)] {
        let mut lengths = Vec::new();
        for index in 0..workers {
            let strategy = OneWorker::new(index, workers, replicas);
            let batching = Batching::global(batch).auto_shard(AutoShardPolicy::Data);
            let found = steps(&strategy, count, batching);
            let examples: Vec<usize> = (0..count).collect();
            let expected = examples.chunks(batch).map(|batch| {
                let mut parts = Vec::new();
                let mut rest = batch;
                for size in per_replica_sizes(batch.len(), workers * replicas) {
                    let (part, others) = rest.split_at(size);
                    parts.push(part.to_vec());
                    rest = others;
                }
                let own = parts.into_iter().skip(index).step_by(workers);
                own.collect::<Vec<_>>()
            });
            assert_eq!(found, expected.collect::<Vec<_>>());
            lengths.push(found.len());
        }
        assert_eq!(
            lengths,
            vec![lengths[0]; workers],
            "all make the same number of steps"
        );
    }
}

/// Examples that know which files they are from.
#[derive(Debug, Clone)]
struct Files(Vec<usize>);

impl Dataset for Files {
    type Batch = Vec<usize>;

    fn len(&self) -> usize {
        self.0.iter().sum()
    }

    fn files(&self) -> Option<Vec<std::ops::Range<usize>>> {
        let mut start = 0;
        let ranges = self.0.iter().map(|length| {
            start += length;
            start - length..start
        });
        Some(ranges.collect())
    }

    fn batch(&self, indices: &[usize], _: &Device) -> Result<Vec<usize>> {
        Ok(indices.to_vec())
    }
}

/// What each worker's replicas get under a policy.
fn of_workers<D: Dataset<Batch = Vec<usize>> + Clone>(
    workers: usize,
    replicas: usize,
    dataset: &D,
    batching: Batching,
) -> Vec<Vec<Vec<Vec<usize>>>> {
    (0..workers)
        .map(|index| {
            let strategy = OneWorker::new(index, workers, replicas);
            let distributed = strategy
                .distribute_dataset(dataset.clone(), batching)
                .unwrap();
            let steps = distributed.epoch(0).map(|step| step.unwrap().into_values());
            let steps: Vec<_> = steps.collect();
            assert_eq!(steps.len(), distributed.batches_per_epoch());
            steps
        })
        .collect()
}

/// Cuts a stream into batches of these sizes, again and again. A size of 0 gives an empty batch
/// without a look at the stream, so empty ones may follow the last example.
fn cut(stream: &[usize], sizes: &[usize]) -> Vec<Vec<usize>> {
    let (mut rest, mut batches) = (stream, Vec::new());
    if rest.is_empty() {
        return batches;
    }
    for &size in sizes.iter().cycle() {
        if size > 0 && rest.is_empty() {
            break;
        }
        let (batch, others) = rest.split_at(size.min(rest.len()));
        batches.push(batch.to_vec());
        rest = others;
    }
    batches
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn workers_with_streams_of_their_own_read_what_they_do_in_tensorflow(
        workers in 1_usize..4,
        replicas in 1_usize..3,
        lengths in prop::collection::vec(0_usize..6, 3..7),
        batch in 1_usize..9,
        drop: bool,
        policy in prop::sample::select(vec![
            AutoShardPolicy::Off,
            AutoShardPolicy::File,
            AutoShardPolicy::Hint,
        ]),
    ) {
        let files = Files(lengths);
        let streams = (0..workers).map(|worker| -> Vec<usize> {
            let every_nth = |len| (worker..len).step_by(workers);
            match policy {
                AutoShardPolicy::Off => (0..files.len()).collect(),
                AutoShardPolicy::Hint => every_nth(files.len()).collect(),
                _ => {
                    let ranges = files.files().unwrap();
                    every_nth(ranges.len()).flat_map(|file| ranges[file].clone()).collect()
                }
            }
        });
        let own = streams.enumerate().map(|(worker, mut stream)| {
            if drop {
                stream.truncate(stream.len() / batch * batch);
            }
            let sizes = batch_sizes_for_worker(batch, workers, replicas, worker).unwrap();
            let mut cut = cut(&stream, &sizes);
            cut.resize(cut.len().next_multiple_of(replicas), Vec::new());
            cut.chunks(replicas).map(<[_]>::to_vec).collect::<Vec<_>>()
        });
        let mut expected: Vec<_> = own.collect();
        // All workers make as many steps as the one with most.
        let most = expected.iter().map(Vec::len).max().unwrap();
        for steps in &mut expected {
            steps.resize(most, vec![Vec::new(); replicas]);
        }
        let batching = Batching::global(batch).drop_remainder(drop).auto_shard(policy);
        let batching = batching.allow_empty(true);
        let found = match policy {
            AutoShardPolicy::Hint => {
                of_workers(workers, replicas, &ShardHint::new(files), batching)
            }
            _ => of_workers(workers, replicas, &files, batching),
        };
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn every_iteration_is_the_next_epoch() {
    let dataset = FnDataset::new(20, indices);
    let batching = Batching::global(4).shuffle(9);
    let train = mirrored(2).distribute_dataset(dataset, batching).unwrap();
    let rows = |batches: distribute_data::Epoch<Vec<usize>>| -> Vec<Vec<usize>> {
        batches
            .flat_map(|step| step.unwrap().into_values())
            .collect()
    };
    let mut orders: Vec<_> = (0..3).map(|_| rows((&train).into_iter())).collect();
    for (epoch, order) in orders.iter().enumerate() {
        assert_eq!(
            *order,
            rows(train.epoch(epoch)),
            "asking for an epoch counts none"
        );
    }
    orders.dedup();
    assert_eq!(orders.len(), 3);
    // One that is left early counts, and one that is gone on with is followed by the next.
    assert!((&train).into_iter().next().is_some());
    assert_eq!(rows((&train.clone()).into_iter()), rows(train.epoch(4)));
    drop(train.resume(Position { epoch: 7, batch: 2 }));
    assert_eq!(rows((&train).into_iter()), rows(train.epoch(8)));
}

#[test]
fn streams_of_their_own_are_shuffled_and_resumed() {
    let files = Files(vec![5, 4, 3, 6]);
    let batching = Batching::global(4)
        .shuffle(3)
        .auto_shard(AutoShardPolicy::Auto);
    let found = of_workers(2, 1, &files, batching);
    for (worker, mut expected) in [(0, vec![0, 1, 2, 3, 4, 9, 10, 11]), (1, Vec::new())] {
        let mut seen: Vec<usize> = found[worker].iter().flatten().flatten().copied().collect();
        if worker == 1 {
            expected = vec![5, 6, 7, 8, 12, 13, 14, 15, 16, 17];
        }
        assert_ne!(seen, expected, "in another order");
        seen.sort_unstable();
        assert_eq!(seen, expected, "its own files, each example once");
    }
    let strategy = OneWorker::new(1, 2, 1);
    let distributed = strategy.distribute_dataset(files, batching).unwrap();
    let rest = distributed
        .epoch_from(0, 2)
        .map(|step| step.unwrap().into_values());
    assert_eq!(rest.collect::<Vec<_>>(), found[1][2..]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn what_is_dropped_is_drawn_anew_in_every_epoch(
        workers in 1_usize..4,
        replicas in 1_usize..3,
        policy in prop::sample::select(vec![
            AutoShardPolicy::Auto,
            AutoShardPolicy::File,
            AutoShardPolicy::Off,
            AutoShardPolicy::Data,
        ]),
        pads: bool,
    ) {
        // Six files for any number of workers up to three.
        let files = Files(vec![5, 3, 4, 6, 2, 7]);
        let batching = Batching::global(4).shuffle(1).drop_remainder(true).auto_shard(policy);
        let mut of_all = 0;
        for index in 0..workers {
            let strategy = OneWorker::new(index, workers, replicas);
            let all = match policy {
                // The examples of all workers together, see below.
                AutoShardPolicy::Data => Vec::new(),
                AutoShardPolicy::Off => (0..files.len()).collect(),
                _ => {
                    let own = files.files().unwrap().into_iter().skip(index).step_by(workers);
                    own.flatten().collect::<Vec<usize>>()
                }
            };
            let mut seen = vec![0; files.len()];
            if pads {
                let weighted = distribute_data::Weighted::new(files.clone());
                let batching = batching.pad_remainder(true);
                let data = strategy.distribute_dataset(weighted, batching).unwrap();
                for step in (0..200).flat_map(|epoch| data.epoch(epoch)) {
                    for (rows, weights) in step.unwrap().into_values() {
                        let weights: Vec<f32> = weights.into_data().iter::<f32>().collect();
                        let counted = rows.iter().zip(weights).filter(|(_, weight)| *weight > 0.0);
                        counted.for_each(|(row, _)| seen[*row] += 1);
                    }
                }
            } else {
                let data = strategy.distribute_dataset(files.clone(), batching).unwrap();
                for step in (0..200).flat_map(|epoch| data.epoch(epoch)) {
                    step.unwrap().values().iter().flatten().for_each(|row| seen[*row] += 1);
                }
            }
            prop_assert!(all.iter().all(|row| seen[*row] > 0), "never seen: {seen:?}");
            let total: usize = seen.iter().sum();
            of_all += total;
            if policy != AutoShardPolicy::Data {
                prop_assert_eq!(total, 200 * (all.len() / 4 * 4));
            }
        }
        if policy == AutoShardPolicy::Data {
            prop_assert_eq!(of_all, 200 * (files.len() / 4 * 4));
        }
    }
}

#[test]
fn policies_that_a_dataset_does_not_allow_are_refused() {
    let of = |workers, batching: Batching| {
        let strategy = OneWorker::new(0, workers, 1);
        let few = strategy.distribute_dataset(Files(vec![3, 3]), batching);
        let none = strategy.distribute_dataset(
            FnDataset::new(6, |indices: &[usize], _: &Device| Ok(indices.to_vec())),
            batching,
        );
        (few.map(drop), none.map(drop))
    };
    let (few, none) = of(3, Batching::global(4).auto_shard(AutoShardPolicy::File));
    let few = few.unwrap_err().to_string();
    assert!(few.contains("2 file(s) between 3 workers"), "{few}");
    let none = none.unwrap_err().to_string();
    assert!(none.contains("it is not read from files"), "{none}");
    let (few, none) = of(3, Batching::global(4).auto_shard(AutoShardPolicy::Off));
    assert!(few.is_ok() && none.is_ok());
    let hinted = ShardHint::new(Files(vec![3, 3]));
    let strategy = OneWorker::new(0, 2, 1);
    for batching in [
        Batching::global(4),
        Batching::global(4).auto_shard(AutoShardPolicy::Off),
    ] {
        let error = strategy
            .distribute_dataset(hinted.clone(), batching)
            .unwrap_err();
        assert!(
            error.to_string().contains("needs the policy HINT"),
            "{error}"
        );
    }
}

/// How many threads of this process prefetch.
#[cfg(target_os = "linux")]
fn prefetch_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| {
        // A thread may end while the list is read.
        std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
    });
    // The kernel keeps 15 bytes of a name.
    names
        .filter(|name| name.starts_with("distribute-pref"))
        .count()
}

/// In a process of its own, so that no other test's threads are counted.
#[cfg(target_os = "linux")]
#[test]
fn no_thread_is_left_behind() {
    if !hostile::alone::is_alone(module_path!(), "no_thread_is_left_behind") {
        return;
    }
    within_a_minute(|| {
        let strategy = mirrored(2);
        let made = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&made);
        let dataset = FnDataset::new(1000, move |list: &[usize], _: &Device| {
            count.fetch_add(1, Ordering::SeqCst);
            Ok(list.to_vec())
        });
        let batching = Batching::global(2).prefetch(3);
        let several = FnDataset::new(1000, indices);
        let several = strategy.distribute_dataset(several, batching.num_parallel_calls(5));
        let mut several = several.unwrap().epoch(0);
        several.next().unwrap().unwrap();
        settles(5, prefetch_threads);
        drop(several);
        settles(0, prefetch_threads);
        let distributed = strategy.distribute_dataset(dataset, batching).unwrap();
        let mut epoch = distributed.epoch(0);
        epoch.next().unwrap().unwrap();
        settles(1, prefetch_threads);
        drop(epoch);
        settles(0, prefetch_threads);
        // One step taken, at most three ahead, and one that was in the making; two batches each.
        assert!(made.load(Ordering::SeqCst) <= 2 * (1 + 3 + 1));
        let whole = distributed.epoch(0);
        assert_eq!(whole.count(), 500);
        settles(0, prefetch_threads);
        drop(distributed.epoch(1));
        settles(0, prefetch_threads);
        let mut inline = strategy
            .distribute_dataset(FnDataset::new(10, indices), Batching::global(2).prefetch(0))
            .unwrap()
            .epoch(0);
        inline.next().unwrap().unwrap();
        settles(0, prefetch_threads);
    });
}

#[test]
fn an_error_ends_the_epoch_and_the_next_one_works() {
    for prefetch in [0, 1, 2] {
        within_a_minute(move || {
            let failing = |list: &[usize], _: &Device| {
                if list.contains(&5) {
                    Err(Error::input("the disk is gone"))
                } else {
                    Ok(list.to_vec())
                }
            };
            let batching = Batching::global(2).prefetch(prefetch);
            let distributed = mirrored(2)
                .distribute_dataset(FnDataset::new(10, failing), batching)
                .unwrap();
            for epoch in 0..2 {
                let mut epoch = distributed.epoch(epoch);
                assert!(epoch.next().unwrap().is_ok() && epoch.next().unwrap().is_ok());
                let error = epoch.next().unwrap().unwrap_err();
                assert_eq!(error.to_string(), "the disk is gone");
                assert!(epoch.next().is_none());
            }
        });
    }
}

#[test]
fn a_panic_comes_out_as_an_error() {
    for prefetch in [0, 2] {
        within_a_minute(move || {
            let panicking = |list: &[usize], _: &Device| {
                assert!(!list.contains(&3), "example 3 is broken");
                Ok(list.to_vec())
            };
            let batching = Batching::global(2).prefetch(prefetch);
            let distributed = mirrored(2)
                .distribute_dataset(FnDataset::new(10, panicking), batching)
                .unwrap();
            let mut epoch = distributed.epoch(0);
            assert!(epoch.next().unwrap().is_ok());
            let error = epoch.next().unwrap().unwrap_err();
            let Error::Input(source) = &error else {
                panic!("{error:?}");
            };
            let source = source.downcast_ref::<DataError>();
            assert!(
                matches!(source, Some(DataError::BatchPanicked { part: 1, .. })),
                "{error}"
            );
            assert!(error.to_string().contains("example 3 is broken"), "{error}");
            assert!(epoch.next().is_none());
        });
    }
}

#[test]
fn a_function_is_called_once_per_epoch_and_its_errors_come_out() {
    within_a_minute(|| {
        let strategy = mirrored(2);
        let calls = AtomicUsize::new(0);
        let distributed = strategy.distribute_datasets_from_function(|_| {
            calls.fetch_add(1, Ordering::SeqCst);
            let batches = [Ok(1_i64), Ok(2), Ok(3), Err(Error::input("broken"))];
            Ok(batches.into_iter())
        });
        let mut steps = distributed.epoch().unwrap();
        assert_eq!(steps.next().unwrap().unwrap().into_values(), [1, 2]);
        assert_eq!(steps.next().unwrap().unwrap_err().to_string(), "broken");
        assert!(steps.next().is_none());
        drop(distributed.epoch().unwrap());
        assert_eq!(calls.load(Ordering::SeqCst), 2);
        let failing = strategy.distribute_datasets_from_function(|context| {
            context.per_replica_batch_size(7)?;
            Ok(std::iter::empty::<Result<i64>>())
        });
        assert!(
            failing
                .epoch()
                .unwrap_err()
                .to_string()
                .contains("not divisible")
        );
    });
}

/// The examples of an epoch, batch by batch over all replicas.
fn read(
    data: &distribute_data::DistributedDataset<impl Dataset<Batch = Vec<usize>>>,
    epoch: usize,
) -> Vec<Vec<usize>> {
    let steps = data
        .epoch(epoch)
        .map(|step| step.unwrap().into_values().concat());
    steps.collect()
}

#[test]
fn batches_of_a_repeated_dataset_go_across_its_end() {
    for replicas in [1, 2, 3] {
        let strategy = mirrored(replicas);
        let data = |batching| {
            let dataset = FnDataset::new(5, indices);
            strategy.distribute_dataset(dataset, batching).unwrap()
        };
        let four = Batching::global(4);
        let expected = [vec![0, 1, 2, 3], vec![4, 0, 1, 2], vec![3, 4]];
        let twice = data(four.repeat(2));
        assert_eq!(twice.batches_per_epoch(), 3);
        for epoch in [0, 1, 7] {
            assert_eq!(read(&twice, epoch), expected);
        }
        let short = data(four.repeat(2).drop_remainder(true));
        assert_eq!(read(&short, 0), expected[..2]);
        // Without end, two steps at a time.
        let endless = data(four.steps_per_epoch(2));
        assert_eq!(endless.batches_per_epoch(), 2);
        let expected = [
            [[0, 1, 2, 3], [4, 0, 1, 2]],
            [[3, 4, 0, 1], [2, 3, 4, 0]],
            [[1, 2, 3, 4], [0, 1, 2, 3]],
        ];
        for (epoch, expected) in expected.iter().enumerate() {
            assert_eq!(read(&endless, epoch), expected);
        }
        let resumed: Vec<_> = endless.epoch_from(1, 1).collect();
        assert_eq!(resumed.len(), 1);
        let batch = resumed.into_iter().next().unwrap().unwrap();
        assert_eq!(batch.into_values().concat(), [2, 3, 4, 0]);
    }
}

#[test]
fn a_repeated_dataset_is_shuffled_anew_each_time() {
    let strategy = mirrored(2);
    let data = |batching: Batching| {
        let dataset = FnDataset::new(7, indices);
        strategy
            .distribute_dataset(dataset, batching.shuffle(3))
            .unwrap()
    };
    let once = |epoch: u64| shuffled(7, 3, epoch);
    let thrice = data(Batching::global(4).repeat(3));
    assert_eq!(
        read(&thrice, 0).concat(),
        [once(0), once(1), once(2)].concat()
    );
    assert_eq!(
        read(&thrice, 1).concat(),
        [once(3), once(4), once(5)].concat()
    );
    let steps = data(Batching::global(4).steps_per_epoch(3));
    let all = [once(0), once(1), once(2), once(3)].concat();
    for epoch in 0..2 {
        assert_eq!(read(&steps, epoch).concat(), all[epoch * 12..][..12]);
    }
    assert_eq!(read(&data(Batching::global(4)), 5).concat(), once(5));
}

#[test]
fn an_epoch_that_reads_nothing_is_refused() {
    let strategy = mirrored(1);
    for batching in [
        Batching::global(4).repeat(0),
        Batching::global(4).steps_per_epoch(0),
    ] {
        let error = strategy.distribute_dataset(FnDataset::new(5, indices), batching);
        let text = error.unwrap_err().to_string();
        assert!(text.contains("at least 1"), "{text}");
    }
    let batching = Batching::global(4).steps_per_epoch(3).allow_empty(true);
    let empty = strategy
        .distribute_dataset(FnDataset::new(0, indices), batching)
        .unwrap();
    assert_eq!((empty.batches_per_epoch(), empty.epoch(0).count()), (0, 0));
}
