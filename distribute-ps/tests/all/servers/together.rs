//! Many at a time, connections that break, and what is left behind.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use distribute_core::TensorData;
use distribute_ps::{
    ClientOptions, Gradient, ParameterServer, PsError, RoundRobin, RunId, RunOptions,
    ServerOptions, VariableClient, VariableSpec,
};

use hostile::alone::is_alone;
use hostile::settles::settles;

use super::common::{Cluster, adam, floats, sgd, values};
use crate::within_limit;

#[test]
fn a_read_while_others_write_sees_whole_updates_of_a_shard() {
    within_limit(|| {
        let mut cluster = Cluster::new(1);
        let count = 300_000;
        let w = cluster.variable("w", 1, floats(&[count], |_| 0.0), sgd(1.0));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for writer in 0..2_u64 {
                let worker = cluster.worker();
                let (cluster, w, stop) = (&cluster, &w, &stop);
                scope.spawn(move || {
                    for closure in 0.. {
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                        let gradient = Gradient::Dense(floats(&[count], |_| -1.0));
                        let id = cluster.id(2 * closure + writer);
                        worker.push(id, vec![(w.clone(), gradient)], &[]).unwrap();
                    }
                });
            }
            for _ in 0..30 {
                let pulled = cluster
                    .client
                    .pull(std::slice::from_ref(&w), &[], None)
                    .unwrap();
                let found = values(pulled[0].value.as_ref().unwrap());
                let version = pulled[0].versions.0[0] as f32 - 1.0;
                assert!(found.iter().all(|value| *value == version));
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn many_workers_and_many_variables_lose_no_update() {
    within_limit(|| {
        let mut cluster = Cluster::new(3);
        let make = |cluster: &mut Cluster, i: usize| {
            cluster.variable(&format!("v{i}"), 1 + i % 3, floats(&[4], |_| 0.0), sgd(1.0))
        };
        let variables: Vec<_> = (0..60).map(|i| make(&mut cluster, i)).collect();
        let next = Mutex::new(0..96_u64);
        std::thread::scope(|scope| {
            for _ in 0..12 {
                let worker = cluster.worker();
                let (cluster, variables, next) = (&cluster, &variables, &next);
                scope.spawn(move || {
                    loop {
                        let Some(closure) = next.lock().unwrap().next() else {
                            return;
                        };
                        worker.pull(variables, &[], None).unwrap();
                        let gradient = || Gradient::Dense(floats(&[4], |_| -1.0));
                        let all = variables.iter().map(|v| (v.clone(), gradient())).collect();
                        worker.push(cluster.id(closure), all, &[]).unwrap();
                    }
                });
            }
        });
        for variable in &variables {
            let found = cluster.client.read(variable.name()).unwrap();
            assert_eq!(values(&found), [96.0; 4]);
        }
        assert_eq!(cluster.worker().variables().unwrap().len(), 60);
    });
}

/// Passes bytes on, and breaks connections when it is told to.
fn proxy(target: String, broken: &'static AtomicBool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), TcpStream::connect(&target).unwrap());
            let pass = |mut from: TcpStream, mut to: TcpStream| {
                std::thread::spawn(move || {
                    let mut buffer = [0; 8192];
                    loop {
                        let count = from.read(&mut buffer).unwrap_or(0);
                        let fails = count > 4000 && broken.swap(false, Ordering::SeqCst);
                        if count == 0 || fails || to.write_all(&buffer[..count]).is_err() {
                            let _ = from.shutdown(Shutdown::Both);
                            let _ = to.shutdown(Shutdown::Both);
                            return;
                        }
                    }
                });
            };
            pass(client.try_clone().unwrap(), server.try_clone().unwrap());
            pass(server, client);
        }
    });
    address
}

#[test]
fn a_connection_that_breaks_within_a_push_changes_nothing() {
    static BROKEN: AtomicBool = AtomicBool::new(false);
    within_limit(|| {
        let mut cluster = Cluster::new(1);
        let w = cluster.variable("w", 1, floats(&[100_000], |_| 0.0), adam(0.1));
        let address = proxy(cluster.servers[0].address().to_string(), &BROKEN);
        let worker = VariableClient::connect(&[address], ClientOptions::default()).unwrap();
        worker.join(cluster.run).unwrap();
        for closure in 0..6 {
            BROKEN.store(closure % 2 == 1, Ordering::SeqCst);
            let gradient = Gradient::Dense(floats(&[100_000], |_| 1.0));
            worker
                .push(cluster.id(closure), vec![(w.clone(), gradient)], &[])
                .unwrap();
            let pulled = worker.pull(std::slice::from_ref(&w), &[], None).unwrap();
            assert_eq!(pulled[0].versions.0, [closure + 2]);
        }
        let snapshot = cluster.client.snapshot().unwrap();
        assert_eq!(snapshot.updates["w"].0, [6]);
    });
}

/// The coordinator's connection is another one afterwards; it is the coordinator all the same.
#[test]
fn a_coordinator_whose_connection_breaks_is_known_again() {
    static BROKEN: AtomicBool = AtomicBool::new(false);
    within_limit(|| {
        let mut options = ServerOptions::default();
        options.orphan_timeout = Duration::from_millis(800);
        let server = ParameterServer::bind("127.0.0.1:0", options).unwrap();
        let address = proxy(server.address().to_string(), &BROKEN);
        let coordinator = VariableClient::connect(&[address], ClientOptions::default()).unwrap();
        let run = RunId::random().unwrap();
        coordinator.attach(run, RunOptions::default()).unwrap();
        let spec = VariableSpec {
            name: "w".to_string(),
            shape: vec![100_000],
            dtype: floats(&[1], |_| 0.0).dtype(),
            optimizer: None,
        };
        let mut places = RoundRobin::new(1).unwrap();
        let w = coordinator
            .create(&spec, &places.place(&spec.shape, 4, None).unwrap())
            .unwrap();
        BROKEN.store(true, Ordering::SeqCst);
        coordinator
            .initialize(&w, floats(&[100_000], |_| 1.0))
            .unwrap();
        assert!(!BROKEN.load(Ordering::SeqCst), "nothing was broken");
        // Much longer than an orphan waits, and without any call.
        assert!(!server.wait(Some(Duration::from_secs(2))).unwrap());
        let addresses = [server.address().to_string()];
        let other = VariableClient::connect(&addresses, ClientOptions::default()).unwrap();
        let error = other.attach(RunId::random().unwrap(), RunOptions::default());
        let error = error.unwrap_err().to_string();
        assert!(error.contains("still connected"), "{error}");
        drop((coordinator, w));
        let error = server.wait(Some(Duration::from_secs(20))).unwrap_err();
        assert!(matches!(error, PsError::CoordinatorLost { .. }), "{error}");
    });
}

#[test]
fn values_larger_than_a_message_travel_in_pieces() {
    within_limit(|| {
        let mut cluster = Cluster::new(2);
        let start = floats(&[3, 700_001], |i| i as f32);
        let w = cluster.variable("w", 2, start.clone(), None);
        assert_eq!(cluster.client.read("w").unwrap(), start);
        let one = floats(&[3, 700_001], |_| 1.0);
        cluster.client.assign_add(cluster.id(0), &w, one).unwrap();
        let found = values(&cluster.client.read("w").unwrap());
        assert!(
            found
                .iter()
                .enumerate()
                .all(|(i, value)| *value == i as f32 + 1.0)
        );
        let bytes = TensorData::new((0..=255_u8).collect::<Vec<u8>>(), [256]);
        cluster.variable("bytes", 2, bytes.clone(), None);
        assert_eq!(cluster.client.read("bytes").unwrap(), bytes);
    });
}

fn threads_and_sockets() -> (usize, usize) {
    let count = |path: &str| std::fs::read_dir(path).map_or(0, Iterator::count);
    let sockets = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| {
        let links = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        links
            .filter(|link| link.to_string_lossy().starts_with("socket"))
            .count()
    });
    (count("/proc/self/task"), sockets)
}

#[test]
fn nothing_is_left_behind() {
    if !is_alone(module_path!(), "nothing_is_left_behind") {
        return;
    }
    let work = || {
        let mut cluster = Cluster::new(2);
        let w = cluster.variable("w", 2, floats(&[100], |_| 0.0), sgd(1.0));
        let worker = cluster.worker();
        let gradient = Gradient::Dense(floats(&[100], |_| 1.0));
        worker
            .push(cluster.id(0), vec![(w, gradient)], &[])
            .unwrap();
        cluster.client.snapshot().unwrap();
    };
    work();
    let before = threads_and_sockets();
    (0..5).for_each(|_| work());
    settles(before, threads_and_sockets);
}
