//! Unauthenticated peers at the ports of a job that has few descriptors left.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use rstest::rstest;

use crate::common::{self, Process};
use crate::job::{addresses, tf_config};

const MULTI: &str = "train --strategy multi-worker --model mlp --steps 3 --transport";

/// Connects as soon as a process listens there.
fn connect(address: &str) -> TcpStream {
    let begun = Instant::now();
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return stream,
            Err(error) => assert!(begun.elapsed() < common::LIMIT, "{error}"),
        }
    }
}

/// A process may have so few of them that unauthenticated peers could take them all.
#[rstest]
fn a_flood_takes_no_descriptors_from_a_job(#[values("auto", "grpc")] transport: &str) {
    let folder = tempfile::tempdir().unwrap();
    let addresses = addresses(2);
    let cluster = format!(r#"{{"worker": {addresses:?}}}"#);
    let program = assert_cmd::cargo::cargo_bin("distribute-cli");
    let start = |rank: usize| {
        let config = tf_config(&cluster, "worker", rank);
        let mut command = std::process::Command::new("sh");
        let line = format!(
            "ulimit -n 72; exec {} {MULTI} {transport}",
            program.display()
        );
        command.args(["-c", &line]).current_dir(folder.path());
        Process::start(&mut command, &[("TF_CONFIG", &config)])
    };
    let zero = start(0);
    let _unauthenticated: Vec<_> = (0..300).map(|_| connect(&addresses[0])).collect();
    let begun = Instant::now();
    let one = start(1);
    for process in [one, zero] {
        let finished = process.finish();
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(12), "{took:?}");
}
