//! What evaluating a shared state (`&state`) costs: as much memory as the model alone in evaluation
//! mode, not the outputs of all layers, and as many allocations, none of them autodiff's.

use std::sync::atomic::Ordering;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use distribute_core::{
    Adam, InTraining, MirroredStrategy, PerReplica, ReplicaContext, Result, Strategy, StrategyExt,
    TrainState,
};

use crate::counting::{COUNT, LIVE, PEAK, alone};

/// A layer's output is 128 KiB.
const WIDTH: usize = 64;
const EXAMPLES: usize = 512;
const LAYERS: usize = 12;
const OUTPUT_BYTES: usize = EXAMPLES * WIDTH * 4;

type Net = Vec<Linear>;

/// A pass; whether there is a graph to its result.
fn pass(device: &Device, model: &Net) -> bool {
    pass_of(Tensor::ones([EXAMPLES, WIDTH], device), model)
}

/// The same, of a batch.
fn pass_of(mut x: Tensor<2>, model: &Net) -> bool {
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

/// The allocations of `f`, on all threads.
fn allocations(f: impl FnOnce()) -> usize {
    let before = COUNT.load(Ordering::SeqCst);
    f();
    COUNT.load(Ordering::SeqCst) - before
}

fn net(device: &Device) -> TrainState<Net> {
    let config = LinearConfig::new(WIDTH, WIDTH);
    let layers: Net = (0..LAYERS).map(|_| config.init(device)).collect();
    TrainState::new(layers, Adam::new(1e-3))
}

#[test]
fn evaluating_a_shared_state_takes_the_memory_of_the_model_alone() {
    let _alone = alone();
    let strategy = MirroredStrategy::builder().replicas(1).build().unwrap();
    let state = strategy.scope(net).unwrap();
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

/// What a step allocates beside the passes of its replica: arguments, slots, threads' jobs.
const OF_THE_STEP: usize = 30;

#[test]
fn evaluating_a_shared_state_makes_the_allocations_of_the_model_alone() {
    let _alone = alone();
    let strategy = MirroredStrategy::builder().replicas(1).build().unwrap();
    let state = strategy.scope(net).unwrap();
    let batch = Tensor::<2>::ones([EXAMPLES, WIDTH], &strategy.replicas()[0].device);
    let plain = batch.clone().inner();
    let batch = PerReplica::new(vec![batch]);
    let model = state.primary().unwrap().model.valid();
    let step = |_: &ReplicaContext, state: &TrainState<Net>, x: Tensor<2>| -> Result<bool> {
        Ok(pass_of(x, &state.model))
    };
    let evaluated = || {
        let run = strategy.run((&state, batch.clone()), |ctx, (state, x)| {
            step(ctx, state, x)
        });
        assert_eq!(run.unwrap().values(), [false]);
    };
    let on_device = || {
        let run = strategy.run(&state, |ctx, state| Ok(pass(ctx.device(), &state.model)));
        assert_eq!(run.unwrap().values(), [false]);
    };
    let in_training = || {
        let arguments = (InTraining::new(&state), batch.clone());
        let run = strategy.run(arguments, |ctx, (state, x)| step(ctx, state, x));
        assert_eq!(run.unwrap().values(), [true]);
    };
    let alone = || assert!(!pass_of(plain.clone(), &model));
    // What is made once is there after the first passes.
    evaluated();
    on_device();
    in_training();
    alone();

    let wanted = allocations(alone);
    let training = allocations(in_training);
    for (name, found) in [
        ("a batch", allocations(evaluated)),
        ("tensors of the device", allocations(on_device)),
    ] {
        println!(
            "{name}: {found} allocations in evaluation, {training} in training, {wanted} alone"
        );
        let most = wanted + wanted / 10 + OF_THE_STEP;
        assert!(found <= most, "{name}: {found} allocations, {wanted} alone");
    }
    assert!(
        training > 2 * wanted + OF_THE_STEP,
        "the bound tells autodiff apart: {training}, {wanted} alone"
    );
}
