//! Where tests find PJRT plugins, and a limit for those that wait for devices. Tests of other
//! crates use it too.

use std::env;
use std::io::Write;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// XLA's CPU client, or nothing and a line that says how to get it.
pub fn cpu_plugin() -> Option<PathBuf> {
    let file = "pjrt-cpu/2.21.0/pjrt_c_api_cpu_plugin.so";
    find("PJRT_CPU_PLUGIN", file, "build")
}

/// libtpu, or nothing and a line that says how to get it.
pub fn libtpu() -> Option<PathBuf> {
    let file = "libtpu/0.0.51/libtpu/libtpu.so";
    find("PJRT_TPU_LIBRARY", file, "fetch-libtpu")
}

/// The file that a variable names, or else what a command has put into the user's cache.
fn find(variable: &str, cached: &str, command: &str) -> Option<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty());
    let home = || Some(PathBuf::from(set("HOME")?).join(".cache"));
    let cache = set("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    let cached = cache.map(|cache| cache.join("distribute").join(cached));
    let named = set(variable).map(PathBuf::from);
    let found = named.or(cached.filter(|path| path.is_file()));
    if found.is_none() {
        println!(
            "SKIPPED: no {variable}: run distribute-tpu-xla/pjrt-cpu/{command}, and the tests of \
             its plugin run too"
        );
    }
    found
}

/// How many times longer a test may take on a machine that others use too.
const TIMEOUT_FACTOR: u64 = 5;

/// Ends the process if `test` takes much longer: a wait for a device cannot be interrupted.
pub fn within(seconds: u64, test: impl FnOnce()) {
    let name = thread::current().name().unwrap_or("a test").to_string();
    let (done, waiting) = mpsc::channel::<()>();
    let watch = thread::spawn(move || {
        let limit = Duration::from_secs(seconds * TIMEOUT_FACTOR);
        if waiting.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            // Not `eprintln`, which the test runner keeps until the test ends.
            let _ = writeln!(std::io::stderr(), "{name} did not end within {limit:?}");
            std::process::abort();
        }
    });
    test();
    drop(done);
    watch.join().unwrap();
}
