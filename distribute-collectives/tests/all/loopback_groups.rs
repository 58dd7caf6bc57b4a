//! Groups whose ranks meet over loopback addresses of one process.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use distribute_collectives::{
    Algorithm, CollectiveError, Communicator, GroupOptions, LinkCost, ProcessCommunicator,
    ProcessGroupOptions, ProcessTransport, ReduceOp, Result, loopback,
};
use half::f16;
use rstest::rstest;

use crate::common::{on_threads, within_limit};

#[rstest]
fn a_group_meets_reduces_and_leaves(
    #[values(1, 2, 3, 4)] world_size: usize,
    #[values(
        ProcessTransport::Auto,
        ProcessTransport::SharedMemory,
        ProcessTransport::Grpc
    )]
    transport: ProcessTransport,
) {
    within_limit(move || {
        let begun = Instant::now();
        let group = loopback(world_size, GroupOptions::default(), transport).expect("a group");
        eprintln!("met after {:?}: {}", begun.elapsed(), group[0].describe());
        std::thread::scope(|scope| {
            for mut rank in group {
                scope.spawn(move || {
                    let mut vector = vec![rank.rank() as f32; 100_000];
                    let sum: Result<()> = (0..3).try_for_each(|_| {
                        vector.fill(rank.rank() as f32);
                        rank.all_reduce(ReduceOp::Sum, &mut [(&mut vector[..]).into()])
                    });
                    sum.expect("a sum");
                    let expected = (world_size * (world_size - 1) / 2) as f32;
                    assert!(vector.iter().all(|value| *value == expected));
                    rank.barrier().expect("a barrier");
                });
            }
        });
        eprintln!("left after {:?}", begun.elapsed());
        assert!(begun.elapsed() < Duration::from_secs(20));
    });
}

fn rank_options(rank: usize, world_size: usize) -> ProcessGroupOptions {
    ProcessGroupOptions::new(rank, vec!["127.0.0.1:0"; world_size])
        .rendezvous_timeout(Duration::from_secs(20))
}

/// Runs `f` for every rank of a group with other options than [`loopback`] has.
fn on_ranks_with<R: Send>(
    world_size: usize,
    adapt: impl Fn(ProcessGroupOptions) -> ProcessGroupOptions,
    f: impl Fn(Result<ProcessCommunicator>) -> R + Sync,
) -> Vec<R> {
    let bound = (0..world_size).map(|rank| adapt(rank_options(rank, world_size)).bind());
    let bound: Vec<_> = bound.map(|bound| bound.expect("valid options")).collect();
    let addresses: Vec<_> = bound.iter().map(|it| it.address().to_string()).collect();
    on_threads(bound, |rank| f(rank.join(addresses.clone())))
}

/// Calibration and every algorithm fit the messages that are allowed, partial sums included.
#[rstest]
fn segments_fit_small_messages(
    #[values(2, 3)] world_size: usize,
    #[values((1088, 5000), (512 << 10, 600_000))] (most, count): (usize, usize),
    #[values(
        Algorithm::Auto,
        Algorithm::Ring,
        Algorithm::HalvingDoubling,
        Algorithm::DirectExchange
    )]
    algorithm: Algorithm,
) {
    within_limit(move || {
        let adapt = |options: ProcessGroupOptions| {
            let group = GroupOptions::default().algorithm(algorithm);
            let options = options.group(group).max_message_bytes(most);
            options.transport(ProcessTransport::Grpc)
        };
        on_ranks_with(world_size, adapt, |joined| {
            let mut endpoint = joined.expect("a group");
            let mut halves = vec![f16::ONE; count];
            let buffers = &mut [(&mut halves[..]).into()];
            endpoint.all_reduce(ReduceOp::Sum, buffers).expect("a sum");
            let expected = f16::from_f32(world_size as f32);
            assert!(halves.iter().all(|value| *value == expected));
            let mut floats = vec![1.0_f64; count];
            let buffers = &mut [(&mut floats[..]).into()];
            endpoint.reduce(ReduceOp::Sum, 0, buffers).expect("a sum");
            assert!(endpoint.rank() > 0 || floats.iter().all(|v| *v == world_size as f64));
        });
    });
}

fn refusal(options: ProcessGroupOptions) -> String {
    match options.bind() {
        Err(error @ CollectiveError::InvalidOption { .. }) => error.to_string(),
        other => panic!("expected InvalidOption, got {other:?}"),
    }
}

#[test]
fn sizes_that_nothing_can_carry_are_refused() {
    use ProcessTransport::{Auto, Grpc, SharedMemory};
    let with_segments = |bytes: usize, transport| {
        let group = GroupOptions::default().segment_bytes(bytes);
        rank_options(0, 2).group(group).transport(transport)
    };
    for transport in [Auto, Grpc] {
        for bytes in [(4 << 20) - 63, 4 << 20, usize::MAX] {
            let text = refusal(with_segments(bytes, transport).max_message_bytes(4 << 20));
            if bytes <= 64 << 20 {
                let limit = "max_message_bytes 4194304 allows at most 4194240";
                assert!(text.contains(limit), "{text}");
            }
        }
        with_segments((4 << 20) - 64, transport).bind().unwrap();
        let larger = with_segments(4 << 20, transport).max_message_bytes(8 << 20);
        larger.bind().unwrap();
        let text = refusal(
            rank_options(0, 2)
                .transport(transport)
                .max_message_bytes(1087),
        );
        assert!(text.contains("at least 1088, not 1087"), "{text}");
    }
    for transport in [Auto, SharedMemory] {
        for bytes in [(64 << 20) + 1, usize::MAX] {
            let options = with_segments(bytes, transport).max_message_bytes(usize::MAX);
            let text = refusal(options);
            assert!(text.contains("allows at most 67108864"), "{text}");
        }
    }
    with_segments(64 << 20, SharedMemory).bind().unwrap();
    for bandwidth in [0.0, f64::NAN] {
        let cost = LinkCost {
            ring_bytes_per_second: bandwidth,
            ..LinkCost::default()
        };
        let text = refusal(rank_options(0, 2).link_cost(Some(cost)));
        assert!(text.contains("bandwidths above 0"), "{text}");
    }
}

/// Segments of the largest size are on their way in both directions at the same time.
#[test]
fn the_largest_segments_fit_the_mailboxes() {
    within_limit(|| {
        let segment = 64 << 20;
        let group = GroupOptions::default()
            .algorithm(Algorithm::Ring)
            .segment_bytes(segment);
        let group = loopback(2, group, ProcessTransport::SharedMemory).expect("a group");
        on_threads(group, |mut endpoint| {
            let mut vector = vec![1_i64; 3 * segment / 8];
            let buffers = &mut [(&mut vector[..]).into()];
            endpoint.all_reduce(ReduceOp::Sum, buffers).expect("a sum");
            assert!(vector.iter().all(|value| *value == 2));
        });
    });
}

/// Ranks that would cut their buffers into other segments do not form a group.
#[test]
fn ranks_with_other_limits_are_refused() {
    within_limit(|| {
        let adapt = |rank: usize| {
            let options = rank_options(rank, 2).transport(ProcessTransport::Grpc);
            options.max_message_bytes((1 + rank) << 20).bind().unwrap()
        };
        let bound = [adapt(0), adapt(1)];
        let addresses: Vec<_> = bound.iter().map(|it| it.address().to_string()).collect();
        for joined in on_threads(bound, |rank| rank.join(addresses.clone())) {
            let error = joined.err().expect("no group");
            assert!(
                matches!(&error, CollectiveError::Refused { .. }),
                "{error:?}"
            );
        }
    });
}

/// A rank that has left is no concern of two others that still send to each other.
#[rstest]
fn two_ranks_go_on_when_a_third_one_has_left(
    #[values(ProcessTransport::SharedMemory, ProcessTransport::Grpc)] transport: ProcessTransport,
) {
    within_limit(move || {
        let group = loopback(3, GroupOptions::default(), transport).expect("a group");
        // Its end returns when the others have read its goodbye.
        let left = Barrier::new(3);
        std::thread::scope(|scope| {
            for mut rank in group {
                let left = &left;
                scope.spawn(move || {
                    rank.barrier().expect("all are there");
                    let number = rank.rank();
                    if number == 2 {
                        drop(rank);
                        left.wait();
                        return;
                    }
                    left.wait();
                    let mut vector = vec![number as f32; 100_000];
                    match number {
                        0 => rank.send(1, (&mut vector[..]).into()).expect("sent"),
                        _ => rank.recv(0, (&mut vector[..]).into()).expect("received"),
                    }
                    assert!(vector.iter().all(|value| *value == 0.0));
                });
            }
        });
    });
}

/// What a rank has sent arrives although it leaves at once, and another one before it.
#[test]
fn who_leaves_after_another_one_still_delivers_what_it_has_sent() {
    within_limit(|| {
        for _ in 0..10 {
            let group = loopback(3, GroupOptions::default(), ProcessTransport::Grpc);
            let left = Barrier::new(3);
            std::thread::scope(|scope| {
                for mut rank in group.expect("a group") {
                    let left = &left;
                    scope.spawn(move || {
                        let number = rank.rank();
                        let mut vector = vec![number as f32; 200_000];
                        if number == 2 {
                            drop(rank);
                            left.wait();
                            return;
                        }
                        left.wait();
                        if number == 0 {
                            rank.send(1, (&mut vector[..]).into()).expect("sent");
                            return;
                        }
                        rank.recv(0, (&mut vector[..]).into()).expect("received");
                        assert!(vector.iter().all(|value| *value == 0.0));
                    });
                }
            });
        }
    });
}
