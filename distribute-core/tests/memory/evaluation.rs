//! The memory that evaluating a shared state (`&state`) takes: as much as the model alone in
//! evaluation mode, not the outputs of all layers.

use std::sync::atomic::Ordering;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use distribute_core::{
    Adam, InTraining, MirroredStrategy, ReplicaContext, Result, StrategyExt, TrainState,
};

use crate::counting::{LIVE, PEAK, alone};

/// A layer's output is 128 KiB.
const WIDTH: usize = 64;
const EXAMPLES: usize = 512;
const LAYERS: usize = 12;
const OUTPUT_BYTES: usize = EXAMPLES * WIDTH * 4;

type Net = Vec<Linear>;

/// A pass; whether there is a graph to its result.
fn pass(device: &Device, model: &Net) -> bool {
    let mut x = Tensor::<2>::ones([EXAMPLES, WIDTH], device);
    for layer in model {
        x = relu(layer.forward(x));
    }
    let loss = x.mean();
    loss.is_autodiff() && loss.is_tracked()
}

/// What `f` takes at most beside what was there before.
fn peak(f: impl FnOnce()) -> usize {
    let before = LIVE.load(Ordering::SeqCst);
    PEAK.store(before, Ordering::SeqCst);
    f();
    PEAK.load(Ordering::SeqCst) - before
}

#[test]
fn evaluating_a_shared_state_takes_the_memory_of_the_model_alone() {
    let _alone = alone();
    let strategy = MirroredStrategy::builder().replicas(1).build().unwrap();
    let build = |device: &Device| {
        let config = LinearConfig::new(WIDTH, WIDTH);
        let layers: Net = (0..LAYERS).map(|_| config.init(device)).collect();
        TrainState::new(layers, Adam::new(1e-3))
    };
    let state = strategy.scope(build).unwrap();
    let step = |ctx: &ReplicaContext, state: &TrainState<Net>| -> Result<bool> {
        Ok(pass(ctx.device(), &state.model))
    };
    let model = state.primary().unwrap().model.valid();
    let evaluated = || {
        let tracked = strategy.run(&state, step).unwrap();
        assert_eq!(tracked.values(), [false]);
    };
    let in_training = || {
        let tracked = strategy.run(InTraining::new(&state), step).unwrap();
        assert_eq!(tracked.values(), [true]);
    };
    let alone = || assert!(!pass(&Device::flex(), &model));
    // What is made once is there after the first passes.
    evaluated();
    in_training();
    alone();

    let outputs = |bytes: usize| bytes as f64 / OUTPUT_BYTES as f64;
    let found = outputs(peak(evaluated));
    let training = outputs(peak(in_training));
    let wanted = outputs(peak(alone));
    println!("outputs at once: {found} in evaluation, {training} in training, {wanted} alone");
    assert!(
        found < wanted + 0.5,
        "{found} outputs at once, {wanted} alone"
    );
    assert!(
        training > wanted + LAYERS as f64,
        "{training} outputs at once"
    );
}
