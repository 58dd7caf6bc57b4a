//! A mean teacher: a model whose weights are an exponential moving average of the student's
//! weights. Few images have a label; on all others the student learns what the teacher says.
//!
//! Run it with `cargo run --release -p examples --bin mean_teacher`.
#![forbid(unsafe_code)]

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Int;
use burn::tensor::activation::{relu, softmax};
use distribute::follow;
use distribute::prelude::*;

/// The first images of each replica's part of a batch have a label: this number of them.
const LABELLED: i64 = 4;

#[derive(Module, Debug)]
struct Mlp {
    hidden: Linear,
    output: Linear,
}

impl Mlp {
    fn new(device: &Device) -> Self {
        Self {
            hidden: LinearConfig::new(64, 48).init(device),
            output: LinearConfig::new(48, 10).init(device),
        }
    }

    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let hidden = self.hidden.forward(images.flatten(1, 3));
        self.output.forward(relu(hidden))
    }
}

/// Both are one mirrored value: every replica has the same student and the same teacher.
#[derive(Replicate)]
struct Pair {
    student: TrainState<Mlp>,
    teacher: Mlp,
}

impl Pair {
    fn step(&mut self, ctx: &ReplicaContext, batch: (Tensor<4>, Tensor<1, Int>)) -> Result<()> {
        let (images, labels) = batch;
        let places = Tensor::<1, Int>::arange(0..labels.dims()[0] as i64, ctx.device());
        let has_label = places.lower_elem(LABELLED).float();
        let taught = softmax(self.teacher.forward(images.clone()), 1).detach();
        let logits = self.student.model.forward(images);
        let known = sparse_categorical_crossentropy(logits.clone(), labels) * has_label;
        let consistency = mean_squared_error(softmax(logits, 1), taught) * 10.0;
        let loss = average_loss(ctx, known + consistency)?;
        self.student.minimize(ctx, &loss)?;
        follow(&mut self.teacher, &self.student.model, 0.95)
    }
}

/// How many of the test images a model finds the right digit of.
fn correct(model: &Mlp, images: Tensor<4>, labels: Tensor<1, Int>) -> i64 {
    let predicted = model.forward(images).argmax(1).flatten::<1>(0, 1);
    predicted.equal(labels).int().sum().into_scalar()
}

fn main() -> Result<()> {
    let strategy = MirroredStrategy::builder().replicas(2).build()?;
    let digits = Digits::open()?;
    // Not shuffled: it is always the same images that have a label.
    let train = strategy.distribute_dataset(digits.train()?, Batching::global(64))?;
    let test = strategy.distribute_dataset(digits.test()?, Batching::global(64))?;
    let mut pair = strategy.scope(|device| {
        device.seed(1);
        let (student, teacher) = (Mlp::new(device), Mlp::new(device).no_grad());
        let student = TrainState::new(student, Adam::new(2e-3));
        Pair { student, teacher }
    })?;
    for epoch in 0..=12 {
        if epoch % 4 == 0 {
            let (mut student, mut teacher) = (0, 0);
            for batch in &test {
                let counts = strategy.run((&pair, batch?), |_, (pair, (images, labels))| {
                    let student = correct(&pair.student.model, images.clone(), labels.clone());
                    Ok((student, correct(&pair.teacher, images, labels)))
                })?;
                let counts = strategy.reduce(ReduceOp::Sum, counts)?;
                (student, teacher) = (student + counts.0, teacher + counts.1);
            }
            let shares = [student, teacher].map(|it: i64| it as f64 / test.len() as f64);
            println!("epoch {epoch}: accuracy of student and teacher {shares:.3?}");
        }
        for batch in train.epoch(epoch) {
            strategy.run((&mut pair, batch?), |ctx, (pair, it)| pair.step(ctx, it))?;
        }
    }
    Ok(())
}
