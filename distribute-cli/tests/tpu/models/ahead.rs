//! The same steps compiled for devices that are not there.

use std::process::Command;
use std::sync::Arc;

use burn::tensor::FloatDType;
use distribute_core::{Adam, Error, Strategy, StrategyExt};
use distribute_tpu_xla::pjrt::{LibtpuEnvironment, Plugin, Topology};
use distribute_tpu_xla::{CompileReport, CompiledProgram, TpuCompiler, TpuError};

use super::task::{Task, step};
use super::tiles::{donated, tiled_bytes};
use crate::plugins::{cpu_plugin, libtpu, within};

const MODELS: [&str; 4] = ["mlp", "digits-cnn", "mnist-cnn", "text"];

/// Compiles the training step of a model.
fn compiled(topology: &Topology, model: &str) -> CompiledProgram {
    let compiler = TpuCompiler::new(topology.clone(), None).unwrap();
    let replicas = compiler.num_replicas_in_sync();
    let mut task = Task::new(model, 1, FloatDType::F32);
    let optimizer = Arc::new(Adam::new(1e-3));
    let mut state = compiler
        .scope(|device| task.state(optimizer, device))
        .unwrap();
    let step = step(task.global_batch());
    let error: Error = compiler
        .run((&mut state, task.batch(replicas)), step)
        .unwrap_err();
    assert!(
        matches!(TpuError::of(&error), Some(TpuError::CompiledOnly { .. })),
        "{error}"
    );
    let mut programs = compiler.programs();
    assert_eq!(programs.len(), 1);
    programs.remove(0)
}

/// The groups of all all-reduces in a program's text, as `0,1,2`.
fn groups(stablehlo: &str) -> Vec<String> {
    let found = stablehlo.split("replica_groups = dense<[[").skip(1);
    let list = |rest: &str| rest[..rest.find(']').unwrap()].replace(' ', "");
    found.map(list).collect()
}

/// What both compilers must have made of a step.
fn check(model: &str, topology: &Topology, tiled: bool) {
    let program = compiled(topology, model);
    let report = CompileReport::new(&program, topology).unwrap();
    let name = format!("{model} for {}", report.topology);
    assert_eq!(report.replicas, topology.devices().len(), "{name}");
    let all: Vec<String> = (0..report.replicas).map(|r| r.to_string()).collect();
    // A TPU's compiler joins what is asked for one by one.
    let asked = if tiled {
        donated(&program.stablehlo).len() / 3
    } else {
        1
    };
    assert_eq!(
        groups(&program.stablehlo),
        vec![all.join(","); asked],
        "{name}"
    );
    assert_eq!(report.collectives, [("all-reduce", 1)], "{name}");
    let donated = donated(&program.stablehlo);
    let plain = |dims: &Vec<usize>| 4 * dims.iter().product::<usize>();
    assert_eq!(
        donated.iter().map(plain).sum::<usize>(),
        report.donated_bytes
    );
    let aliased = if tiled {
        donated.iter().map(|dims| tiled_bytes(dims)).sum()
    } else {
        report.donated_bytes
    };
    assert_eq!(report.memory.alias_bytes, aliased as i64, "{name}");
    check_estimates(&program, &report, tiled, &name);
    assert_ne!(report.fits(), Some(false), "{name}");
}

/// What a TPU's compiler estimates: cycles beside each operation of its program, and a time. Others
/// leave no cycles.
fn check_estimates(program: &CompiledProgram, report: &CompileReport, tiled: bool, name: &str) {
    let optimized = program.executable.optimized_program().unwrap();
    let text = String::from_utf8_lossy(&optimized.code).into_owned();
    let beside = text.split(r#""estimated_cycles":""#).skip(1);
    let cycles = beside.map(|rest| rest[..rest.find('"').unwrap()].parse::<u64>().unwrap());
    let cycles: Vec<u64> = cycles.collect();
    if !tiled {
        assert_eq!((cycles.len(), report.estimated_cycles), (0, None), "{name}");
        return;
    }
    // These models' steps take at least ten operations and some microseconds.
    assert!(cycles.len() > 10, "{name}: {cycles:?}");
    let sum = cycles.iter().sum::<u64>();
    assert_eq!(report.estimated_cycles, Some(sum), "{name}");
    assert!((10_000..10_000_000).contains(&sum), "{name}: {sum}");
    let costs = program.executable.cost_analysis().unwrap();
    let seconds = costs["optimal_seconds"].as_f64().unwrap();
    let estimated = report.estimated_time.unwrap().as_secs_f64();
    assert!(
        (estimated - seconds).abs() <= 1e-9,
        "{name}: {estimated}, {seconds}"
    );
    assert!((1e-6..1e-2).contains(&estimated), "{name}: {estimated}");
}

#[test]
fn for_eight_cpus() {
    within(300, || {
        let Some(plugin) = cpu_plugin() else { return };
        let plugin = Plugin::load(plugin).unwrap();
        let topology = plugin.topology("cpu:8", &[]).unwrap();
        for model in MODELS {
            check(model, &topology, false);
        }
    });
}

/// libtpu reads its variables from the environment, so it is loaded in a process of its own.
#[test]
fn for_tpus() {
    let Some(library) = libtpu() else { return };
    let environment = LibtpuEnvironment::compile_only();
    if environment.check().is_err() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "models::ahead::for_tpus", "--nocapture"]);
        environment.apply_to(&mut child);
        assert!(child.status().unwrap().success());
        return;
    }
    within(600, || {
        let plugin = Plugin::load(&library).unwrap();
        for name in ["v5e:2x4", "v4:2x2x2", "v5p:2x2x2", "v6e:2x4"] {
            let topology = plugin.topology(name, &[]).unwrap();
            for model in MODELS {
                check(model, &topology, true);
            }
        }
    });
}
