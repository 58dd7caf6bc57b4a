//! Random numbers in a captured step: the program draws them, or the step is refused.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use burn::prelude::*;
use burn::tensor::Distribution;
use distribute_core::metric::Mean;
use distribute_core::{
    Error, PerReplica, ReplicaContext, ReplicaRng, Result, Sgd, StrategyExt, TrainState, dropout,
    dropout_mask,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::trace::support::{Mlp, Recording, batch};

type State = TrainState<Mlp>;

/// What becomes of a step that changes `hidden`, the output of the first layer, at random.
fn run(
    replicas: usize,
    change: impl Fn(&ReplicaContext, &State, Tensor<2>) -> Result<Tensor<2>> + Sync,
) -> Result<()> {
    let strategy = Recording::new(replicas);
    let build = |device: &Device| TrainState::new(Mlp::new(device), Sgd::new(0.1));
    let mut state = strategy.scope(build).unwrap();
    strategy.run((&mut state, batch(replicas, 4)), |ctx, (state, (x, _))| {
        let hidden = state.model.first.forward(x);
        let loss = change(ctx, state, hidden)?.sum();
        ctx.loss_is_scaled();
        let gradients = ctx.gradient(&loss, &state.model)?;
        state.apply_gradients(ctx, gradients)?;
        Ok(())
    })?;
    Ok(())
}

/// The words of the refusal.
fn refusal(outcome: Result<()>) -> String {
    let error = outcome.unwrap_err();
    let found = error.root_cause();
    assert!(matches!(found, Error::RandomOnHost { .. }), "{error}");
    found.to_string()
}

/// The host's part of a layer that drops units as an eager one does.
fn masked(x: &Tensor<2>, mut rng: impl rand::Rng) -> Tensor<2> {
    Tensor::from_data(dropout_mask(&x.dims(), 0.5, &mut rng), &x.device())
}

#[test]
fn a_stream_of_the_replica_is_not_drawn_from_on_the_host() {
    for replicas in [1, 2] {
        let line = line!() + 2;
        let text = refusal(run(replicas, |ctx, state, x| {
            let mask = masked(&x, ctx.rng(1, state.step()));
            Ok(x * mask)
        }));
        assert!(text.contains("random.rs"), "{text}");
        assert!(text.contains(&format!(":{line}:")), "{text}");
        assert!(text.contains("`distribute_core::dropout`"), "{text}");
    }
    let draws: [fn(&mut ReplicaRng) -> f64; 4] = [
        |rng| rng.random_range(0.0..1.0),
        |rng| f64::from(rng.random::<u32>()),
        |rng| f64::from(rng.random_bool(0.5)),
        |rng| {
            let mut bytes = [0; 8];
            rng.fill(&mut bytes);
            f64::from(bytes[0])
        },
    ];
    for draw in draws {
        let outcome = run(2, |ctx, _, x| Ok(x.mul_scalar(draw(&mut ctx.rng(1, 7)))));
        refusal(outcome);
        // What was drawn decides which operations there are.
        let outcome = run(2, |ctx, _, x| {
            if draw(&mut ctx.rng(1, 7)) > 0.5 {
                Ok(x.exp())
            } else {
                Ok(x)
            }
        });
        refusal(outcome);
    }
}

#[test]
fn numbers_of_other_generators_are_found_in_the_first_call() {
    let own = Mutex::new(ChaCha8Rng::seed_from_u64(1));
    let text = refusal(run(2, |_, _, x| {
        let mask = masked(&x, &mut *own.lock().unwrap());
        Ok(x * mask)
    }));
    assert!(text.contains("the constant f32[4, 8] of"), "{text}");
    assert!(text.contains("behind `first."), "{text}");
    let text = refusal(run(1, |_, _, x| {
        Ok(x.mul_scalar(own.lock().unwrap().random::<f64>()))
    }));
    assert!(
        text.contains("a number of the operation MulScalar"),
        "{text}"
    );
    // burn's generator of the CPU.
    refusal(run(1, |ctx, _, x| {
        let noise = Tensor::<2>::random(x.dims(), Distribution::Default, &Device::flex());
        Ok(x + Tensor::from_data(noise.into_data(), ctx.device()))
    }));
    let turn = AtomicUsize::new(0);
    let text = refusal(run(1, |_, _, x| {
        match turn.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(x.exp()),
            _ => Ok(x.sin()),
        }
    }));
    assert!(
        text.contains("which operations it makes (Exp or Sin"),
        "{text}"
    );
    let text = refusal(run(1, |_, _, x| {
        match turn.fetch_add(1, Ordering::Relaxed) % 2 {
            0 => Ok(x.clone() + x),
            _ => Ok(x),
        }
    }));
    assert!(text.contains("operations"), "{text}");
    let text = refusal(run(2, |_, _, x| {
        Ok(dropout(x, 0.5, &mut *own.lock().unwrap()))
    }));
    assert!(text.contains("the seed of a `dropout`"), "{text}");
}

#[test]
fn what_a_metric_is_given_is_no_random_number_of_the_host() {
    let strategy = Recording::new(1);
    let mean = Mean::new(&strategy);
    let own = Mutex::new(ChaCha8Rng::seed_from_u64(1));
    let step = |ctx: &ReplicaContext, (x,): (Tensor<1>,)| {
        mean.update_state(ctx, own.lock().unwrap().random::<f32>())?;
        Ok(x.sum())
    };
    let ones = PerReplica::new(vec![Tensor::<1>::ones([3], &Device::flex())]);
    let text = refusal(strategy.run((ones.clone(),), step).map(drop));
    assert!(text.contains("a metric"), "{text}");
    assert_eq!(mean.result().unwrap(), 0.0);
    // Beside a metric that is given a result of the step.
    let losses = Mean::new(&strategy);
    let step = |ctx: &ReplicaContext, (x,): (Tensor<1>,)| {
        losses.update_state(ctx, x.clone().sum())?;
        mean.update_state(ctx, own.lock().unwrap().random::<f32>())?;
        Ok(x.sum())
    };
    let text = refusal(strategy.run((ones,), step).map(drop));
    assert!(text.contains("a metric"), "{text}");
}

#[test]
fn what_the_program_draws_is_no_constant() {
    type Change = fn(&ReplicaContext, &State, Tensor<2>) -> Result<Tensor<2>>;
    let drawn: [Change; 4] = [
        |ctx, state, x| Ok(dropout(x, 0.5, &mut ctx.rng(1, state.step()))),
        |ctx, _, x| Ok(dropout(x, 0.5, &mut ctx.rng(1, 0))),
        |ctx, _, x| {
            let noise = Tensor::<2>::random(x.dims(), Distribution::Default, ctx.device());
            Ok(x + noise)
        },
        |_, _, x| Ok(dropout(x, 0.5, &mut ChaCha8Rng::seed_from_u64(7))),
    ];
    for draw in drawn {
        run(2, draw).unwrap();
    }
}

/// A step may go through a map of its own, whose order is another one each time.
#[test]
fn another_order_of_operations_is_no_random_number() {
    for _ in 0..20 {
        run(1, |_, _, x| {
            let factors: HashMap<u32, f64> = (0..8).map(|n| (n, f64::from(n) + 0.5)).collect();
            let scaled = factors.values().map(|factor| x.clone().mul_scalar(*factor));
            let all: Vec<Tensor<2>> = scaled.collect();
            Ok(Tensor::cat(all, 0))
        })
        .unwrap();
    }
}

/// Without a training state nothing says which call it is but their number.
#[test]
fn every_call_has_numbers_of_its_own() {
    let strategy = Recording::new(2);
    let ones = || PerReplica::new(vec![Tensor::<2>::ones([2, 4], &Device::flex()); 2]);
    for step in 0..4 {
        let drop_some =
            |ctx: &ReplicaContext, (x,): (Tensor<2>,)| Ok(dropout(x, 0.5, &mut ctx.rng(1, step)));
        strategy.run((ones(),), drop_some).unwrap();
    }
    assert_eq!(strategy.compiled(), 1);
    let given = strategy.recorder.arguments.lock().unwrap().clone();
    let keys: Vec<_> = given.iter().map(|host| format!("{:?}", host[0])).collect();
    assert_eq!(keys.len(), 4);
    for (index, key) in keys.iter().enumerate() {
        assert!(!keys[..index].contains(key), "{keys:?}");
    }
}

#[test]
fn a_number_of_the_host_that_a_step_returns_is_that_of_its_call() {
    let strategy = Recording::new(1);
    let number = AtomicU64::new(0);
    let step =
        |_: &ReplicaContext, (x,): (Tensor<1>,)| Ok((x.sum(), number.load(Ordering::Relaxed)));
    for expected in 0..5 {
        number.store(expected, Ordering::Relaxed);
        let ones = PerReplica::new(vec![Tensor::<1>::ones([3], &Device::flex())]);
        let found = strategy.run((ones,), step).unwrap();
        assert_eq!(found.values()[0].1, expected);
    }
    assert_eq!(strategy.compiled(), 1);
}

/// The second capture gets tensors that are tracked as the caller's are, also behind a number.
#[test]
fn a_number_between_tensors_makes_no_difference_between_two_captures() {
    let strategy = Recording::new(2);
    let device = Device::flex().autodiff();
    let part = || {
        let x = Tensor::<2>::ones([4, 3], &device);
        (x.clone(), 2_usize, x)
    };
    let given = PerReplica::new(vec![part(), part()]);
    let step = |_: &ReplicaContext, (x, factor, y): (Tensor<2>, usize, Tensor<2>)| {
        let y = burn::tensor::activation::log_softmax(y, 1);
        Ok(x.mul_scalar(factor as f64) + y)
    };
    strategy.run(given, |ctx, part| step(ctx, part)).unwrap();
}
