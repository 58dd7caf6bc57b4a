//! A training goes on from burn's checkpoints with the bits of one that was not interrupted.

use std::path::{Path, PathBuf};

use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataset::InMemDataset;
use burn::tensor::Device;
use burn_train::checkpoint::KeepLastNCheckpoints;
use burn_train::{ExecutionStrategy, TrainingStrategy};
use distribute_core::{MultiWorkerMirroredStrategy, StrategyExt};
use distribute_learner::{LearnerStrategy, TrainingExt, latest_checkpoint};

use crate::common::{
    Loader, Net, Optimizer, Spy, Stack, Training, custom, launch, launch_model, mirrored, rows,
    train, training_in,
};
use crate::group::{THREADS, workers};

/// In another order in every epoch.
fn shuffled() -> Loader {
    DataLoaderBuilder::new(Stack)
        .batch_size(2)
        .shuffle(7)
        .build(InMemDataset::new(rows(15)))
}

/// The weights of 5 epochs without an interruption.
fn undisturbed(replicas: usize) -> Vec<f32> {
    let strategy = custom(mirrored(replicas));
    train(shuffled(), strategy, Optimizer::Adam, |it| it.num_epochs(5)).0
}

fn saving(folder: &Path, strategy: TrainingStrategy<Net>) -> Training {
    training_in(folder, shuffled(), strategy)
        .with_default_checkpointers()
        .with_checkpointing_strategy(KeepLastNCheckpoints::new(2))
}

/// From the last checkpoint that this worker finds, if it finds one.
fn resuming(folder: &Path, training: Training) -> Training {
    match latest_checkpoint(folder).unwrap() {
        Some(epoch) => training.checkpoint(epoch),
        None => training,
    }
}

#[test]
fn a_shuffled_training_goes_on_where_it_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let mut ended = Vec::new();
    for epochs in [2, 5] {
        let training = saving(folder.path(), custom(mirrored(2))).num_epochs(epochs);
        let training = resuming(folder.path(), training);
        let result = launch(training, Optimizer::Adam, Spy::new(|_| ()));
        assert!(result.error.is_none(), "{:?}", result.error);
        ended = result.model.weights();
        assert_eq!(latest_checkpoint(folder.path()).unwrap(), Some(epochs));
    }
    assert_eq!(ended, undisturbed(2));
}

/// Trains on a worker to this epoch, in its own folder.
fn on_worker(strategy: MultiWorkerMirroredStrategy, folder: &Path, epochs: usize) -> Vec<f32> {
    let model = Net::begun_at(Spy::new(|_| ()), strategy.worker_index() as f32);
    let default = TrainingStrategy::Default(ExecutionStrategy::single(Device::flex()));
    let training = saving(folder, default).num_epochs(epochs);
    let training = resuming(folder, training.distributed(LearnerStrategy::new(strategy)));
    let result = launch_model(training, Optimizer::Adam, model);
    assert!(result.error.is_none(), "{:?}", result.error);
    result.model.weights()
}

/// The folder of a worker.
fn own(folder: &Path, worker: usize) -> PathBuf {
    folder.join(format!("worker-{worker}"))
}

/// A job may go on with more or fewer workers, as long as there are as many replicas.
#[test]
fn all_workers_go_on_from_the_chiefs_checkpoint_whatever_they_see() {
    let wanted = undisturbed(3);
    for shared in [true, false] {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().to_path_buf();
        for (replicas, epochs) in [(&[1, 2][..], 2), (&[1, 1, 1], 3), (&[2, 1], 5)] {
            let path = path.clone();
            let found = workers(THREADS, replicas, move |strategy| {
                let worker = if shared { 0 } else { strategy.worker_index() };
                Ok(on_worker(strategy, &own(&path, worker), epochs))
            });
            let files = latest_checkpoint(own(root.path(), 0)).unwrap();
            assert_eq!(files, Some(epochs));
            assert_eq!(latest_checkpoint(own(root.path(), 1)).unwrap(), None);
            assert!(found.iter().all(|weights| *weights == found[0]));
            if epochs == 5 {
                assert_eq!(found[0], wanted, "shared: {shared}");
            }
        }
    }
}
