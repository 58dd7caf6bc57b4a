//! Programs of several processes, as on a TPU slice: each process has its own devices, and the
//! all-reduce goes over all of them.

use std::env;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use distribute_tpu_xla::pjrt::{Client, CompileOptions, ErrorCode, ExecuteOptions, Value};

use crate::pjrt::support::{LIMIT, all_reduce_of, cpu_plugin, per_device, within};

/// Number of the process and address of process 0, set in the processes that a test starts.
const NODE: &str = "DISTRIBUTE_TEST_NODE";
const COORDINATOR: &str = "DISTRIBUTE_TEST_COORDINATOR";

const NODES: usize = 2;
const DEVICES: usize = 2;

fn options(node: i64, coordinator: &str, timeout_seconds: i64) -> [(&'static str, Value); 5] {
    [
        ("cpu_device_count", (DEVICES as i64).into()),
        ("node_id", node.into()),
        ("num_nodes", (NODES as i64).into()),
        ("coordinator_address", coordinator.into()),
        ("initialization_timeout_seconds", timeout_seconds.into()),
    ]
}

/// Runs `body` in two processes that share their devices.
fn in_processes(test: &str, body: impl FnOnce(usize, Client)) {
    let Some(plugin) = cpu_plugin() else { return };
    if let (Ok(node), Ok(coordinator)) = (env::var(NODE), env::var(COORDINATOR)) {
        let node: usize = node.parse().unwrap();
        return within(LIMIT, || {
            body(
                node,
                plugin
                    .client(&options(node as i64, &coordinator, 60))
                    .unwrap(),
            );
        });
    }
    // The port is free again when the listener is dropped.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let coordinator = listener.local_addr().unwrap().to_string();
    drop(listener);
    let start = |node: usize| -> Child {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args([
            "--exact",
            &format!("pjrt::cpu_processes::{test}"),
            "--nocapture",
        ]);
        command
            .env(NODE, node.to_string())
            .env(COORDINATOR, &coordinator);
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children: Vec<Child> = (0..NODES).map(start).collect();
    let outputs: Vec<_> = children
        .into_iter()
        .map(|c| c.wait_with_output().unwrap())
        .collect();
    for output in outputs {
        let (text, errors) = (output.stdout, output.stderr);
        let text = String::from_utf8_lossy(&text) + String::from_utf8_lossy(&errors);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}"
        );
    }
}

#[test]
fn processes_reduce_over_all_devices() {
    in_processes("processes_reduce_over_all_devices", |node, client| {
        assert_eq!(client.process_index(), node as i32);
        assert_eq!(client.devices().len(), NODES * DEVICES);
        let mine = client.addressable_devices();
        assert_eq!(mine.len(), DEVICES);
        assert!(
            mine.iter()
                .all(|device| device.description().process_index == node as i32)
        );
        let elsewhere = client
            .devices()
            .into_iter()
            .find(|device| !device.is_addressable());
        assert!(
            client
                .buffer(&[1.0_f32], &[1], &elsewhere.unwrap())
                .is_err()
        );

        let replicas = NODES * DEVICES;
        let options = CompileOptions::replicas(replicas);
        for element_type in ["f32", "bf16", "i32"] {
            let program = client.compile(&all_reduce_of(replicas, 1, element_type), &options);
            assert_eq!(program.unwrap().devices(), mine);
        }
        let program = client
            .compile(&all_reduce_of(replicas, 1000, "f32"), &options)
            .unwrap();
        let mut values = per_device(&client, |device| {
            vec![(node * DEVICES + device) as f32; 1000]
        });
        for _ in 0..10 {
            values = program.run(&values, &ExecuteOptions::default()).unwrap();
        }
        // 0 + 1 + 2 + 3, then nine times by four.
        let expected = vec![6.0 * 4_f32.powi(9); 1000];
        for value in &values {
            assert_eq!(value[0].to_vec::<f32>().unwrap(), expected);
        }
    });
}

#[test]
fn a_lost_process_is_an_error_of_the_others() {
    in_processes(
        "a_lost_process_is_an_error_of_the_others",
        |node, client| {
            let replicas = NODES * DEVICES;
            let options = CompileOptions::replicas(replicas);
            let program = client
                .compile(&all_reduce_of(replicas, 10, "f32"), &options)
                .unwrap();
            let values = per_device(&client, |_| vec![1.0; 10]);
            let values = program.run(&values, &ExecuteOptions::default()).unwrap();
            if node == 0 {
                let error = program
                    .run(&values, &ExecuteOptions::default())
                    .unwrap_err();
                assert!(error.to_string().contains("was lost"), "{error}");
            }
        },
    );
}

#[test]
fn a_process_that_does_not_come_is_an_error() {
    let Some(plugin) = cpu_plugin() else { return };
    within(LIMIT, || {
        for (node, address) in [(0, "127.0.0.1:0"), (1, "127.0.0.1:9")] {
            let error = plugin.client(&options(node, address, 1)).unwrap_err();
            assert_eq!(error.code(), Some(ErrorCode::DeadlineExceeded), "{error}");
        }
        for (node, address) in [
            (0, "nowhere"),
            (0, ""),
            (2, "127.0.0.1:0"),
            (-1, "127.0.0.1:0"),
        ] {
            let error = plugin.client(&options(node, address, 1)).unwrap_err();
            assert_eq!(error.code(), Some(ErrorCode::InvalidArgument), "{error}");
        }
    });
}
