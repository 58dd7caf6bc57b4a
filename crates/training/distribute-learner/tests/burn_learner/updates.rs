//! Several replicas make the updates of one device.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn::tensor::Device;
use burn_train::checkpoint::KeepLastNCheckpoints;
use burn_train::{ExecutionStrategy, TrainingStrategy};
use distribute_core::{
    CentralStorageStrategy, DefaultStrategy, MirroredStrategy, OneDeviceStrategy, Result, Strategy,
};
use distribute_learner::LearnerStrategy;
use rstest::rstest;

use crate::common::{
    Batch, BeforeAllReduce, Loader, Optimizer, Spy, Training, assert_close, assert_equal_replicas,
    batches, custom, expected, launch, loader, mirrored, train, training_in,
};

#[rstest]
fn n_replicas_are_one_device_with_batches_n_times_as_large(
    #[values(2, 3)] replicas: usize,
    #[values(Optimizer::Sgd, Optimizer::Adam)] optimizer: Optimizer,
) {
    let epochs = |training: Training| training.num_epochs(2);
    // Batches of an even number of rows, so that no batch uses `extra`.
    let (found, spy) = train(loader(24, 2), custom(mirrored(replicas)), optimizer, epochs);
    let device = ExecutionStrategy::single(Device::flex());
    let single = TrainingStrategy::Default(device);
    let (expected, _) = train(loader(24, 2 * replicas), single, optimizer, epochs);
    assert_close(&found, &expected);
    assert_equal_replicas(&spy, replicas, 24 / replicas);
}

#[test]
fn every_strategy_trains_the_same() {
    let two = CentralStorageStrategy::with_replicas(2).unwrap();
    let one = OneDeviceStrategy::new("cpu:0".parse().unwrap()).unwrap();
    let chosen: Vec<(Arc<dyn Strategy>, usize)> = vec![
        (Arc::new(mirrored(2)), 2),
        (Arc::new(two), 2),
        (Arc::new(DefaultStrategy::new()), 4),
        (Arc::new(one), 4),
    ];
    let all = batches(16, 4);
    let updates = all.chunks(1).map(|step| vec![step]).collect();
    let wanted = expected(updates, Optimizer::Adam);
    for (strategy, batch) in chosen {
        let strategy = TrainingStrategy::Custom(Arc::new(LearnerStrategy::from(strategy)));
        let (found, _) = train(loader(16, batch), strategy, Optimizer::Adam, |it| it);
        assert_close(&found, &wanted);
    }
}

#[test]
fn a_parameter_that_one_batch_uses_counts_as_zero_in_the_others() {
    // Batches of 3 rows start with even and odd rows in turn: one replica uses `extra`.
    let all = batches(12, 3);
    let wanted = expected(vec![vec![&all[0..2]], vec![&all[2..4]]], Optimizer::Adam);
    let (found, spy) = train(loader(12, 3), custom(mirrored(2)), Optimizer::Adam, |it| it);
    assert_close(&found, &wanted);
    assert_equal_replicas(&spy, 2, 2);
    assert_ne!(found.last(), Some(&0.25), "it was trained");
    // Batches of 2 rows start with even rows: it is not used.
    let (found, _) = train(loader(12, 2), custom(mirrored(2)), Optimizer::Adam, |it| it);
    assert_eq!(found.last(), Some(&0.25), "it was left alone");
}

#[test]
fn accumulated_gradients_are_exchanged_once_per_update() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let counting = BeforeAllReduce::new(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(())
    });
    let builder = MirroredStrategy::builder().replicas(2);
    let strategy = builder.cross_device_ops(counting).build().unwrap();
    let accumulate = |it: Training| it.grads_accumulation(2);
    // Five batches: two full steps, and one with a single batch that the epoch ends with.
    let all = batches(15, 3);
    let updates = || vec![vec![&all[0..2], &all[2..4]], vec![&all[4..5]]];
    for optimizer in [Optimizer::Sgd, Optimizer::Adam] {
        let strategy = custom(strategy.clone());
        let (found, spy) = train(loader(15, 3), strategy, optimizer, accumulate);
        assert_close(&found, &expected(updates(), optimizer));
        assert_equal_replicas(&spy, 2, 2);
        assert_eq!(
            calls.swap(0, Ordering::SeqCst),
            4,
            "2 updates on 2 replicas"
        );
    }
}

/// A loader that does not know how many items it has.
struct Endless(Loader);

struct EndlessIterator<'a>(Box<dyn DataLoaderIterator<Batch> + 'a>);

impl Iterator for EndlessIterator<'_> {
    type Item = Result<Batch, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }
}

impl DataLoaderIterator<Batch> for EndlessIterator<'_> {
    fn progress(&self) -> Progress {
        Progress::new(self.0.progress().items_processed, 1000, None)
    }
}

impl DataLoader<Batch> for Endless {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<Batch> + 'a> {
        Box::new(EndlessIterator(self.0.iter()))
    }

    fn num_items(&self) -> usize {
        1000
    }

    fn to_device(&self, device: &Device) -> Loader {
        Arc::new(Self(self.0.to_device(device)))
    }

    fn slice(&self, start: usize, end: usize) -> Loader {
        Arc::new(Self(self.0.slice(start, end)))
    }
}

#[rstest]
fn an_unexpected_end_leaves_no_gradient_out(#[values(5, 6)] count: usize) {
    let endless: Loader = Arc::new(Endless(loader(3 * count, 3)));
    let all = batches(3 * count, 3);
    let updates = vec![vec![&all[0..2], &all[2..4]], vec![&all[4..]]];
    let accumulate = |it: Training| it.grads_accumulation(2);
    let (found, spy) = train(endless, custom(mirrored(2)), Optimizer::Sgd, accumulate);
    assert_close(&found, &expected(updates, Optimizer::Sgd));
    assert_equal_replicas(&spy, 2, 2);
}

#[test]
fn a_training_resumes_from_its_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let strategy = mirrored(2);
    let saving = || {
        training_in(folder.path(), loader(10, 2), custom(strategy.clone()))
            .with_default_checkpointers()
            .with_checkpointing_strategy(KeepLastNCheckpoints::new(2))
    };
    let spy = || Spy::new(|_| ());
    let result = launch(saving().num_epochs(2), Optimizer::Adam, spy());
    assert!(result.error.is_none(), "{:?}", result.error);
    let resumed = launch(saving().num_epochs(4).checkpoint(2), Optimizer::Adam, spy());
    assert!(resumed.error.is_none(), "{:?}", resumed.error);

    let four = |it: Training| it.num_epochs(4);
    let (straight, _) = train(
        loader(10, 2),
        custom(strategy.clone()),
        Optimizer::Adam,
        four,
    );
    assert_eq!(resumed.model.weights(), straight);
}
