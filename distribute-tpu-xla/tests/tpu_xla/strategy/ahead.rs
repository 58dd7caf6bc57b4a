//! Steps compiled for devices that are not there.

use std::process::Command;

use burn::prelude::*;
use distribute_core::{
    Adam, Error, Mirrored, PerReplica, Policy, Result, Strategy, StrategyExt, TrainState,
};
use distribute_data::{AverageLoss, sparse_categorical_crossentropy};
use distribute_tpu_xla::pjrt::{LibtpuEnvironment, Plugin, Topology};
use distribute_tpu_xla::{CompileReport, CompiledProgram, TpuCompiler, TpuError};

use crate::strategy::models::{Cnn, Mlp, Transformer, cnn_step, mlp_step, transformer_step};
use crate::strategy::support::{Data, libtpu, plugin, within};
use crate::strategy::tiles::{donated, tiled_bytes};

/// Runs one step of each model, which compiles it.
fn compile_all(compiler: &TpuCompiler) -> Vec<CompiledProgram> {
    let replicas = compiler.num_replicas_in_sync();
    let refused = |outcome: Result<PerReplica<Tensor<1>>>| {
        let error: Error = outcome.err().unwrap();
        assert!(
            matches!(TpuError::of(&error), Some(TpuError::CompiledOnly { .. })),
            "{error}"
        );
    };
    let mut mlp = state(compiler, Mlp::new);
    let batch = Data::new(1, replicas, &[12], 5).batch::<2>(8);
    refused(compiler.run((&mut mlp, batch), mlp_step(8 * replicas)));
    assert_eq!(
        (mlp.primary().unwrap().step(), mlp.poisoned()),
        (0, None),
        "nothing has changed"
    );

    let mut cnn = state(compiler, Cnn::new);
    let batch = Data::new(1, replicas, &[1, 8, 8], 10).batch::<4>(8);
    refused(compiler.run((&mut cnn, batch), cnn_step(8 * replicas)));

    let mut transformer = state(compiler, Transformer::new);
    let batch = Data::new(1, replicas, &[], 11).tokens(4, 7);
    refused(compiler.run((&mut transformer, batch), transformer_step(4 * replicas)));
    compiler.programs()
}

fn state<M: Module + 'static>(
    compiler: &TpuCompiler,
    model: impl FnOnce(&Device) -> M,
) -> Mirrored<TrainState<M>> {
    let build = |device: &Device| TrainState::new(model(device), Adam::new(1e-3));
    compiler.scope(build).unwrap()
}

/// A step in 16 bits, that of `f16` with a dynamic loss scale: the compiler takes it, and all of
/// the state is donated although the program may leave the update out.
fn check_mixed(compiler: &TpuCompiler, is_tpu: bool) {
    let replicas = compiler.num_replicas_in_sync();
    for (policy, name) in [
        (Policy::mixed_bfloat16(), "bf16"),
        (Policy::mixed_float16(), "f16"),
    ] {
        let build = |device: &Device| {
            TrainState::new(Mlp::new(device), Adam::new(1e-3)).with_loss_scale(policy.loss_scale())
        };
        let mut state = compiler.scope(build).unwrap();
        let batch = Data::new(1, replicas, &[12], 5).batch::<2>(8);
        let outcome = compiler.run((&mut state, batch), |ctx, (state, (x, y))| {
            let logits = policy.model(&state.model)?.forward(policy.cast(x));
            let losses = sparse_categorical_crossentropy(policy.output(logits), y);
            let loss = AverageLoss::new().global_batch_size(8 * replicas);
            let loss = loss.of(ctx, losses)?;
            let gradients = ctx.gradient(&state.scale_loss(&loss), &state.model)?;
            state.apply_gradients(ctx, gradients).map(drop)
        });
        let error = outcome.unwrap_err();
        assert!(
            matches!(TpuError::of(&error), Some(TpuError::CompiledOnly { .. })),
            "{policy}: {error}"
        );
        let program = compiler.programs().pop().unwrap();
        assert!(program.stablehlo.contains(&format!("x{name}>")), "{policy}");
        let donated = donated(&program.stablehlo);
        let aliased = state_bytes(&donated, is_tpu);
        let memory = program.executable.memory_stats().unwrap();
        assert_eq!(memory.alias_bytes, aliased as i64, "{policy}: {memory:?}");
    }
}

fn check(programs: &[CompiledProgram], topology: &Topology, is_tpu: bool) {
    assert_eq!(programs.len(), 3);
    for program in programs {
        let gradients = donated(&program.stablehlo).len() / 3;
        let asked = if is_tpu { gradients } else { 1 };
        assert_eq!(program.all_reduces, asked);
        let report = CompileReport::new(program, topology).unwrap();
        assert_eq!(
            report.collectives,
            [("all-reduce", 1)],
            "one for all gradients"
        );
        assert!(program.stablehlo.contains("stablehlo.all_reduce"));
        let memory = program.executable.memory_stats().unwrap();
        let donated = donated(&program.stablehlo);
        let aliased = state_bytes(&donated, is_tpu);
        assert_eq!(memory.alias_bytes, aliased as i64, "{memory:?}");
        if !is_tpu {
            assert_eq!(aliased, program.donated_bytes);
        }
    }
}

/// The bytes of a donated state of Adam, whose two slots have the dimensions of their parameter.
fn state_bytes(donated: &[Vec<usize>], is_tpu: bool) -> usize {
    let (parameters, slots) = donated.split_at(donated.len() / 3);
    let expected = parameters.iter().flat_map(|dims| [dims, dims]);
    assert!(expected.eq(slots), "{donated:?}");
    let bytes = |dims: &Vec<usize>| {
        if is_tpu {
            tiled_bytes(dims)
        } else {
            4 * dims.iter().product::<usize>()
        }
    };
    donated.iter().map(bytes).sum()
}

#[test]
fn for_eight_cpus() {
    within(120, || {
        let Some(plugin) = plugin() else {
            return;
        };
        let topology = Plugin::load(plugin)
            .unwrap()
            .topology("cpu:8", &[])
            .unwrap();
        let error = TpuCompiler::new(topology.clone(), Some(9)).unwrap_err();
        assert!(
            matches!(error, TpuError::Replicas { devices: 8, .. }),
            "{error}"
        );
        let compiler = TpuCompiler::new(topology.clone(), None).unwrap();
        check(&compile_all(&compiler), &topology, false);
        check_mixed(&compiler, false);
    });
}

/// libtpu reads its variables from the environment, so it is loaded in a process of its own.
#[test]
fn for_tpus() {
    let Some(library) = libtpu() else { return };
    let environment = LibtpuEnvironment::compile_only();
    if environment.check().is_err() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "strategy::ahead::for_tpus", "--nocapture"]);
        environment.apply_to(&mut child);
        assert!(child.status().unwrap().success());
        return;
    }
    within(600, || {
        let plugin = Plugin::load(&library).unwrap();
        for name in ["v5e:2x4", "v4:2x2x2", "v5p:2x2x2", "v6e:2x4"] {
            let topology = plugin.topology(name, &[]).unwrap();
            let compiler = TpuCompiler::new(topology.clone(), None).unwrap();
            check(&compile_all(&compiler), &topology, true);
            check_mixed(&compiler, true);
        }
    });
}
