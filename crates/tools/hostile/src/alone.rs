//! A process of its own for a test that takes, counts or measures what its process has.

use std::process::Command;

/// Set in the processes that tests start for themselves.
const ALONE: &str = "DISTRIBUTE_TEST_ALONE";

/// Whether this process is there for this test of a module only. If not, the test has run in one
/// that is, and passed: here other tests have memory, threads and sockets too.
///
/// # Panics
/// If the test has failed there.
#[expect(clippy::panic, reason = "a test fails by a panic")]
pub fn is_alone(module: &str, test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let (_program, module) = module.split_once("::").unwrap_or(("", module));
    let test = format!("{module}::{test}");
    let ran = std::env::current_exe().and_then(|program| {
        let mut command = Command::new(program);
        command.args(["--exact", &test, "--nocapture", "--test-threads", "1"]);
        command.env(ALONE, "1").output()
    });
    let ran = ran.unwrap_or_else(|error| panic!("`{test}` cannot be started: {error}"));
    let said = String::from_utf8_lossy(&ran.stdout);
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}{errors}");
    assert!(said.contains("1 passed"), "there is no test `{test}`");
    show(&said);
    false
}

/// Not as lines of their own: who counts results would count these too.
#[expect(clippy::print_stdout, reason = "it is what the test prints")]
fn show(said: &str) {
    said.lines().for_each(|line| println!("alone: {line}"));
}
