//! Groups whose ranks meet over loopback addresses of one process.

mod common;

use std::sync::Barrier;
use std::time::{Duration, Instant};

use common::within_limit;
use distribute_collectives::{
    Communicator, GroupOptions, ProcessTransport, ReduceOp, Result, loopback,
};
use rstest::rstest;

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
