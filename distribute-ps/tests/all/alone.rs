//! A process of its own for a test that counts or measures what its process has.

use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Set in the processes that tests start for themselves.
const ALONE: &str = "DISTRIBUTE_PS_TEST_ALONE";

/// Whether this process is there for this test of a module only. If not, the test has run in one
/// that is, and passed: here other tests have memory, threads and sockets too.
pub fn is_alone(module: &str, test: &str) -> bool {
    /// One at a time: they take much, and some measure how long something takes.
    static ONE: Mutex<()> = Mutex::new(());
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (_program, module) = module.split_once("::").unwrap();
    let test = format!("{module}::{test}");
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &test, "--nocapture", "--test-threads", "1"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    let errors = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{said}{errors}");
    assert!(said.contains("1 passed"), "there is no test `{test}`");
    // Not as lines of its own: who counts results would count these too.
    said.lines().for_each(|line| println!("alone: {line}"));
    false
}
