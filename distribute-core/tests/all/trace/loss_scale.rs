//! A dynamic loss scale in captured steps: what goes in and out of the program, and what the host
//! makes of it.

use burn::prelude::*;
use distribute_core::{
    LossScale, Mirrored, ReplicaContext, Result, Sgd, StrategyExt, TensorData, TrainState,
};

use crate::trace::support::{Mlp, Recording, batch};

type Batch = (Tensor<2>, Tensor<1, Int>);

fn step(ctx: &ReplicaContext, (state, (x, _)): (&mut TrainState<Mlp>, Batch)) -> Result<()> {
    let loss = state.model.forward(x).sum();
    ctx.loss_is_scaled();
    let gradients = ctx.gradient(&state.scale_loss(&loss), &state.model)?;
    state.apply_gradients(ctx, gradients).map(drop)
}

fn state(strategy: &Recording, micro_batches: usize) -> Mirrored<TrainState<Mlp>> {
    let scale = LossScale::dynamic().initial(8.0).unwrap();
    let scale = scale.growth_steps(2).unwrap().bounds(2.0, 16.0).unwrap();
    let build = |device: &Device| {
        TrainState::new(Mlp::new(device), Sgd::new(0.1).momentum(0.5))
            .accumulate(micro_batches)
            .with_loss_scale(scale.clone())
    };
    strategy.scope(build).unwrap()
}

/// The scale, the good and the skipped steps, and the number of updates.
fn numbers(state: &Mirrored<TrainState<Mlp>>) -> (f64, u64, u64, u64) {
    let state = state.host_metadata();
    let scale = state.loss_scale();
    let counts = (scale.good_steps(), scale.skipped_steps());
    (scale.scale(), counts.0, counts.1, state.step())
}

/// The program says 1 for an update that it has made and 0 for one that it has skipped.
fn run(strategy: &Recording, state: &mut Mirrored<TrainState<Mlp>>, says: f64) {
    *strategy.recorder.result.lock().unwrap() = Some(says);
    strategy.run((state, batch(2, 4)), step).unwrap();
}

#[test]
fn the_scale_is_an_input_and_the_host_follows_what_the_program_says() {
    let strategy = Recording::new(2);
    let mut state = state(&strategy, 1);
    for (says, after) in [
        (1.0, (8.0, 1, 0, 1)),
        (1.0, (16.0, 0, 0, 2)),
        (0.0, (8.0, 0, 1, 2)),
        (0.0, (4.0, 0, 2, 2)),
        (1.0, (4.0, 1, 2, 3)),
        (0.0, (2.0, 0, 3, 3)),
        (0.0, (2.0, 0, 4, 3)),
        (1.0, (2.0, 1, 4, 4)),
        (1.0, (4.0, 0, 4, 5)),
    ] {
        let before = TensorData::from([numbers(&state).0 as f32]);
        let reads = strategy.reads();
        run(&strategy, &mut state, says);
        assert_eq!(strategy.reads(), reads + 1, "one number comes back");
        let given = strategy.recorder.arguments.lock().unwrap();
        assert!(given.last().unwrap().contains(&before), "{before:?}");
        assert_eq!(numbers(&state), after);
    }
    assert_eq!(strategy.compiled(), 1);
    assert!(state.poisoned().is_none());
}

/// The gradients of micro-batches wait without a decision, and the scale stays until it is made.
#[test]
fn the_last_of_several_micro_batches_decides() {
    let strategy = Recording::new(2);
    let mut state = state(&strategy, 2);
    for (says, after) in [
        (0.0, (8.0, 0, 0, 0)),
        (1.0, (8.0, 1, 0, 1)),
        (1.0, (8.0, 1, 0, 1)),
        (0.0, (4.0, 0, 1, 1)),
        (0.0, (4.0, 0, 1, 1)),
        (1.0, (4.0, 1, 1, 2)),
    ] {
        run(&strategy, &mut state, says);
        assert_eq!(numbers(&state), after);
    }
    assert_eq!(strategy.compiled(), 2);
    assert!(!state.host_metadata().is_accumulating());
}

#[test]
fn a_loss_that_was_not_scaled_is_an_error() {
    let strategy = Recording::new(2);
    let mut state = state(&strategy, 1);
    let error = strategy.run((&mut state, batch(2, 4)), |ctx, (state, (x, _))| {
        let loss = state.model.forward(x).sum();
        ctx.loss_is_scaled();
        let gradients = ctx.gradient(&loss, &state.model)?;
        state.apply_gradients(ctx, gradients).map(drop)
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("state.scale_loss(&loss)"), "{error}");
    assert!(state.poisoned().is_none());
}
