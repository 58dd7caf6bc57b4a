//! burn's `simple-regression`: a small network, the mean of squared errors, Adam.

use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig, Relu};
use burn::optim::{AdamConfig, GradientsParams};
use distribute::BurnOptimizer;
use distribute::prelude::*;

use crate::harness::*;

const FEATURES: usize = 8;

#[derive(Module, Debug)]
pub struct Model {
    input: Linear,
    output: Linear,
    activation: Relu,
}

impl Model {
    fn new(device: &Device) -> Self {
        Self {
            input: LinearConfig::new(FEATURES, 32).init(device),
            output: LinearConfig::new(32, 1).init(device),
            activation: Relu::new(),
        }
    }

    fn forward(&self, inputs: Tensor<2>) -> Tensor<2> {
        let hidden = self.activation.forward(self.input.forward(inputs));
        self.output.forward(hidden)
    }
}

#[derive(Nest, Clone, Debug)]
pub struct Batch {
    inputs: Tensor<2>,
    targets: Tensor<2>,
}

type Houses = Items<(Vec<f32>, f32), Batch>;

fn batch(items: Vec<(Vec<f32>, f32)>, device: &Device) -> Batch {
    let (inputs, targets): (Vec<_>, Vec<_>) = items.into_iter().unzip();
    let targets: Vec<Vec<f32>> = targets.into_iter().map(|target| vec![target]).collect();
    Batch {
        inputs: rows(&inputs, FEATURES, device),
        targets: rows(&targets, 1, device),
    }
}

fn houses(seed: u64) -> Houses {
    let mut numbers = Numbers(seed);
    let item = |_| {
        let inputs: Vec<f32> = (0..FEATURES).map(|_| numbers.normal()).collect();
        let price = 0.5 * inputs[0] - inputs[3] * inputs[5] + 0.1 * numbers.normal();
        (inputs, price)
    };
    Items::new((0..15 * BATCH).map(item).collect(), batch)
}

fn burn_loop(model: Model, houses: &Houses) -> Result<Vec<f32>> {
    let device = Device::flex().autodiff();
    let train = houses.loader(BATCH, &device);
    let mut model = model;
    let mut optimizer = AdamConfig::new().init();
    let mut losses = Vec::new();
    for _epoch in 0..2 {
        for batch in train.iter() {
            let batch = batch?;
            let predicted = model.forward(batch.inputs);
            let loss = MseLoss::new().forward(predicted, batch.targets, Reduction::Mean);
            losses.push(loss.clone().into_scalar::<f32>());
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(1e-2, model, gradients);
        }
    }
    Ok(losses)
}

fn our_loop(strategy: &dyn Strategy, model: Model, houses: &Houses) -> Result<Vec<f32>> {
    let train = strategy.distribute_dataset(houses.dataset(), Batching::global(BATCH))?;
    let optimizer = BurnOptimizer::new(AdamConfig::new(), 1e-2);
    let mut state = strategy.scope(|_| TrainState::new(model, optimizer))?;
    let mut losses = Vec::new();
    for _epoch in 0..2 {
        for batch in train.iter() {
            let shares = strategy.run((&mut state, batch?), |ctx, (state, batch)| {
                let predicted = state.model.forward(batch.inputs);
                let loss = MseLoss::new().forward(predicted, batch.targets, Reduction::Mean);
                let loss = ctx.mean_loss(loss)?;
                state.minimize(ctx, &loss)?;
                Ok(loss)
            })?;
            losses.push(strategy.reduce(ReduceOp::Sum, shares)?.into_scalar::<f32>());
        }
    }
    Ok(losses)
}

#[test]
fn regression_has_the_losses_of_burn() {
    for seed in [1, 2] {
        let houses = houses(seed);
        let wanted = burn_loop(model(seed, Model::new), &houses).unwrap();
        falls(&wanted);
        has_losses_of_burn(&wanted, move |strategy| {
            our_loop(strategy, model(seed, Model::new), &houses)
        });
    }
}

/// `Fit` in the place of burn's `Learner`, which burn's example trains with: the mean losses of the
/// epochs.
#[test]
fn fit_has_the_losses_of_burn() {
    let houses = houses(3);
    let wanted = burn_loop(model(3, Model::new), &houses).unwrap();
    let epochs = wanted.chunks(STEPS / 2);
    let wanted: Vec<f32> = epochs
        .map(|it| it.iter().sum::<f32>() / it.len() as f32)
        .collect();
    let outcomes = under_strategies(move |strategy| {
        let train = strategy.distribute_dataset(houses.dataset(), Batching::global(BATCH))?;
        let optimizer = BurnOptimizer::new(AdamConfig::new(), 1e-2);
        let built = model(3, Model::new);
        let mut state = strategy.scope(|_| TrainState::new(built, optimizer))?;
        let objective = |ctx: &StepContext<'_>, model: &Model, batch: Batch| {
            let examples = batch.inputs.dims()[0] as u64;
            let losses = mean_squared_error(model.forward(batch.inputs), batch.targets);
            Ok(Objective::new(average_loss(ctx, losses)?).examples(examples))
        };
        let history = Fit::new(strategy)
            .epochs(2)
            .run(&mut state, &train, objective)?;
        let losses = history
            .epochs
            .iter()
            .map(|epoch| epoch.logs.get("loss").unwrap() as f32);
        Ok(losses.collect::<Vec<f32>>())
    });
    for (name, found) in outcomes {
        let most = distance(&wanted, &found);
        assert!(most <= 1e-6, "{name}: {most:e} {wanted:?} {found:?}");
    }
}
