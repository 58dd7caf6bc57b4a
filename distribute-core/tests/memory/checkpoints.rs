//! What a save and a restore take beyond the state itself: a copy of it, and one leaf.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::{Adam, Mirrored, MirroredStrategy, ReplicaContext, StrategyExt, TrainState};

use crate::counting::{LIVE, PEAK, alone};

/// Large enough that all else does not count.
const WIDTH: usize = 256;
const LAYERS: usize = 6;
const LEAF: usize = WIDTH * WIDTH * 4;
/// Weights, biases and the tensors of a normalization, with two slots each; statistics.
const STATE: usize = 3 * LAYERS * (LEAF + WIDTH * 4) + 8 * WIDTH * 4;
/// Names, specs, and what the strategy has around a state.
const SLACK: usize = 128 << 10;

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
    norm: BatchNorm,
}

type State = Mirrored<TrainState<Net>>;

/// A state on two replicas of one device, after an update.
fn trained(strategy: &MirroredStrategy, accumulate: usize) -> State {
    let build = |device: &Device| {
        let layer = |_| LinearConfig::new(WIDTH, WIDTH).init(device);
        let net = Net {
            layers: (0..LAYERS).map(layer).collect(),
            norm: BatchNormConfig::new(WIDTH).init(device),
        };
        TrainState::new(net, Adam::new(1e-3)).accumulate(accumulate)
    };
    let mut state = strategy.scope(build).unwrap();
    for _ in 0..=accumulate {
        let step = |ctx: &ReplicaContext, state: &mut TrainState<Net>| {
            let input = Tensor::<2>::ones([2, WIDTH], ctx.device());
            let layers = state.model.layers.iter();
            let output = layers.fold(input, |input, layer| layer.forward(input));
            let loss = state.model.norm.forward(output).sum();
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients).map(drop)
        };
        strategy.run(&mut state, step).unwrap();
    }
    state
}

/// The most bytes that there were beyond those before.
fn peak<R>(work: impl FnOnce() -> R) -> (usize, R) {
    let before = LIVE.load(Ordering::SeqCst);
    PEAK.store(before, Ordering::SeqCst);
    let result = work();
    (PEAK.load(Ordering::SeqCst) - before, result)
}

fn bytes(tensors: &BTreeMap<String, TensorData>) -> usize {
    tensors.values().map(|data| data.as_bytes().len()).sum()
}

fn strategy() -> MirroredStrategy {
    MirroredStrategy::builder().replicas(2).build().unwrap()
}

#[test]
fn a_save_takes_the_state_and_one_leaf() {
    let _alone = alone();
    let strategy = strategy();
    let state = trained(&strategy, 1);
    let primary = state.primary().unwrap();
    let (taken, tensors) = peak(|| primary.to_tensors().unwrap());
    let size = bytes(&tensors);
    assert!(size.abs_diff(STATE) < SLACK, "{size} and {STATE}");
    assert!(taken <= size + LEAF + SLACK, "{taken} for {size}");
}

#[test]
fn comparing_a_state_reads_one_leaf_at_a_time() {
    let _alone = alone();
    let strategy = strategy();
    let state = trained(&strategy, 1);
    let primary = state.primary().unwrap();
    let (taken, elements) = peak(|| {
        let mut elements = 0;
        let read = primary.read_leaves(&mut |leaf| {
            elements += leaf.read()?.num_elements();
            Ok(())
        });
        read.unwrap();
        elements
    });
    assert!((elements * 4).abs_diff(STATE) < SLACK, "all of the state");
    // burn has a shared tensor twice while it is copied to the host.
    assert!(taken <= 2 * LEAF + SLACK, "{taken} for a leaf of {LEAF}");
    // Shapes alone take nothing.
    let (taken, specs) = peak(|| primary.model_specs().unwrap());
    assert_eq!(specs.len(), 2 * LAYERS + 4);
    assert!(taken < SLACK, "{taken}");
}

#[test]
fn a_restore_takes_the_state_and_one_leaf_and_a_refused_one_nothing() {
    let _alone = alone();
    let strategy = strategy();
    let mut state = trained(&strategy, 1);
    let saved = state.primary().unwrap().to_tensors().unwrap();
    let size = bytes(&saved);
    let (taken, restored) = peak(|| state.update(|state| state.load_tensors(&saved, 1)));
    restored.unwrap();
    assert!(taken <= size + LEAF + SLACK, "{taken} for {size}");
    assert_eq!(state.primary().unwrap().to_tensors().unwrap(), saved);

    let mut other = saved.clone();
    other.remove("model/layers.5.bias");
    let (taken, refused) = peak(|| state.update(|state| state.load_tensors(&other, 1)));
    refused.unwrap_err();
    assert!(taken < LEAF, "no value is read to compare: {taken}");
}

#[test]
fn what_replicas_have_as_their_own_is_copied_once() {
    let _alone = alone();
    let strategy = strategy();
    let state = trained(&strategy, 2);
    assert!(state.host_metadata().is_accumulating());
    let (taken, own) = peak(|| state.own_tensors(&[0, 1]).unwrap());
    let size: usize = own.iter().map(bytes).sum();
    assert!(size > 2 * LAYERS * LEAF, "the gradients of two replicas");
    assert!(taken <= size + LEAF + SLACK, "{taken} for {size}");
}
