//! How much memory the replicas of a device take: the activations of one of them at a time, and one
//! copy of weights and slots. Shown by counting the bytes that are allocated and not freed.

use std::sync::Barrier;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use distribute_core::{
    Adam, Mirrored, MirroredStrategy, ReplicaContext, Result, StrategyExt, TrainState,
};

use crate::counting::{LIVE, PEAK, alone};

/// A layer's activations are 128 KiB for the examples of a replica.
const WIDTH: usize = 64;
const EXAMPLES: usize = 512;
const LAYERS: usize = 12;

type Net = Vec<Linear>;
type State = Mirrored<TrainState<Net>>;

fn state(strategy: &MirroredStrategy, layers: usize, width: usize) -> State {
    let build = |device: &Device| {
        let config = LinearConfig::new(width, width);
        let layers: Net = (0..layers).map(|_| config.init(device)).collect();
        TrainState::new(layers, Adam::new(1e-3))
    };
    strategy.scope(build).unwrap()
}

/// One step; `meet` is called while all activations of the replica are alive.
fn step(
    strategy: &MirroredStrategy,
    state: &mut State,
    examples: usize,
    width: usize,
    meet: &(dyn Fn() + Sync),
) {
    let run = |ctx: &ReplicaContext, state: &mut TrainState<Net>| -> Result<()> {
        let mut x = Tensor::<2>::ones([examples, width], ctx.device());
        for layer in &state.model {
            x = relu(layer.forward(x));
        }
        let loss = x.mean();
        meet();
        ctx.loss_is_scaled();
        let gradients = ctx.gradient(&loss, &state.model)?;
        state.apply_gradients(ctx, gradients).map(drop)
    };
    strategy.run(state, run).unwrap();
}

/// What a step takes beside what was there before.
fn peak_of_step(strategy: &MirroredStrategy, meet: &(dyn Fn() + Sync)) -> usize {
    let mut state = state(strategy, LAYERS, WIDTH);
    step(strategy, &mut state, EXAMPLES, WIDTH, &|| {});
    let before = LIVE.load(Ordering::SeqCst);
    PEAK.store(before, Ordering::SeqCst);
    step(strategy, &mut state, EXAMPLES, WIDTH, meet);
    PEAK.load(Ordering::SeqCst) - before
}

#[test]
fn the_activations_of_one_replica_of_a_device_are_alive_at_a_time() {
    let _alone = alone();
    let of = |replicas: usize, cores: usize| {
        let builder = MirroredStrategy::builder().replicas(replicas);
        builder.cores(cores).build().unwrap()
    };
    let nothing = || {};
    let one = peak_of_step(&of(1, 1), &nothing);
    let activations = LAYERS * WIDTH * EXAMPLES * 4;
    assert!(one > activations, "{one} bytes are less than {activations}");
    let shared = peak_of_step(&of(4, 1), &nothing);
    // Beside the activations of one: gradients of all, 200 KiB each.
    let gradients = 4 * LAYERS * WIDTH * (WIDTH + 1) * 4;
    assert!(
        shared < one + 2 * gradients,
        "4 replicas on a device: {shared}, 1: {one}"
    );
    let all = Barrier::new(4);
    let meet = || {
        all.wait();
    };
    let together = peak_of_step(&of(4, 4), &meet);
    assert!(
        together > 3 * one,
        "4 replicas at once: {together}, 1: {one}"
    );
}

#[test]
fn with_gradient_checkpointing_the_outputs_of_cheap_operations_are_not_kept() {
    let _alone = alone();
    let builder = || MirroredStrategy::builder().replicas(1);
    let kept = peak_of_step(&builder().build().unwrap(), &|| {});
    let checkpointed = builder().gradient_checkpointing().build().unwrap();
    let found = peak_of_step(&checkpointed, &|| {});
    assert!(
        found < kept / 4 * 3,
        "{found} bytes with it, {kept} without"
    );
}

/// The bytes that are left once the threads have freed what they do not need any more, which on a
/// busy machine they do after the step has returned.
fn settled() -> usize {
    let begun = Instant::now();
    let mut least = LIVE.load(Ordering::SeqCst);
    while begun.elapsed() < Duration::from_millis(500) {
        std::thread::sleep(Duration::from_millis(5));
        least = least.min(LIVE.load(Ordering::SeqCst));
    }
    least
}

#[test]
fn replicas_of_a_device_hold_one_copy_of_weights_and_slots() {
    let _alone = alone();
    let width = 512;
    let weights = width * (width + 1) * 4;
    // Not what the strategy keeps for its exchanges: it is there before and after.
    let live = |cores: usize| {
        let builder = MirroredStrategy::builder().replicas(4).cores(cores);
        let strategy = builder.build().unwrap();
        let mut state = state(&strategy, 1, width);
        for _ in 0..3 {
            step(&strategy, &mut state, 2, width, &|| {});
        }
        let with_state = settled();
        drop(state);
        with_state - settled()
    };
    let (shared, alone) = (live(1), live(4));
    // The weights and Adam's two slots.
    let copies = |bytes: usize| bytes as f64 / weights as f64;
    assert!(copies(shared) < 3.5, "{} copies", copies(shared));
    assert!(copies(alone) > 11.5, "{} copies", copies(alone));
}
