//! Ten thousand steps of `TpuStrategy::run` leave nothing behind. A test program of its own: it
//! watches the memory of the whole process.

#[expect(dead_code, reason = "other tests use the rest")]
#[path = "strategy/models.rs"]
mod models;
#[expect(dead_code, reason = "other tests use the rest")]
#[path = "strategy/support.rs"]
mod support;

use std::fs;

use burn::prelude::*;
use distribute_core::metric::Mean;
use distribute_core::{Adam, ReduceOp, StrategyExt, TrainState};
use distribute_tpu_xla::TpuStrategy;
use models::{Mlp, mlp_step};
use support::{Data, system, within};

/// Bytes of memory that this process uses.
fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn ten_thousand_steps_with_changing_batches_leave_nothing_behind() {
    within(500, || {
        let Some(system) = system(2) else { return };
        let tpu = TpuStrategy::new(&system).unwrap();
        let build = |device: &Device| TrainState::new(Mlp::new(device), Adam::new(1e-3));
        let mut state = tpu.scope(build).unwrap();
        let loss = Mean::new(&tpu);
        let mut data = Data::new(1, 2, &[12], 5);
        let mut after_warm_up = 0;
        for number in 0..10_000 {
            if number == 3000 {
                after_warm_up = resident();
            }
            // Two shapes, other values in every call.
            let examples = if number % 7 == 0 { 3 } else { 4 };
            let train = mlp_step(8);
            let found = tpu
                .run((&mut state, data.batch::<2>(examples)), |ctx, args| {
                    let found = train(ctx, args)?;
                    loss.update_state(ctx, found.clone())?;
                    Ok(found)
                })
                .unwrap();
            tpu.reduce(ReduceOp::Sum, found).unwrap();
            // 6 parameters, 2 slots each, 2 replicas.
            assert_eq!(system.client().live_buffers(), 36);
            if number % 500 == 0 {
                loss.result().unwrap();
                loss.reset_state().unwrap();
                state.primary().unwrap();
            }
        }
        let grown = resident().saturating_sub(after_warm_up);
        assert!(grown < 8 << 20, "7,000 steps have cost {grown} bytes");
        let statistics = tpu.statistics();
        assert_eq!((statistics.steps, statistics.programs), (1, 2));
        drop(state);
        assert_eq!(system.client().live_buffers(), 0);
    });
}
