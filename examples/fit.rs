//! The high-level loop: a ready objective for training and evaluation, and callbacks.
//!
//! `Fit` computes gradients, applies the optimizer and averages losses and metrics over replicas
//! and batches; `evaluate` runs the same objective without gradients.
#![forbid(unsafe_code)]

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use distribute::prelude::*;

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

fn main() -> Result<()> {
    let strategy = MirroredStrategy::builder().replicas(2).build()?;
    let digits = Digits::open()?;
    let train =
        strategy.distribute_dataset(digits.train()?, Batching::per_replica(32).shuffle(1))?;
    let test = strategy.distribute_dataset(digits.test()?, Batching::per_replica(64))?;

    let mut state = strategy.scope(|device| TrainState::new(Mlp::new(device), Adam::new(3e-3)))?;

    // Keras: model.compile(loss=.., metrics=["accuracy"]) and model.fit(..).
    let objective = Supervised::new(Mlp::forward, SparseCategoricalCrossentropy::default())
        .accuracy()
        .objective();
    let history = Fit::new(&strategy)
        .epochs(12)
        .callback(ProgressBar::new())
        .callback(EarlyStopping::new("val_loss").patience(2))
        .run_with_validation(&mut state, &train, &test, &objective)?;
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
