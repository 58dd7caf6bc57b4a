//! Batches that several threads make: the same ones in the same order as of one thread, really at
//! the same time, in bounded memory, and with the same errors.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use distribute_core::{Device, Error, Result, Strategy, Tensor, TensorData};
use distribute_data::{
    AutoShardPolicy, Batching, DataError, Dataset, DistributedDataset, FnDataset, StrategyDataExt,
    Weighted,
};
use proptest::prelude::*;
use rstest::rstest;

use crate::distribution::{OneWorker, indices, within_a_minute};
use crate::mirrored;

fn distribute<D: Dataset>(
    strategy: &dyn Strategy,
    dataset: D,
    batching: Batching,
) -> DistributedDataset<D> {
    strategy.distribute_dataset(dataset, batching).unwrap()
}

/// Numbers as rows of a tensor.
fn rows(list: &[usize], device: &Device) -> Result<Tensor<2>> {
    let values = list
        .iter()
        .flat_map(|&index| [index as f32, 0.1 * index as f32]);
    let values = TensorData::new(values.collect::<Vec<_>>(), [list.len(), 2]);
    Ok(Tensor::from_data(values, device))
}

/// The rest of an epoch, and where it ends.
fn read<D: Dataset<Batch = (Tensor<2>, Tensor<1>)>>(
    data: &DistributedDataset<D>,
    skip: usize,
) -> Vec<Vec<(TensorData, TensorData)>> {
    let mut epoch = data.epoch_from(1, skip);
    let mut steps = Vec::new();
    for step in epoch.by_ref() {
        let step = step.unwrap().into_values().into_iter();
        steps.push(
            step.map(|(rows, weights)| (rows.into_data(), weights.into_data()))
                .collect(),
        );
    }
    assert_eq!(epoch.position().batch, data.batches_per_epoch().max(skip));
    assert!(epoch.next().is_none());
    steps
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_number_of_threads_makes_the_batches_of_one(
        (count, batch) in (1_usize..60, 1_usize..12),
        (workers, replicas) in (1_usize..3, 1_usize..4),
        (threads, prefetch) in (1_usize..9, 1_usize..5),
        (drop, pad) in any::<(bool, bool)>(),
        seed in proptest::option::of(any::<u64>()),
        policy in prop::sample::select(vec![
            AutoShardPolicy::Replicas,
            AutoShardPolicy::Data,
            AutoShardPolicy::Off,
        ]),
        skip in 0_usize..8,
    ) {
        let mut batching = Batching::global(batch).drop_remainder(drop).pad_remainder(pad);
        batching = batching.auto_shard(policy);
        if let Some(seed) = seed {
            batching = batching.shuffle(seed);
        }
        for worker in 0..workers {
            let strategy = OneWorker::new(worker, workers, replicas);
            let data = |batching| {
                let dataset = Weighted::new(FnDataset::new(count, rows));
                distribute(&strategy, dataset, batching)
            };
            let expected = read(&data(batching.prefetch(0)), skip);
            let found = data(batching.prefetch(prefetch).num_parallel_calls(threads));
            prop_assert_eq!(read(&found, skip), expected);
        }
    }
}

/// Each call waits until `threads` of them run, which fewer threads could never reach.
#[rstest]
fn several_threads_make_batches_at_the_same_time(
    #[values(1, 2)] replicas: usize,
    #[values(2, 4)] threads: usize,
) {
    within_a_minute(move || {
        let barrier = Arc::new(Barrier::new(threads));
        let running = Arc::new(AtomicUsize::new(0));
        let most = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&most);
        let dataset = FnDataset::new(16 * replicas, move |list: &[usize], _: &Device| {
            let now = running.fetch_add(1, Ordering::SeqCst) + 1;
            seen.fetch_max(now, Ordering::SeqCst);
            barrier.wait();
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(list.to_vec())
        });
        // 16 steps, so that the last threads do not wait for ever.
        let batching = Batching::per_replica(1).num_parallel_calls(threads);
        let data = distribute(&mirrored(replicas), dataset, batching);
        let steps = data
            .epoch(0)
            .map(|step| step.unwrap().into_values().concat());
        let found = steps.collect::<Vec<_>>().concat();
        assert_eq!(found, (0..16 * replicas).collect::<Vec<_>>());
        assert_eq!(most.load(Ordering::SeqCst), threads);
    });
}

/// More threads than parts, and an epoch that is over before it begins.
#[test]
fn threads_without_a_part_do_no_harm() {
    within_a_minute(|| {
        let batching = Batching::global(4).num_parallel_calls(64);
        let data = distribute(&mirrored(3), FnDataset::new(5, indices), batching);
        let steps = data.epoch(0).map(|step| step.unwrap().into_values());
        let expected = [[vec![0, 1], vec![2, 3], vec![]], [vec![4], vec![], vec![]]];
        assert_eq!(steps.collect::<Vec<_>>(), expected);
        assert_eq!(data.epoch_from(0, 2).count(), 0);
        assert_eq!(data.epoch_from(0, 7).count(), 0);
    });
}

#[rstest]
fn memory_is_bounded_and_filled_ahead(
    #[values(1, 2)] replicas: usize,
    #[values(1, 3, 4)] threads: usize,
    #[values(1, 2)] prefetch: usize,
    #[values(0, 1, 5)] taken: usize,
) {
    within_a_minute(move || {
        let (sender, made) = channel();
        let sender = Mutex::new(sender);
        let dataset = FnDataset::new(1000, move |list: &[usize], _: &Device| {
            sender.lock().unwrap().send(()).unwrap();
            Ok(list.to_vec())
        });
        let batching = Batching::per_replica(1)
            .prefetch(prefetch)
            .num_parallel_calls(threads);
        let data = distribute(&mirrored(replicas), dataset, batching);
        let mut epoch = data.epoch(0);
        for _ in 0..taken {
            epoch.next().unwrap().unwrap();
        }
        let ahead = prefetch * replicas + threads - 1;
        for _ in 0..taken * replicas + ahead {
            made.recv_timeout(Duration::from_secs(50)).unwrap();
        }
        drop(epoch);
        drop(data);
        assert_eq!(made.iter().count(), 0, "more than there is room for");
    });
}

/// What an epoch gives until it ends, as text where it fails.
fn outcome<D: Dataset<Batch = Vec<usize>>>(
    data: &DistributedDataset<D>,
) -> (Vec<Vec<usize>>, Option<String>) {
    let mut steps = Vec::new();
    let mut epoch = data.epoch(0);
    for step in epoch.by_ref() {
        match step {
            Ok(step) => steps.push(step.into_values().concat()),
            Err(error) => {
                let text = error.to_string();
                assert!(epoch.next().is_none());
                return (steps, Some(text));
            }
        }
    }
    (steps, None)
}

/// Fails in the way that `broken` says for some examples.
fn failing(broken: Range<usize>, panics: bool) -> impl Dataset<Batch = Vec<usize>> {
    FnDataset::new(40, move |list: &[usize], _: &Device| {
        match list.iter().find(|index| broken.contains(index)) {
            Some(index) if panics => panic!("example {index} is broken"),
            Some(index) => Err(Error::input(format!("the file of {index} is gone"))),
            None => Ok(list.to_vec()),
        }
    })
}

#[rstest]
fn the_first_error_in_the_order_of_the_batches_ends_the_epoch(
    #[values(1, 2, 3)] replicas: usize,
    #[values(2, 3, 8)] threads: usize,
    #[values(false, true)] panics: bool,
    // The first part, one in the midst, all from one on, and the last one.
    #[values(0..1, 13..14, 7..40, 39..40)] broken: Range<usize>,
) {
    within_a_minute(move || {
        let strategy = mirrored(replicas);
        let data = |batching| distribute(&strategy, failing(broken.clone(), panics), batching);
        let batching = Batching::global(6);
        let expected = outcome(&data(batching.prefetch(0)));
        let text = expected.1.clone().unwrap();
        assert!(text.contains(&format!("{}", broken.start)), "{text}");
        let several = data(batching.prefetch(3).num_parallel_calls(threads));
        for _ in 0..3 {
            assert_eq!(outcome(&several), expected);
        }
        let error = several.epoch(0).find_map(Result::err).unwrap();
        let Error::Input(source) = &error else {
            panic!("{error:?}");
        };
        let source = source.downcast_ref::<DataError>();
        let is_panic = matches!(source, Some(DataError::BatchPanicked { .. }));
        assert_eq!(is_panic, panics, "{error}");
    });
}

#[test]
fn threads_that_cannot_be_are_refused() {
    let refused = |batching| {
        let dataset = FnDataset::new(10, indices);
        match mirrored(2).distribute_dataset(dataset, batching) {
            Err(Error::InvalidArgument { what }) => what,
            other => panic!("{other:?}"),
        }
    };
    let batching = Batching::global(4);
    let none = refused(batching.num_parallel_calls(0));
    assert!(none.contains("pass at least 1"), "{none}");
    let both = refused(batching.num_parallel_calls(2).prefetch(0));
    assert!(both.contains("prefetch(0)"), "{both}");
    let strategy = mirrored(2);
    let inline = batching.num_parallel_calls(1).prefetch(0);
    let data = distribute(&strategy, FnDataset::new(10, indices), inline);
    assert_eq!(data.epoch(0).count(), 3);
}

/// Examples that take 2 ms each to read. How much faster four threads read them is printed, and not
/// asserted: it depends on what else the machine does.
#[test]
fn slow_examples_come_faster_and_in_the_same_order() {
    const PER_EXAMPLE: Duration = Duration::from_millis(2);
    let read = |threads: usize| {
        let slow = |list: &[usize], _: &Device| {
            // Simulates the time that a disk or a server takes.
            std::thread::sleep(PER_EXAMPLE * u32::try_from(list.len()).map_err(Error::input)?);
            Ok(list.to_vec())
        };
        let batching = Batching::global(8).shuffle(5).num_parallel_calls(threads);
        let data = distribute(&mirrored(2), FnDataset::new(160, slow), batching);
        let start = Instant::now();
        let steps: Vec<_> = data
            .epoch(0)
            .map(|step| step.unwrap().into_values())
            .collect();
        (steps, start.elapsed().as_secs_f64())
    };
    let (expected, alone) = read(1);
    let (found, together) = read(4);
    assert_eq!(found, expected);
    let (one, four) = (160.0 / alone, 160.0 / together);
    println!(
        "1 thread {one:.0} examples/s, 4 threads {four:.0}: {:.2} times",
        four / one
    );
}
