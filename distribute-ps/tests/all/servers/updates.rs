//! What pushes, pulls and assignments do.

use burn::tensor::{DType, Device};
use distribute_core::optim::{
    Coefficient, Optimizer, ParameterUpdate, Updated, from_config, names,
};
use distribute_core::{Tensor, TensorData};
use distribute_ps::{
    ClientOptions, Gradient, OptimizerSpec, PsError, RunOptions, ServerOptions, VariableSpec,
    Versions,
};
use proptest::prelude::*;

use super::common::{Cluster, adam, floats, sgd, values};
use crate::within_limit;

#[test]
fn a_push_updates_all_shards_and_a_pull_gives_them_back() {
    within_limit(|| {
        let mut cluster = Cluster::new(3);
        let weights = cluster.variable("model/w", 2, floats(&[5, 3], |i| i as f32), sgd(0.5));
        let bias = cluster.variable("model/b", 1, floats(&[], |_| 1.0), sgd(0.5));
        let gradient = |shape: &[usize]| Gradient::Dense(floats(shape, |_| 2.0));
        let outcome = cluster
            .client
            .push(
                cluster.id(1),
                vec![
                    (weights.clone(), gradient(&[5, 3])),
                    (bias.clone(), gradient(&[])),
                ],
                &[],
            )
            .unwrap();
        assert_eq!((outcome.applied, outcome.already_applied), (3, 0));
        // The initial value was version 1.
        assert_eq!(outcome.versions[0].0, [2, 2]);
        let pulled = cluster
            .client
            .pull(&[weights.clone(), bias.clone()], &[], None)
            .unwrap();
        let found = values(pulled[0].value.as_ref().unwrap());
        assert_eq!(found, (0..15).map(|i| i as f32 - 1.0).collect::<Vec<_>>());
        assert_eq!(values(pulled[1].value.as_ref().unwrap()), [0.0]);
        assert_eq!(pulled[0].versions.0, [2, 2]);
        // Nothing has changed since: nothing travels.
        let known: Vec<_> = pulled
            .iter()
            .map(|pulled| pulled.versions.clone())
            .collect();
        let again = cluster.client.pull(&[weights, bias], &known, None).unwrap();
        assert!(again.iter().all(|pulled| pulled.value.is_none()));
        assert_eq!(again[0].versions, known[0]);
    });
}

/// Every optimizer, with weight decay, an excluded variable and averages: the servers end with the
/// bits that the same arithmetic gives here, whatever its slots start as.
#[test]
fn the_servers_compute_what_each_optimizer_computes() {
    within_limit(|| {
        let mut cluster = Cluster::new(2);
        for (name, path) in names().flat_map(|name| [(name, "kernel"), (name, "bias")]) {
            let config = serde_json::json!({
                "learning_rate": 0.1,
                "weight_decay": 0.05,
                "exclude_from_weight_decay": ["bias"],
                "use_ema": true,
                "ema_momentum": 0.5,
            });
            let optimizer = from_config(name, &config).unwrap();
            let first = floats(&[7, 3], |i| (i as f32 - 8.0) / 4.0);
            let variable = format!("{name}/{path}");
            let spec = Some(OptimizerSpec::of(&*optimizer));
            let variable = cluster.variable(&variable, 2, first.clone(), spec);
            let mut weights = Tensor::<1>::from_floats(&*values(&first), &Device::flex());
            let mut slots = optimizer.new_slots(&weights);
            for step in 1..=3_u16 {
                let gradient = floats(&[7, 3], |i| (i as f32 - 9.5) / f32::from(step));
                let here = Tensor::from_floats(&*values(&gradient), &Device::flex());
                let numbers = optimizer.coefficients(0.1, step.into()).into_iter();
                let numbers: Vec<_> = numbers.map(Coefficient::Host).collect();
                let update = ParameterUpdate {
                    path,
                    coefficients: &numbers,
                    parameter: weights,
                    gradient: here,
                    slots,
                    whole: None,
                };
                (weights, slots) = optimizer.update(update).unwrap();
                let update = vec![(variable.clone(), Gradient::Dense(gradient))];
                let id = cluster.id(step.into());
                cluster.client.push(id, update, &[]).unwrap();
            }
            let found = cluster.client.read(variable.name()).unwrap();
            let wanted = weights.into_data().try_to_vec::<f32>().unwrap();
            assert_eq!(values(&found), wanted, "{name} {path}");
        }
    });
}

#[test]
fn a_variable_comes_whole_when_only_one_of_its_shards_has_changed() {
    within_limit(|| {
        let mut cluster = Cluster::new(2);
        let table = cluster.variable("table", 4, floats(&[8, 2], |i| i as f32), sgd(1.0));
        let known = cluster
            .client
            .pull(std::slice::from_ref(&table), &[], None)
            .unwrap();
        let known = [known[0].versions.clone()];
        let sparse = Gradient::Sparse {
            ids: vec![5],
            rows: floats(&[1, 2], |_| 1.0),
        };
        cluster
            .client
            .push(cluster.id(0), vec![(table.clone(), sparse)], &[])
            .unwrap();
        let pulled = cluster.client.pull(&[table], &known, None).unwrap();
        assert_eq!(pulled[0].versions.0, [1, 1, 2, 1]);
        let mut expected: Vec<f32> = (0..16).map(|i| i as f32).collect();
        expected[10] -= 1.0;
        expected[11] -= 1.0;
        assert_eq!(values(pulled[0].value.as_ref().unwrap()), expected);
    });
}

/// Which pushes arrive, in which order, how often.
fn deliveries() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(0_usize..12, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Repeated and reordered, from two clients: the sum of the distinct ones.
    #[test]
    fn each_update_counts_once(order in deliveries(), shards in 1_usize..4) {
        let mut cluster = Cluster::new(2);
        let counter = cluster.variable("n", 1, TensorData::new(vec![0_i64], [1]), None);
        let weights = cluster.variable("w", shards, floats(&[7], |_| 0.0), sgd(1.0));
        let clients = [cluster.client.clone(), cluster.worker()];
        for (turn, closure) in order.iter().enumerate() {
            let client = &clients[turn % 2];
            // Binary digits: the sum says which ones were applied how often.
            let amount = 1_i64 << (2 * closure);
            let id = cluster.id(*closure as u64);
            let gradient = floats(&[7], |_| -(amount as f32));
            client.push(id, vec![(weights.clone(), Gradient::Dense(gradient))], &[]).unwrap();
            client.assign_add(id, &counter, TensorData::new(vec![amount], [1])).unwrap();
        }
        let mut distinct = order;
        distinct.sort_unstable();
        distinct.dedup();
        let sum: i64 = distinct.iter().map(|closure| 1_i64 << (2 * closure)).sum();
        let counted = cluster.client.read("n").unwrap();
        prop_assert_eq!(counted.as_slice::<i64>().unwrap(), &[sum]);
        let weights = values(&cluster.client.read("w").unwrap());
        prop_assert!(weights.iter().all(|weight| *weight == sum as f32));
    }
}

#[test]
fn updates_of_finished_closures_are_never_applied_again() {
    within_limit(|| {
        let mut cluster = Cluster::new(1);
        let counter = cluster.variable("n", 1, TensorData::new(vec![0_i64], [1]), None);
        let one = || TensorData::new(vec![1_i64], [1]);
        let add = |closure| {
            cluster
                .client
                .assign_add(cluster.id(closure), &counter, one())
                .unwrap()
        };
        for closure in 0..10 {
            assert_eq!(add(closure).applied, 1);
        }
        cluster.client.finished_below(8).unwrap();
        for closure in 0..10 {
            assert_eq!(add(closure).already_applied, 1);
        }
        assert_eq!(add(10).applied, 1);
        let found = cluster.client.read("n").unwrap();
        assert_eq!(found.as_slice::<i64>().unwrap(), [11]);
        let subtracted = cluster
            .client
            .assign_sub(cluster.id(11), &counter, one())
            .unwrap();
        assert_eq!(subtracted.applied, 1);
        let assigned = TensorData::new(vec![-3_i64], [1]);
        cluster
            .client
            .assign(cluster.id(12), &counter, assigned)
            .unwrap();
        let found = cluster.client.read("n").unwrap();
        assert_eq!(found.as_slice::<i64>().unwrap(), [-3]);
    });
}

#[test]
fn sparse_gradients_change_what_dense_ones_with_zeros_change_under_sgd() {
    within_limit(|| {
        let mut cluster = Cluster::new(2);
        let start = || floats(&[9, 4], |i| (i as f32).sin());
        let dense = cluster.variable("dense", 1, start(), sgd(0.3));
        let sparse = cluster.variable("sparse", 3, start(), sgd(0.3));
        let ids = vec![8_u64, 0, 3, 8, 4];
        let rows = floats(&[5, 4], |i| (i as f32).cos());
        let mut whole = vec![0.0; 36];
        for (row, id) in values(&rows).chunks(4).zip(&ids) {
            for (at, value) in row.iter().enumerate() {
                whole[*id as usize * 4 + at] += value;
            }
        }
        let whole = Gradient::Dense(TensorData::new(whole, [9, 4]));
        cluster
            .client
            .push(cluster.id(0), vec![(dense, whole)], &[])
            .unwrap();
        let gradient = Gradient::Sparse { ids, rows };
        cluster
            .client
            .push(cluster.id(0), vec![(sparse.clone(), gradient)], &[])
            .unwrap();
        let expected = values(&cluster.client.read("dense").unwrap());
        assert_eq!(values(&cluster.client.read("sparse").unwrap()), expected);
        let rows = cluster.client.pull_rows(&sparse, &[3, 8, 3]).unwrap();
        assert_eq!(rows.shape()[..], [3, 4]);
        let expected = [&expected[12..16], &expected[32..36], &expected[12..16]].concat();
        assert_eq!(values(&rows), expected);
    });
}

#[test]
fn adam_is_lazy_it_changes_the_touched_rows_as_a_dense_one_would_and_no_others() {
    within_limit(|| {
        let mut cluster = Cluster::new(2);
        let start = || floats(&[6, 2], |i| i as f32 * 0.1);
        let sparse = cluster.variable("sparse", 2, start(), adam(0.01));
        let dense = cluster.variable("dense", 1, start(), adam(0.01));
        for step in 0..3 {
            // Always the same rows: a dense Adam with zeros elsewhere has zero slots there.
            let rows = floats(&[2, 2], |i| (i + step) as f32 - 1.5);
            let mut whole = vec![0.0; 12];
            whole[2..4].copy_from_slice(&values(&rows)[..2]);
            whole[10..12].copy_from_slice(&values(&rows)[2..]);
            let whole = Gradient::Dense(TensorData::new(whole, [6, 2]));
            let few = Gradient::Sparse {
                ids: vec![1, 5],
                rows,
            };
            let id = cluster.id(step as u64);
            cluster
                .client
                .push(id, vec![(dense.clone(), whole), (sparse.clone(), few)], &[])
                .unwrap();
        }
        let expected = values(&cluster.client.read("dense").unwrap());
        assert_eq!(values(&cluster.client.read("sparse").unwrap()), expected);
        assert_eq!(expected[..2], values(&start())[..2]);
        // Another row now: the first ones' momentum does not move them.
        let few = Gradient::Sparse {
            ids: vec![3],
            rows: floats(&[1, 2], |_| 1.0),
        };
        cluster
            .client
            .push(cluster.id(9), vec![(sparse, few)], &[])
            .unwrap();
        let found = values(&cluster.client.read("sparse").unwrap());
        assert_eq!(found[2..4], expected[2..4]);
        assert_ne!(found[6..8], expected[6..8]);
    });
}

#[test]
fn a_server_updates_as_the_optimizer_does() {
    within_limit(|| {
        let mut cluster = Cluster::new(2);
        let shape = [300, 1000]; // more than one piece per shard
        let start = floats(&shape, |i| (i as f32 * 0.37).sin());
        let weights = cluster.variable("w", 2, start.clone(), adam(0.02));
        let (mut w, mut m, mut v) = (values(&start), vec![0.0_f32; 300_000], vec![0.0; 300_000]);
        for step in 1..=2 {
            let gradient = floats(&shape, |i| (i as f32 * step as f32).cos());
            let rate = 0.02 * (1.0 - 0.999_f64.powi(step)).sqrt() / (1.0 - 0.9_f64.powi(step));
            for (i, g) in values(&gradient).into_iter().enumerate() {
                m[i] += (g - m[i]) * 0.1;
                v[i] += (g * g - v[i]) * 0.001;
                w[i] -= rate as f32 * m[i] / (v[i].sqrt() + 1e-7);
            }
            let gradients = vec![(weights.clone(), Gradient::Dense(gradient))];
            cluster
                .client
                .push(cluster.id(step as u64), gradients, &[])
                .unwrap();
        }
        let found = values(&cluster.client.read("w").unwrap());
        let worst = found
            .iter()
            .zip(&w)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max);
        assert!(worst < 1e-5, "{worst}");
    });
}

#[test]
fn the_learning_rate_lives_on_the_servers() {
    within_limit(|| {
        let mut cluster = Cluster::new(2);
        let weights = cluster.variable("w", 2, floats(&[4], |_| 0.0), sgd(1.0));
        cluster.client.set_learning_rate(0.25).unwrap();
        let gradient = Gradient::Dense(floats(&[4], |_| 1.0));
        cluster
            .worker()
            .push(cluster.id(0), vec![(weights, gradient)], &[])
            .unwrap();
        assert_eq!(values(&cluster.client.read("w").unwrap()), [-0.25; 4]);
    });
}

#[test]
fn a_push_without_an_optimizer_is_refused() {
    within_limit(|| {
        let mut cluster = Cluster::new(1);
        let plain = cluster.variable("plain", 1, floats(&[4], |_| 0.0), None);
        let gradient = Gradient::Dense(floats(&[4], |_| 1.0));
        let error = cluster
            .client
            .push(cluster.id(0), vec![(plain, gradient)], &[])
            .unwrap_err();
        assert!(matches!(&error, PsError::InvalidArgument { what } if what.contains("plain")));
    });
}

/// Adds the gradient; fails on one above 100.
#[derive(Debug)]
struct Brittle;

impl Optimizer for Brittle {
    fn name(&self) -> &'static str {
        "brittle"
    }

    fn slots(&self) -> &[&'static str] {
        &["sum"]
    }

    fn learning_rate(&self) -> f64 {
        1.0
    }

    fn config(&self) -> serde_json::Value {
        serde_json::json!({})
    }

    fn coefficients(&self, _: f64, _: u64) -> Vec<f64> {
        Vec::new()
    }

    fn update(&self, of: ParameterUpdate<'_>) -> distribute_core::Result<Updated> {
        let ParameterUpdate { gradient, .. } = of;
        let largest = gradient.clone().max().into_scalar::<f32>();
        if largest > 100.0 {
            return Err(distribute_core::Error::invalid("brittle: too large"));
        }
        let slots = of.slots.into_iter().map(|slot| slot + gradient.clone());
        Ok((of.parameter + gradient.clone(), slots.collect()))
    }
}

/// What fails in the last piece of the last variable leaves all as it was: the same update, sent
/// again, is applied everywhere, once.
#[test]
fn a_push_whose_optimizer_fails_half_way_changes_nothing() {
    /// More than one piece.
    const COUNT: usize = (1 << 20) / 4 * 2 + 5;
    for synchronous in [None, Some(1), Some(2)] {
        within_limit(move || {
            let options = ServerOptions::default()
                .optimizer("brittle", |_| Ok(std::sync::Arc::new(Brittle) as _));
            let mut rules = RunOptions::default();
            rules.synchronous = synchronous;
            let mut cluster = Cluster::start(1, rules, options, ClientOptions::default());
            let plain = cluster.variable("plain", 1, floats(&[4], |_| 0.0), sgd(1.0));
            let spec = Some(OptimizerSpec::of(&Brittle as &dyn Optimizer));
            let brittle = cluster.variable("brittle", 2, floats(&[COUNT], |_| 0.0), spec);
            let variables = [plain.clone(), brittle.clone()];
            let versions = || -> Vec<Versions> {
                let pulled = cluster.client.pull(&variables, &[], None).unwrap();
                pulled.into_iter().map(|pulled| pulled.versions).collect()
            };
            let base = versions();
            let push = |closure, last: f32| {
                let of_brittle = floats(&[COUNT], |at| if at + 1 == COUNT { last } else { 1.0 });
                let gradients = vec![
                    (plain.clone(), Gradient::Dense(floats(&[4], |_| -1.0))),
                    (brittle.clone(), Gradient::Dense(of_brittle)),
                ];
                cluster.client.push(cluster.id(closure), gradients, &base)
            };
            // The other gradients of the round, which stay in it.
            let before = synchronous.unwrap_or(1) as u64 - 1;
            for closure in 0..before {
                assert_eq!(push(closure, 1.0).unwrap().accumulated, 3);
            }
            for _ in 0..2 {
                let error = push(before, 1000.0).unwrap_err();
                assert!(error.to_string().contains("too large"), "{error}");
                assert_eq!(versions(), base, "{synchronous:?}");
                assert_eq!(values(&cluster.client.read("plain").unwrap()), [0.0; 4]);
                let brittle = values(&cluster.client.read("brittle").unwrap());
                assert!(brittle.iter().all(|value| *value == 0.0));
            }
            assert_eq!(push(before, 1.0).unwrap().applied, 3);
            assert_eq!(push(before, 1.0).unwrap().already_applied, 3);
            assert_eq!(values(&cluster.client.read("plain").unwrap()), [1.0; 4]);
            let brittle = values(&cluster.client.read("brittle").unwrap());
            assert!(brittle.iter().all(|value| *value == 1.0));
        });
    }
}

/// An assignment that is refused may come again.
#[test]
fn an_assignment_before_there_is_a_value_leaves_no_id() {
    within_limit(|| {
        let mut cluster = Cluster::new(1);
        let spec = VariableSpec {
            name: "late".to_string(),
            shape: vec![4],
            dtype: DType::F32,
            optimizer: None,
        };
        let placement = cluster.place(&[4], 2);
        let late = cluster.client.create(&spec, &placement).unwrap();
        let add = |closure| {
            let one = floats(&[4], |_| 1.0);
            cluster.client.assign_add(cluster.id(closure), &late, one)
        };
        assert!(matches!(add(0), Err(PsError::Uninitialized { .. })));
        let zero = floats(&[4], |_| 0.0);
        cluster.client.initialize(&late, zero).unwrap();
        assert_eq!(add(0).unwrap().applied, 2);
        assert_eq!(values(&cluster.client.read("late").unwrap()), [1.0; 4]);
    });
}
