//! XLA's CPU client: what the compiler says, ahead-of-time compilation, stored programs.

use distribute_tpu_xla::pjrt::{CompileOptions, ElementType, ErrorCode, ExecuteOptions};

use crate::pjrt::support::{LIMIT, all_reduce, cpu_client, cpu_plugin, per_device, within};

#[test]
fn the_compiler_tells_about_a_program() {
    let Some(client) = cpu_client(8) else { return };
    let program = client
        .compile(&all_reduce(8, 100), &CompileOptions::replicas(8))
        .unwrap();
    let executable = program.executable();
    assert_eq!(executable.name().unwrap(), "all_reduce");
    assert_eq!(executable.num_replicas().unwrap(), 8);
    assert_eq!(executable.num_partitions().unwrap(), 1);
    let outputs = executable.outputs().unwrap();
    assert_eq!(outputs.len(), program.num_outputs());
    assert_eq!(
        (outputs[0].element_type, &outputs[0].dims[..]),
        (ElementType::F32, &[100][..])
    );
    let memory = executable.memory_stats().unwrap();
    assert_eq!((memory.argument_bytes, memory.alias_bytes), (400, 400));
    let optimized = executable.optimized_program().unwrap();
    assert_eq!(optimized.format, "hlo_with_config");
    assert!(optimized.contains("all-reduce"));
    assert!(!optimized.contains("all-gather"));
    // XLA's CPU client knows neither.
    assert!(executable.cost_analysis().unwrap_err().is_unimplemented());
    assert!(
        client.devices()[0]
            .memory_stats()
            .unwrap_err()
            .is_unimplemented()
    );
}

#[test]
fn fingerprints_tell_programs_apart() {
    let Some(client) = cpu_client(1) else { return };
    let fingerprint = |elements| {
        let program = client
            .compile(&all_reduce(1, elements), &CompileOptions::default())
            .unwrap();
        program.executable().fingerprint()
    };
    match (fingerprint(3), fingerprint(3), fingerprint(4)) {
        (Ok(one), Ok(same), Ok(other)) => {
            assert_eq!(one, same);
            assert_ne!(one, other);
        }
        (one, ..) => assert!(one.unwrap_err().is_unimplemented()),
    }
}

#[test]
fn a_stored_program_runs_again() {
    let Some(client) = cpu_client(2) else { return };
    within(LIMIT, || {
        let program = client
            .compile(&all_reduce(2, 3), &CompileOptions::replicas(2))
            .unwrap();
        let stored = program.executable().serialize().unwrap();
        drop((program, client));
        let Some(client) = cpu_client(2) else { return };
        let options = CompileOptions::replicas(2).device_assignment([0, 1]);
        for options in [None, Some(&options)] {
            let program = client.load(&stored, options).unwrap();
            let inputs = per_device(&client, |device| vec![device as f32 + 1.0; 3]);
            let outputs = program.run(&inputs, &ExecuteOptions::default()).unwrap();
            assert_eq!(outputs[0][0].to_vec::<f32>().unwrap(), [3.0; 3]);
            assert!(inputs[1][0].is_deleted().unwrap());
        }
    });
}

#[test]
fn what_is_no_stored_program_is_refused() {
    let Some(client) = cpu_client(1) else { return };
    let program = client
        .compile(&all_reduce(1, 3), &CompileOptions::default())
        .unwrap();
    let stored = program.executable().serialize().unwrap();
    for bytes in [&b"no program"[..], &[], &stored[..stored.len() / 2]] {
        assert!(
            client.load(bytes, None).is_err(),
            "{} bytes were loaded",
            bytes.len()
        );
    }
}

#[test]
fn programs_are_compiled_for_devices_that_are_not_there() {
    let Some(plugin) = cpu_plugin() else { return };
    let topology = plugin.topology("cpu:8", &[]).unwrap();
    assert_eq!((topology.name(), topology.devices().len()), ("cpu:8", 8));
    assert_eq!(topology.devices()[7].id, 7);
    assert_eq!(topology.platform_name().unwrap(), "cpu");
    let executable = topology
        .compile(&all_reduce(8, 10), &CompileOptions::replicas(8))
        .unwrap();
    drop((topology, plugin));
    assert_eq!(executable.num_replicas().unwrap(), 8);
    assert_eq!(executable.memory_stats().unwrap().alias_bytes, 40);
    assert!(
        executable
            .optimized_program()
            .unwrap()
            .contains("all-reduce")
    );
}

#[test]
fn topologies_must_exist_and_suffice() {
    let Some(plugin) = cpu_plugin() else { return };
    for name in ["v5e:2x4", "cpu:0", "cpu:x", "cpu:8x", "cpu:"] {
        let error = plugin.topology(name, &[]).unwrap_err();
        assert_eq!(
            error.code(),
            Some(ErrorCode::InvalidArgument),
            "{name}: {error}"
        );
    }
    let topology = plugin.topology("cpu:2", &[]).unwrap();
    let error = topology
        .compile(&all_reduce(8, 10), &CompileOptions::replicas(8))
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("needs 8 devices, the topology has 2"),
        "{error}"
    );
}

#[test]
fn a_compiler_option_takes_effect_or_is_an_error() {
    let Some(client) = cpu_client(1) else { return };
    let text = all_reduce(1, 3);
    let known = CompileOptions::default().option("xla_cpu_enable_fast_math", true);
    client.compile(&text, &known).unwrap();
    let unknown = CompileOptions::default().option("xla_no_such_option", true);
    let error = client.compile(&text, &unknown).unwrap_err();
    assert!(error.to_string().contains("xla_no_such_option"), "{error}");
}
