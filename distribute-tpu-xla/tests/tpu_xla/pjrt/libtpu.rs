//! The TPU compiler itself, without a TPU: everything the compiler of a real device checks.
//!
//! libtpu reads variables of the process environment, so each test starts this program again with
//! them set, and runs its body there.

use std::env;
use std::process::Command;

use distribute_tpu_xla::pjrt::{
    CompileOptions, ErrorCode, LibtpuEnvironment, PjrtError, Plugin, Topology, Value,
};

use crate::pjrt::support::{LIMIT, all_reduce, libtpu, within};

/// Set in the process that runs the body.
const INSIDE: &str = "DISTRIBUTE_TEST_INSIDE_LIBTPU";

/// Runs `body` in a process of its own that was started as libtpu wants it.
fn with_libtpu(test: &str, body: impl FnOnce(&Plugin)) {
    let Some(path) = libtpu() else { return };
    if env::var_os(INSIDE).is_some() {
        LibtpuEnvironment::compile_only().check().unwrap();
        return within(LIMIT, || body(&Plugin::load(path).unwrap()));
    }
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", &format!("pjrt::libtpu::{test}"), "--nocapture"])
        .env(INSIDE, "1");
    LibtpuEnvironment::compile_only().apply_to(&mut command);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

/// `tanh(x W)` summed over all replicas, and `state + sum`, which takes the state's memory.
fn step(replicas: usize) -> String {
    let group: Vec<_> = (0..replicas).map(|replica| replica.to_string()).collect();
    format!(
        r#"module @step {{
  func.func public @main(%x: tensor<128x256xf32>, %w: tensor<256x512xf32>,
      %state: tensor<128x512xf32> {{tf.aliasing_output = 0 : i32}}) -> tensor<128x512xf32> {{
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0],
      precision = [HIGHEST, HIGHEST]
      : (tensor<128x256xf32>, tensor<256x512xf32>) -> tensor<128x512xf32>
    %1 = stablehlo.tanh %0 : tensor<128x512xf32>
    %2 = "stablehlo.all_reduce"(%1) <{{
      replica_groups = dense<[[{}]]> : tensor<1x{replicas}xi64>
    }}> ({{
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }}) : (tensor<128x512xf32>) -> tensor<128x512xf32>
    %3 = stablehlo.add %state, %2 : tensor<128x512xf32>
    return %3 : tensor<128x512xf32>
  }}
}}"#,
        group.join(", ")
    )
}

#[test]
fn a_step_compiles_for_every_kind_of_tpu() {
    with_libtpu("a_step_compiles_for_every_kind_of_tpu", |plugin| {
        let kinds = [
            ("v5e:2x4", 8, "TPU v5 lite"),
            ("v4:2x2x2", 16, "TPU v4"),
            ("v5p:2x2x2", 8, "TPU v5"),
            ("v6e:2x4", 8, "TPU v6 lite"),
        ];
        for (name, devices, kind) in kinds {
            let topology = plugin.topology(name, &[]).unwrap();
            assert_eq!(topology.devices().len(), devices, "{name}");
            assert!(
                topology.devices().iter().all(|device| device.kind == kind),
                "{topology:?}"
            );
            assert_eq!(topology.platform_name().unwrap(), "tpu");
            compiled_as_it_must_be(&topology);
        }
    });
}

fn compiled_as_it_must_be(topology: &Topology) {
    let program = topology
        .compile(&step(8), &CompileOptions::replicas(8))
        .unwrap();
    assert_eq!(program.num_replicas().unwrap(), 8);
    let memory = program.memory_stats().unwrap();
    assert_eq!(memory.alias_bytes, 128 * 512 * 4);
    assert_eq!(memory.output_bytes, 128 * 512 * 4);
    assert_eq!(
        memory.argument_bytes,
        4 * (128 * 256 + 256 * 512 + 128 * 512)
    );
    assert!(
        memory.peak_bytes > 0 && memory.generated_code_bytes > 0,
        "{memory:?}"
    );
    let cost = program.cost_analysis().unwrap();
    let flops = cost["flops"].as_f64().unwrap();
    assert!(flops >= 2.0 * 128.0 * 256.0 * 512.0, "{flops}");
    let optimized = program.optimized_program().unwrap();
    assert_eq!(optimized.format, "hlo_with_config");
    assert!(optimized.contains("all-reduce"));
    assert_eq!(program.outputs().unwrap()[0].dims, [128, 512]);
    assert!(program.serialize().unwrap().len() > 10_000);
    assert!(!program.fingerprint().unwrap().is_empty());
}

#[test]
fn the_plugin_and_its_devices_describe_themselves() {
    with_libtpu("the_plugin_and_its_devices_describe_themselves", |plugin| {
        assert!(plugin.api_version().minor >= 90, "{plugin:?}");
        let attributes = plugin.attributes().unwrap();
        let Value::Int64List(version) = &attributes["stablehlo_current_version"] else {
            panic!("{attributes:?}")
        };
        assert_eq!(version.len(), 3);
        // It can be loaded again.
        let again = Plugin::load(plugin.path()).unwrap();
        let topology = again.topology("v5e:2x4", &[]).unwrap();
        let device = &topology.devices()[0];
        assert!(device.attributes.contains_key("coords"), "{device:?}");
        // There is no TPU in the machines that run tests; where there is one, a client opens.
        if let Err(error) = plugin.client(&[]) {
            assert!(matches!(error, PjrtError::Plugin { .. }), "{error:?}");
        }
    });
}

#[test]
fn what_the_compiler_refuses_is_an_error() {
    with_libtpu("what_the_compiler_refuses_is_an_error", |plugin| {
        for name in ["bogus:2x4", "v5litepod-8", "v7x:2x2x1"] {
            let error = plugin.topology(name, &[]).unwrap_err();
            assert_eq!(
                error.code(),
                Some(ErrorCode::InvalidArgument),
                "{name}: {error}"
            );
        }
        let topology = plugin.topology("v5e:2x4", &[]).unwrap();
        let eight = CompileOptions::replicas(8);
        let error = topology
            .compile("func.func @main() {\n  stablehlo.nop", &eight)
            .unwrap_err();
        let PjrtError::Plugin { message, .. } = &error else {
            panic!("{error:?}")
        };
        assert!(message.contains("2:"), "{message}");
        let small = plugin.topology("v5e:1x1", &[]).unwrap();
        let error = small.compile(&all_reduce(8, 16), &eight).unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::InvalidArgument), "{error}");
        let error = topology.compile(&three_times_16_gib(), &CompileOptions::default());
        let error = error.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::ResourceExhausted), "{error}");
        assert_eq!(error.code().map(ErrorCode::number), Some(8));
        assert!(error.to_string().contains("HBM"), "{error}");
    });
}

/// A program whose arguments and result no TPU's memory holds.
fn three_times_16_gib() -> String {
    let big = "tensor<65536x65536xf32>";
    format!(
        "func.func public @main(%x: {big}, %y: {big}) -> {big} {{
          %z = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : ({big}, {big}) -> {big}
          return %z : {big}
        }}"
    )
}
