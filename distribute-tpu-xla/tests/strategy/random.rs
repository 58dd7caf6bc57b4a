//! Random numbers in a step.

use std::time::Instant;

use burn::prelude::*;
use distribute_core::{PerReplica, Sgd, StrategyExt, TrainState, dropout};

use crate::models::{Mlp, Transformer, transformer_step};
use crate::support::{Data, strategy, within};

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

#[test]
fn many_dropouts_compile_quickly() {
    within(300, || {
        for rate in [std::env::var("EX_RATE").unwrap().parse::<f64>().unwrap()] {
            let Some(tpu) = strategy(1) else { return };
            let build = |device: &Device| {
                TrainState::new(Transformer::with(6, rate, device), Sgd::new(0.01))
            };
            let mut state = tpu.scope(build).unwrap();
            let mut data = Data::new(1, 1, &[], 11);
            let started = Instant::now();
            tpu.run((&mut state, data.tokens(4, 7)), transformer_step(4))
                .unwrap();
            println!("{rate}: {:?} {:?}", started.elapsed(), tpu.statistics());
            let started = Instant::now();
            for _ in 0..50 {
                tpu.run((&mut state, data.tokens(4, 7)), transformer_step(4))
                    .unwrap();
            }
            println!("{rate}: 50 steps {:?}", started.elapsed());
        }
    });
}
