//! Staleness, synchronous mode and wire compression.

use std::sync::mpsc::channel;
use std::time::Duration;

use distribute_ps::{
    ClientOptions, Gradient, PsError, RunOptions, ServerOptions, Staleness, StalenessPolicy,
    VariableClient, Versions,
};

use super::common::{Cluster, floats, sgd, values};
use crate::within_limit;

fn bounded(bound: u64, policy: StalenessPolicy) -> RunOptions {
    let mut rules = RunOptions::default();
    rules.staleness = Some(Staleness { bound, policy });
    rules
}

#[test]
fn gradients_beyond_the_bound_are_refused() {
    within_limit(|| {
        let mut cluster = Cluster::with(2, bounded(1, StalenessPolicy::Refuse));
        let w = cluster.variable("w", 2, floats(&[4], |_| 0.0), sgd(1.0));
        let base = cluster
            .client
            .pull(std::slice::from_ref(&w), &[], None)
            .unwrap()[0]
            .versions
            .clone();
        let push = |closure, base: &[Versions]| {
            let gradient = Gradient::Dense(floats(&[4], |_| -1.0));
            cluster
                .client
                .push(cluster.id(closure), vec![(w.clone(), gradient)], base)
        };
        push(0, std::slice::from_ref(&base)).unwrap();
        push(1, std::slice::from_ref(&base)).unwrap();
        let error = push(2, std::slice::from_ref(&base)).unwrap_err();
        assert!(
            matches!(
                error,
                PsError::Stale {
                    lag: 2,
                    bound: 1,
                    ..
                }
            ),
            "{error}"
        );
        // A repetition of one that was applied is no stale gradient.
        assert_eq!(push(0, &[base]).unwrap().already_applied, 2);
        let error = push(3, &[]).unwrap_err();
        assert!(error.to_string().contains("versions"), "{error}");
        assert_eq!(values(&cluster.client.read("w").unwrap()), [2.0; 4]);
    });
}

#[test]
fn faster_workers_wait_for_slower_ones() {
    within_limit(|| {
        let mut cluster = Cluster::with(2, bounded(1, StalenessPolicy::Wait));
        let w = cluster.variable("w", 2, floats(&[4], |_| 0.0), sgd(1.0));
        let (slow, fast) = (cluster.worker(), cluster.worker());
        slow.pull(std::slice::from_ref(&w), &[], Some(0)).unwrap();
        let push = |client: &distribute_ps::VariableClient, closure| {
            let gradient = Gradient::Dense(floats(&[4], |_| -1.0));
            client.push(cluster.id(closure), vec![(w.clone(), gradient)], &[])
        };
        fast.pull(std::slice::from_ref(&w), &[], Some(1)).unwrap();
        push(&fast, 1).unwrap();
        // The slow one would be overtaken twice.
        let (sender, receiver) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                fast.pull(std::slice::from_ref(&w), &[], Some(2)).unwrap();
                push(&fast, 2).unwrap();
                sender.send(()).unwrap();
            });
            assert!(receiver.recv_timeout(Duration::from_millis(300)).is_err());
            assert_eq!(values(&slow.read("w").unwrap()), [1.0; 4]);
            push(&slow, 0).unwrap();
            receiver.recv_timeout(Duration::from_secs(300)).unwrap();
        });
        assert_eq!(values(&cluster.client.read("w").unwrap()), [3.0; 4]);
    });
}

/// Each push takes all of the memory for payloads: one that waits for a slower closure must not
/// have it when that pushes.
#[test]
fn pushes_that_wait_hold_no_memory_that_slower_ones_need() {
    within_limit(|| {
        let mut options = ServerOptions::default();
        options.max_payload_bytes = 1;
        let rules = bounded(2, StalenessPolicy::Wait);
        let mut cluster = Cluster::start(1, rules, options, ClientOptions::default());
        let w = cluster.variable("w", 1, floats(&[2048], |_| 0.0), sgd(1.0));
        let pull = |client: &VariableClient, closure| {
            let pulled = client.pull(std::slice::from_ref(&w), &[], Some(closure));
            assert_eq!(pulled.unwrap().len(), 1);
        };
        let push = |client: &VariableClient, closure| {
            let gradient = Gradient::Dense(floats(&[2048], |_| -1.0));
            let pushed = client.push(cluster.id(closure), vec![(w.clone(), gradient)], &[]);
            assert_eq!(pushed.unwrap().applied, 1);
        };
        let (slow, fast) = (cluster.worker(), cluster.worker());
        pull(&slow, 0);
        for closure in 1..=2 {
            pull(&fast, closure);
            push(&fast, closure);
        }
        let (sender, receiver) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pull(&fast, 3);
                push(&fast, 3);
                sender.send(()).unwrap();
            });
            // It waits for the slow one, which would be overtaken three times.
            assert!(receiver.recv_timeout(Duration::from_millis(300)).is_err());
            push(&slow, 0);
            receiver.recv_timeout(Duration::from_secs(300)).unwrap();
        });
        assert_eq!(values(&cluster.client.read("w").unwrap())[..2], [4.0; 2]);
    });
}

#[test]
fn an_abandoned_closure_is_not_waited_for_and_waiting_ends() {
    within_limit(|| {
        let mut rules = bounded(0, StalenessPolicy::Wait);
        rules.wait_timeout = Duration::from_millis(200);
        let mut cluster = Cluster::with(1, rules);
        let w = cluster.variable("w", 1, floats(&[4], |_| 0.0), sgd(1.0));
        cluster
            .worker()
            .pull(std::slice::from_ref(&w), &[], Some(0))
            .unwrap();
        let error = cluster
            .client
            .pull(std::slice::from_ref(&w), &[], Some(1))
            .unwrap_err();
        assert!(
            matches!(
                error,
                PsError::StalenessTimeout {
                    op: "pull",
                    bound: 0,
                    ..
                }
            ),
            "{error}"
        );
        cluster.client.abandon(0).unwrap();
        cluster.client.pull(&[w], &[], Some(1)).unwrap();
    });
}

#[test]
fn a_round_is_the_mean_of_the_first_gradients_and_drops_the_slowest() {
    within_limit(|| {
        let mut rules = RunOptions::default();
        rules.synchronous = Some(2);
        let mut cluster = Cluster::with(2, rules);
        let w = cluster.variable("w", 2, floats(&[4, 1], |_| 0.0), sgd(1.0));
        let base = [cluster
            .client
            .pull(std::slice::from_ref(&w), &[], None)
            .unwrap()[0]
            .versions
            .clone()];
        let dense = |value: f32| Gradient::Dense(floats(&[4, 1], |_| -value));
        let push = |closure, gradient, base: &[Versions]| {
            cluster
                .client
                .push(cluster.id(closure), vec![(w.clone(), gradient)], base)
                .unwrap()
        };
        assert_eq!(push(0, dense(1.0), &base).accumulated, 2);
        assert_eq!(push(0, dense(1.0), &base).already_applied, 2);
        assert_eq!(values(&cluster.client.read("w").unwrap()), [0.0; 4]);
        assert_eq!(push(1, dense(3.0), &base).applied, 2);
        assert_eq!(push(2, dense(100.0), &base).dropped, 2);
        assert_eq!(values(&cluster.client.read("w").unwrap()), [2.0; 4]);
        let base = [cluster
            .client
            .pull(std::slice::from_ref(&w), &[], None)
            .unwrap()[0]
            .versions
            .clone()];
        let sparse = |ids: Vec<u64>, value: f32| Gradient::Sparse {
            rows: floats(&[ids.len(), 1], |_| -value),
            ids,
        };
        push(3, sparse(vec![0, 3, 3], 2.0), &base);
        push(4, dense(4.0), &base);
        assert_eq!(
            values(&cluster.client.read("w").unwrap()),
            [5.0, 4.0, 4.0, 6.0]
        );
    });
}

#[test]
fn rules_that_do_not_go_together_are_refused() {
    within_limit(|| {
        let cluster = Cluster::new(1);
        let mut rules = bounded(1, StalenessPolicy::Refuse);
        rules.synchronous = Some(2);
        let error = cluster.client.attach(cluster.run, rules).unwrap_err();
        assert!(matches!(error, PsError::InvalidArgument { .. }), "{error}");
        let mut rules = RunOptions::default();
        rules.synchronous = Some(0);
        assert!(cluster.client.attach(cluster.run, rules).is_err());
    });
}

#[test]
fn compressed_values_are_rounded_on_the_wire_only() {
    within_limit(|| {
        let mut narrow = ClientOptions::default();
        narrow.bf16 = true;
        let options = ServerOptions::default();
        let mut cluster = Cluster::start(2, RunOptions::default(), options, narrow.clone());
        let start = floats(&[3, 2], |i| 1.0 + i as f32 * 1e-3);
        let w = cluster.variable("w", 2, start.clone(), sgd(1.0));
        let wide = cluster.worker();
        // The initial value is exact on the server.
        assert_eq!(wide.read("w").unwrap(), start);
        let rounded = |value: f32| f32::from_bits((value.to_bits() + 0x8000) & 0xffff_0000);
        let expected: Vec<f32> = values(&start).into_iter().map(rounded).collect();
        assert_eq!(values(&cluster.client.read("w").unwrap()), expected);
        let rows = cluster.client.pull_rows(&w, &[2]).unwrap();
        assert_eq!(values(&rows), expected[4..]);
        let gradient = floats(&[3, 2], |_| 1.003);
        let push = Gradient::Dense(gradient);
        cluster
            .client
            .push(cluster.id(0), vec![(w.clone(), push)], &[])
            .unwrap();
        let sparse = Gradient::Sparse {
            ids: vec![1],
            rows: floats(&[1, 2], |_| 1.003),
        };
        cluster
            .client
            .push(cluster.id(1), vec![(w, sparse)], &[])
            .unwrap();
        let found = values(&wide.read("w").unwrap());
        for (at, (found, start)) in found.iter().zip(values(&start)).enumerate() {
            let times = if at / 2 == 1 { 2.0 } else { 1.0 };
            assert!(
                (found - (start - times * rounded(1.003))).abs() < 1e-6,
                "{at}: {found}"
            );
        }
    });
}

/// Two workers push at once to several servers: what is told to be refused is applied nowhere,
/// what is told to be applied is applied everywhere, and never staler than the bound.
#[test]
fn an_update_of_several_servers_is_refused_by_all_or_by_none() {
    for (servers, bound, workers) in [(2, 0, 2), (3, 1, 3), (2, 2, 4)] {
        within_limit(move || {
            let mut cluster = Cluster::with(servers, bounded(bound, StalenessPolicy::Refuse));
            let shards = servers + 1;
            let w = cluster.variable("w", shards, floats(&[12], |_| 0.0), sgd(1.0));
            let rounds = 150;
            let applied: usize = std::thread::scope(|scope| {
                let work = |worker: u64| {
                    let (client, w, cluster) = (cluster.worker(), w.clone(), &cluster);
                    scope.spawn(move || {
                        let mut applied = 0;
                        for round in 0..rounds {
                            let pulled = client.pull(std::slice::from_ref(&w), &[], None).unwrap();
                            let base = [pulled[0].versions.clone()];
                            let gradient = Gradient::Dense(floats(&[12], |_| -1.0));
                            let id = cluster.id(1 + worker * rounds + round);
                            match client.push(id, vec![(w.clone(), gradient)], &base) {
                                Ok(done) => {
                                    assert_eq!(done.applied, shards);
                                    let after = done.versions[0].0.iter();
                                    for (after, base) in after.zip(&base[0].0) {
                                        assert!(after - 1 - base <= bound, "{after} {base}");
                                    }
                                    applied += 1;
                                }
                                Err(PsError::Stale { lag, .. }) => assert!(lag > bound),
                                Err(other) => panic!("{other}"),
                            }
                        }
                        applied
                    })
                };
                let threads: Vec<_> = (0..workers).map(work).collect();
                threads.into_iter().map(|it| it.join().unwrap()).sum()
            });
            assert!(applied >= 1);
            let pulled = cluster
                .client
                .pull(std::slice::from_ref(&w), &[], None)
                .unwrap();
            assert_eq!(pulled[0].updates.0, vec![applied as u64; shards]);
            assert_eq!(
                values(&cluster.client.read("w").unwrap()),
                [applied as f32; 12]
            );
        });
    }
}
