//! Groups over several hosts: the ranks of one machine act as if they were on two or three.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use distribute_net::address::BoundListener;
use distribute_net::security::{Security, Token};
use hostile::alone::is_alone;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::buffer::Buffer;
use crate::communicator::{Communicator, CommunicatorExt, chunk_range};
use crate::contract;
use crate::control::{ARITY, Announcement, ControlPlane, JoinOptions};
use crate::error::CollectiveError;
use crate::interruption::Interruption;
use crate::link_cost::LinkCost;
use crate::options::{Algorithm, GroupOptions, Order};
use crate::process_group::bound::connections;
use crate::process_group::{ProcessCommunicator, ProcessGroupOptions, ProcessTransport};
use crate::reduce::{self, ReduceOp};
use crate::testing::{on_threads, within_limit};

/// Which rank is on which host: two hosts, in rank order, mixed, and with one rank alone.
const HOSTS: [&[usize]; 6] = [
    &[0, 0, 1],
    &[0, 1, 0],
    &[0, 0, 1, 1],
    &[0, 1, 0, 1],
    &[0, 0, 1, 1, 1],
    &[0, 1, 1, 0, 2],
];

/// Runs `f` for every rank of a new group, each on its own thread.
fn on_hosts<R: Send>(
    hosts: &[usize],
    group: &GroupOptions,
    f: impl Fn(ProcessCommunicator) -> R + Sync,
) -> Vec<R> {
    on_hosts_with(hosts, group, |options| options, f)
}

/// The same with other options.
fn on_hosts_with<R: Send>(
    hosts: &[usize],
    group: &GroupOptions,
    adjust: impl Fn(ProcessGroupOptions) -> ProcessGroupOptions,
    f: impl Fn(ProcessCommunicator) -> R + Sync,
) -> Vec<R> {
    let bound = (0..hosts.len()).map(|rank| {
        let addresses = vec!["127.0.0.1:0"; hosts.len()];
        let mut options = ProcessGroupOptions::new(rank, addresses)
            .group(group.clone())
            .heartbeat(Duration::from_millis(100), 30)
            .rendezvous_timeout(Duration::from_secs(20));
        options.hosts = Some(hosts.to_vec());
        adjust(options).bind().unwrap()
    });
    let bound: Vec<_> = bound.collect();
    let addresses: Vec<_> = bound.iter().map(|it| it.address().to_string()).collect();
    // A group that fails while a rank still joins is an error of joining: here all are in it.
    let joined = std::sync::Barrier::new(hosts.len());
    on_threads(bound, |rank| {
        let endpoint = rank.join(addresses.clone()).unwrap();
        let transport = endpoint.describe().transport;
        assert!(transport.ends_with("grpc between hosts"), "{transport}");
        joined.wait();
        f(endpoint)
    })
}

fn algorithms() -> [Algorithm; 5] {
    [
        Algorithm::Auto,
        Algorithm::Ring,
        Algorithm::HalvingDoubling,
        Algorithm::DirectExchange,
        Algorithm::Hierarchical { ranks_per_host: 2 },
    ]
}

fn options(algorithm: Algorithm) -> GroupOptions {
    let options = GroupOptions::default().timeout(Duration::from_secs(20));
    options.algorithm(algorithm).segment_bytes(64)
}

/// Sums of these are exact in every order.
fn exact(rank: usize, index: usize) -> f32 {
    ((rank * 31 + index * 7) % 101) as f32
}

/// Sums of these depend on the order.
fn rounded(rank: usize, index: usize) -> f32 {
    let seed = (rank as u32 * 1000 + index as u32).wrapping_mul(2_654_435_761);
    seed as f32 / 1e9 + 1e-3
}

fn vectors(size: usize, count: usize, value: fn(usize, usize) -> f32) -> Vec<Vec<f32>> {
    let one = |rank| (0..count).map(|index| value(rank, index)).collect();
    (0..size).map(one).collect()
}

fn reduced(op: ReduceOp, inputs: &[Vec<f32>]) -> Vec<f32> {
    let inputs: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
    let mut output = vec![0.0; inputs[0].len()];
    reduce::reduce_into(op, &inputs, &mut output);
    output
}

/// Every operation once, against plain loops.
fn all_operations(endpoint: &mut ProcessCommunicator, count: usize) {
    let (rank, size) = (endpoint.rank(), endpoint.world_size());
    let inputs = vectors(size, count, exact);
    let (own, sums) = (&inputs[rank], reduced(ReduceOp::Sum, &inputs));

    let mut vector = own.clone();
    let (left, right) = vector.split_at_mut(count / 3);
    endpoint
        .all_reduce(ReduceOp::Sum, &mut [left.into(), right.into()])
        .unwrap();
    assert_eq!(vector, sums);

    vector.copy_from_slice(own);
    endpoint
        .all_reduce(ReduceOp::Max, &mut [(&mut vector[..]).into()])
        .unwrap();
    assert_eq!(vector, reduced(ReduceOp::Max, &inputs));

    vector.copy_from_slice(own);
    let buffer = Buffer::from(&mut vector[..]);
    let share = endpoint.reduce_scatter(ReduceOp::Sum, buffer).unwrap();
    assert_eq!(share, chunk_range(count, size, rank));
    assert_eq!(vector[share.clone()], sums[share]);

    let gathered = endpoint.all_gather(&own[..count / (rank + 1)]).unwrap();
    for (other, values) in gathered.iter().enumerate() {
        assert_eq!(values, &inputs[other][..count / (other + 1)]);
    }
    for root in 0..size {
        rooted(endpoint, root, &inputs, &sums);
    }
    around(endpoint, &inputs);
    endpoint.barrier().unwrap();
}

fn rooted(endpoint: &mut ProcessCommunicator, root: usize, inputs: &[Vec<f32>], sums: &[f32]) {
    let rank = endpoint.rank();
    let mut vector = inputs[rank].clone();
    endpoint
        .broadcast(root, &mut [(&mut vector[..]).into()])
        .unwrap();
    assert_eq!(vector, inputs[root]);
    vector.copy_from_slice(&inputs[rank]);
    endpoint
        .reduce(ReduceOp::Sum, root, &mut [(&mut vector[..]).into()])
        .unwrap();
    if rank == root {
        assert_eq!(vector, sums);
    }
}

/// Every rank sends its vector to the next one; even ranks send first.
fn around(endpoint: &mut ProcessCommunicator, inputs: &[Vec<f32>]) {
    let (rank, size) = (endpoint.rank(), endpoint.world_size());
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    let (mut own, mut other) = (inputs[rank].clone(), inputs[rank].clone());
    // The last rank of an odd world waits for its neighbours, which both send first.
    if rank % 2 == 0 && rank + 1 < size {
        endpoint.send(next, (&mut own[..]).into()).unwrap();
        endpoint.recv(previous, (&mut other[..]).into()).unwrap();
    } else {
        endpoint.recv(previous, (&mut other[..]).into()).unwrap();
        endpoint.send(next, (&mut own[..]).into()).unwrap();
    }
    assert_eq!(other, inputs[previous]);
}

#[test]
fn all_operations_equal_plain_loops_across_hosts() {
    for hosts in HOSTS {
        within_limit(move || {
            for algorithm in algorithms() {
                for order in [Order::Fast, Order::Canonical] {
                    let group = options(algorithm).order(order);
                    on_hosts(hosts, &group, |mut endpoint| {
                        for count in [0, 1, 2, 7, 100, 1000] {
                            all_operations(&mut endpoint, count);
                        }
                    });
                }
            }
        });
    }
}

/// With lanes between hosts that are closed between any two operations.
#[test]
fn all_operations_equal_plain_loops_across_hosts_without_patience() {
    for hosts in HOSTS {
        within_limit(move || {
            let hasty = |mut options: ProcessGroupOptions| {
                options.idle_limit = Duration::ZERO;
                options
            };
            for algorithm in algorithms() {
                on_hosts_with(hosts, &self::options(algorithm), hasty, |mut endpoint| {
                    for count in [0, 1, 7, 1000, 1000, 1] {
                        all_operations(&mut endpoint, count);
                    }
                });
            }
        });
    }
}

#[test]
fn segments_between_hosts_fit_small_messages() {
    within_limit(|| {
        for algorithm in algorithms() {
            let group = GroupOptions::default().algorithm(algorithm);
            let small = |options: ProcessGroupOptions| options.max_message_bytes(5000);
            on_hosts_with(&[0, 0, 1], &group, small, |mut endpoint| {
                all_operations(&mut endpoint, 10_000);
                let mut halves = vec![half::bf16::ONE; 10_000];
                let buffers = &mut [(&mut halves[..]).into()];
                endpoint.all_reduce(ReduceOp::Sum, buffers).unwrap();
                assert_eq!(halves, vec![half::bf16::from_f32(3.0); 10_000]);
            });
        }
    });
}

#[test]
fn two_hosts_mix_both_kinds_of_links() {
    within_limit(|| {
        let describe = |endpoint: ProcessCommunicator| endpoint.describe().to_string();
        for description in on_hosts(&[0, 0, 1, 1], &options(Algorithm::Ring), describe) {
            assert!(description.contains("between hosts"), "{description}");
        }
    });
}

#[test]
fn canonical_order_gives_the_bits_of_a_plain_loop_across_hosts() {
    for hosts in HOSTS {
        within_limit(move || {
            let inputs = vectors(hosts.len(), 777, rounded);
            let bits = |vector: &[f32]| vector.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            let expected = bits(&reduced(ReduceOp::Sum, &inputs));
            for algorithm in algorithms() {
                let group = options(algorithm).order(Order::Canonical);
                let results = on_hosts(hosts, &group, |mut endpoint| {
                    let mut vector = inputs[endpoint.rank()].clone();
                    endpoint
                        .all_reduce(ReduceOp::Sum, &mut [(&mut vector[..]).into()])
                        .unwrap();
                    vector
                });
                for result in results {
                    assert_eq!(bits(&result), expected, "{algorithm} {hosts:?}");
                }
            }
        });
    }
}

/// A rerun measures its links again, on a machine that may be busier.
#[test]
fn what_the_links_cost_does_not_show_in_the_bits() {
    const COUNTS: [usize; 3] = [1000, 20_000, 300_000];
    let slow_steps = LinkCost {
        latency: Duration::from_secs(1),
        ..LinkCost::default()
    };
    let slow_bytes = LinkCost {
        latency: Duration::ZERO,
        direct_exchange_bytes_per_second: 1.0,
        ..LinkCost::default()
    };
    for hosts in [
        &[0, 0, 1][..],
        &[0, 1, 0, 1],
        &[0, 0, 1, 1],
        &[0, 0, 1, 1, 1],
    ] {
        within_limit(move || {
            let results = [slow_steps, slow_bytes].map(|cost| {
                let known = |options: ProcessGroupOptions| options.link_cost(Some(cost));
                on_hosts_with(hosts, &GroupOptions::default(), known, |mut endpoint| {
                    assert_eq!(endpoint.link_cost(), Some(cost));
                    COUNTS.map(|count| {
                        let mut vector: Vec<f32> = (0..count)
                            .map(|index| rounded(endpoint.rank(), index))
                            .collect();
                        let buffers = &mut [(&mut vector[..]).into()];
                        endpoint.all_reduce(ReduceOp::Sum, buffers).unwrap();
                        vector
                    })
                })
            });
            assert!(results[0] == results[1], "other bits on {hosts:?}");
        });
    }
}

/// A job that starts again on the same hosts does not measure its links again, unless one of its
/// ranks has forgotten what they cost.
#[test]
fn what_links_cost_outlives_the_processes_of_a_job() {
    within_limit(|| {
        let folder = tempfile::tempdir().unwrap();
        let file = |rank: usize| folder.path().join(format!("links-{rank}"));
        let costs = |hosts: &'static [usize]| {
            let remember = |options: ProcessGroupOptions| {
                let path = file(options.rank);
                options.link_memory(path)
            };
            let all = on_hosts_with(hosts, &GroupOptions::default(), remember, |endpoint| {
                endpoint.link_cost().unwrap()
            });
            assert!(all.iter().all(|cost| *cost == all[0]), "{all:?}");
            all[0]
        };
        // Figures of nanoseconds are never the same twice.
        let first = costs(&[0, 0, 1]);
        assert_eq!(costs(&[0, 0, 1]), first);
        std::fs::remove_file(file(1)).unwrap();
        let second = costs(&[0, 0, 1]);
        assert_ne!(second, first);
        assert_eq!(costs(&[0, 0, 1]), second);
        assert_ne!(costs(&[0, 0, 1, 1]), second, "another group");
    });
}

#[test]
fn ranks_that_disagree_across_hosts_get_an_error_and_never_a_number() {
    for case in contract::cases() {
        within_limit(move || {
            let options = GroupOptions::default().timeout(Duration::from_secs(20));
            on_hosts(&[0, 0, 1], &options, |mut endpoint| {
                case.check(&mut endpoint).unwrap();
            });
        });
    }
}

#[test]
fn different_calls_are_a_mismatch_on_all_ranks_across_hosts() {
    for odd in 0..4 {
        within_limit(move || {
            let errors = on_hosts(&[0, 0, 1, 1], &options(Algorithm::Ring), |mut endpoint| {
                let count = 500 + usize::from(endpoint.rank() == odd);
                let mut vector = vec![1.0_f32; count];
                endpoint
                    .all_reduce(ReduceOp::Sum, &mut [(&mut vector[..]).into()])
                    .unwrap_err()
            });
            for error in errors {
                let CollectiveError::Mismatch { rank_a, rank_b, .. } = error.root_cause() else {
                    panic!("{error:?}");
                };
                assert!(*rank_a == odd || *rank_b == odd, "{error}");
            }
        });
    }
}

#[test]
fn a_rank_that_leaves_is_named_across_hosts() {
    for lost in 0..4 {
        within_limit(move || {
            // A survivor that leaves at once may be heard of before the rank that left first.
            let reported = std::sync::Barrier::new(3);
            let errors = on_hosts(&[0, 1, 0, 1], &options(Algorithm::Ring), |mut endpoint| {
                if endpoint.rank() == lost {
                    return None;
                }
                let mut vector = vec![1.0_f32; 100_000];
                let buffers = &mut [(&mut vector[..]).into()];
                let error = endpoint.all_reduce(ReduceOp::Sum, buffers).unwrap_err();
                reported.wait();
                Some(error)
            });
            for error in errors.into_iter().flatten() {
                let CollectiveError::PeerLost { rank, .. } = error.root_cause() else {
                    panic!("{error:?}");
                };
                assert_eq!(*rank, lost, "{error}");
            }
        });
    }
}

#[test]
fn a_rank_that_never_calls_is_named_at_the_deadline_across_hosts() {
    within_limit(|| {
        let group = options(Algorithm::Ring).timeout(Duration::from_millis(700));
        let (left, wait) = mpsc::channel::<()>();
        let wait = std::sync::Mutex::new(Some(wait));
        let errors = on_hosts(&[0, 0, 1, 1], &group, |mut endpoint| {
            if endpoint.rank() == 2 {
                // Stays in the group until the others have their errors.
                let wait = wait.lock().unwrap().take().unwrap();
                let _ = wait.recv_timeout(Duration::from_millis(1500));
                return None;
            }
            let mut vector = vec![1.0_f32; 100_000];
            let buffers = &mut [(&mut vector[..]).into()];
            Some(endpoint.all_reduce(ReduceOp::Sum, buffers).unwrap_err())
        });
        drop(left);
        for error in errors.into_iter().flatten() {
            let CollectiveError::Timeout { missing, .. } = error.root_cause() else {
                panic!("{error:?}");
            };
            assert_eq!(missing, &[2], "{error}");
        }
    });
}

/// A rank that has left is no concern of two others that still send to each other.
#[test]
fn two_ranks_go_on_when_a_third_one_has_left_across_hosts() {
    for hosts in [[0, 0, 1], [0, 1, 1]] {
        within_limit(move || {
            // Its end returns when the others have read its goodbye.
            let left = std::sync::Barrier::new(3);
            on_hosts(&hosts, &options(Algorithm::Ring), |mut endpoint| {
                endpoint.barrier().unwrap();
                let rank = endpoint.rank();
                if rank == 2 {
                    drop(endpoint);
                    left.wait();
                    return;
                }
                left.wait();
                let mut vector = vec![rank as f32; 100_000];
                match rank {
                    0 => endpoint.send(1, (&mut vector[..]).into()).unwrap(),
                    _ => endpoint.recv(0, (&mut vector[..]).into()).unwrap(),
                }
                assert!(vector.iter().all(|value| *value == 0.0));
            });
        });
    }
}

/// As when mapping the segment fails there, or its process is killed just then.
#[test]
fn a_rank_that_leaves_before_the_memory_is_shared_is_named_at_once() {
    within_limit(|| {
        let options = |rank| {
            ProcessGroupOptions::new(rank, vec!["127.0.0.1:0"; 3])
                .rendezvous_timeout(Duration::from_secs(50))
        };
        let bound: Vec<_> = (0..2).map(|rank| options(rank).bind().unwrap()).collect();
        let security = Security::default();
        let listener = BoundListener::bind(2, "127.0.0.1:0", &security).unwrap();
        let mut addresses: Vec<_> = bound.iter().map(|it| it.address().to_string()).collect();
        addresses.push(listener.local_addr().to_string());
        let two = options(2);
        let join = JoinOptions {
            rank: 2,
            addresses: addresses.iter().cloned().map(Some).collect(),
            told_address: None,
            group: two.group.name.clone(),
            generation: two.group.generation,
            options: two.agreement(),
            rendezvous_timeout: two.rendezvous_timeout,
            heartbeat_interval: two.heartbeat_interval,
            heartbeat_misses: two.heartbeat_misses,
            security,
            announcement: Announcement {
                shared_memory: vec![7; 16],
                ..Announcement::default()
            },
            interruption: Default::default(),
            lanes: 1,
            arity: ARITY,
        };
        let begin = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let plane = ControlPlane::join(join, listener, Arc::default()).unwrap();
                // All ranks are on the host of rank 0.
                plane.all_gather(&0_u64.to_le_bytes()).unwrap();
            });
            for error in on_threads(bound, |it| it.join(addresses.clone()).err()) {
                let lost = matches!(error, Some(CollectiveError::PeerLost { rank: 2, .. }));
                assert!(lost, "{error:?}");
            }
        });
        assert!(begin.elapsed() < Duration::from_secs(10));
    });
}

/// A free port of 127.0.0.1.
fn free_address() -> String {
    let free = BoundListener::bind(0, "127.0.0.1:0", &Security::default()).unwrap();
    free.local_addr().to_string()
}

/// As launchers have it that say where rank 0 is, and nothing about the others.
#[test]
fn ranks_that_are_not_listed_meet_at_rank_0_and_form_a_group() {
    within_limit(|| {
        for transport in [ProcessTransport::Grpc, ProcessTransport::Auto] {
            let listed = [Some(free_address()), None, None];
            let sums = on_threads(0..3, |rank| {
                let token = Token::new("0123456789 of this job").unwrap();
                let options = ProcessGroupOptions::partly_listed(rank, listed.clone())
                    .security(Security::default().token(token))
                    .transport(transport)
                    .rendezvous_timeout(Duration::from_secs(30));
                let mut endpoint = options.bind().unwrap().meet().unwrap();
                let mut value = [rank as f32 + 1.0];
                endpoint
                    .all_reduce(ReduceOp::Sum, &mut [Buffer::from(&mut value[..])])
                    .unwrap();
                value[0]
            });
            assert_eq!(sums, [6.0; 3]);
        }
    });
}

/// As where a firewall passes certain ports only.
#[test]
fn the_port_of_a_rank_can_be_chosen() {
    let own = free_address();
    let port = own.rsplit_once(':').unwrap().1.parse::<u16>().unwrap();
    let options = ProcessGroupOptions::partly_listed(1, [Some("127.0.0.1:1"), None])
        .own_host(Some("localhost".to_string()))
        .own_port(port);
    let bound = options.clone().bind().unwrap();
    assert_eq!(bound.address().port(), port);
    let taken = options.bind().unwrap_err().to_string();
    assert!(taken.contains("in use"), "{taken}");
    let none = ProcessGroupOptions::partly_listed(1, [None, Some("127.0.0.1:1")]);
    let error = none.bind().unwrap_err().to_string();
    assert!(error.contains("address of rank 0"), "{error}");
}

/// What may still come is waited for, until the deadline or an interruption.
#[test]
fn a_name_of_its_own_that_does_not_resolve_yet_is_waited_for() {
    within_limit(|| {
        for addresses in [
            [Some("127.0.0.1:1"), Some("no-such-host.invalid:80")],
            [Some("no-such-host.invalid:80"), None],
        ] {
            let options = ProcessGroupOptions::partly_listed(1, addresses)
                .rendezvous_timeout(Duration::from_millis(300));
            let begin = Instant::now();
            let error = options.clone().bind().unwrap_err();
            assert!(matches!(error, CollectiveError::Address { .. }), "{error}");
            assert!(error.to_string().contains("does not resolve"), "{error}");
            assert!(begin.elapsed() >= Duration::from_millis(300), "{error}");
            let interruption = Interruption::default();
            interruption.raise();
            let error = options
                .rendezvous_timeout(Duration::from_secs(50))
                .interruption(interruption)
                .bind()
                .unwrap_err();
            let interrupted = matches!(error, CollectiveError::Interrupted { rank: 1, .. });
            assert!(interrupted, "{error}");
        }
    });
}

/// A group in which at most two ranks can share memory.
fn with_few_members(hosts: &[usize], transport: ProcessTransport) -> Vec<Result<String, String>> {
    let bound = (0..hosts.len()).map(|rank| {
        let mut options = ProcessGroupOptions::new(rank, vec!["127.0.0.1:0"; hosts.len()])
            .transport(transport)
            .rendezvous_timeout(Duration::from_secs(20));
        (options.hosts, options.members_max) = (Some(hosts.to_vec()), Some(2));
        options.bind().unwrap()
    });
    let bound: Vec<_> = bound.collect();
    let addresses: Vec<_> = bound.iter().map(|it| it.address().to_string()).collect();
    on_threads(bound, |rank| {
        let joined = rank.join(addresses.clone());
        let mut endpoint = joined.map_err(|error| error.to_string())?;
        let mut sum = [1.0_f32; 3];
        endpoint
            .all_reduce(ReduceOp::Sum, &mut [(&mut sum[..]).into()])
            .unwrap();
        assert_eq!(sum, [hosts.len() as f32; 3]);
        Ok(endpoint.describe().transport)
    })
}

#[test]
fn more_ranks_of_a_host_than_can_share_memory_use_grpc() {
    within_limit(|| {
        for hosts in [&[0, 0, 0][..], &[0, 1, 1, 1]] {
            for transport in with_few_members(hosts, ProcessTransport::Auto) {
                assert_eq!(transport, Ok("grpc".to_owned()));
            }
        }
        for transport in with_few_members(&[0, 0, 1], ProcessTransport::Auto) {
            assert!(transport.unwrap().ends_with("grpc between hosts"));
        }
        for refused in with_few_members(&[0, 0, 0], ProcessTransport::SharedMemory) {
            let error = refused.unwrap_err();
            assert!(
                error.contains("at most 2 ranks can share memory, not 3"),
                "{error}"
            );
        }
    });
}

/// What is needed grows with the partners of a rank, not with the ranks.
#[test]
fn a_group_needs_descriptors_for_the_lanes_that_its_algorithm_uses() {
    let needed = |ranks: usize, algorithm, order, transport| {
        let options = ProcessGroupOptions::new(ranks / 2, vec!["127.0.0.1:0"; ranks])
            .group(GroupOptions::default().algorithm(algorithm).order(order))
            .transport(transport);
        connections(&options.lanes(2))
    };
    let grpc = ProcessTransport::Grpc;
    for (ranks, algorithm, transport, lanes) in [
        (1, Algorithm::Auto, grpc, 0),
        (2, Algorithm::Auto, grpc, 2),
        (64, Algorithm::Auto, grpc, 126),
        // Distances of 1, 2, 4, .., 32, where half the group is one distance.
        (64, Algorithm::HalvingDoubling, grpc, 22),
        (1024, Algorithm::HalvingDoubling, grpc, 38),
        (1024, Algorithm::Auto, grpc, 38),
        (1024, Algorithm::DirectExchange, grpc, 2046),
        (1024, Algorithm::Auto, ProcessTransport::Auto, 0),
    ] {
        let found = needed(ranks, algorithm, Order::Canonical, transport);
        let neighbours = (ranks - 1).min(17);
        assert_eq!(found, (neighbours + lanes) as u64, "{ranks}, {algorithm}");
    }
    let of_ring = |order| needed(64, Algorithm::Ring, order, grpc);
    assert_eq!(of_ring(Order::Canonical), 17 + 126);
    assert_eq!(of_ring(Order::Fast), 17 + 22);
}

/// Two ranks of this process, with 16 connections for data.
fn join_two() -> Vec<Result<(), CollectiveError>> {
    let bound = (0..2).map(|rank| {
        ProcessGroupOptions::new(rank, vec!["127.0.0.1:0"; 2])
            .transport(ProcessTransport::Grpc)
            .lanes(16)
            .bind()
            .unwrap()
    });
    let bound: Vec<_> = bound.collect();
    let addresses: Vec<_> = bound.iter().map(|it| it.address().to_string()).collect();
    on_threads(bound, |rank| {
        let mut endpoint = rank.join(addresses.clone())?;
        endpoint.barrier()
    })
}

#[test]
fn a_rank_takes_the_descriptors_that_it_may_have_and_says_when_they_are_too_few() {
    // A hard limit stays.
    let name = "a_rank_takes_the_descriptors_that_it_may_have_and_says_when_they_are_too_few";
    if !is_alone(module_path!(), name) {
        return;
    }
    within_limit(|| {
        let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
        let limit = |current: u64, hard: u64| Rlimit {
            current: Some(open + current),
            maximum: Some(open + hard),
        };
        setrlimit(Resource::Nofile, limit(10, 500)).unwrap();
        for joined in join_two() {
            joined.unwrap();
        }
        setrlimit(Resource::Nofile, limit(20, 40)).unwrap();
        let many = ProcessGroupOptions::new(0, vec!["127.0.0.1:0"; 100]);
        let error = many.bind().unwrap().meet().err().unwrap();
        assert!(
            matches!(error, CollectiveError::InvalidOption { .. }),
            "{error}"
        );
        for part in ["rank 0 needs 17 file descriptors", "ulimit -Hn"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        let lanes_too = ProcessGroupOptions::new(0, vec!["127.0.0.1:0"; 16])
            .transport(ProcessTransport::Grpc)
            .lanes(4);
        let error = lanes_too.bind().unwrap().meet().err().unwrap().to_string();
        for part in ["rank 0 needs 75 file descriptors", "halving_doubling"] {
            assert!(error.contains(part), "{error}");
        }
        let few = getrlimit(Resource::Nofile).current;
        assert_eq!(few, Some(open + 40), "as many as it may have");
    });
}
