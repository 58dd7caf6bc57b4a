//! Plugins, and a limit of time.

use std::io::Write;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use distribute_tpu_xla::pjrt::Plugin;
use distribute_tpu_xla::{TpuStrategy, TpuSystem};

/// A file named by a variable, or else below the user's cache.
pub fn library(variable: &str, cached: &str, how: &str) -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let named = set(variable).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache")));
    let cached = cache.map(|cache| cache.join(cached));
    let found = named.or(cached.filter(|path| path.is_file()));
    if found.is_none() {
        println!("SKIPPED: no {variable}: run distribute-tpu-xla/pjrt-cpu/{how}");
    }
    found
}

/// XLA's CPU client.
pub fn plugin() -> Option<PathBuf> {
    let file = "distribute/pjrt-cpu/2.21.0/pjrt_c_api_cpu_plugin.so";
    library("PJRT_CPU_PLUGIN", file, "build")
}

/// A strategy with this many replicas, one per CPU device.
pub fn strategy(replicas: usize) -> Option<TpuStrategy> {
    let plugin = Plugin::load(plugin()?).unwrap();
    let options = [("cpu_device_count", (replicas as i64).into())];
    let system = TpuSystem::from_client(plugin.client(&options).unwrap());
    Some(TpuStrategy::new(&system).unwrap())
}

/// How many times longer a test may take on a machine that others use too.
const TIMEOUT_FACTOR: u64 = 5;

/// Ends the process if `test` takes much longer: a wait for a device cannot be interrupted.
pub fn within(seconds: u64, test: impl FnOnce()) {
    let name = thread::current().name().unwrap_or("a test").to_string();
    let (done, waiting) = mpsc::channel::<()>();
    let watch = thread::spawn(move || {
        let limit = Duration::from_secs(seconds * TIMEOUT_FACTOR);
        if waiting.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            // Not `eprintln`, which the test runner keeps until the test ends.
            let _ = writeln!(std::io::stderr(), "{name} did not end within {limit:?}");
            std::process::abort();
        }
    });
    test();
    drop(done);
    watch.join().unwrap();
}
