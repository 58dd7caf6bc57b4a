//! Links that are cut while the processes at their ends live: who accuses is heard, who can be
//! reached is asked, and the loss of a link costs the worker at its end alone.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use burn::nn::Linear;
use distribute_core::{Mirrored, StrategyExt, TrainState};
use distribute_ps::{
    CoordinatorOptions, ParameterServer, PsError, RemoteValue, ServerOptions, SharedState,
    StepRegistry, WorkerContext, WorkerStatus,
};
use parking_lot::Mutex;

use super::falling::{fall, falling};
use super::in_process::{Cluster, eventually};

/// What stands between the processes and one server: connections in the order in which they came.
#[derive(Default)]
struct Switch {
    streams: Vec<TcpStream>,
    /// New connections end at once.
    is_cut: bool,
}

#[derive(Clone, Default)]
struct Cable(Arc<Mutex<Switch>>);

impl Cable {
    /// Forwards connections to the target; where it listens.
    fn plug(&self, target: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let switch = self.0.clone();
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let mut switch = switch.lock();
                if switch.is_cut {
                    continue;
                }
                // The server may be gone by now: so is the connection then.
                let (near, Ok(far)) = (near.unwrap(), TcpStream::connect(target)) else {
                    continue;
                };
                switch.streams.push(near.try_clone().unwrap());
                let (back, forth) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                for (mut from, mut to) in [(near, far), (forth, back)] {
                    std::thread::spawn(move || {
                        let _ = io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        address
    }

    fn connections(&self) -> usize {
        self.0.lock().streams.len()
    }

    /// Cuts these connections, and all that still come.
    fn cut(&self, which: impl Fn(usize) -> bool) {
        let mut switch = self.0.lock();
        switch.is_cut = true;
        let streams = switch.streams.iter().enumerate();
        for (_, stream) in streams.filter(|(number, _)| which(*number)) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn mend(&self) {
        self.0.lock().is_cut = false;
    }
}

/// Two servers, the second behind a cable.
struct Servers {
    _running: [ParameterServer; 2],
    addresses: [String; 2],
    cable: Cable,
}

fn servers() -> Servers {
    let running =
        [(); 2].map(|()| ParameterServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap());
    let cable = Cable::default();
    let behind = cable.plug(running[1].address());
    let addresses = [running[0].address().to_string(), behind.to_string()];
    Servers {
        _running: running,
        addresses,
        cable,
    }
}

type Falling = SharedState<TrainState<Linear>>;

/// A step that trains and says which worker did.
fn train(registry: &mut StepRegistry) -> Falling {
    let state = registry.state("model", falling).unwrap();
    let of_step = state.clone();
    let step = move |worker: &WorkerContext, (): ()| {
        // Both servers are needed, whichever has the variable.
        worker.variables()?.snapshot()?;
        worker.run(&of_step, (), |ctx, (state, ())| {
            fall(ctx, state)?;
            Ok(worker.worker_index())
        })
    };
    registry.step("train", step).unwrap();
    state
}

fn cluster(workers: usize, servers: &Servers, options: CoordinatorOptions) -> (Cluster, Falling) {
    let mut state = None;
    let register = |registry: &mut StepRegistry| state = Some(train(registry));
    let cluster = Cluster::with_servers(workers, &servers.addresses, register, options);
    // Every worker has its connections: the coordinator's was the first.
    eventually("all workers are connected to the servers", || {
        let coordinator = &cluster.coordinator;
        let values: Vec<RemoteValue> = (0..2 * workers)
            .map(|_| coordinator.schedule("train", ()).unwrap())
            .collect();
        let _: Vec<usize> = coordinator.fetch(&values).unwrap();
        servers.cable.connections() == 1 + workers
    });
    (cluster, state.unwrap())
}

fn absent(cluster: &Cluster) -> Option<String> {
    let statuses = cluster.coordinator.worker_statuses().into_iter();
    let mut absent = statuses.filter_map(|status| match status {
        WorkerStatus::Absent(reason) => Some(reason),
        _ => None,
    });
    absent.next()
}

fn weight(cluster: &Cluster, state: &Falling) -> f32 {
    let strategy = cluster.coordinator.strategy().unwrap();
    let read = |state: &mut Mirrored<TrainState<Linear>>| {
        let read = strategy.run(state, |_, state| Ok(state.model.weight.val().into_data()))?;
        Ok(read.into_values().remove(0))
    };
    let weight = cluster.coordinator.with(state, read).unwrap();
    weight.as_slice::<f32>().unwrap()[0]
}

/// Trains this many steps; which workers did.
fn steps(cluster: &Cluster, count: usize) -> Vec<usize> {
    let coordinator = &cluster.coordinator;
    let values: Vec<RemoteValue> = (0..count)
        .map(|_| coordinator.schedule("train", ()).unwrap())
        .collect();
    coordinator.join().unwrap();
    coordinator.fetch(&values).unwrap()
}

#[test]
fn a_worker_without_a_way_to_one_server_costs_nothing_but_itself() {
    let servers = servers();
    let (cluster, state) = cluster(3, &servers, CoordinatorOptions::default());
    let before = weight(&cluster, &state);
    // The way of one worker; the coordinator and two others keep theirs.
    servers.cable.cut(|number| number == 1);
    let mut trained = 0.0;
    let mut by = Vec::new();
    eventually("the worker is set apart", || {
        by = steps(&cluster, 12);
        trained += 12.0;
        absent(&cluster).is_some()
    });
    let reason = absent(&cluster).unwrap();
    assert!(reason.contains("parameter server 1"), "{reason}");
    // It gets nothing to do, and each closure has had its effect once.
    by = steps(&cluster, 12);
    by.sort_unstable();
    by.dedup();
    assert!(by.len() < 3, "{by:?}");
    assert_eq!(weight(&cluster, &state), before - trained - 12.0);
    servers.cable.mend();
    eventually("it is used again", || absent(&cluster).is_none());
    steps(&cluster, 12);
}

#[test]
fn when_no_worker_has_a_way_to_a_server_the_error_says_so() {
    let servers = servers();
    let mut options = CoordinatorOptions::default();
    options.worker_recovery_timeout = Duration::from_millis(800);
    let (cluster, _) = cluster(2, &servers, options);
    servers.cable.cut(|number| number > 0);
    cluster.coordinator.schedule("train", ()).unwrap();
    cluster.coordinator.schedule("train", ()).unwrap();
    let error = cluster.coordinator.join().unwrap_err();
    let PsError::NoWorkers { workers, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(workers.matches("parameter server 1").count(), 2, "{error}");
}

#[test]
fn a_server_that_the_coordinator_does_not_reach_either_ends_the_job() {
    let servers = servers();
    let (cluster, _) = cluster(2, &servers, CoordinatorOptions::default());
    servers.cable.cut(|_| true);
    let value = cluster.coordinator.schedule("train", ()).unwrap();
    let error = cluster.coordinator.join().unwrap_err();
    let lost = |error: &PsError| matches!(error, PsError::Unavailable { server: 1, .. });
    assert!(lost(error.root_cause()), "{error}");
    // The worker's own word, or that it was told to stop.
    let error = value.fetch::<usize>().unwrap_err();
    let known = lost(error.root_cause()) || matches!(error, PsError::Cancelled);
    assert!(known, "{error}");
}

/// A server that gives signs of life did not answer the first worker that asked.
#[test]
fn a_call_without_an_answer_is_made_by_another_worker() {
    let servers = servers();
    let asked = Arc::new(AtomicUsize::new(0));
    let of_step = asked.clone();
    let register = move |registry: &mut StepRegistry| {
        let asked = of_step.clone();
        let step = move |worker: &WorkerContext, (): ()| {
            if asked.fetch_add(1, Ordering::SeqCst) == 0 {
                return Err(PsError::Timeout {
                    op: "pull",
                    server: 1,
                    address: "server:1".to_owned(),
                    waited: Duration::from_secs(60),
                });
            }
            Ok(worker.worker_index())
        };
        registry.step("ask", step).unwrap();
    };
    let options = CoordinatorOptions::default();
    let cluster = Cluster::with_servers(2, &servers.addresses, register, options);
    let value = cluster.coordinator.schedule("ask", ()).unwrap();
    cluster.coordinator.join().unwrap();
    let _by: usize = value.fetch().unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    eventually("the worker is used again", || absent(&cluster).is_none());
}
