//! What a captured step says of running statistics.

use burn::nn::BatchNormConfig;
use burn::prelude::*;
use distribute_core::{
    LocalBatchNorm, Result, Sgd, StrategyExt, SyncBatchNorm, SyncBatchNormConfig, TrainState,
};

use super::support::{Recording, batch};

/// One layer with running statistics of each replica, and one of all.
#[derive(Module, Debug)]
struct Net {
    own: LocalBatchNorm,
    all: SyncBatchNorm,
}

fn net(device: &Device) -> Result<TrainState<Net>> {
    let net = Net {
        own: BatchNormConfig::new(4).init(device).into(),
        all: SyncBatchNormConfig::new(4).init(device)?,
    };
    Ok(TrainState::new(net, Sgd::new(0.1).momentum(0.9)))
}

/// One number of each replica in one output, of which one is read in each call. The new tensors
/// still take over the memory of the old ones.
#[test]
fn one_number_per_replica_is_read_where_there_are_running_statistics() {
    for replicas in [1, 3] {
        let strategy = Recording::new(replicas);
        let mut state = strategy.try_scope(net).unwrap();
        for calls in 1..4 {
            let ran = strategy.run((&mut state, batch(replicas, 2)), |ctx, (state, (x, _))| {
                // As behind another layer: with gradients.
                let x = state
                    .model
                    .own
                    .forward(x * state.model.own.gamma.val().unsqueeze())?;
                let loss = state.model.all.forward(x).powi_scalar(2).sum();
                ctx.loss_is_scaled();
                let gradients = ctx.gradient(&loss, &state.model)?;
                state.apply_gradients(ctx, gradients).map(drop)
            });
            ran.unwrap();
            assert_eq!(strategy.reads(), calls);
        }
        let outputs = strategy.last().outputs;
        let (states, others): (Vec<_>, Vec<_>) = outputs
            .into_iter()
            .partition(|output| output.donated_from.is_some());
        // Weights, their momenta and the statistics of two layers.
        assert_eq!(states.len(), 12);
        let shapes: Vec<_> = others.into_iter().map(|output| output.spec.shape).collect();
        assert_eq!(shapes, [vec![replicas]]);
    }
}

/// Evaluation changes no statistics.
#[test]
fn a_step_that_only_reads_says_nothing() {
    let strategy = Recording::new(2);
    let state = strategy.try_scope(net).unwrap();
    let ran = strategy.run((&state, batch(2, 2)), |_, (state, (x, _))| {
        let x = state.model.own.forward_inference(x)?;
        state.model.all.forward_inference(x)
    });
    ran.unwrap();
    assert_eq!(strategy.last().outputs.len(), 1, "the result");
}
