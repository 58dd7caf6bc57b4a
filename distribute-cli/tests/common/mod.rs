//! What the tests of the program share.
#![allow(dead_code)] // Not every test file uses everything.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use assert_cmd::Command;

/// No run of the program may take longer.
pub const LIMIT: Duration = Duration::from_secs(120);

/// The program, in a folder of its own and without the variables of the machine.
pub fn program(folder: &Path) -> Command {
    let mut command = Command::cargo_bin("distribute-cli").unwrap();
    command.current_dir(folder).timeout(LIMIT);
    for name in ["TF_CONFIG", "LD_LIBRARY_PATH", "RUST_BACKTRACE"] {
        command.env_remove(name);
    }
    command
}

/// Kills the process when it takes too long, so that no test hangs; dropping it calls it off.
pub fn watchdog(id: u32) -> mpsc::Sender<()> {
    let (call_off, called_off) = mpsc::channel();
    std::thread::spawn(move || {
        if called_off.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
            let _ = std::process::Command::new("kill")
                .args(["-KILL", &id.to_string()])
                .status();
        }
    });
    call_off
}

/// Sends a signal by its name without SIG.
pub fn signal(id: u32, name: &str) {
    let status = std::process::Command::new("kill")
        .args([&format!("-{name}"), &id.to_string()])
        .status()
        .unwrap();
    assert!(status.success());
}

/// What a run printed, and how it ended.
pub struct Finished {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs `distribute-cli` with these arguments, separated by blanks.
pub fn run(folder: &Path, arguments: &str) -> Finished {
    let output = program(folder)
        .args(arguments.split_whitespace())
        .output()
        .unwrap();
    Finished {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A run that must succeed; its standard output.
pub fn succeed(folder: &Path, arguments: &str) -> String {
    let finished = run(folder, arguments);
    assert_eq!(finished.code, Some(0), "{arguments}: {}", finished.stderr);
    finished.stdout
}

/// The last line of JSON output.
pub fn last_event(stdout: &str) -> serde_json::Value {
    serde_json::from_str(stdout.lines().last().unwrap()).unwrap()
}

/// A few quick steps on the digits.
pub const QUICK: &str = "train --model mlp --replicas 2 --steps 5 --output json";
