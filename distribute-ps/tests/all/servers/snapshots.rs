//! Snapshots and what is restored from them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use burn::nn::LinearConfig;
use distribute_core::optim::Adagrad;
use distribute_core::{Adam, DefaultStrategy, StrategyExt, TrainState};
use distribute_ps::{Gradient, OptimizerSpec, PsError};

use super::common::{Cluster, adam, floats, sgd, values};
use crate::within_limit;

#[test]
fn a_snapshot_under_load_holds_no_half_push() {
    within_limit(|| {
        let mut cluster = Cluster::new(1);
        // Both variables get the same gradients: in a snapshot they are equal.
        let a = cluster.variable("a", 1, floats(&[200_000], |_| 0.0), sgd(1.0));
        let b = cluster.variable("b", 1, floats(&[200_000], |_| 0.0), sgd(1.0));
        let (stop, next) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let worker = cluster.worker();
                let (cluster, a, b, stop, next) = (&cluster, &a, &b, &stop, &next);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let id = cluster.id(next.fetch_add(1, Ordering::Relaxed));
                        let gradient = || Gradient::Dense(floats(&[200_000], |_| -1.0));
                        let both = vec![(a.clone(), gradient()), (b.clone(), gradient())];
                        worker.push(id, both, &[]).unwrap();
                    }
                });
            }
            let mut last = 0.0;
            for _ in 0..10 {
                let snapshot = cluster.client.snapshot().unwrap();
                let (a, b) = (
                    values(&snapshot.variables["a"]),
                    values(&snapshot.variables["b"]),
                );
                assert!(
                    a.iter().chain(&b).all(|value| *value == a[0]),
                    "{} {}",
                    a[0],
                    b[0]
                );
                assert_eq!(snapshot.versions["a"].0[0] as f32, a[0] + 1.0);
                assert_eq!(snapshot.updates["b"].0[0] as f32, a[0]);
                assert!(a[0] >= last);
                last = a[0];
            }
            stop.store(true, Ordering::Relaxed);
            assert!(last > 0.0);
        });
    });
}

#[test]
fn training_goes_on_from_a_snapshot_as_if_nothing_had_happened() {
    within_limit(|| {
        let mut cluster = Cluster::new(3);
        let start = || floats(&[5, 2], |i| i as f32);
        let w = cluster.variable("model/w", 2, start(), adam(0.1));
        let push = |cluster: &Cluster, variable, closure: u64| {
            let gradient = Gradient::Dense(floats(&[5, 2], |i| (i as f32 + closure as f32).sin()));
            cluster
                .client
                .push(cluster.id(closure), vec![(variable, gradient)], &[])
                .unwrap();
        };
        for closure in 0..3 {
            push(&cluster, w.clone(), closure);
        }
        cluster.client.set_learning_rate(0.05).unwrap();
        let snapshot = cluster.client.snapshot().unwrap();
        assert_eq!((snapshot.step(), snapshot.learning_rate), (3, Some(0.05)));
        for closure in 3..6 {
            push(&cluster, w.clone(), closure);
        }
        let expected = cluster.client.read("model/w").unwrap();
        // Other servers, and another number of them.
        let mut other = Cluster::new(2);
        let w = other.variable("model/w", 1, start(), adam(0.1));
        other.client.restore(&snapshot).unwrap();
        for closure in 3..6 {
            push(&other, w.clone(), closure);
        }
        assert_eq!(other.client.read("model/w").unwrap(), expected);
        let mut wrong = snapshot.clone();
        wrong
            .variables
            .insert("model/w".to_string(), floats(&[9], |_| 0.0));
        let error = other.client.restore(&wrong).unwrap_err();
        assert!(
            matches!(error, PsError::Shape { op: "restore", .. }),
            "{error}"
        );
        wrong
            .variables
            .insert("model/x".to_string(), floats(&[9], |_| 0.0));
        wrong.variables.remove("model/w");
        let error = other.client.restore(&wrong).unwrap_err();
        assert!(matches!(error, PsError::UnknownVariable { .. }), "{error}");
        assert_eq!(other.client.read("model/w").unwrap(), expected);
    });
}

/// Adagrad's accumulators start at 0.1, also in a shard that had no update yet.
#[test]
fn slots_of_a_shard_without_an_update_are_what_they_start_as() {
    within_limit(|| {
        let mut cluster = Cluster::new(2);
        let adagrad = || Some(OptimizerSpec::of(&Adagrad::new(0.5)));
        let start = || floats(&[4, 2], |i| i as f32);
        let w = cluster.variable("w", 2, start(), adagrad());
        let push = |cluster: &Cluster, variable, closure, row| {
            let rows = floats(&[1, 2], |_| 1.0);
            let gradient = Gradient::Sparse {
                ids: vec![row],
                rows,
            };
            let pushed = vec![(variable, gradient)];
            cluster
                .client
                .push(cluster.id(closure), pushed, &[])
                .unwrap();
        };
        push(&cluster, w.clone(), 0, 0);
        let snapshot = cluster.client.snapshot().unwrap();
        let [slots] = &snapshot.slots.values().collect::<Vec<_>>()[..] else {
            panic!("{:?}", snapshot.slots.keys());
        };
        assert_eq!(values(slots)[4..], [0.1; 4]);
        push(&cluster, w, 1, 3);
        let mut other = Cluster::new(1);
        let w = other.variable("w", 1, start(), adagrad());
        other.client.restore(&snapshot).unwrap();
        push(&other, w, 1, 3);
        let expected = cluster.client.read("w").unwrap();
        assert_eq!(other.client.read("w").unwrap(), expected);
    });
}

#[test]
fn any_other_strategy_takes_the_tensors_of_a_snapshot() {
    within_limit(|| {
        let strategy = DefaultStrategy::new();
        let state = strategy
            .scope(|device| TrainState::new(LinearConfig::new(3, 2).init(device), Adam::new(0.1)))
            .unwrap();
        let tensors = state.primary().unwrap().to_tensors().unwrap();
        let mut cluster = Cluster::new(2);
        for (name, value) in &tensors {
            let variable = cluster.variable(name, 1, value.clone(), adam(0.1));
            let gradient = floats(&value.shape()[..], |_| 1.0);
            let gradients = vec![(variable, Gradient::Dense(gradient))];
            cluster.client.push(cluster.id(0), gradients, &[]).unwrap();
        }
        let snapshot = cluster.client.snapshot().unwrap();
        let mut restored = state.primary().unwrap().clone();
        restored
            .load_tensors(&snapshot.to_tensors(), snapshot.step())
            .unwrap();
        assert_eq!(restored.step(), 1);
        assert_eq!(restored.to_tensors().unwrap(), snapshot.to_tensors());
        let slot = &snapshot.to_tensors()["optimizer/momentum/weight"];
        assert!(values(slot).iter().all(|value| (value - 0.1).abs() < 1e-6));
    });
}
