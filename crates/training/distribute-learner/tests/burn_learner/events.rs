//! What metrics, renderers and early stopping see of a training.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use burn::tensor::{Device, TensorReadError};
use burn_train::logger::{EvaluationProgressLogger, TrainingProgressLogger};
use burn_train::metric::store::{Aggregate, EventStoreClient, Split};
use burn_train::metric::{
    LossMetric, Metric, MetricDefinition, MetricMetadata, MetricName, SerializedEntry,
};
use burn_train::renderer::{
    EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining,
};
use burn_train::{EarlyStoppingStrategy, ExecutionStrategy, TrainingStrategy};

use crate::common::{
    Falling, Net, Optimizer, Spy, Training, batches, custom, launch, loader, mirrored, training_in,
};

/// A renderer that shows nothing and remembers what it was told.
#[derive(Debug, Clone, Default)]
pub struct Recorder(Arc<Mutex<Vec<String>>>);

impl Recorder {
    /// What it was told.
    pub fn calls(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn note(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }
}

impl MetricsRendererTraining for Recorder {
    fn update_train(&mut self, _: MetricState) {}

    fn update_valid(&mut self, _: MetricState) {}
}

impl MetricsRendererEvaluation for Recorder {
    fn update_test(&mut self, _: EvaluationName, _: MetricState) {}
}

impl TrainingProgressLogger for Recorder {
    fn start(&mut self, total: usize, starting: usize, _: Option<usize>, _: Option<&str>) {
        self.note(format!("start {starting}/{total}"));
    }

    fn update_epoch(&mut self, epoch: usize) {
        self.note(format!("epoch {epoch}"));
    }

    fn start_split(&mut self, split: &str, total_items: usize) {
        self.note(format!("{split} {total_items}"));
    }

    fn update_split(&mut self, items_processed: usize) {
        self.note(format!("item {items_processed}"));
    }

    fn end_split(&mut self) {
        self.note("end split");
    }

    fn end(&mut self) {
        self.note("end");
    }

    fn log_event_training(&mut self, _: String) {}
}

impl EvaluationProgressLogger for Recorder {
    fn start_global_progress(&mut self, _: usize) {}

    fn start_test(&mut self, _: &str, _: usize) {}

    fn update_test_progress(&mut self, _: usize) {}

    fn end_test(&mut self) {}

    fn end_global_progress(&mut self) {}

    fn log_event_evaluation(&mut self, _: String) {}
}

impl MetricsRenderer for Recorder {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, _: MetricDefinition) {}
}

/// An item's iteration, progress and learning rate.
pub type Item = (usize, usize, Option<f64>);

/// Remembers every item.
#[derive(Clone, Default)]
pub struct Items(Arc<Mutex<Vec<Item>>>);

impl Items {
    /// What it has seen.
    pub fn seen(&self) -> Vec<Item> {
        self.0.lock().unwrap().clone()
    }
}

impl Metric for Items {
    type Input = ();

    fn name(&self) -> MetricName {
        Arc::new("Items".to_string())
    }

    fn update(
        &mut self,
        (): &(),
        item: &MetricMetadata,
    ) -> Result<SerializedEntry, TensorReadError> {
        let rate = item.lr.as_ref().map(|rate| rate.base());
        let seen = (item.iteration.unwrap(), item.progress.items_processed, rate);
        self.0.lock().unwrap().push(seen);
        self.compute()
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        Ok(SerializedEntry::new(String::new(), String::new()))
    }

    fn clear(&mut self) {}
}

/// Remembers the validation loss of every epoch and stops after `epochs` of them.
#[derive(Clone)]
pub struct StopAfter {
    pub epochs: usize,
    pub losses: Arc<Mutex<Vec<f64>>>,
}

impl EarlyStoppingStrategy for StopAfter {
    fn should_stop(&mut self, epoch: usize, store: &EventStoreClient) -> bool {
        let loss = store.find_metric("Loss", epoch, Aggregate::Mean, &Split::Valid);
        self.losses.lock().unwrap().push(loss.unwrap());
        epoch >= self.epochs
    }
}

/// Everything that one training reports, and the model it ends with.
struct Reported {
    calls: Vec<String>,
    train: Vec<Item>,
    valid: Vec<Item>,
    losses: Vec<f64>,
    model: Net,
}

/// Trains on 10 rows in batches of `batch` for 2 epochs of 5.
fn report(strategy: TrainingStrategy<Net>, batch: usize) -> Reported {
    let folder = tempfile::tempdir().unwrap();
    let recorder = Recorder::default();
    let (train, valid) = (Items::default(), Items::default());
    let losses = Arc::default();
    let training: Training = training_in(folder.path(), loader(10, batch), strategy)
        .renderer(Box::new(recorder.clone()))
        .metric_train(train.clone())
        .metric_valid(valid.clone())
        .metric_valid_numeric(LossMetric::new())
        .early_stopping(StopAfter {
            epochs: 2,
            losses: Arc::clone(&losses),
        })
        .num_epochs(5);
    let result = launch(training, Optimizer::Sgd, Spy::new(|_| ()));
    assert!(result.error.is_none() && result.interrupted.is_none());
    Reported {
        calls: recorder.calls(),
        train: train.seen(),
        valid: valid.seen(),
        losses: losses.lock().unwrap().clone(),
        model: result.model,
    }
}

#[test]
fn events_are_those_of_a_single_device() {
    let device = ExecutionStrategy::single(Device::flex());
    let single = report(TrainingStrategy::Default(device), 2);
    let double = report(custom(mirrored(2)), 2);
    assert_eq!(double.calls, single.calls);
    assert_eq!(double.valid, single.valid);
    let places =
        |items: &[Item]| -> Vec<_> { items.iter().map(|(step, done, _)| (*step, *done)).collect() };
    assert_eq!(places(&double.train), places(&single.train));
    assert_eq!(
        places(&double.train)[..5],
        [(1, 2), (2, 4), (3, 6), (4, 8), (5, 10)]
    );
    // The five batches of an epoch are three updates.
    let rates: Vec<_> = double.train.iter().map(|item| item.2).collect();
    let updates = [0, 0, 1, 1, 2, 3, 3, 4, 4, 5];
    assert_eq!(rates, updates.map(|update| Some(Falling::at(update))));
}

#[test]
fn validation_is_of_the_trained_weights_and_early_stopping_reads_it() {
    let single = report(custom(mirrored(1)), 4);
    let double = report(custom(mirrored(2)), 2);
    assert_eq!(double.losses.len(), 2, "stopped after the second epoch");
    let of_model: Vec<f64> = batches(4, 2)
        .iter()
        .map(|batch| f64::from(double.model.clone().loss(batch).into_scalar::<f32>()))
        .collect();
    let mean = of_model.iter().sum::<f64>() / of_model.len() as f64;
    assert!(
        (double.losses[1] - mean).abs() < 1e-6,
        "{:?}",
        double.losses
    );
    // 10 rows are 4, 4 and 2 on one replica; on two 2 + 2, 2 + 2 and 2.
    for (one, two) in single.losses.iter().zip(&double.losses) {
        assert!((one - two).abs() < 1e-6, "{one} and {two}");
    }
}

#[test]
fn an_interrupter_stops_after_the_step() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = Recorder::default();
    let training = training_in(folder.path(), loader(24, 2), custom(mirrored(2)))
        .renderer(Box::new(recorder.clone()))
        .num_epochs(3);
    let interrupter = training.interrupter();
    let steps = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&steps);
    let spy = Spy::new(move |row| {
        counted.fetch_add(1, Ordering::SeqCst);
        if row == 6 {
            interrupter.stop(Some("enough"));
        }
    });
    let result = launch(training, Optimizer::Sgd, spy.clone());
    let reason = result.interrupted.and_then(|stop| stop.reason);
    assert_eq!(reason.as_deref(), Some("enough"));
    assert!(result.error.is_none());
    assert_eq!(steps.load(Ordering::SeqCst), 4, "rows 0 to 7");
    assert_eq!(spy.weights_of("replica-0.0").len(), 2);
    let calls = recorder.0.lock().unwrap();
    let wanted = [
        "start 1/3",
        "train 24",
        "item 2",
        "item 4",
        "item 6",
        "item 8",
        "end split",
        "end",
    ];
    assert_eq!(calls[..], wanted, "no validation");
}
