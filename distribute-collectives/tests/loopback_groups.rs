//! Groups whose ranks meet over loopback addresses of one process.

mod common;

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
