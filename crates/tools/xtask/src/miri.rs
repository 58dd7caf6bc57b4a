//! Runs tests of `unsafe` code in Miri, the interpreter that finds undefined behaviour.

use std::path::Path;
use std::process::{Command, Stdio};

/// The tests of the modules that look at bytes as elements, at other threads' buffers, and at bytes
/// that are lent.
const TESTS: [&str; 5] = [
    "algorithm::compression::",
    "buffer::",
    "grpc::lent_bytes::",
    "in_process::",
    "pieces::",
];

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
    let output = command
        .args(TESTS)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot start Miri: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    say!("{}", text.trim_end());
    if !output.status.success() {
        return Err(format!("Miri: {}", output.status));
    }
    match without_tests(&text) {
        Some(name) => Err(format!("no test of `{name}` ran: did the module move?")),
        None => Ok(String::new()),
    }
}

/// The first module that no test of this output is of that has run.
fn without_tests(output: &str) -> Option<&'static str> {
    let ran = |name: &str| {
        let start = format!("test {name}");
        let is_of = |line: &str| line.starts_with(&start) && line.ends_with(" ok");
        output.lines().any(is_of)
    };
    TESTS.into_iter().find(|name| !ran(name))
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

#[cfg(test)]
mod tests {
    use super::{TESTS, without_tests};

    #[test]
    fn a_module_whose_tests_are_gone_is_named() {
        let all: String = TESTS
            .map(|name| format!("test {name}tests::a ... ok\n"))
            .concat();
        assert_eq!(without_tests(&all), None);
        let without = all.replace("test pieces::", "test pieces_of_bytes::");
        assert_eq!(without_tests(&without), Some("pieces::"));
        let ignored = all.replace("buffer::tests::a ... ok", "buffer::tests::a ... ignored");
        assert_eq!(without_tests(&ignored), Some("buffer::"));
    }
}
