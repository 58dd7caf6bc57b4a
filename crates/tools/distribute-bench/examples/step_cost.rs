//! What a step costs beside the one that it is compared with: the documents' CNN on two replicas
//! with burn's `Dropout`, whose forward passes run one at a time, and with `dropout`, whose do not;
//! a pass of `&state` and of the model alone, in evaluation mode, and of `&state` in a step that
//! trains another state, so that it has autodiff. Interleaved, medians of ratios.
//!
//! `cargo run --release -p distribute-bench --features bench,training --example step_cost`

use std::error::Error;
use std::time::Instant;

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use distribute_bench::median;
use distribute_core::{
    Adam, Mirrored, MirroredStrategy, ReplicaContext, Result, StrategyExt, TrainState, dropout,
};

const ROUNDS: usize = 15;
/// Steps of each competitor in a round.
const STEPS: usize = 20;

#[derive(Module, Debug)]
struct Cnn {
    convolution: Conv2d,
    pool: MaxPool2d,
    drop: Dropout,
    hidden: Linear,
    output: Linear,
}

impl Cnn {
    fn new(device: &Device) -> Self {
        Self {
            convolution: Conv2dConfig::new([1, 32], [3, 3]).init(device),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            drop: DropoutConfig::new(0.3).init(),
            hidden: LinearConfig::new(32 * 13 * 13, 64).init(device),
            output: LinearConfig::new(64, 10).init(device),
        }
    }

    fn forward(&self, x: Tensor<4>, drop: impl FnOnce(Tensor<2>) -> Tensor<2>) -> Tensor<2> {
        let x = self.pool.forward(relu(self.convolution.forward(x)));
        let x = drop(x.flatten(1, 3));
        self.output.forward(relu(self.hidden.forward(x)))
    }

    fn evaluated(&self, device: &Device) -> Vec<f32> {
        let y = self.forward(images(device), |x| x);
        y.into_data().iter().collect()
    }
}

fn images(device: &Device) -> Tensor<4> {
    Tensor::ones([32, 1, 28, 28], device) * 0.5
}

type State = Mirrored<TrainState<Cnn>>;

fn seconds(mut step: impl FnMut() -> Result<()>) -> Result<f64> {
    let begin = Instant::now();
    for _ in 0..STEPS {
        step()?;
    }
    Ok(begin.elapsed().as_secs_f64() / STEPS as f64)
}

/// One step; `in_turn` is with burn's layer.
fn train(strategy: &MirroredStrategy, state: &mut State, in_turn: bool) -> Result<()> {
    let step = |ctx: &ReplicaContext, state: &mut TrainState<Cnn>| {
        let (model, updates) = (&state.model, state.step());
        let y = model.forward(images(ctx.device()), |x| {
            if in_turn {
                model.drop.forward(x)
            } else {
                dropout(x, 0.3, &mut ctx.rng(0, updates))
            }
        });
        let loss = ctx.mean_loss_of(y.powf_scalar(2.0).mean(), 32.0)?;
        state.minimize(ctx, &loss).map(drop)
    };
    strategy.run(state, step).map(drop)
}

/// Prints the medians of two competitors, and the median of the ratios of each round.
#[expect(clippy::print_stdout, reason = "what it is for")]
fn compare(
    names: [&str; 2],
    mut first: impl FnMut() -> Result<()>,
    mut second: impl FnMut() -> Result<()>,
) -> Result<()> {
    let (mut of_first, mut of_second, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let times = [seconds(&mut first)?, seconds(&mut second)?];
        // The first round pays for what is made once.
        if round > 0 {
            of_first.push(times[0] * 1e3);
            of_second.push(times[1] * 1e3);
            ratios.push(times[0] / times[1]);
        }
    }
    println!(
        "{}: {:.3} ms; {}: {:.3} ms; ratio {:.3}",
        names[0],
        median(&of_first),
        names[1],
        median(&of_second),
        median(&ratios)
    );
    Ok(())
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let strategy = MirroredStrategy::builder().replicas(2).build()?;
    let scope = || strategy.scope(|device| TrainState::new(Cnn::new(device), Adam::new(1e-3)));
    let (mut burns, mut ours) = (scope()?, scope()?);
    compare(
        ["burn's Dropout, 2 replicas", "dropout, 2 replicas"],
        || train(&strategy, &mut burns, true),
        || train(&strategy, &mut ours, false),
    )?;
    let one = MirroredStrategy::builder().replicas(1).build()?;
    let state = one.scope(|device| TrainState::new(Cnn::new(device), Adam::new(1e-3)))?;
    let model = state.primary()?.model.valid();
    let mut other = one.scope(|_| 0_usize)?;
    let pass =
        |ctx: &ReplicaContext, state: &TrainState<Cnn>| Ok(state.model.evaluated(ctx.device()));
    let alone = || {
        drop(model.evaluated(&Device::flex()));
        Ok(())
    };
    let evaluated = || one.run(&state, pass).map(drop);
    compare(["a pass of &state", "of the model alone"], evaluated, alone)?;
    let mixed = || {
        let arguments = (&mut other, &state);
        one.run(arguments, |ctx, (_, state)| pass(ctx, state))
            .map(drop)
    };
    compare(
        ["a pass of &state with autodiff", "of the model alone"],
        mixed,
        alone,
    )?;
    Ok(())
}
