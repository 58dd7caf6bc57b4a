//! What goes wrong on one worker ends the training on all, with an error that says so.

use std::sync::Arc;

use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataset::{Dataset, DatasetError};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, TensorReadError};
use burn_train::checkpoint::{Checkpoint, Checkpointer, CheckpointerError, KeepLastNCheckpoints};
use burn_train::logger::InMemoryMetricLogger;
use burn_train::metric::{Metric, MetricMetadata, MetricName, SerializedEntry};
use burn_train::{
    ExecutionStrategy, InferenceStep, Learner, RegressionOutput, SupervisedTraining, TrainOutput,
    TrainStep, TrainingError, TrainingStrategy,
};
use distribute_core::{MultiWorkerMirroredStrategy, StrategyExt};
use distribute_learner::{LearnerStrategy, TrainingExt};
use rstest::rstest;

use crate::common::{
    Batch, Loader, Net, Optimizer, Row, Spy, Stack, Training, launch_model, loader, rows,
    training_in,
};
use crate::events::Recorder;
use crate::group::{THREADS, try_workers, workers};

/// How a training of 24 rows ends on each of two workers: one is told to be the broken one.
fn endings(
    broken: usize,
    program: impl Fn(bool) -> (Training, Spy) + Send + Sync + Clone + 'static,
) -> Vec<Arc<TrainingError>> {
    workers(THREADS, &[1, 1], move |strategy| {
        let (training, spy) = program(strategy.worker_index() == broken);
        let training = training.distributed(LearnerStrategy::new(strategy));
        let result = launch_model(training, Optimizer::Sgd, Net::new(spy));
        assert!(result.interrupted.is_none(), "an error is no interruption");
        Ok(result.error.expect("an error on all workers"))
    })
}

/// A training in a folder that is never written to.
fn training(train: Loader) -> Training {
    let folder = tempfile::tempdir().unwrap();
    let default = TrainingStrategy::Default(ExecutionStrategy::single(Device::flex()));
    training_in(folder.path(), train, default).num_epochs(3)
}

/// Whether the error of the worker that is not broken names the broken one, and the cause.
#[track_caller]
fn assert_named(endings: &[Arc<TrainingError>], broken: usize, cause: &str) {
    let own = endings[broken].to_string();
    assert!(own.contains(cause), "{own}");
    let told = endings[1 - broken].to_string();
    let names = [format!("rank {broken}"), format!("worker {broken}")];
    let is_named = names.iter().any(|name| told.contains(name));
    assert!(is_named && told.contains(cause), "{told}");
}

#[rstest]
fn a_step_that_panics(#[values(0, 1)] broken: usize) {
    let found = endings(broken, move |is_broken| {
        let spy = Spy::new(move |row| assert!(!(is_broken && row >= 8), "no such luck"));
        (training(loader(24, 2)), spy)
    });
    assert_named(
        &found,
        broken,
        &format!("replica {broken} panicked: no such luck"),
    );
}

/// Rows that cannot be read from the 15th on.
struct Torn(Vec<Row>);

impl Dataset<Row> for Torn {
    fn get(&self, index: usize) -> Result<Row, DatasetError> {
        if index < 14 {
            Ok(self.0[index].clone())
        } else {
            Err(DatasetError::new(std::io::Error::other("torn")))
        }
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

#[rstest]
fn data_that_cannot_be_read(#[values(0, 1)] broken: usize) {
    let found = endings(broken, |is_broken| {
        let builder = DataLoaderBuilder::new(Stack).batch_size(2);
        let train = if is_broken {
            builder.build(Torn(rows(24)))
        } else {
            loader(24, 2)
        };
        (training(train), Spy::new(|_| ()))
    });
    assert_named(&found, broken, "torn");
}

/// A metric that fails at the fifth batch.
#[derive(Clone, Default)]
struct Broken(usize);

impl Metric for Broken {
    type Input = ();

    fn name(&self) -> MetricName {
        Arc::new("Broken".to_string())
    }

    fn update(&mut self, (): &(), _: &MetricMetadata) -> Result<SerializedEntry, TensorReadError> {
        self.0 += 1;
        if self.0 == 5 {
            let torn = burn::tensor::ExecutionError::with_context("the scale broke");
            return Err(torn.into());
        }
        self.compute()
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        Ok(SerializedEntry::new(String::new(), String::new()))
    }

    fn clear(&mut self) {}
}

#[test]
fn a_metric_of_the_chief_that_fails() {
    let found = endings(0, |_| {
        (
            training(loader(24, 2)).metric_train(Broken::default()),
            Spy::new(|_| ()),
        )
    });
    assert_named(&found, 0, "the scale broke");
}

/// Saves nothing.
struct Full;

impl<R: Checkpoint> Checkpointer<R> for Full {
    fn save(&self, _: usize, _: R) -> Result<(), CheckpointerError> {
        Err(CheckpointerError::Unknown("the disk is full".to_string()))
    }

    fn delete(&self, _: usize) -> Result<(), CheckpointerError> {
        Ok(())
    }

    fn restore(&self, _: usize) -> Result<R, CheckpointerError> {
        Err(CheckpointerError::Unknown("there is nothing".to_string()))
    }
}

/// The last checkpoint is written when the epochs are over, and its loss is told too.
#[rstest]
fn a_checkpoint_that_cannot_be_saved(#[values(1, 3)] epochs: usize) {
    let found = endings(0, move |_| {
        let training = training(loader(8, 2))
            .with_custom_checkpointers(Full, Full, Full)
            .with_checkpointing_strategy(KeepLastNCheckpoints::new(1));
        (training.num_epochs(epochs), Spy::new(|_| ()))
    });
    assert_named(&found, 0, "the disk is full");
}

/// Workers whose loops differ are told what differs, all of them.
#[rstest]
#[case::epochs("the number of epochs is 4 on worker 1 and 3 on the chief")]
#[case::accumulation("`grads_accumulation` is 2 on worker 1 and not given on the chief")]
#[case::examples("the number of training examples is 20 on worker 1 and 24 on the chief")]
#[case::batches("worker 1 has given 6 batches of an epoch when the chief's has given 8")]
fn loops_that_differ(#[case] wanted: &'static str) {
    let found = endings(1, move |is_broken| {
        let other = |of: &str| is_broken && wanted.contains(of);
        let rows = if other("examples") { 20 } else { 24 };
        let batch = if other("batches") { 4 } else { 3 };
        let mut training = training(loader(rows, batch));
        if other("epochs") {
            training = training.num_epochs(4);
        }
        if other("accumulation") {
            training = training.grads_accumulation(2);
        }
        (training, Spy::new(|_| ()))
    });
    for error in found {
        let text = error.to_string();
        assert!(text.contains(wanted), "{text}");
    }
}

/// A model of another size, which panics in validation if it is told to.
#[derive(Module, Debug)]
struct Wide {
    linear: Linear,
    #[module(skip)]
    panics: bool,
}

impl Wide {
    fn regression(&self, batch: Batch) -> RegressionOutput {
        let output = self.linear.forward(batch.x);
        let loss = (output.clone() - 1.0).powi_scalar(2).mean();
        RegressionOutput::new(loss, output, batch.y)
    }
}

impl TrainStep for Wide {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, batch: Batch) -> TrainOutput<RegressionOutput> {
        let item = self.regression(batch);
        TrainOutput::new(self, item.loss.backward(), item)
    }
}

impl InferenceStep for Wide {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, batch: Batch) -> RegressionOutput {
        assert!(!self.panics, "validation has no luck");
        self.regression(batch)
    }
}

/// The error of a worker whose model has this many outputs.
fn trained(
    strategy: MultiWorkerMirroredStrategy,
    outputs: usize,
    panics: bool,
) -> Option<Arc<TrainingError>> {
    let folder = tempfile::tempdir().unwrap();
    let training = SupervisedTraining::new(folder.path(), loader(8, 2), loader(4, 2))
        .with_metric_logger(InMemoryMetricLogger::new())
        .with_application_logger(None)
        .renderer(Box::new(Recorder::default()))
        .distributed(LearnerStrategy::new(strategy));
    let linear = LinearConfig::new(3, outputs).init(&Device::flex().autodiff());
    let learner = Learner::new(Wide { linear, panics }, SgdConfig::new().init(), 1e-3);
    training.launch(learner).error
}

#[test]
fn models_that_differ() {
    let found = workers(THREADS, &[1, 1, 1], |strategy| {
        let outputs = if strategy.worker_index() == 2 { 5 } else { 4 };
        Ok(trained(strategy, outputs, false).expect("an error on all workers"))
    });
    for (worker, error) in found.into_iter().enumerate() {
        let text = error.to_string();
        let named = text.contains("worker 2: the chief's model does not fit");
        assert_eq!(named, worker != 2, "{text}");
        assert!(text.contains("linear.weight: shape mismatch"), "{text}");
    }
}

/// A panic of the chief's own thread passes through, as in burn; the others do not wait for it.
#[test]
fn a_validation_that_panics() {
    let found = try_workers(THREADS, &[1, 1], |strategy| {
        let is_chief = strategy.worker_index() == 0;
        let training = std::panic::AssertUnwindSafe(|| trained(strategy, 1, is_chief));
        Ok(std::panic::catch_unwind(training).ok())
    });
    let mut found = found.into_iter().map(Result::unwrap);
    assert!(found.next().unwrap().is_none(), "it panicked");
    let told = found
        .next()
        .unwrap()
        .unwrap()
        .expect("an error")
        .to_string();
    assert!(
        told.contains("rank 0") && told.contains("training panicked"),
        "{told}"
    );
}
