//! What is no plugin, or only part of one, through the resolver and the strategy: typed errors with
//! the reason, and never a panic.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use burn::nn::{Linear, LinearConfig};
use burn::prelude::*;
use distribute_core::{Error, PerReplica, ReduceOp, StrategyExt};
use distribute_tpu_xla::pjrt::{ErrorCode, PjrtError};
use distribute_tpu_xla::{TpuClusterResolver, TpuError, TpuStrategy};

use crate::pjrt::fake::compile_c;
use crate::strategy::support::{plugin, strategy, within};

/// Entries of the table of version 0.90.
const ENTRIES: usize = 128;

fn resolver() -> TpuClusterResolver {
    let nothing = BTreeMap::<String, String>::new();
    TpuClusterResolver::resolve_in("local", &nothing).unwrap()
}

#[test]
fn what_is_no_plugin_is_an_error_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.so");
    fs::write(&text, "this is text\n".repeat(100)).unwrap();
    let mut cases = vec![
        (folder.path().join("missing.so"), "No such file"),
        (text, "invalid ELF header"),
    ];
    let defines: [(&str, &str); 4] = [
        (
            "SYMBOL=SomethingElse",
            "does not export the function GetPjrtApi",
        ),
        ("NO_TABLE", "returned no table"),
        ("MAJOR=1", "1.90"),
        ("MINOR=28", "0.28"),
    ];
    for (define, reason) in defines {
        let folder = folder.path().join(reason.replace(' ', "-"));
        fs::create_dir(&folder).unwrap();
        let Some(library) = compile_c("fake.c", &folder, &[define]) else {
            return;
        };
        cases.push((library, reason));
    }
    for (path, reason) in cases {
        let error = resolver().connect_with(Some(&path)).unwrap_err();
        assert!(matches!(error, TpuError::Initialize { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.starts_with("TPU failed to initialize: "), "{text}");
        assert!(text.contains(reason), "{text}");
        assert!(text.contains(path.to_str().unwrap()), "{text}");
    }
}

/// Builds a strategy, runs a step on a state and a batch, reads the result: the first error.
fn train(library: &Path) -> Result<(), String> {
    let connection = resolver().connect_with(Some(library));
    let connection = connection.map_err(|error| error.to_string())?;
    let system = connection.initialize_with(&[("cpu_device_count", 2_i64.into())]);
    let system = system.map_err(|error| error.to_string())?;
    let tpu = TpuStrategy::new(&system).map_err(|error| error.to_string())?;
    let step = || -> Result<(), Error> {
        let state = tpu.scope(|device| LinearConfig::new(2, 1).init(device))?;
        let rows = PerReplica::new(vec![Tensor::<2>::ones([1, 2], &Device::flex()); 2]);
        let sum = tpu.run(
            (&state, rows),
            |ctx, (linear, rows): (&Linear, Tensor<2>)| {
                ctx.all_reduce(ReduceOp::Sum, linear.forward(rows))
            },
        )?;
        tpu.gather(sum, 0).map(drop)
    };
    step().map_err(|error| {
        assert!(TpuError::of(&error).is_some(), "untyped: {error:?}");
        error.to_string()
    })
}

#[test]
fn whatever_a_plugin_leaves_out_is_an_error_of_the_strategy() {
    let Some(real) = plugin() else { return };
    let folder = tempfile::tempdir().unwrap();
    let control = folder.path().join("control");
    let define = format!("CONTROL=\"{}\"", control.display());
    let Some(shim) = compile_c("holes.c", folder.path(), &[&define]) else {
        return;
    };
    within(300, || {
        let without = |entries: usize, hole: usize| {
            let text = format!("{} {entries} {hole}", real.display());
            fs::write(&control, text).unwrap();
            train(&shim)
        };
        without(ENTRIES, ENTRIES).unwrap();
        let mut needed = 0;
        for hole in 0..ENTRIES {
            if let Err(error) = without(ENTRIES, hole) {
                let named = error.contains("PJRT_") || error.contains("errors");
                assert!(named, "without entry {hole}: {error}");
                needed += 1;
            }
        }
        assert!(needed > 15, "{needed}");
        for entries in [0, 1, 20, 60] {
            without(entries, ENTRIES).unwrap_err();
        }
    });
}

#[test]
fn too_much_memory_is_an_error_and_the_strategy_goes_on() {
    within(60, || {
        let Some(tpu) = strategy(1) else { return };
        let one = || PerReplica::new(vec![Tensor::<2>::ones([1, 1], &Device::flex())]);
        let outcome = tpu.run(one(), |_, x| {
            let large = x.expand([1 << 22, 1 << 22]);
            Ok(large.clone().matmul(large))
        });
        let error = outcome.unwrap_err();
        let Some(TpuError::Pjrt(error)) = TpuError::of(&error) else {
            panic!("{error:?}");
        };
        assert!(matches!(error, PjrtError::Plugin { .. }), "{error:?}");
        let code = error.code();
        assert_eq!(code, Some(ErrorCode::ResourceExhausted), "{error}");
        let sum = tpu.run(one(), |_, x| Ok(x.sum())).unwrap();
        assert_eq!(sum.into_values().remove(0).into_scalar::<f32>(), 1.0);
    });
}
