//! Distillation: a small student learns what a large, frozen teacher says.
//!
//! Run it with `cargo run --release -p examples --bin distillation`. A state that is passed as
//! `&teacher` is in evaluation mode: without dropout and without a gradient. The student learns
//! from the probabilities of the teacher alone, without any label.
#![forbid(unsafe_code)]

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::activation::{relu, softmax};
use distribute::prelude::*;

/// By how much the probabilities of the teacher are softened.
const TEMPERATURE: f32 = 2.0;

#[derive(Module, Debug)]
struct Mlp {
    hidden: Linear,
    dropout: Dropout,
    output: Linear,
}

impl Mlp {
    fn new(width: usize, dropout: f64, device: &Device) -> Self {
        Self {
            hidden: LinearConfig::new(64, width).init(device),
            dropout: DropoutConfig::new(dropout).init(),
            output: LinearConfig::new(width, 10).init(device),
        }
    }

    /// Images of shape [batch, 1, 8, 8] to logits of shape [batch, 10].
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let hidden = relu(self.hidden.forward(images.flatten(1, 3)));
        self.output.forward(self.dropout.forward(hidden))
    }
}

type State = Mirrored<TrainState<Mlp>>;

fn main() -> Result<()> {
    let strategy = MirroredStrategy::builder().replicas(2).build()?;
    let digits = Digits::open()?;
    let batches = Batching::global(64);
    let train = strategy.distribute_dataset(digits.train()?, batches.shuffle(1))?;
    let test = strategy.distribute_dataset(digits.test()?, batches)?;
    let build = |width, dropout| {
        strategy.scope(|device| {
            device.seed(1);
            TrainState::new(Mlp::new(width, dropout, device), Adam::new(5e-3))
        })
    };
    // How many of the test images a model finds the right digit of.
    let accuracy = |state: &State| -> Result<f64> {
        let mut correct = 0;
        for batch in &test {
            let counts = strategy.run((state, batch?), |_, (state, (images, labels))| {
                let predicted = state.model.forward(images).argmax(1).flatten::<1>(0, 1);
                Ok(predicted.equal(labels).int().sum().into_scalar::<i64>())
            })?;
            correct += strategy.reduce(ReduceOp::Sum, counts)?;
        }
        Ok(correct as f64 / test.len() as f64)
    };

    let mut teacher = build(128, 0.3)?;
    for epoch in 0..5 {
        for batch in train.epoch(epoch) {
            strategy.run((&mut teacher, batch?), |ctx, (state, (images, labels))| {
                let logits = state.model.forward(images);
                let loss = average_loss(ctx, sparse_categorical_crossentropy(logits, labels))?;
                state.minimize(ctx, &loss)
            })?;
        }
    }
    println!("teacher: accuracy {:.3}", accuracy(&teacher)?);

    let before = teacher.save()?;
    let mut student = build(12, 0.0)?;
    println!("student, not trained: accuracy {:.3}", accuracy(&student)?);
    for epoch in 0..10 {
        for batch in train.epoch(epoch) {
            let states = (&mut student, &teacher, batch?);
            strategy.run(states, |ctx, (student, teacher, (images, _))| {
                let taught = teacher.model.forward(images.clone()) / TEMPERATURE;
                let logits = student.model.forward(images) / TEMPERATURE;
                let loss = average_loss(ctx, categorical_crossentropy(logits, softmax(taught, 1)))?;
                student.minimize(ctx, &loss)
            })?;
        }
    }
    println!("teacher unchanged: {}", teacher.save()? == before);
    println!("student: accuracy {:.3}", accuracy(&student)?);
    Ok(())
}
