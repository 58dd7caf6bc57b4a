//! Several workers, as threads with the groups of processes between them.

use std::net::TcpListener;
use std::sync::mpsc;
use std::time::Duration;

use distribute_core::cluster::{Cluster, ClusterSpec, SimpleResolver};
use distribute_core::collectives::{
    CollectiveError, GroupOptions, ProcessTransport, WireType, in_process,
};
use distribute_core::{
    CommunicationImplementation, CommunicationOptions, Error, LogicalDevice, MirroredStrategy,
    MultiWorkerMirroredStrategy, MultiWorkerMirroredStrategyBuilder, Result, Strategy,
};
use rstest::rstest;

use crate::common::{close, nothing, train};
use crate::fake::Fake;
use crate::memory::HostMemory;

const LIMIT: Duration = Duration::from_secs(100);

fn options(implementation: CommunicationImplementation, pack: usize) -> CommunicationOptions {
    CommunicationOptions {
        bytes_per_pack: pack,
        timeout: Some(Duration::from_secs(30)),
        implementation,
        wire: None,
    }
}

/// A cluster on addresses without a listener, as each worker sees it.
fn clusters(count: usize) -> Vec<Cluster> {
    let listeners = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let listeners: Vec<_> = listeners.collect();
    let addresses = listeners
        .iter()
        .map(|listener| listener.local_addr().unwrap().to_string());
    let addresses: Vec<String> = addresses.collect();
    let one = |index: usize| {
        let spec = ClusterSpec::new([("worker", addresses.clone())]).unwrap();
        let resolver = SimpleResolver::new(spec)
            .task_type("worker")
            .task_id(index as i64);
        Cluster::resolve(&resolver).unwrap().unwrap()
    };
    (0..count).map(one).collect()
}

/// What a worker has found out.
#[derive(Debug)]
struct Found {
    weights: Vec<f32>,
    told: Vec<String>,
}

fn run(builder: Builder) -> Result<Found> {
    let strategy = builder.timeout(Duration::from_secs(30)).build()?;
    let weights = train(&strategy, |state| state, nothing)?;
    assert_eq!(
        strategy.workers().map(|workers| workers.num_workers()),
        Some(2)
    );
    let told = strategy
        .device_reduction()
        .into_iter()
        .map(String::from)
        .collect();
    Ok(Found { weights, told })
}

type Builder = MultiWorkerMirroredStrategyBuilder;

/// Two workers; `configure` gets the number of each.
fn workers(configure: impl Fn(usize, Builder) -> Builder) -> Vec<Result<Found>> {
    let (done, results) = mpsc::channel();
    for (index, cluster) in clusters(2).into_iter().enumerate() {
        let builder = MultiWorkerMirroredStrategy::builder().cluster(cluster);
        let builder = configure(index, builder.transport(ProcessTransport::Auto));
        let done = done.clone();
        std::thread::spawn(move || drop(done.send((index, run(builder)))));
    }
    let found = (0..2).map(|_| {
        results
            .recv_timeout(LIMIT)
            .expect("a worker hangs or panicked")
    });
    let mut found: Vec<_> = found.collect();
    found.sort_by_key(|(index, _)| *index);
    found.into_iter().map(|(_, found)| found).collect()
}

/// What the same number of replicas give in one process, through the host.
fn expected(replicas: usize) -> Vec<f32> {
    let strategy = MirroredStrategy::builder()
        .replicas(replicas)
        .build()
        .unwrap();
    train(&strategy, |state| state, nothing).unwrap()
}

#[rstest]
#[case(CommunicationImplementation::Auto, 1, 0)]
#[case(CommunicationImplementation::Nccl, 1, 64)]
#[case(CommunicationImplementation::Auto, 2, 0)]
#[case(CommunicationImplementation::Nccl, 2, 64)]
fn gradients_stay_on_the_devices(
    #[case] implementation: CommunicationImplementation,
    #[case] replicas: usize,
    #[case] pack: usize,
) {
    let (fake, memory) = (Fake::new(""), HostMemory::default());
    let found = workers(|worker, builder| {
        builder
            .replicas(replicas)
            .communication_options(options(implementation, pack))
            .device_reducers(memory.reducers_from(&fake, worker * replicas))
    });
    for found in found {
        let found = found.unwrap();
        close(&found.weights, &expected(2 * replicas));
        assert_eq!(found.told.len(), replicas, "{:?}", found.told);
        let stays = |told: &String| told.starts_with("gradients stay on the devices: ");
        assert!(found.told.iter().all(stays), "{:?}", found.told);
    }
    // One call per step and replica between workers; two more (sum and broadcast) in each.
    let calls = if replicas == 1 { 12 } else { 6 * (2 + 4 + 4) };
    assert_eq!(memory.calls(), calls);
    fake.assert_clean();
}

/// Nothing but the devices says who reduces.
#[rstest]
fn workers_on_gpus_reduce_as_their_devices_say(#[values(1, 2)] replicas: usize) {
    let (fake, memory) = (Fake::new(""), HostMemory::default());
    let kind = crate::gpus::gpus(&memory, &fake);
    let found = workers(|worker, builder| {
        let gpus = worker * replicas..(worker + 1) * replicas;
        builder.devices(gpus.map(|index| LogicalDevice::Gpu(kind, index)))
    });
    for found in found {
        let found = found.unwrap();
        close(&found.weights, &expected(2 * replicas));
        let stays = |told: &String| told.starts_with("gradients stay on the devices: ");
        assert!(found.told.iter().all(stays), "{:?}", found.told);
        assert_eq!(found.told.len(), replicas);
    }
    fake.assert_clean();
}

/// Between workers only: each has two devices of its own.
#[test]
fn two_workers_with_the_same_gpus_go_through_the_host_between_them() {
    let (fake, memory) = (Fake::new(""), HostMemory::default());
    let found = workers(|_, builder| builder.replicas(2).device_reducers(memory.reducers(&fake)));
    for found in found {
        let found = found.unwrap();
        close(&found.weights, &expected(4));
        assert!(
            found.told[0].starts_with("gradients stay on the devices"),
            "{:?}",
            found.told
        );
        let reason = "rank 0 and rank 1 are on one GPU";
        assert!(found.told[1].starts_with("gradients go through host memory"));
        assert!(found.told[1].contains(reason), "{:?}", found.told);
    }
    assert_eq!(memory.calls(), 6 * 8);
}

/// The usual case of a machine with one GPU: two processes of one replica.
#[rstest]
fn two_workers_on_one_gpu_go_through_the_host(#[values(0, 64)] pack: usize) {
    let (fake, memory) = (Fake::new(""), HostMemory::default());
    let found = workers(|_, builder| {
        builder
            .communication_options(options(CommunicationImplementation::Auto, pack))
            .device_reducers(memory.reducers(&fake))
    });
    for found in found {
        let found = found.unwrap();
        close(&found.weights, &expected(2));
        assert_eq!(found.told.len(), 1);
        assert!(found.told[0].contains("on one GPU"), "{:?}", found.told);
    }
    assert_eq!(memory.calls(), 0);
}

/// One worker that cannot decides for both.
#[test]
fn a_worker_without_nccl_is_named_to_all() {
    let (fake, memory) = (Fake::new(""), HostMemory::default());
    let found = workers(|worker, builder| match worker {
        0 => builder.device_reducers(memory.reducers(&fake)),
        _ => builder,
    });
    for found in found {
        let found = found.unwrap();
        close(&found.weights, &expected(2));
        assert!(
            found.told[0].contains("worker 1: it has a replica"),
            "{:?}",
            found.told
        );
    }
    // By name on one of them: an error on both.
    let found = workers(|worker, builder| match worker {
        0 => builder
            .communication_options(options(CommunicationImplementation::Nccl, 0))
            .device_reducers(memory.reducers(&fake)),
        _ => builder,
    });
    for found in found {
        let error = found.unwrap_err();
        assert!(
            matches!(
                error,
                Error::Collective(CollectiveError::BackendUnavailable { .. })
            ),
            "{error}"
        );
        assert!(
            error.to_string().contains("worker 1: it has a replica"),
            "{error}"
        );
    }
    assert_eq!(memory.calls(), 0);
}

#[test]
fn ring_goes_through_the_host() {
    let (fake, memory) = (Fake::new(""), HostMemory::default());
    let found = workers(|worker, builder| {
        builder
            .communication_options(options(CommunicationImplementation::Ring, 0))
            .device_reducers(memory.reducers_from(&fake, worker))
    });
    for found in found {
        let found = found.unwrap();
        close(&found.weights, &expected(2));
        assert!(
            found.told[0].contains("worker 0: RING was asked for"),
            "{:?}",
            found.told
        );
    }
    assert_eq!(memory.calls(), 0);
}

/// NCCL has no wire type: the gradients go through host memory, and are the same as on CPUs with
/// the same wire type, bit by bit.
#[rstest]
fn a_wire_type_goes_through_the_host(
    #[values(WireType::Bf16, WireType::F16)] wire: WireType,
    #[values(1, 2)] replicas: usize,
    #[values(0, 64)] pack: usize,
) {
    let (fake, memory) = (Fake::new(""), HostMemory::default());
    let rounded = options(CommunicationImplementation::Auto, pack).wire(wire);
    let on_cpus = workers(|_, builder| builder.replicas(replicas).communication_options(rounded));
    let found = workers(|worker, builder| {
        builder
            .replicas(replicas)
            .communication_options(rounded)
            .device_reducers(memory.reducers_from(&fake, worker * replicas))
    });
    let plain = expected(2 * replicas);
    for (found, on_cpu) in found.into_iter().zip(on_cpus) {
        let (found, on_cpu) = (found.unwrap(), on_cpu.unwrap());
        let reason = "a wire type was asked for, which NCCL has not";
        let told = found.told.last().unwrap();
        assert!(
            told.starts_with("gradients go through host memory"),
            "{told}"
        );
        assert!(told.contains(&format!("worker 0: {reason}")), "{told}");
        assert_eq!(found.weights, on_cpu.weights);
        assert_ne!(found.weights, plain, "nothing was rounded");
        near(&found.weights, &plain);
    }
    fake.assert_clean();
}

/// But for what rounding to 16 bits makes of six updates of at most 0.01.
fn near(a: &[f32], b: &[f32]) {
    let pairs = a.iter().zip(b);
    pairs.for_each(|(a, b)| assert!((a - b).abs() < 0.02, "{a} {b}"));
}

/// NCCL by name and a wire type, on all workers or on one.
#[rstest]
fn a_wire_type_and_nccl_by_name_are_an_error_that_says_what_to_do(#[values(1, 2)] asking: usize) {
    let (fake, memory) = (Fake::new(""), HostMemory::default());
    let found = workers(|worker, builder| {
        let plain = options(CommunicationImplementation::Nccl, 0);
        let with_wire = plain.wire(WireType::Bf16);
        builder
            .communication_options(if worker < asking { with_wire } else { plain })
            .device_reducers(memory.reducers_from(&fake, worker))
    });
    for found in found {
        let error = found.unwrap_err();
        let Error::Collective(CollectiveError::BackendUnavailable { .. }) = &error else {
            panic!("{error}");
        };
        let text = error.to_string();
        for part in [
            "worker 0: a wire type was asked for, which NCCL has not",
            "leave it out",
            "ask for AUTO or RING",
        ] {
            assert!(text.contains(part), "{text} does not say {part}");
        }
    }
    assert_eq!(memory.calls(), 0);
}

/// Without GPUs nothing is told, and NCCL by name is refused before anybody waits.
#[test]
fn workers_on_cpus_are_as_they_were() {
    for found in workers(|_, builder| builder) {
        let found = found.unwrap();
        assert_eq!(found.told, [""; 0]);
        close(&found.weights, &expected(2));
    }
    let nccl = options(CommunicationImplementation::Nccl, 0);
    for found in workers(|_, builder| builder.communication_options(nccl)) {
        let error = found.unwrap_err();
        assert!(error.to_string().contains("in host memory"), "{error}");
    }
}

/// NCCL is set up beside a group of processes only.
#[test]
fn a_communicator_of_the_callers_goes_through_the_host() {
    let (fake, memory) = (Fake::new(""), HostMemory::default());
    let group = in_process(2, GroupOptions::default()).unwrap();
    let threads = group.into_iter().enumerate().map(|(rank, endpoint)| {
        let reducers = memory.reducers_from(&fake, rank);
        let builder = MultiWorkerMirroredStrategy::builder();
        let builder = builder
            .communicator(Box::new(endpoint))
            .device_reducers(reducers);
        std::thread::spawn(move || run(builder))
    });
    let threads: Vec<_> = threads.collect();
    for thread in threads {
        let found = thread.join().unwrap().unwrap();
        close(&found.weights, &expected(2));
        assert!(
            found.told[0].contains("a communicator of the caller's"),
            "{:?}",
            found.told
        );
    }
}
