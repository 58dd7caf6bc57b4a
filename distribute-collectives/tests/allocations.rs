//! No operation allocates after the first one. Alone in its binary, because it replaces the
//! allocator.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::ALGORITHMS;
use distribute_collectives::flight_record::Recorded;
use distribute_collectives::{
    Communicator, CommunicatorExt, Gathered, GroupOptions, Order, ReduceOp, in_process,
};
use half::bf16;

struct Counting;

thread_local! {
    /// Of this thread: the test harness' own thread may allocate at any time.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

fn allocations() -> usize {
    ALLOCATIONS.with(Cell::get)
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the rules of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn operations(
    endpoint: &mut dyn Communicator,
    floats: &mut [f32],
    halves: &mut [bf16],
    gathered: &mut Gathered<f32>,
) {
    let (a, b) = floats.split_at_mut(1000);
    endpoint
        .all_reduce(
            ReduceOp::Mean,
            &mut [(&mut a[..]).into(), (&mut b[..]).into()],
        )
        .unwrap();
    endpoint
        .all_reduce(ReduceOp::Sum, &mut [(&mut halves[..]).into()])
        .unwrap();
    endpoint
        .reduce_scatter(ReduceOp::Max, (&mut b[..]).into())
        .unwrap();
    endpoint.broadcast(1, &mut [(&mut a[..]).into()]).unwrap();
    endpoint
        .reduce(ReduceOp::Sum, 0, &mut [(&mut a[..]).into()])
        .unwrap();
    endpoint.all_gather_reusing(a, gathered).unwrap();
    match endpoint.rank() {
        0 => endpoint.send(1, (&mut a[..]).into()).unwrap(),
        1 => endpoint.recv(0, (&mut a[..]).into()).unwrap(),
        _ => {}
    }
    endpoint.barrier().unwrap();
}

/// What a process does with its own terms.
#[test]
fn parts_do_not_allocate_after_the_first_call() {
    let group = in_process(3, GroupOptions::default()).unwrap();
    std::thread::scope(|scope| {
        for mut endpoint in group {
            scope.spawn(move || {
                let mut floats = vec![1.0_f32; 20_000];
                let mut counts = [0; 2];
                for count in &mut counts {
                    for parts in [&[2, 1][..], &[1, 2], &[3]] {
                        let own = &mut [(&mut floats[..]).into()];
                        endpoint
                            .all_reduce_parts(ReduceOp::Max, parts, own)
                            .unwrap();
                    }
                    endpoint.barrier().unwrap();
                    *count = allocations();
                }
                assert_eq!(counts[0], counts[1]);
            });
        }
    });
}

#[test]
fn only_the_first_call_allocates() {
    for algorithm in ALGORITHMS {
        for order in [Order::Fast, Order::Canonical] {
            let options = GroupOptions::default().algorithm(algorithm).order(order);
            let group = in_process(3, options.segment_bytes(4096)).unwrap();
            let counts: Vec<(usize, usize)> = std::thread::scope(|scope| {
                let rank = |endpoint: distribute_collectives::InProcessCommunicator| {
                    move || {
                        let mut endpoint = Recorded::new(endpoint);
                        let mut floats = vec![1.0_f32; 20_000];
                        let mut halves = vec![bf16::ONE; 5000];
                        let mut gathered = Gathered::default();
                        for _ in 0..3 {
                            operations(&mut endpoint, &mut floats, &mut halves, &mut gathered);
                        }
                        endpoint.barrier().unwrap();
                        let before = allocations();
                        endpoint.barrier().unwrap();
                        for _ in 0..5 {
                            operations(&mut endpoint, &mut floats, &mut halves, &mut gathered);
                        }
                        let after = allocations();
                        endpoint.barrier().unwrap();
                        (before, after)
                    }
                };
                let threads: Vec<_> = group.into_iter().map(|e| scope.spawn(rank(e))).collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().unwrap())
                    .collect()
            });
            for (before, after) in counts {
                assert_eq!(after - before, 0, "{algorithm} {order}");
            }
        }
    }
}
