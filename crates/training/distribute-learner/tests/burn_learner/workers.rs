//! Several workers: they train, tell metrics, validate and stop as one process does.

use std::sync::{Arc, Mutex};

use burn::tensor::{Device, TensorReadError};
use burn_train::metric::store::{Aggregate, Direction, Split};
use burn_train::metric::{
    LossInput, LossMetric, Metric, MetricMetadata, MetricName, SerializedEntry,
};
use burn_train::{
    ExecutionStrategy, LearningResult, MetricEarlyStoppingStrategy, StoppingCondition,
    TrainingStrategy,
};
use distribute_core::{MultiWorkerMirroredStrategy, Strategy, StrategyExt};
use distribute_learner::{LearnerStrategy, TrainingExt};
use rstest::rstest;

use crate::common::{
    Net, Optimizer, Spy, Training, assert_close, custom, launch, launch_model, loader, mirrored,
    train, training_in,
};
use crate::events::{Item, Items, Recorder, StopAfter};
use crate::group::{Between, SHARED_MEMORY, THREADS, workers};

/// A training of a worker, in a folder of its own, whose model begins with weights of its own.
fn launch_on(
    strategy: MultiWorkerMirroredStrategy,
    (rows, batch): (usize, usize),
    optimizer: Optimizer,
    spy: Spy,
    configure: impl FnOnce(Training) -> Training,
) -> LearningResult<Net> {
    let folder = tempfile::tempdir().unwrap();
    let model = Net::begun_at(spy, strategy.worker_index() as f32);
    let default = TrainingStrategy::Default(ExecutionStrategy::single(Device::flex()));
    let training = training_in(folder.path(), loader(rows, batch), default);
    let training = training.distributed(LearnerStrategy::new(strategy));
    launch_model(configure(training), optimizer, model)
}

/// The weights that each worker ends with.
fn weights(
    between: Between,
    replicas: &[usize],
    data: (usize, usize),
    optimizer: Optimizer,
    configure: fn(Training) -> Training,
) -> Vec<Vec<f32>> {
    workers(between, replicas, move |strategy| {
        let result = launch_on(strategy, data, optimizer, Spy::new(|_| ()), configure);
        assert!(result.error.is_none(), "{:?}", result.error);
        Ok(result.model.weights())
    })
}

fn two_epochs(training: Training) -> Training {
    training.num_epochs(2)
}

fn accumulating(training: Training) -> Training {
    training.num_epochs(2).grads_accumulation(2)
}

#[rstest]
fn replicas_have_the_same_bits_in_one_process_and_in_several(
    #[values(&[1, 1], &[2, 1], &[1, 1, 1], &[1, 3])] replicas: &'static [usize],
    // 1, 4, 8 and 12 batches of 2 rows, the last one of 15 with a single row.
    #[values(2, 8, 15, 24)] rows: usize,
    #[values(two_epochs, accumulating)] configure: fn(Training) -> Training,
) {
    let strategy = custom(mirrored(replicas.iter().sum()));
    let (wanted, _) = train(loader(rows, 2), strategy, Optimizer::Adam, configure);
    for found in weights(THREADS, replicas, (rows, 2), Optimizer::Adam, configure) {
        assert_eq!(found, wanted);
    }
}

#[test]
fn connections_between_processes_give_the_same_bits() {
    let (wanted, _) = train(
        loader(15, 2),
        custom(mirrored(3)),
        Optimizer::Adam,
        two_epochs,
    );
    for found in weights(SHARED_MEMORY, &[1, 2], (15, 2), Optimizer::Adam, two_epochs) {
        assert_eq!(found, wanted);
    }
}

#[rstest]
fn two_workers_train_as_burn_does_with_the_joined_batch(
    #[values((24, 2), (40, 4), (12, 6))] (rows, batch): (usize, usize),
    #[values(Optimizer::Sgd, Optimizer::Adam)] optimizer: Optimizer,
) {
    let single = TrainingStrategy::Default(ExecutionStrategy::single(Device::flex()));
    let (wanted, _) = train(loader(rows, 2 * batch), single, optimizer, two_epochs);
    for found in weights(THREADS, &[1, 1], (rows, batch), optimizer, two_epochs) {
        assert_close(&found, &wanted);
    }
}

#[test]
fn without_data_all_end() {
    for found in weights(THREADS, &[1, 1], (0, 2), Optimizer::Sgd, accumulating) {
        assert_eq!(found, Net::new(Spy::new(|_| ())).weights(), "the chief's");
    }
}

/// Remembers the loss of every batch.
#[derive(Clone, Default)]
struct Losses(Arc<Mutex<Vec<String>>>);

impl Metric for Losses {
    type Input = LossInput;

    fn name(&self) -> MetricName {
        Arc::new("Losses".to_string())
    }

    fn update(
        &mut self,
        input: &LossInput,
        item: &MetricMetadata,
    ) -> Result<SerializedEntry, TensorReadError> {
        let mut loss = LossMetric::new();
        let entry = loss.update(input, item)?;
        self.0.lock().unwrap().push(entry.serialized.clone());
        Ok(entry)
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        Ok(SerializedEntry::new(String::new(), String::new()))
    }

    fn clear(&mut self) {}
}

/// What metrics, renderer and early stopping of one process were told.
#[derive(Debug, Default, PartialEq)]
struct Told {
    calls: Vec<String>,
    items: [Vec<Item>; 2],
    losses: [Vec<String>; 2],
    means: Vec<f64>,
}

/// Trains for at most 5 epochs, until early stopping wants no more after the second.
fn told(launch: impl FnOnce(&dyn Fn(Training) -> Training) -> LearningResult<Net>) -> Told {
    let recorder = Recorder::default();
    let items = [Items::default(), Items::default()];
    let losses = [Losses::default(), Losses::default()];
    let means = Arc::default();
    let result = launch(&|training| {
        training
            .renderer(Box::new(recorder.clone()))
            .metric_train(items[0].clone())
            .metric_valid(items[1].clone())
            .metric_train(losses[0].clone())
            .metric_valid(losses[1].clone())
            .metric_valid_numeric(LossMetric::new())
            .early_stopping(StopAfter {
                epochs: 2,
                losses: Arc::clone(&means),
            })
            .num_epochs(5)
    });
    assert!(result.error.is_none() && result.interrupted.is_none());
    let means = means.lock().unwrap().clone();
    Told {
        calls: recorder.calls(),
        items: items.map(|it| it.seen()),
        losses: losses.map(|it| it.0.lock().unwrap().clone()),
        means,
    }
}

/// Every batch of all workers is seen by the chief's metrics, in the loader's order, and none by
/// the metrics of the others.
#[rstest]
#[case(&[1, 1], 10)]
#[case(&[1, 2], 15)]
#[case(&[2, 1, 1], 22)]
fn the_chiefs_metrics_are_over_the_examples_of_all_workers(
    #[case] replicas: &'static [usize],
    #[case] rows: usize,
) {
    let wanted = told(|configure| {
        let folder = tempfile::tempdir().unwrap();
        let strategy = custom(mirrored(replicas.iter().sum()));
        let training = training_in(folder.path(), loader(rows, 2), strategy);
        launch(configure(training), Optimizer::Sgd, Spy::new(|_| ()))
    });
    assert_eq!(wanted.losses[0].len(), 2 * rows.div_ceil(2), "two epochs");
    assert_eq!(wanted.means.len(), 2);
    let mut all = workers(THREADS, replicas, move |strategy| {
        Ok(told(|configure| {
            launch_on(
                strategy,
                (rows, 2),
                Optimizer::Sgd,
                Spy::new(|_| ()),
                configure,
            )
        }))
    });
    let of_chief = all.remove(0);
    assert_eq!(of_chief, wanted);
    for of_other in all {
        assert_eq!(of_other, Told::default(), "the chief decides");
    }
}

#[test]
fn a_stop_on_one_worker_stops_all_after_the_same_step() {
    for stopping in [0, 1] {
        let all = workers(THREADS, &[1, 1], move |strategy| {
            let stops = strategy.worker_index() == stopping;
            let interrupter = burn_train::Interrupter::new();
            let of_spy = interrupter.clone();
            // The third step's rows are 8 to 11.
            let spy = Spy::new(move |row| {
                if stops && row >= 8 {
                    of_spy.stop(Some("enough"));
                }
            });
            let result = launch_on(strategy, (24, 2), Optimizer::Sgd, spy.clone(), |training| {
                training.num_epochs(3).with_interrupter(interrupter)
            });
            assert!(result.error.is_none(), "{:?}", result.error);
            let reason = result.interrupted.and_then(|stop| stop.reason);
            assert_eq!(reason.as_deref(), Some("enough"));
            assert_eq!(spy.updates(), 3);
            Ok(result.model.weights())
        });
        assert_eq!(all[0], all[1]);
    }
}

/// By a metric that only the chief has: a falling loss that is to rise.
#[test]
fn burns_early_stopping_stops_all_after_the_same_epoch() {
    let all = workers(THREADS, &[1, 2], |strategy| {
        let spy = Spy::new(|_| ());
        let replicas = strategy.replicas().len();
        let result = launch_on(strategy, (12, 2), Optimizer::Sgd, spy.clone(), |training| {
            let loss = LossMetric::new();
            let stopping = MetricEarlyStoppingStrategy::new(
                &loss,
                Aggregate::Mean,
                Direction::Highest,
                Split::Valid,
                StoppingCondition::NoImprovementSince { n_epochs: 2 },
            );
            let training = training.metric_valid_numeric(loss).num_epochs(9);
            training.early_stopping(stopping)
        });
        assert!(result.error.is_none() && result.interrupted.is_none());
        // Three epochs of two updates.
        assert_eq!(spy.updates(), 3 * 2 * replicas);
        Ok(result.model.weights())
    });
    assert_eq!(all[0], all[1]);
}
