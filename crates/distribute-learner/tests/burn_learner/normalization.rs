//! Batch normalization: each replica has its own running statistics, and training returns their
//! mean.

use std::sync::Arc;

use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use burn_train::logger::InMemoryMetricLogger;
use burn_train::{
    InferenceStep, Learner, RegressionOutput, SupervisedTraining, TrainOutput, TrainStep,
    TrainingStrategy,
};
use distribute_learner::LearnerStrategy;
use rstest::rstest;

use crate::common::{Batch, Falling, batches, loader, mirrored};
use crate::events::Recorder;

#[derive(Module, Debug)]
struct Normalized {
    norm: BatchNorm,
    output: Linear,
}

impl Normalized {
    fn regression(&self, batch: Batch) -> RegressionOutput {
        let output = self.output.forward(self.norm.forward(batch.x));
        let loss = MseLoss::new().forward(output.clone(), batch.y.clone(), Reduction::Mean);
        RegressionOutput::new(loss, output, batch.y)
    }
}

impl TrainStep for Normalized {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, batch: Batch) -> TrainOutput<RegressionOutput> {
        let item = self.regression(batch);
        TrainOutput::new(self, item.loss.backward(), item)
    }
}

impl InferenceStep for Normalized {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, batch: Batch) -> RegressionOutput {
        self.regression(batch)
    }
}

#[rstest]
#[case(1)]
#[case(2)]
#[case(3)]
fn the_model_has_the_mean_of_the_replicas_running_statistics(#[case] replicas: usize) {
    let device = Device::flex().autodiff();
    let model = Normalized {
        norm: BatchNormConfig::new(3).init(&device),
        output: LinearConfig::new(3, 1).init(&device),
    };
    let folder = tempfile::tempdir().unwrap();
    let strategy = Arc::new(LearnerStrategy::new(mirrored(replicas)));
    let training = SupervisedTraining::new(folder.path(), loader(10, 2), loader(4, 2))
        .with_training_strategy(TrainingStrategy::Custom(strategy))
        .with_metric_logger(InMemoryMetricLogger::new())
        .with_application_logger(None)
        .renderer(Box::new(Recorder::default()))
        .num_epochs(1);
    let learner = Learner::new(model, SgdConfig::new().init(), Falling(0));
    let result = training.launch(learner);
    assert!(result.error.is_none(), "{:?}", result.error);

    // Batch i goes to replica i % n; the last step has fewer batches than replicas.
    let mut own = vec![Tensor::<1>::zeros([3], &device); replicas];
    for (index, batch) in batches(10, 2).into_iter().enumerate() {
        let mean = batch.x.mean_dim(0).reshape([3]);
        let own = &mut own[index % replicas];
        *own = own.clone().mul_scalar(0.9) + mean.mul_scalar(0.1);
    }
    let expected = Tensor::stack::<2>(own, 0).mean_dim(0).reshape([3]);
    let found = result.model.norm.running_mean.value();
    let difference = (found.without_autodiff() - expected.without_autodiff()).abs();
    let difference: f32 = difference.max().into_scalar();
    assert!(difference < 1e-6, "{difference}");
}
