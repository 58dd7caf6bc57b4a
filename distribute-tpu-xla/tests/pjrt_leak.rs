//! Ten thousand steps leave nothing behind. A test program of its own: it watches the memory of
//! the whole process.

#[expect(dead_code, reason = "other tests use the rest")]
#[path = "pjrt/support.rs"]
mod support;

use std::fs;

use distribute_tpu_xla::pjrt::{CompileOptions, ExecuteOptions, PjrtError};
use support::{LIMIT, all_reduce, cpu_client, per_device, within};

/// Bytes of memory that this process uses.
fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn ten_thousand_steps_leave_nothing_behind() {
    let Some(client) = cpu_client(2) else { return };
    within(LIMIT, || {
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
    });
}
