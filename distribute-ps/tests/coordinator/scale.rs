//! Many workers, for some time, in bounded memory.

use std::time::{Duration, Instant};

use distribute_ps::{HostTensor, StepRegistry, WorkerContext};

use crate::in_process::{Cluster, LIMIT};

/// The resident memory of this process in MiB.
fn resident_mib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib >> 10
}

/// The short and the long form: `DISTRIBUTE_PS_SECONDS=60`.
fn duration() -> Duration {
    let text = std::env::var("DISTRIBUTE_PS_SECONDS");
    Duration::from_secs(text.ok().and_then(|text| text.parse().ok()).unwrap_or(4))
}

#[test]
fn sixty_four_workers_take_closures_steadily_in_bounded_memory() {
    let cluster = Cluster::new(64, |registry: &mut StepRegistry| {
        let step = |_: &WorkerContext, (rows,): (HostTensor,)| Ok(rows);
        registry.step("echo", step).unwrap();
    });
    let coordinator = &cluster.coordinator;
    let rows = HostTensor(distribute_core::TensorData::from([1.0_f32; 256]));
    let half = duration() / 2;
    let run = |time: Duration| {
        let begun = Instant::now();
        let mut scheduled = 0_u64;
        while begun.elapsed() < time {
            coordinator.schedule("echo", (rows.clone(),)).unwrap();
            scheduled += 1;
        }
        coordinator.join_timeout(LIMIT).unwrap();
        (
            scheduled as f64 / begun.elapsed().as_secs_f64(),
            resident_mib(),
        )
    };
    let (first, before) = run(half);
    let (second, after) = run(half);
    println!("{first:.0} and {second:.0} closures/s, {before} and {after} MiB");
    assert!(
        second > first / 3.0,
        "{first:.0} closures/s, then {second:.0}"
    );
    assert!(after < before + 64, "{before} MiB, then {after}");
}
