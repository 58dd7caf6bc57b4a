//! Groups leave nothing behind.

use std::time::{Duration, Instant};

use distribute_collectives::{Algorithm, Communicator, GroupOptions, ReduceOp, in_process};
use hostile::alone::is_alone;

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn a_thousand_groups_leave_no_thread() {
    if !is_alone(module_path!(), "a_thousand_groups_leave_no_thread") {
        return;
    }
    let before = threads();
    for round in 0..1000 {
        let algorithm = if round % 2 == 0 {
            Algorithm::Direct
        } else {
            Algorithm::Ring
        };
        let mut group = in_process(2, GroupOptions::default().algorithm(algorithm)).unwrap();
        let mut second = group.pop().unwrap();
        let mut first = group.pop().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut vector = [1.0_f32; 10];
                // Every tenth group is dropped without an operation.
                if round % 10 != 0 {
                    let buffers = &mut [(&mut vector[..]).into()];
                    second.all_reduce(ReduceOp::Sum, buffers).unwrap();
                }
            });
            let mut vector = [2.0_f32; 10];
            if round % 10 != 0 {
                first
                    .all_reduce(ReduceOp::Sum, &mut [(&mut vector[..]).into()])
                    .unwrap();
                assert_eq!(vector, [3.0; 10]);
            }
        });
    }
    // A joined thread may be in the list for a moment; one that was left behind stays.
    let limit = Instant::now() + Duration::from_secs(10);
    while threads() > before && Instant::now() < limit {
        std::thread::yield_now();
    }
    assert_eq!(threads(), before);
}
