//! The high-level loop: one objective for training and evaluation, and callbacks.
//!
//! `Fit` computes gradients, applies the optimizer and averages losses and metrics over replicas
//! and batches; `evaluate` runs the same objective without gradients.
#![forbid(unsafe_code)]

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor};
use distribute_core::{Adam, MirroredStrategy, Result, StrategyExt, TrainState};
use distribute_data::fit::callbacks::{EarlyStopping, ProgressBar};
use distribute_data::fit::{Fit, Objective, StepContext, evaluate, predict};
use distribute_data::{
    Batching, Digits, StrategyDataExt, average_loss, sparse_categorical_crossentropy,
};

#[derive(Module, Debug)]
struct Mlp {
    hidden: Linear,
    output: Linear,
}

impl Mlp {
    fn new(device: &Device) -> Self {
        Self {
            hidden: LinearConfig::new(64, 64).init(device),
            output: LinearConfig::new(64, 10).init(device),
        }
    }

    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        self.output
            .forward(relu(self.hidden.forward(images.flatten(1, 3))))
    }
}

fn objective(
    ctx: &StepContext<'_>,
    model: &Mlp,
    (images, labels): (Tensor<4>, Tensor<1, Int>),
) -> Result<Objective> {
    let examples = images.dims()[0];
    let logits = model.forward(images);
    let correct = logits
        .clone()
        .argmax(1)
        .flatten::<1>(0, 1)
        .equal(labels.clone())
        .int()
        .sum();
    let per_example = sparse_categorical_crossentropy(logits, labels);
    let loss = average_loss(ctx, per_example)?;
    Ok(Objective::new(loss)
        .examples(examples)
        .metric("accuracy", correct, examples))
}

fn main() -> Result<()> {
    let strategy = MirroredStrategy::builder().replicas(2).build()?;
    let digits = Digits::open()?;
    let train =
        strategy.distribute_dataset(digits.train()?, Batching::per_replica(32).shuffle(1))?;
    let test = strategy.distribute_dataset(digits.test()?, Batching::per_replica(64))?;

    let mut state = strategy.scope(|device| TrainState::new(Mlp::new(device), Adam::new(3e-3)))?;
    let history = Fit::new(&strategy)
        .epochs(12)
        .callback(ProgressBar::new())
        .callback(EarlyStopping::new("val_loss").patience(2))
        .run(&mut state, &train, Some(&test), objective)?;
    println!("trained for {} epochs", history.epochs.len());

    let report = evaluate(&strategy, &state, &test, objective)?;
    println!("test {}", report.logs);

    let predicted = predict(
        &strategy,
        &state,
        &test,
        |_ctx, model, (images, _labels)| Ok(model.forward(images).argmax(1)),
    )?;
    println!("predicted {:?} labels", predicted.dims());
    Ok(())
}
