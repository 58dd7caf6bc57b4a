//! burn's `SupervisedTraining` on the replicas of all workers, with burn's metrics and checkpoints.
//!
//! `learner` alone, or `distribute-cli launch --workers 2 --max-restarts 3 -- learner`; the
//! environment variable `DIRECTORY` names its directory.

use std::error::Error;

use burn::data::dataloader::{DataLoaderBuilder, batcher::Batcher};
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::{Device, Tensor, TensorData, activation::relu};
use burn_train::metric::LossMetric;
use burn_train::{InferenceStep, Learner, RegressionOutput, SupervisedTraining};
use burn_train::{TrainOutput, TrainStep};
use distribute_core::{MultiWorkerMirroredStrategy, StrategyExt};
use distribute_learner::{LearnerStrategy, TrainingExt, latest_checkpoint};

/// Points of a square.
fn points(count: usize, first: usize) -> InMemDataset<[f32; 2]> {
    let number = |i: usize, step: f32| ((i + first) as f32 * step).fract() * 2.0 - 1.0;
    let points = (0..count).map(|i| [number(i, 0.618_034), number(i, 0.754_878)]);
    InMemDataset::new(points.collect())
}

struct Stack;

impl Batcher<[f32; 2], Tensor<2>> for Stack {
    fn batch(&self, points: Vec<[f32; 2]>, device: &Device) -> Tensor<2> {
        let shape = [points.len(), 2];
        Tensor::from_data(TensorData::new(points.concat(), shape), device)
    }
}

/// Learns the square of the distance from the centre.
#[derive(Module, Debug)]
struct Model {
    hidden: Linear,
    output: Linear,
}

impl TrainStep for Model {
    type Input = Tensor<2>;
    type Output = RegressionOutput;

    fn step(&self, points: Tensor<2>) -> TrainOutput<RegressionOutput> {
        let item = InferenceStep::step(self, points);
        TrainOutput::new(self, item.loss.backward(), item)
    }
}

impl InferenceStep for Model {
    type Input = Tensor<2>;
    type Output = RegressionOutput;

    fn step(&self, points: Tensor<2>) -> RegressionOutput {
        let output = relu(self.hidden.forward(points.clone()));
        let output = self.output.forward(output);
        let targets = points.powi_scalar(2).sum_dim(1);
        let loss = (output.clone() - targets.clone()).powi_scalar(2).mean();
        RegressionOutput::new(loss, output, targets)
    }
}

/// Trains, from the last checkpoint on if there is one.
pub fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::var("DIRECTORY").unwrap_or_else(|_| "learner".to_string());
    let strategy = LearnerStrategy::new(MultiWorkerMirroredStrategy::new()?);
    let is_chief = strategy.strategy().is_chief();
    let loader = || DataLoaderBuilder::new(Stack).batch_size(16).shuffle(1);
    let train = loader().num_workers(1).build(points(960, 0));
    let valid = loader().build(points(128, 960));
    let mut training = SupervisedTraining::new(&directory, train, valid)
        .metrics((LossMetric::new(),))
        .with_default_checkpointers()
        .num_epochs(6)
        .distributed(strategy);
    if let Some(epoch) = latest_checkpoint(&directory)? {
        training = training.checkpoint(epoch);
    }
    let device = Device::flex().autodiff();
    let model = Model {
        hidden: LinearConfig::new(2, 32).init(&device),
        output: LinearConfig::new(32, 1).init(&device),
    };
    let result = training.launch(Learner::new(model, AdamConfig::new().init(), 1e-2));
    if let Some(error) = result.error {
        return Err(error.to_string().into());
    }
    if is_chief {
        let found = InferenceStep::step(&result.model, Tensor::from_data([[0.6, 0.8]], &device));
        println!("0.6^2 + 0.8^2 = {}", found.output.into_scalar::<f32>());
    }
    Ok(())
}
