//! Batch normalization: each replica has its own running statistics, and training returns their
//! mean.

use std::sync::Arc;

use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{BatchNorm, BatchNormConfig, Initializer, Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use burn_train::logger::InMemoryMetricLogger;
use burn_train::{
    InferenceStep, Learner, RegressionOutput, SupervisedTraining, TrainOutput, TrainStep,
    TrainingStrategy,
};
use distribute_core::{Strategy, SyncBatchNorm, SyncBatchNormConfig};
use distribute_learner::LearnerStrategy;
use rstest::rstest;

use crate::common::{Batch, Falling, Loader, batches, loader, mirrored};
use crate::events::Recorder;
use crate::group::{THREADS, workers};

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

/// The normalization after training on 10 rows.
fn trained(strategy: impl Strategy + 'static, epochs: usize) -> BatchNorm {
    let device = Device::flex().autodiff();
    let zeros = LinearConfig::new(3, 1).with_initializer(Initializer::Zeros);
    let model = Normalized {
        norm: BatchNormConfig::new(3).init(&device),
        output: zeros.init(&device),
    };
    let folder = tempfile::tempdir().unwrap();
    let strategy = Arc::new(LearnerStrategy::new(strategy));
    let training = SupervisedTraining::new(folder.path(), loader(10, 2), loader(4, 2))
        .with_training_strategy(TrainingStrategy::Custom(strategy))
        .with_metric_logger(InMemoryMetricLogger::new())
        .with_application_logger(None)
        .renderer(Box::new(Recorder::default()))
        .num_epochs(epochs);
    let learner = Learner::new(model, SgdConfig::new().init(), Falling(0));
    let result = training.launch(learner);
    assert!(result.error.is_none(), "{:?}", result.error);
    result.model.norm
}

/// The mean over the replicas of all workers, bit for bit as in one process.
#[test]
fn workers_have_the_running_statistics_of_one_process() {
    let values = |norm: BatchNorm| {
        let both = [norm.running_mean, norm.running_var].map(|it| it.value().into_data());
        both.map(|data| data.try_to_vec::<f32>().unwrap())
    };
    for replicas in [&[1, 1][..], &[1, 2]] {
        let wanted = values(trained(mirrored(replicas.iter().sum()), 3));
        let found = workers(THREADS, replicas, move |it| Ok(values(trained(it, 3))));
        for found in found {
            assert_eq!(found, wanted);
        }
    }
}

/// At the end of an epoch all replicas go on with the mean, so that nothing is lost in a
/// checkpoint.
#[test]
fn an_epoch_begins_with_the_mean() {
    let device = Device::flex().autodiff();
    let rows: Vec<_> = batches(10, 2).into_iter().map(|batch| batch.x).collect();
    let mut mean = Tensor::<1>::zeros([3], &device);
    for _ in 0..3 {
        let mut own = vec![mean.clone(); 2];
        for (index, x) in rows.iter().enumerate() {
            let x = x.clone().mean_dim(0).reshape([3]);
            own[index % 2] = own[index % 2].clone().mul_scalar(0.9) + x.mul_scalar(0.1);
        }
        mean = Tensor::stack::<2>(own, 0).mean_dim(0).reshape([3]);
    }
    let found = trained(mirrored(2), 3).running_mean.value();
    let difference = (found.without_autodiff() - mean.without_autodiff()).abs();
    assert!(difference.max().into_scalar::<f32>() < 1e-6);
}

#[rstest]
#[case(1)]
#[case(2)]
#[case(3)]
fn the_model_has_the_mean_of_the_replicas_running_statistics(#[case] replicas: usize) {
    let device = Device::flex().autodiff();
    // Batch i goes to replica i % n; the last step has fewer batches than replicas.
    let mut own = vec![Tensor::<1>::zeros([3], &device); replicas];
    for (index, batch) in batches(10, 2).into_iter().enumerate() {
        let mean = batch.x.mean_dim(0).reshape([3]);
        let own = &mut own[index % replicas];
        *own = own.clone().mul_scalar(0.9) + mean.mul_scalar(0.1);
    }
    let expected = Tensor::stack::<2>(own, 0).mean_dim(0).reshape([3]);
    let found = trained(mirrored(replicas), 1).running_mean.value();
    let difference = (found.without_autodiff() - expected.without_autodiff()).abs();
    let difference: f32 = difference.max().into_scalar();
    assert!(difference < 1e-6, "{difference}");
}

#[derive(Module, Debug)]
struct Synchronized {
    norm: SyncBatchNorm,
    output: Linear,
}

impl Synchronized {
    fn regression(&self, batch: Batch) -> RegressionOutput {
        let output = self.output.forward(self.norm.forward(batch.x));
        let loss = MseLoss::new().forward(output.clone(), batch.y.clone(), Reduction::Mean);
        RegressionOutput::new(loss, output, batch.y)
    }
}

impl TrainStep for Synchronized {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, batch: Batch) -> TrainOutput<RegressionOutput> {
        let item = self.regression(batch);
        TrainOutput::new(self, item.loss.backward(), item)
    }
}

impl InferenceStep for Synchronized {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, batch: Batch) -> RegressionOutput {
        self.regression(batch)
    }
}

/// The moving statistics and the weights after training, or why it has failed.
fn synchronized(strategy: impl Strategy + 'static, loader: Loader) -> Result<Vec<f32>, String> {
    let device = Device::flex().autodiff();
    let zeros = LinearConfig::new(3, 1).with_initializer(Initializer::Zeros);
    let model = Synchronized {
        norm: SyncBatchNormConfig::new(3).init(&device).unwrap(),
        output: zeros.init(&device),
    };
    let folder = tempfile::tempdir().unwrap();
    let training = SupervisedTraining::new(folder.path(), loader.clone(), loader)
        .with_training_strategy(TrainingStrategy::Custom(Arc::new(LearnerStrategy::new(
            strategy,
        ))))
        .with_metric_logger(InMemoryMetricLogger::new())
        .with_application_logger(None)
        .renderer(Box::new(Recorder::default()))
        .num_epochs(3);
    let result = training.launch(Learner::new(model, SgdConfig::new().init(), 0.1));
    if let Some(error) = result.error {
        return Err(format!("{error:?}"));
    }
    let Synchronized { norm, output } = result.model;
    let statistics = [norm.moving_mean, norm.moving_variance];
    let statistics = statistics.map(|it| it.value().into_data());
    let weight = output.weight.val().into_data();
    let all = statistics.iter().chain([&weight]);
    Ok(all.flat_map(|data| data.iter::<f32>()).collect())
}

/// One device with the whole batch and two replicas with half of it each see the same statistics.
#[test]
fn synchronized_statistics_are_of_the_batches_of_all_replicas() {
    let wanted = synchronized(mirrored(1), loader(16, 4)).unwrap();
    let found = synchronized(mirrored(2), loader(16, 2)).unwrap();
    for (wanted, found) in wanted.iter().zip(&found) {
        assert!((wanted - found).abs() < 1e-5, "{wanted} {found}");
    }
    let both = workers(THREADS, &[1, 1], move |it| {
        Ok(synchronized(it, loader(16, 2)).unwrap())
    });
    assert_eq!(both, [found.clone(), found]);
}

/// A replica without a batch cannot call the layer, for which all others would wait.
#[test]
fn a_step_with_too_few_batches_for_a_synchronized_layer_names_it() {
    let error = synchronized(mirrored(2), loader(10, 2)).unwrap_err();
    for part in ["1 of 2 batches", "SyncBatchNorm `norm`", "a multiple of 2"] {
        assert!(error.contains(part), "{error}");
    }
    let ended = workers(THREADS, &[1, 2], move |it| {
        Ok(synchronized(it, loader(14, 2)).unwrap_err())
    });
    for error in ended {
        assert!(error.contains("1 of 3 batches"), "{error}");
    }
}
