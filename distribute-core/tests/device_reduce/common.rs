//! Training with what a test does to the gradients in between.

use std::time::Duration;

use distribute_core::{
    Adam, Gradients, Mirrored, ReplicaContext, Result, Strategy, StrategyExt, TrainState,
};

use crate::odd_gradients::{Odd, batches, weights};

/// How long a test may take: a hang fails, and is not waited for.
const LIMIT: Duration = Duration::from_secs(100);

/// Runs a test with a limit.
pub fn within_limit<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
    // Building it does not count.
    crate::fake::built();
    hostile::limit::within(LIMIT, test)
}

/// What a step does with its gradients before they are applied.
pub type Between = fn(&mut Gradients, &ReplicaContext) -> Result<()>;

pub fn nothing(_: &mut Gradients, _: &ReplicaContext) -> Result<()> {
    Ok(())
}

pub fn state<S: Strategy>(strategy: &S) -> Result<Mirrored<TrainState<Odd>>> {
    strategy.scope(|device| TrainState::new(Odd::new(device), Adam::new(0.01)))
}

/// One step on all replicas.
pub fn step<S: Strategy>(
    strategy: &S,
    state: &mut Mirrored<TrainState<Odd>>,
    step: usize,
    between: Between,
) -> Result<()> {
    let batches = batches(strategy, step);
    strategy.run((state, batches), |ctx, (state, (x, y))| {
        let loss = state.model.loss(ctx.replica_id(), x, y);
        ctx.loss_is_scaled();
        let mut gradients = ctx.gradient(&state.scale_loss(&loss), &state.model)?;
        between(&mut gradients, ctx)?;
        state.apply_gradients(ctx, gradients)?;
        Ok(())
    })?;
    Ok(())
}

/// The weights after some steps; they are the same on all replicas.
pub fn train<S: Strategy>(
    strategy: &S,
    configure: fn(TrainState<Odd>) -> TrainState<Odd>,
    between: Between,
) -> Result<Vec<f32>> {
    let mut state =
        strategy.scope(|device| configure(TrainState::new(Odd::new(device), Adam::new(0.01))))?;
    for number in 0..6 {
        step(strategy, &mut state, number, between)?;
    }
    let primary = weights(state.primary().unwrap())?;
    for copy in state.values().unwrap() {
        assert_eq!(weights(copy)?, primary, "replicas differ");
    }
    Ok(primary)
}

/// Equal but for the order of additions.
pub fn close(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{a} {b}");
    }
}
