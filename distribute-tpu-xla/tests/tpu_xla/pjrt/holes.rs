//! The CPU plugin with one function less, for each function, and with a shorter table, for many
//! lengths: whatever needs what is missing is an error that names it, and all else works.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use distribute_tpu_xla::pjrt::{
    Client, CompileOptions, ExecuteOptions, LoadedExecutable, PjrtError, Plugin,
};

use crate::pjrt::fake::compile_c;
use crate::pjrt::support::{LIMIT, cpu_plugin, within};

/// Entries of the table of version 0.90.
const ENTRIES: usize = 128;

const PROGRAM: &str = "func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {
    %y = stablehlo.add %x, %x : tensor<2xf32>
    return %y : tensor<2xf32>
  }";

/// Calls everything there is; what fails is noted, and what does not need it goes on.
fn everything(plugin: &Plugin) -> Vec<PjrtError> {
    let mut errors = Vec::new();
    let mut note = |result: Result<(), PjrtError>| errors.extend(result.err());
    note(plugin.attributes().map(drop));
    note(plugin.topology("cpu:1", &[]).and_then(|topology| {
        topology.platform_name()?;
        topology.platform_version()?;
        topology.attributes()?;
        topology
            .compile(PROGRAM, &CompileOptions::default())
            .map(drop)
    }));
    let client = match plugin.client(&[("cpu_device_count", 1_i64.into())]) {
        Ok(client) => client,
        Err(error) => {
            note(Err(error));
            return errors;
        }
    };
    note(client.default_device_assignment(1, 1).map(drop));
    note(
        client
            .compile("no program", &CompileOptions::default())
            .map(drop),
    );
    let device = &client.devices()[0];
    note(device.memory_stats().map(drop));
    let program = client.compile(PROGRAM, &CompileOptions::default());
    let buffer = client.buffer(&[1.0_f32, 2.0], &[2], device);
    note(buffer.as_ref().map(drop).map_err(Clone::clone));
    note(program.as_ref().map(drop).map_err(Clone::clone));
    if let Ok(program) = &program {
        everything_of_a_program(program, &client, &mut note);
    }
    let Ok(buffer) = buffer else { return errors };
    note(buffer.on_device_bytes().map(drop));
    note(buffer.address().map(drop));
    note(buffer.copy_to_device(device).map(drop));
    note(
        buffer
            .ready_event()
            .and_then(|event| event.is_ready().map(drop)),
    );
    if let Ok(program) = &program {
        note(
            program
                .run(&[[&buffer]], &ExecuteOptions::default())
                .and_then(|outputs| {
                    assert_eq!(outputs[0][0].to_vec::<f32>()?, [2.0, 4.0]);
                    Ok(())
                }),
        );
    }
    note(buffer.to_vec::<f32>().map(drop));
    note(buffer.delete());
    errors
}

/// Asks a program everything there is to ask.
fn everything_of_a_program(
    program: &LoadedExecutable,
    client: &Client,
    note: &mut impl FnMut(Result<(), PjrtError>),
) {
    let executable = program.executable();
    note(executable.name().map(drop));
    note(executable.num_replicas().map(drop));
    note(executable.num_partitions().map(drop));
    note(executable.num_outputs().map(drop));
    note(executable.memory_stats().map(drop));
    note(executable.cost_analysis().map(drop));
    note(executable.generated_code_bytes().map(drop));
    note(executable.fingerprint().map(drop));
    note(executable.optimized_program().map(drop));
    note(
        executable
            .serialize()
            .and_then(|bytes| client.load(&bytes, None).map(drop)),
    );
}

/// What a plugin with this table is missing when everything is called; others than those errors
/// which the whole plugin gives too are a failure of the test.
fn missing(shim: &Path, control: &str, whole: &[PjrtError]) -> BTreeSet<&'static str> {
    let folder = shim.parent().unwrap();
    fs::write(folder.join("control"), control).unwrap();
    let errors = match Plugin::load(shim) {
        Ok(plugin) => everything(&plugin),
        Err(PjrtError::Version { .. }) => return BTreeSet::from(["errors"]),
        Err(error) => vec![error],
    };
    let name = |error: &PjrtError| match error {
        PjrtError::MissingFunction { function, .. } => Some(*function),
        // Without the function for codes the error is as it was, but for the code.
        PjrtError::Plugin {
            function, message, ..
        } => {
            let same = |other: &PjrtError| {
                matches!(other, PjrtError::Plugin { function: f, message: m, .. }
                    if f == function && m == message)
            };
            assert!(whole.iter().any(same), "{control}: {error:?}");
            None
        }
        error => panic!("{control}: {error:?}"),
    };
    errors.iter().filter_map(name).collect()
}

#[test]
fn a_missing_function_is_an_error_that_names_it() {
    let Some(plugin) = cpu_plugin() else { return };
    let folder = tempfile::tempdir().unwrap();
    let control = folder.path().join("control");
    let define = format!("CONTROL=\"{}\"", control.display());
    let Some(shim) = compile_c("holes.c", folder.path(), &[&define]) else {
        return;
    };
    within(LIMIT, || {
        let real = plugin.path().display().to_string();
        let whole = everything(&plugin);
        let mut named = BTreeSet::new();
        for hole in 0..ENTRIES {
            let found = missing(&shim, &format!("{real} {ENTRIES} {hole}"), &whole);
            assert!(found.len() <= 1, "without entry {hole}: {found:?}");
            named.extend(found);
        }
        // Functions that only destroy, and those whose answer may be left out, are not noticed.
        assert!(named.len() > 40, "{named:?}");
        assert!(
            named.contains("errors") && named.contains("PJRT_Event_Await"),
            "{named:?}"
        );
        for entries in (0..=ENTRIES).step_by(9) {
            missing(&shim, &format!("{real} {entries} {ENTRIES}"), &whole);
        }
    });
}
