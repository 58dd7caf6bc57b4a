//! Outputs of a model's own travel to the chief once the strategy knows how.

use std::sync::{Arc, Mutex};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, ExecutionError, Int, Tensor, TensorData, TensorReadError};
use burn_train::logger::InMemoryMetricLogger;
use burn_train::metric::{Adaptor, Metric, MetricMetadata, MetricName, SerializedEntry};
use burn_train::{
    ClassificationOutput, InferenceStep, ItemLazy, Learner, MultiLabelClassificationOutput,
    RegressionOutput, SequenceOutput, SupervisedTraining, TrainOutput, TrainStep,
};
use distribute_core::{Error, MultiWorkerMirroredStrategy, Result};
use distribute_learner::{GatheredOutput, LearnerStrategy, TrainingExt};

use crate::common::{Batch, loader};
use crate::events::Recorder;
use crate::group::{THREADS, workers};

/// The first rows of the batches that it saw.
#[derive(Clone, Default)]
struct Rows(Arc<Mutex<Vec<i64>>>);

struct OwnOutput(Tensor<1, Int>);

impl ItemLazy for OwnOutput {
    fn sync(self) -> Result<Self, ExecutionError> {
        Ok(self)
    }
}

impl Adaptor<i64> for OwnOutput {
    fn adapt(&self) -> i64 {
        self.0.clone().into_scalar()
    }
}

impl GatheredOutput for OwnOutput {
    fn into_tensors(self) -> Result<Vec<TensorData>> {
        Ok(vec![self.0.try_into_data().map_err(Error::internal)?])
    }

    fn from_tensors(mut tensors: Vec<TensorData>, device: &Device) -> Result<Self> {
        assert!(!device.is_autodiff());
        Ok(Self(Tensor::from_data(tensors.remove(0), device)))
    }
}

impl Metric for Rows {
    type Input = i64;

    fn name(&self) -> MetricName {
        Arc::new("Rows".to_string())
    }

    fn update(
        &mut self,
        row: &i64,
        _: &MetricMetadata,
    ) -> Result<SerializedEntry, TensorReadError> {
        self.0.lock().unwrap().push(*row);
        self.compute()
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        Ok(SerializedEntry::new(String::new(), String::new()))
    }

    fn clear(&mut self) {}
}

#[derive(Module, Debug)]
struct Own {
    linear: Linear,
}

impl TrainStep for Own {
    type Input = Batch;
    type Output = OwnOutput;

    fn step(&self, batch: Batch) -> TrainOutput<OwnOutput> {
        let loss = self.linear.forward(batch.x.clone()).sum();
        let row = Tensor::from_data([batch.first as i64], &batch.x.device());
        TrainOutput::new(self, loss.backward(), OwnOutput(row))
    }
}

impl InferenceStep for Own {
    type Input = Batch;
    type Output = OwnOutput;

    fn step(&self, batch: Batch) -> OwnOutput {
        OwnOutput(Tensor::from_data([batch.first as i64], &batch.x.device()))
    }
}

/// The rows that the metric of this worker saw, and the error that training ended with.
fn trained(
    strategy: MultiWorkerMirroredStrategy,
    configure: fn(LearnerStrategy) -> LearnerStrategy,
) -> (Vec<i64>, Option<String>) {
    let rows = Rows::default();
    let folder = tempfile::tempdir().unwrap();
    let training = SupervisedTraining::new(folder.path(), loader(10, 2), loader(4, 2))
        .metric_train(rows.clone())
        .with_metric_logger(InMemoryMetricLogger::new())
        .with_application_logger(None)
        .renderer(Box::new(Recorder::default()))
        .distributed(configure(LearnerStrategy::new(strategy)));
    let linear = LinearConfig::new(3, 1).init(&Device::flex().autodiff());
    let model = Own { linear };
    let result = training.launch(Learner::new(model, SgdConfig::new().init(), 1e-3));
    let seen = rows.0.lock().unwrap().clone();
    (seen, result.error.map(|error| error.to_string()))
}

#[test]
fn an_output_of_ones_own_travels_once_it_is_named() {
    let all = workers(THREADS, &[1, 1], |strategy| {
        Ok(trained(strategy, LearnerStrategy::with_output::<OwnOutput>))
    });
    assert_eq!(all[0], (vec![0, 2, 4, 6, 8], None));
    assert_eq!(all[1], (vec![], None));
    let all = workers(THREADS, &[1, 1], |strategy| Ok(trained(strategy, |it| it)));
    for (seen, error) in all {
        let error = error.expect("it cannot travel");
        assert!(
            error.contains("OwnOutput` of a step cannot travel"),
            "{error}"
        );
        assert!(error.contains("LearnerStrategy::with_output"), "{error}");
        assert_eq!(seen, [0_i64; 0], "before the first step");
    }
    // A worker alone sends nothing.
    let alone = MultiWorkerMirroredStrategy::builder().cluster(None).build();
    let (seen, error) = trained(alone.unwrap(), |it| it);
    assert_eq!((seen, error), (vec![0, 2, 4, 6, 8], None));
}

/// The output after its way to the chief.
fn sent<O: GatheredOutput>(output: O) -> O {
    O::from_tensors(output.into_tensors().unwrap(), &Device::flex()).unwrap()
}

#[test]
fn burns_outputs_arrive_as_they_were() {
    let device = Device::flex().autodiff();
    let float = |shape: [usize; 2], first: f32| {
        let count = shape.iter().product::<usize>();
        let values: Vec<f32> = (0..count).map(|i| first + i as f32).collect();
        Tensor::<2>::from_data(TensorData::new(values, shape), &device)
    };
    let loss = || Tensor::<1>::from_data([0.5_f32], &device).require_grad();
    let ints = |shape: [usize; 2]| {
        let values: Vec<i64> = (0..(shape[0] * shape[1]) as i64).collect();
        Tensor::<2, Int>::from_data(TensorData::new(values, shape), &device)
    };
    let found = sent(RegressionOutput::new(
        loss(),
        float([3, 2], 1.0),
        float([3, 2], 9.0),
    ));
    assert_eq!(found.loss.into_data(), loss().into_data());
    assert_eq!(found.output.into_data(), float([3, 2], 1.0).into_data());
    assert_eq!(found.targets.into_data(), float([3, 2], 9.0).into_data());
    let targets = ints([1, 3]).reshape([3]);
    let found = sent(ClassificationOutput::new(
        loss(),
        float([3, 4], 1.0),
        targets.clone(),
    ));
    assert_eq!(found.output.into_data(), float([3, 4], 1.0).into_data());
    assert_eq!(found.targets.into_data(), targets.into_data());
    let labels = MultiLabelClassificationOutput::new(loss(), float([2, 3], 0.0), ints([2, 3]));
    assert_eq!(sent(labels).targets.into_data(), ints([2, 3]).into_data());
    let logits = || float([2, 6], 0.0).reshape([2, 3, 2]);
    for predictions in [None, Some(ints([2, 3]))] {
        let output = SequenceOutput::new(loss(), logits(), predictions.clone(), ints([2, 3]));
        let found = sent(output);
        assert_eq!(found.logits.into_data(), logits().into_data());
        let found = found.predictions.map(Tensor::into_data);
        assert_eq!(found, predictions.map(Tensor::into_data));
    }
}

#[test]
fn tensors_of_another_output_are_an_error() {
    let sent = vec![TensorData::from([0.5_f32]), TensorData::from([1.0_f32])];
    let error = RegressionOutput::from_tensors(sent, &Device::flex())
        .err()
        .unwrap();
    assert!(
        error.to_string().contains("the tensors of its type"),
        "{error}"
    );
    let error = ClassificationOutput::from_tensors(Vec::new(), &Device::flex())
        .err()
        .unwrap();
    assert!(
        error.to_string().contains("the tensors of its type"),
        "{error}"
    );
}
