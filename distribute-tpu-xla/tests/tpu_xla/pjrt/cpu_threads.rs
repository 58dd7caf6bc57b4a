//! XLA's CPU client: everything from many threads at once.

use std::thread;

use distribute_tpu_xla::pjrt::{
    Buffer, Client, CompileOptions, Device, Event, Executable, ExecuteOptions, Execution,
    LoadedExecutable, PjrtError, Plugin, Topology,
};

use crate::pjrt::support::{LIMIT, all_reduce, cpu_client, cpu_plugin, per_device, within};

const THREADS: usize = 8;

fn reduce(client: &Client, program: &LoadedExecutable, value: f32) {
    let replicas = program.devices().len();
    let inputs = per_device(client, |_| vec![value; 64]);
    let outputs = program.run(&inputs, &ExecuteOptions::default()).unwrap();
    let expected = vec![value * replicas as f32; 64];
    for output in outputs {
        assert_eq!(output[0].to_vec::<f32>().unwrap(), expected);
    }
}

#[test]
fn handles_can_be_sent_and_shared() {
    fn check<T: Send + Sync + 'static>() {}
    check::<(Plugin, Client, Device, Buffer, Event, Topology)>();
    check::<(Executable, LoadedExecutable, Execution, PjrtError)>();
}

#[test]
fn threads_have_their_own_clients() {
    let Some(plugin) = cpu_plugin() else { return };
    within(LIMIT, || {
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let plugin = &plugin;
                scope.spawn(move || {
                    for round in 0..4 {
                        // Loaded anew too: the library is the same.
                        let plugin = Plugin::load(plugin.path()).unwrap();
                        let client = plugin
                            .client(&[("cpu_device_count", 4_i64.into())])
                            .unwrap();
                        let options = CompileOptions::replicas(4);
                        let program = client.compile(&all_reduce(4, 64), &options).unwrap();
                        reduce(&client, &program, (thread * 4 + round) as f32);
                    }
                });
            }
        });
    });
}

#[test]
fn threads_share_a_program() {
    let Some(client) = cpu_client(8) else { return };
    let program = client
        .compile(&all_reduce(8, 64), &CompileOptions::replicas(8))
        .unwrap();
    within(LIMIT, || {
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (client, program) = (&client, &program);
                scope.spawn(move || {
                    for round in 0..20 {
                        reduce(client, program, (thread * 20 + round) as f32);
                        let executable = program.executable();
                        assert!(
                            executable
                                .optimized_program()
                                .unwrap()
                                .contains("all-reduce")
                        );
                        assert_eq!(executable.outputs().unwrap()[0].dims, [64]);
                    }
                });
            }
        });
    });
    assert_eq!(client.live_buffers(), 0);
}

#[test]
fn executions_race_for_a_donated_argument_and_one_wins() {
    let Some(client) = cpu_client(2) else { return };
    let program = client
        .compile(&all_reduce(2, 64), &CompileOptions::replicas(2))
        .unwrap();
    within(LIMIT, || {
        for _ in 0..50 {
            let inputs = per_device(&client, |_| vec![1.0; 64]);
            let won = thread::scope(|scope| {
                let run = || program.run(&inputs, &ExecuteOptions::default()).is_ok();
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
                threads
                    .into_iter()
                    .filter_map(|t| t.join().unwrap().then_some(()))
                    .count()
            });
            assert_eq!(won, 1);
        }
    });
}

#[test]
fn everything_can_be_dropped_while_it_runs() {
    let Some(plugin) = cpu_plugin() else { return };
    within(LIMIT, || {
        for _ in 0..20 {
            let client = plugin
                .client(&[("cpu_device_count", 2_i64.into())])
                .unwrap();
            let options = CompileOptions::replicas(2);
            let program = client.compile(&all_reduce(2, 100_000), &options).unwrap();
            let inputs = per_device(&client, |_| vec![1.0; 100_000]);
            drop(
                program
                    .execute(&inputs, &ExecuteOptions::default())
                    .unwrap(),
            );
        }
    });
}
