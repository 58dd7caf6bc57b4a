//! The plugins that tests run against, and the programs that they run.

use distribute_tpu_xla::pjrt::{Buffer, Client, Plugin};

pub use crate::plugins::{libtpu, within};

/// Seconds on an idle machine. No test comes close to it.
pub const LIMIT: u64 = 36;

/// XLA's CPU client, or nothing and a line that says so.
pub fn cpu_plugin() -> Option<Plugin> {
    let path = crate::plugins::cpu_plugin()?;
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
