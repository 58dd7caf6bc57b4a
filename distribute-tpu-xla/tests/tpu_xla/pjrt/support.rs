//! The plugins that tests run against, and the programs that they run.

use std::env;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use distribute_tpu_xla::pjrt::{Buffer, Client, Plugin};

/// No test comes close to it, even on a machine that does much else.
pub const LIMIT: Duration = Duration::from_secs(180);

/// How to get the plugin that a test needs.
const BUILD: &str = "distribute-tpu-xla/pjrt-cpu/build";
const FETCH: &str = "distribute-tpu-xla/pjrt-cpu/fetch-libtpu";

/// The user's cache, where the scripts put what they build and fetch.
fn cache() -> Option<PathBuf> {
    let folder = |name| {
        env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    Some(cache.join("distribute"))
}

fn find(variable: &str, cached: &str, command: &str) -> Option<PathBuf> {
    let named = env::var_os(variable)
        .filter(|v| !v.is_empty())
        .map(PathBuf::from);
    let path = named.or_else(|| Some(cache()?.join(cached)).filter(|path| path.is_file()));
    if path.is_none() {
        println!("SKIPPED: no {variable}: run {command}, and the tests of its plugin run too");
    }
    path
}

/// XLA's CPU client, or nothing and a line that says so.
pub fn cpu_plugin() -> Option<Plugin> {
    let path = find(
        "PJRT_CPU_PLUGIN",
        "pjrt-cpu/2.21.0/pjrt_c_api_cpu_plugin.so",
        BUILD,
    )?;
    Some(Plugin::load(path).unwrap())
}

/// A client with this many CPU devices.
pub fn cpu_client(devices: usize) -> Option<Client> {
    Some(
        cpu_plugin()?
            .client(&[("cpu_device_count", (devices as i64).into())])
            .unwrap(),
    )
}

/// The file of libtpu, or nothing and a line that says so.
pub fn libtpu() -> Option<PathBuf> {
    find("PJRT_TPU_LIBRARY", "libtpu/0.0.51/libtpu/libtpu.so", FETCH)
}

/// Ends the process if `test` takes longer: a wait for a device cannot be interrupted.
pub fn within(limit: Duration, test: impl FnOnce()) {
    let (done, waiting) = mpsc::channel::<()>();
    let watch = thread::spawn(move || {
        if waiting.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("the test did not end within {limit:?}");
            std::process::abort();
        }
    });
    test();
    drop(done);
    watch.join().unwrap();
}

/// `x -> sum of x over all replicas`, taking the memory of `x` if it may.
pub fn all_reduce(replicas: usize, elements: usize) -> String {
    all_reduce_of(replicas, elements, "f32")
}

/// The same for another element type.
pub fn all_reduce_of(replicas: usize, elements: usize, element_type: &str) -> String {
    let group: Vec<_> = (0..replicas).map(|replica| replica.to_string()).collect();
    let (group, one) = (group.join(", "), format!("tensor<{element_type}>"));
    let array = format!("tensor<{elements}x{element_type}>");
    format!(
        r#"module @all_reduce {{
  func.func public @main(%x: {array} {{tf.aliasing_output = 0 : i32}}) -> {array} {{
    %r = "stablehlo.all_reduce"(%x) <{{
      replica_groups = dense<[[{group}]]> : tensor<1x{replicas}xi64>
    }}> ({{
    ^bb0(%a: {one}, %b: {one}):
      %s = stablehlo.add %a, %b : {one}
      stablehlo.return %s : {one}
    }}) : ({array}) -> {array}
    return %r : {array}
  }}
}}"#
    )
}

/// One buffer per device, `f(device)`.
pub fn per_device(client: &Client, f: impl Fn(usize) -> Vec<f32>) -> Vec<Vec<Buffer>> {
    let devices = client.addressable_devices();
    let one = devices.iter().enumerate().map(|(index, device)| {
        let elements = f(index);
        vec![client.buffer(&elements, &[elements.len()], device).unwrap()]
    });
    one.collect()
}
