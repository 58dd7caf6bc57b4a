//! Datasets of which every worker has an iterator of its own.

use std::collections::BTreeSet;
use std::sync::Arc;

use distribute_core::InputContext;
use distribute_ps::{
    ClusterCoordinator, CoordinatorOptions, PsError, Result, StepRegistry, WorkerContext,
    WorkerStatus,
};

use super::in_process::{Cluster, NO_SERVERS, Worker, eventually, failed};

/// A dataset of the numbers below 6, every worker its share of them; the step returns one.
fn numbers(registry: &mut StepRegistry) -> distribute_ps::PerWorkerDataset<u64> {
    let shard = |input: InputContext| {
        let (id, count) = (
            input.input_pipeline_id as u64,
            input.num_input_pipelines as u64,
        );
        assert_eq!(input.num_replicas_in_sync, 1);
        Ok((0..6).filter(move |number| number % count == id).map(Ok))
    };
    let data = registry.dataset("numbers", shard).unwrap();
    let read = data.clone();
    let next = move |worker: &WorkerContext, (): ()| worker.next(&read);
    registry.step("next", next).unwrap();
    data
}

fn read(coordinator: &ClusterCoordinator) -> Result<u64> {
    coordinator.schedule("next", ())?.fetch()
}

#[test]
fn workers_read_their_shares_until_the_end_of_sequence_surfaces() {
    let cluster = Cluster::new(1, |registry| drop(numbers(registry)));
    let coordinator = &cluster.coordinator;
    let seen: Vec<u64> = (0..6).map(|_| read(coordinator).unwrap()).collect();
    assert_eq!(seen, [0, 1, 2, 3, 4, 5]);
    coordinator.schedule("next", ()).unwrap();
    let error = coordinator.join().unwrap_err();
    let PsError::OutOfRange { dataset, worker } = failed(&error, "next") else {
        panic!("{error}");
    };
    assert_eq!((dataset.as_str(), worker.as_str()), ("numbers", "worker 0"));
    assert!(error.to_string().contains("End of sequence"), "{error}");
}

#[test]
fn several_workers_read_different_shares() {
    let cluster = Cluster::new(2, |registry| drop(numbers(registry)));
    let mut seen = BTreeSet::new();
    // Whichever worker runs a closure; the first that has nothing left ends it.
    while let Ok(number) = read(&cluster.coordinator) {
        assert!(seen.insert(number), "{number} twice");
    }
    assert!(seen.len() >= 3 && seen.iter().all(|&number| number < 6));
}

#[test]
fn a_new_iterator_begins_at_the_start() {
    let mut data = None;
    let cluster = Cluster::new(1, |registry| data = Some(numbers(registry)));
    let (coordinator, data) = (&cluster.coordinator, data.unwrap());
    for epoch in 0..3 {
        let seen: Vec<u64> = (0..6).map(|_| read(coordinator).unwrap()).collect();
        assert_eq!(seen, [0, 1, 2, 3, 4, 5], "epoch {epoch}");
        coordinator.create_per_worker_dataset(&data).unwrap();
    }
    assert_eq!(read(coordinator).unwrap(), 0);
}

#[test]
fn the_datasets_own_error_is_the_closures() {
    let cluster = Cluster::new(1, |registry| {
        let broken = |_| Ok([Ok(1_u64), Err(PsError::step("row 2 has no label"))]);
        let data = registry.dataset("broken", broken).unwrap();
        let next = move |worker: &WorkerContext, (): ()| worker.next(&data);
        registry.step("next", next).unwrap();
    });
    assert_eq!(read(&cluster.coordinator).unwrap(), 1);
    let error = read(&cluster.coordinator).unwrap_err();
    assert_eq!(failed(&error, "next").to_string(), "row 2 has no label");
}

#[test]
fn a_worker_that_returns_has_a_new_iterator_with_the_current_renewals() {
    let mut registry = StepRegistry::new();
    let data = numbers(&mut registry);
    let registry = Arc::new(registry);
    let first = Worker::start(&registry);
    let address = first.address.clone();
    let options = CoordinatorOptions::default();
    let coordinator =
        ClusterCoordinator::connect(&[&address], &NO_SERVERS, registry.clone(), options).unwrap();
    coordinator.create_per_worker_dataset(&data).unwrap();
    assert_eq!(read(&coordinator).unwrap(), 0);
    assert_eq!(read(&coordinator).unwrap(), 1);
    drop(first);
    let is_absent = || matches!(coordinator.worker_statuses()[0], WorkerStatus::Absent(_));
    eventually("the worker is missed", is_absent);
    let scheduled = coordinator.schedule("next", ()).unwrap();
    let _second = Worker::start_at(&address, &registry, Default::default());
    assert_eq!(scheduled.fetch::<u64>().unwrap(), 0);
    assert_eq!(read(&coordinator).unwrap(), 1);
}
