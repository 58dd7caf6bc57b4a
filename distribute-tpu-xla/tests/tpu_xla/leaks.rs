//! Ten thousand steps leave nothing behind.

use std::process::Command;
use std::{env, fs};

use burn::prelude::*;
use distribute_core::metric::Mean;
use distribute_core::{Adam, ReduceOp, StrategyExt, TrainState};
use distribute_tpu_xla::TpuStrategy;
use distribute_tpu_xla::pjrt::{CompileOptions, ExecuteOptions, PjrtError};

use crate::pjrt::support::{LIMIT, all_reduce, cpu_client, cpu_plugin, per_device};
use crate::strategy::models::{Mlp, mlp_step};
use crate::strategy::support::{Data, system};
use crate::{pjrt, strategy};

/// Set in the process that runs the body of a test.
const ALONE: &str = "DISTRIBUTE_TEST_LEAKS_ALONE";

/// Bytes of memory that this process uses.
fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Runs `body` in a process of its own, so that no other test's memory is counted.
fn alone(test: &str, body: impl FnOnce()) {
    if cpu_plugin().is_none() {
        return;
    }
    if env::var_os(ALONE).is_some() {
        return body();
    }
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", &format!("leaks::{test}"), "--nocapture"])
        .env(ALONE, "1");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

#[test]
fn ten_thousand_steps_leave_nothing_behind() {
    alone("ten_thousand_steps_leave_nothing_behind", || {
        pjrt::support::within(LIMIT, steps_of_a_program)
    });
}

fn steps_of_a_program() {
    let client = cpu_client(2).unwrap();
    let elements = 1000;
    let program = client.compile(&all_reduce(2, elements), &CompileOptions::replicas(2));
    let program = program.unwrap();
    let mut state = per_device(&client, |_| vec![0.0; elements]);
    let mut after_warm_up = 0;
    for step in 0..10_000 {
        if step == 2000 {
            after_warm_up = resident();
        }
        state = program
            .execute(&state, &ExecuteOptions::default())
            .unwrap()
            .into_outputs();
        // What a real step does besides: a batch comes, a loss goes, something fails.
        let batch = per_device(&client, |_| vec![1.0; elements]);
        assert_eq!(client.live_buffers(), 4);
        if step % 10 == 0 {
            assert_eq!(state[1][0].to_vec::<f32>().unwrap(), vec![0.0; elements]);
            let error = program.run(
                &[&batch[0][..0], &batch[1][..0]],
                &ExecuteOptions::default(),
            );
            assert!(matches!(error.unwrap_err(), PjrtError::Plugin { .. }));
            let error = program.run(&[&batch[0], &batch[0]], &ExecuteOptions::default());
            assert!(matches!(error.unwrap_err(), PjrtError::InvalidArgument(_)));
            assert!(program.executable().optimized_program().unwrap().code.len() > 100);
        }
    }
    // Each step makes 4 buffers of 4 kB, 2 events and more. One lost handle of 24 bytes per
    // step would be 192 kB; the allocator's own waves are larger than that.
    let grown = resident().saturating_sub(after_warm_up);
    assert!(
        grown < 4 << 20,
        "8,000 steps have cost {grown} bytes of memory"
    );
    drop(state);
    assert_eq!(client.live_buffers(), 0);
}

#[test]
fn ten_thousand_steps_with_changing_batches_leave_nothing_behind() {
    let test = "ten_thousand_steps_with_changing_batches_leave_nothing_behind";
    alone(test, || strategy::support::within(500, steps_of_a_strategy));
}

fn steps_of_a_strategy() {
    let system = system(2).unwrap();
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
}
