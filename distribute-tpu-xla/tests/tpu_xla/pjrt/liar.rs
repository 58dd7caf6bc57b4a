//! The CPU plugin with an answer that breaks the contract: a typed error, no panic, and no memory
//! that the plugin may still write is used for anything else.

use std::path::Path;
use std::time::Duration;
use std::{fs, thread};

use distribute_tpu_xla::pjrt::{Client, CompileOptions, PjrtError, Plugin};

use crate::pjrt::fake::compile_c;
use crate::pjrt::support::{LIMIT, all_reduce, cpu_plugin, within};

/// A client of the plugin that tells this lie.
fn client_with(lie: &str) -> Option<Client> {
    let real = cpu_plugin()?;
    // It stays: the loader would take a file that gets the number of a removed one for that one.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(lie);
    fs::create_dir_all(&folder).unwrap();
    let define = format!("PLUGIN=\"{}\"", real.path().display());
    let liar = Plugin::load(compile_c("liar.c", &folder, &[&define, lie])?).unwrap();
    Some(liar.client(&[("cpu_device_count", 1_i64.into())]).unwrap())
}

#[test]
fn results_without_dimensions_are_an_error() {
    within(LIMIT, || {
        let Some(client) = client_with("NO_DIMENSIONS") else {
            return;
        };
        let error = client.compile(&all_reduce(1, 4), &CompileOptions::default());
        let error = error.unwrap_err();
        assert!(matches!(error, PjrtError::Malformed { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("PJRT_Executable_OutputDimensions"), "{text}");
        assert!(
            text.contains("no dimensions, though the results have 1"),
            "{text}"
        );
    });
}

#[test]
fn memory_that_a_copy_without_an_event_may_still_write_is_never_used_again() {
    within(LIMIT, || {
        let Some(client) = client_with("NO_EVENT") else {
            return;
        };
        let device = &client.devices()[0];
        let buffer = client.buffer(&[1.0_f32; 1000], &[1000], device).unwrap();
        let error = buffer.to_vec::<f32>().unwrap_err();
        assert!(matches!(error, PjrtError::Malformed { .. }), "{error:?}");
        // The allocator gives what was just freed to who asks for as much.
        let others: Vec<Vec<f32>> = (0..50).map(|_| vec![7.0; 1000]).collect();
        thread::sleep(Duration::from_millis(600));
        assert!(others.iter().all(|other| *other == [7.0; 1000]));
    });
}
