//! Runs tests of `unsafe` code in Miri, the interpreter that finds undefined behaviour.

use std::path::Path;
use std::process::Command;

use crate::cargo::finish;

/// The tests of the modules that look at bytes as elements and at other threads' buffers.
const TESTS: [&str; 4] = ["buffer::", "in_process::", "pieces::", "reduce::"];

/// Runs them with the nightly toolchain, the only one that has Miri.
pub fn run(root: &Path) -> Result<String, String> {
    let has_miri = miri(root).arg("--version").output();
    if !has_miri.is_ok_and(|output| output.status.success()) {
        return Ok("SKIPPED: needs `rustup toolchain install nightly -c miri`".to_owned());
    }
    // Deadlines need a clock.
    let mut command = miri(root);
    command.env("MIRIFLAGS", "-Zmiri-disable-isolation");
    command.args(["test", "-p", "distribute-collectives", "--lib", "--"]);
    finish(command.args(TESTS))
}

/// Without the variables by which cargo tells this program where the stable toolchain is.
fn miri(root: &Path) -> Command {
    let mut command = Command::new("rustup");
    command
        .args(["run", "nightly", "cargo", "miri"])
        .current_dir(root);
    for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(name);
    }
    command
}
