//! Random numbers in a step.

use burn::prelude::*;
use distribute_core::{
    MirroredStrategy, PerReplica, Sgd, Strategy, StrategyExt, TrainState, dropout,
};

use distribute_tpu_xla::TpuCompiler;
use distribute_tpu_xla::pjrt::Plugin;

use crate::strategy::models::{Mlp, Transformer, transformer_step};
use crate::strategy::support::{Data, plugin, strategy, within};

#[test]
fn dropout_differs_by_step_and_replica_and_has_the_right_rate() {
    within(120, || {
        let Some(tpu) = strategy(2) else {
            return;
        };
        let build = |device: &Device| TrainState::new(Mlp::new(device), Sgd::new(0.01));
        let mut state = tpu.scope(build).unwrap();
        let ones = || PerReplica::new(vec![Tensor::<2>::ones([50, 100], &Device::flex()); 2]);
        let mut seen: Vec<Vec<f32>> = Vec::new();
        for _ in 0..2 {
            let kept = tpu
                .run((&mut state, ones()), |ctx, (state, x)| {
                    let kept = dropout(x, 0.25, &mut ctx.rng(5, state.step()));
                    let loss = state
                        .model
                        .forward(kept.clone().slice([0..50, 0..12]))
                        .sum();
                    ctx.loss_is_scaled();
                    let gradients = ctx.gradient(&loss, &state.model)?;
                    state.apply_gradients(ctx, gradients)?;
                    Ok(kept)
                })
                .unwrap();
            for kept in kept.into_values() {
                seen.push(kept.into_data().try_to_vec().unwrap());
            }
        }
        for values in &seen {
            let scaled = 1.0_f32 / 0.75;
            let allowed = |value: &f32| *value == 0.0 || (value - scaled).abs() < 1e-6;
            assert!(values.iter().all(allowed));
            let kept = values.iter().filter(|value| **value > 0.0).count();
            assert!((3600..3900).contains(&kept), "{kept} of 5000");
        }
        for first in 0..seen.len() {
            for second in 0..first {
                assert_ne!(seen[first], seen[second]);
            }
        }
        assert_eq!(tpu.statistics().programs, 1);
    });
}

/// Each draw is a loop in the program, not twenty rounds written out: XLA's CPU compiler needs half
/// a second for those.
#[test]
fn a_dropout_is_a_small_part_of_the_program() {
    within(120, || {
        let Some(plugin) = plugin() else { return };
        let plugin = Plugin::load(plugin).unwrap();
        let length = |rate: f64| {
            let topology = plugin.topology("cpu:1", &[]).unwrap();
            let compiler = TpuCompiler::new(topology, None).unwrap();
            let build = |device: &Device| {
                TrainState::new(Transformer::with(6, rate, device), Sgd::new(0.01))
            };
            let mut state = compiler.scope(build).unwrap();
            let tokens = Data::new(1, 1, &[], 11).tokens(4, 7);
            let outcome = compiler.run((&mut state, tokens), transformer_step(4));
            assert!(outcome.is_err());
            compiler.programs().remove(0).stablehlo
        };
        let (without, with) = (length(0.0), length(0.1));
        let count = |text: &str, what: &str| text.matches(what).count();
        assert_eq!(count(&without, "stablehlo.while"), 0);
        // One for each dropout and one for their keys.
        assert_eq!(count(&with, "stablehlo.while"), 24 + 1);
        let more = with.lines().count() - without.lines().count();
        assert!(more < 24 * 80, "{more} lines for 24 dropouts");
    });
}

/// burn's own layers drop something, as under other strategies: two passes differ.
#[test]
fn dropout_layers_of_a_model_drop() {
    within(120, || {
        let Some(tpu) = strategy(1) else { return };
        let cpu = MirroredStrategy::builder().replicas(1).build().unwrap();
        for strategy in [&tpu as &dyn Strategy, &cpu] {
            for (rate, differs) in [(0.3, true), (0.0, false)] {
                let build = move |device: &Device| {
                    TrainState::new(Transformer::with(1, rate, device), Sgd::new(0.01))
                };
                let mut state = strategy.scope(build).unwrap();
                let tokens = Data::new(1, 1, &[], 11).tokens(4, 7);
                let found = strategy.run((&mut state, tokens), |_, (state, tokens)| {
                    let first = state.model.forward(tokens.clone());
                    Ok((first - state.model.forward(tokens)).abs().sum())
                });
                let found: f32 = found.unwrap().into_values().remove(0).into_scalar();
                assert_eq!(found > 0.0, differs, "{}, {rate}", strategy.name());
            }
        }
    });
}
