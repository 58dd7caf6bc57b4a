//! What goes wrong ends the training with an error that says so, and nothing hangs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataset::{Dataset, DatasetError};
use burn_train::{LearningResult, TrainingError, TrainingStrategy};
use distribute_core::{
    DefaultStrategy, Error, InputContext, MirroredStrategy, ReduceOp, Replica, ReplicaStep, Result,
    Strategy, StrategyExt, StrategyId,
};
use distribute_learner::LearnerStrategy;

use crate::common::{
    BeforeAllReduce, Net, Optimizer, Row, Spy, Stack, assert_equal_replicas, custom, launch,
    loader, mirrored, rows, train, training_in,
};

/// Trains on 24 rows in batches of 2.
fn failing(strategy: TrainingStrategy<Net>, spy: Spy) -> LearningResult<Net> {
    let folder = tempfile::tempdir().unwrap();
    let training = training_in(folder.path(), loader(24, 2), strategy).num_epochs(3);
    let result = launch(training, Optimizer::Adam, spy);
    assert!(result.interrupted.is_none(), "an error is no interruption");
    result
}

/// The replica and the text of the one failure.
fn failure(result: &LearningResult<Net>) -> (usize, String) {
    match result.error.as_deref() {
        Some(TrainingError::Workers(failures)) if failures.len() == 1 => {
            (failures[0].device_id, failures[0].message.clone())
        }
        other => panic!("not the failure of one replica: {other:?}"),
    }
}

#[test]
fn a_panic_in_one_replica_ends_the_training_and_names_it() {
    let strategy = mirrored(3);
    // The second step's rows are 6 to 11, two for each of three replicas.
    let spy = Spy::new(|row| assert_ne!(row, 8, "no such luck"));
    let result = failing(custom(strategy.clone()), spy.clone());
    let (replica, text) = failure(&result);
    assert_eq!(replica, 1);
    assert!(
        text.contains("replica 1 panicked") && text.contains("no such luck"),
        "{text}"
    );
    assert_equal_replicas(&spy, 3, 1);
    assert_eq!(result.model.weights(), spy.weights_of("replica-0.0")[0]);

    let sum = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1.0_f32));
    assert_eq!(
        sum.unwrap().values(),
        [3.0; 3],
        "the strategy is usable again"
    );
    let (_, spy) = train(loader(12, 2), custom(strategy), Optimizer::Adam, |it| it);
    assert_equal_replicas(&spy, 3, 2);
}

#[test]
fn a_panic_in_a_step_without_other_replicas_is_reported_too() {
    let spy = Spy::new(|row| assert_ne!(row, 4, "no such luck"));
    let (replica, text) = failure(&failing(custom(DefaultStrategy::new()), spy));
    assert_eq!(replica, 0);
    assert!(
        text.contains("replica 0 panicked") && text.contains("no such luck"),
        "{text}"
    );
}

#[test]
fn a_failed_collective_ends_the_training() {
    // Replica 0's third call.
    let calls = AtomicUsize::new(0);
    let broken = BeforeAllReduce::new(move |replica| {
        if replica == 0 && calls.fetch_add(1, Ordering::SeqCst) == 2 {
            Err(Error::invalid("the cable was pulled"))
        } else {
            Ok(())
        }
    });
    let builder = MirroredStrategy::builder().replicas(2);
    let strategy = builder.cross_device_ops(broken).build().unwrap();
    let spy = Spy::new(|_| ());
    let (replica, text) = failure(&failing(custom(strategy), spy.clone()));
    assert_eq!(replica, 0);
    assert!(text.contains("the cable was pulled"), "{text}");
    assert_equal_replicas(&spy, 2, 2);
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

#[test]
fn unreadable_data_ends_the_training_before_the_incomplete_step() {
    let folder = tempfile::tempdir().unwrap();
    let builder = DataLoaderBuilder::new(Stack).batch_size(2);
    let torn = builder.build(Torn(rows(24)));
    let spy = Spy::new(|_| ());
    let training = training_in(folder.path(), torn, custom(mirrored(2)));
    let result = launch(training, Optimizer::Sgd, spy.clone());
    let error = result.error.expect("an error");
    assert!(matches!(*error, TrainingError::Dataset(_)), "{error}");
    // Batches 0 to 6 can be read: three steps, and half of a fourth.
    assert_equal_replicas(&spy, 2, 3);
}

/// A strategy that claims replicas in other processes.
#[derive(Debug)]
struct Elsewhere(MirroredStrategy);

impl Strategy for Elsewhere {
    fn name(&self) -> &'static str {
        "elsewhere"
    }

    fn num_replicas_in_sync(&self) -> usize {
        4
    }

    fn replicas(&self) -> &[Replica] {
        self.0.replicas()
    }

    fn input_context(&self) -> InputContext {
        self.0.input_context()
    }

    fn id(&self) -> StrategyId {
        self.0.id()
    }

    fn handle(&self) -> Arc<dyn Strategy> {
        self.0.handle()
    }

    fn run_replicas(&self, step: ReplicaStep<'_>) -> Result<()> {
        self.0.run_replicas(step)
    }
}

#[test]
fn what_cannot_be_trained_is_refused_before_the_first_step() {
    let spy = Spy::new(|_| ());
    let (_, text) = failure(&failing(custom(Elsewhere(mirrored(2))), spy.clone()));
    assert!(
        text.contains("2 of the 4 replicas of the elsewhere strategy"),
        "{text}"
    );
    assert_equal_replicas(&spy, 2, 0);
    let strategy = LearnerStrategy::new(mirrored(2));
    assert_eq!(strategy.strategy().name(), "mirrored");
}
