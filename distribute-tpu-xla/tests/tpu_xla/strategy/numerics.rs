//! The same numbers as on the CPU backend, after many steps.

use std::sync::Arc;

use burn::prelude::*;
use distribute_core::optim::Optimizer;
use distribute_core::{
    Adam, AdamW, Mirrored, MirroredStrategy, ReduceOp, Replicate, Sgd, Strategy, StrategyExt,
    TrainState,
};
use distribute_data::{Batching, Digits, StrategyDataExt};
use distribute_tpu_xla::TpuStrategy;

use crate::strategy::models::{Cnn, Mlp, Transformer, cnn_step, mlp_step, transformer_step};
use crate::strategy::support::{Data, assert_close, mirrored, strategy, within};

/// A state of each strategy, with the same weights.
fn states<M: Module + 'static>(
    tpu: &TpuStrategy,
    cpu: &MirroredStrategy,
    state: TrainState<M>,
) -> (Mirrored<TrainState<M>>, Mirrored<TrainState<M>>) {
    let on = |strategy: &dyn Strategy| strategy.scope(|device| state.replicate(device)).unwrap();
    (on(tpu), on(cpu))
}

fn device() -> Device {
    Device::flex().autodiff()
}

/// Trains both for `steps` steps and compares losses and all tensors of the states.
fn compare(replicas: usize, state: TrainState<Mlp>, steps: usize) {
    let Some(tpu) = strategy(replicas) else {
        return;
    };
    let cpu = mirrored(replicas);
    let (mut on_tpu, mut on_cpu) = states(&tpu, &cpu, state);
    let mut data = [
        Data::new(7, replicas, &[12], 5),
        Data::new(7, replicas, &[12], 5),
    ];
    let step = mlp_step(8 * replicas);
    for number in 0..steps {
        let [first, second] = &mut data;
        let found = tpu.run((&mut on_tpu, first.batch::<2>(8)), step).unwrap();
        let expected = cpu.run((&mut on_cpu, second.batch::<2>(8)), step).unwrap();
        let found: f32 = tpu.reduce(ReduceOp::Sum, found).unwrap().into_scalar();
        let expected: f32 = cpu.reduce(ReduceOp::Sum, expected).unwrap().into_scalar();
        assert!(
            (found - expected).abs() <= 1e-4 * expected.abs().max(1.0),
            "step {number}: loss {found}, expected {expected}"
        );
    }
    let found = on_tpu.primary().unwrap();
    let expected = on_cpu.primary().unwrap();
    assert_eq!(found.step(), expected.step());
    assert_close(
        &found.to_tensors().unwrap(),
        &expected.to_tensors().unwrap(),
        1e-4,
    );
}

fn optimizers() -> Vec<Arc<dyn Optimizer>> {
    vec![
        Arc::new(Sgd::new(0.05)),
        Arc::new(Sgd::new(0.02).momentum(0.9).nesterov(true)),
        Arc::new(Adam::new(1e-3)),
        Arc::new(AdamW::new(1e-3).weight_decay(0.01)),
    ]
}

#[test]
fn fifty_steps_of_an_mlp_with_every_optimizer() {
    within(600, || {
        for replicas in [1, 2, 8] {
            for optimizer in optimizers() {
                let model = Mlp::new(&device());
                compare(replicas, TrainState::with_optimizer(model, optimizer), 50);
            }
        }
    });
}

/// Fifty steps of a small decoder-only transformer.
fn transformer(replicas: usize) {
    within(300, || {
        let Some(tpu) = strategy(replicas) else {
            return;
        };
        let cpu = mirrored(replicas);
        let state = TrainState::new(Transformer::new(&device()), AdamW::new(1e-3));
        let (mut on_tpu, mut on_cpu) = states(&tpu, &cpu, state);
        let step = transformer_step(16);
        let mut data = [
            Data::new(3, replicas, &[], 11),
            Data::new(3, replicas, &[], 11),
        ];
        for _ in 0..50 {
            let examples = 16 / replicas;
            let [first, second] = &mut data;
            tpu.run((&mut on_tpu, first.tokens(examples, 7)), step)
                .unwrap();
            cpu.run((&mut on_cpu, second.tokens(examples, 7)), step)
                .unwrap();
        }
        let found = on_tpu.primary().unwrap().to_tensors().unwrap();
        assert_close(
            &found,
            &on_cpu.primary().unwrap().to_tensors().unwrap(),
            1e-4,
        );
    });
}

#[test]
fn fifty_steps_of_a_transformer_with_one_replica() {
    transformer(1);
}

#[test]
fn fifty_steps_of_a_transformer_with_two_replicas() {
    transformer(2);
}

#[test]
fn fifty_steps_of_a_transformer_with_eight_replicas() {
    transformer(8);
}

#[test]
fn clipping_and_micro_batches() {
    within(400, || {
        for replicas in [1, 2] {
            let clipped = TrainState::new(Mlp::new(&device()), Sgd::new(0.1));
            compare(replicas, clipped.clip_by_global_norm(0.05), 10);
            let summed = TrainState::new(Mlp::new(&device()), Adam::new(1e-3));
            // Ends in the middle of an accumulation.
            compare(replicas, summed.accumulate(3), 11);
        }
    });
}

#[test]
fn an_epoch_of_the_digits_with_a_short_last_batch() {
    within(600, || {
        for replicas in [1, 2] {
            let Some(tpu) = strategy(replicas) else {
                return;
            };
            let cpu = mirrored(replicas);
            let state = TrainState::new(Cnn::new(&device()), Adam::new(5e-3));
            let (mut on_tpu, mut on_cpu) = states(&tpu, &cpu, state);
            let first = train(&tpu, &mut on_tpu);
            let second = train(&cpu, &mut on_cpu);
            assert!(first.last().unwrap() + 0.2 < first[0], "{first:?}");
            for (found, expected) in first.iter().zip(&second) {
                assert!(
                    (found - expected).abs() < 1e-3,
                    "{found}, expected {expected}"
                );
            }
            let found = on_tpu.primary().unwrap().to_tensors().unwrap();
            let expected = on_cpu.primary().unwrap().to_tensors().unwrap();
            assert_close(&found, &expected, 1e-3);
            let statistics = tpu.statistics();
            assert_eq!(
                (statistics.steps, statistics.programs),
                (1, 2),
                "{statistics:?}"
            );
        }
    });
}

/// One epoch; the mean losses of its quarters.
fn train(strategy: &dyn Strategy, state: &mut Mirrored<TrainState<Cnn>>) -> Vec<f32> {
    let digits = Digits::open().unwrap().train().unwrap();
    let batching = Batching::global(64).shuffle(3);
    let data = strategy.distribute_dataset(digits, batching).unwrap();
    let mut losses: Vec<f32> = Vec::new();
    for batch in data.epoch(0) {
        let loss = strategy
            .run((&mut *state, batch.unwrap()), cnn_step(64))
            .unwrap();
        losses.push(strategy.reduce(ReduceOp::Sum, loss).unwrap().into_scalar());
    }
    let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
    losses.chunks(losses.len().div_ceil(4)).map(mean).collect()
}

#[test]
fn a_checkpoint_goes_both_ways() {
    within(400, || {
        let Some(tpu) = strategy(2) else {
            return;
        };
        let cpu = mirrored(2);
        let state = TrainState::new(Mlp::new(&device()), Adam::new(1e-3));
        let (mut on_tpu, mut on_cpu) = states(&tpu, &cpu, state);
        let step = mlp_step(16);
        let mut data = Data::new(1, 2, &[12], 5);
        for _ in 0..5 {
            tpu.run((&mut on_tpu, data.batch::<2>(8)), step).unwrap();
        }
        // From the TPU to the CPU: both go on alike.
        let saved = on_tpu.primary().unwrap().to_tensors().unwrap();
        on_cpu
            .update(|state| state.load_tensors(&saved, 5))
            .unwrap();
        let mut again = [Data::new(2, 2, &[12], 5), Data::new(2, 2, &[12], 5)];
        for _ in 0..5 {
            let [first, second] = &mut again;
            tpu.run((&mut on_tpu, first.batch::<2>(8)), step).unwrap();
            cpu.run((&mut on_cpu, second.batch::<2>(8)), step).unwrap();
        }
        let expected = on_cpu.primary().unwrap().to_tensors().unwrap();
        assert_close(
            &on_tpu.primary().unwrap().to_tensors().unwrap(),
            &expected,
            1e-4,
        );
        // And back, into a TPU state that has gone elsewhere meanwhile.
        tpu.run((&mut on_tpu, data.batch::<2>(8)), step).unwrap();
        on_tpu
            .update(|state| state.load_tensors(&expected, 10))
            .unwrap();
        assert_close(
            &on_tpu.primary().unwrap().to_tensors().unwrap(),
            &expected,
            0.0,
        );
        let mut again = [Data::new(3, 2, &[12], 5), Data::new(3, 2, &[12], 5)];
        for _ in 0..3 {
            let [first, second] = &mut again;
            tpu.run((&mut on_tpu, first.batch::<2>(8)), step).unwrap();
            cpu.run((&mut on_cpu, second.batch::<2>(8)), step).unwrap();
        }
        let expected = on_cpu.primary().unwrap().to_tensors().unwrap();
        assert_close(
            &on_tpu.primary().unwrap().to_tensors().unwrap(),
            &expected,
            1e-4,
        );
        assert_eq!(on_tpu.host_metadata().step(), 13);
    });
}
