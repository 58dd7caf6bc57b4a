//! What training gives.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use burn::tensor::TensorData;
use distribute_core::{
    Adam, Error, LogicalDevice, OneDeviceStrategy, Result, StrategyExt, TrainState,
};
use distribute_data::{Batching, StrategyDataExt};
use distribute_fit::callbacks::{Direction, EarlyStopping, LearningRateScheduler, TerminateOnNan};
use distribute_fit::{Callback, Control, EpochRecord, Fit, History, Outcome, Position};
use distribute_ps::{CoordinatorOptions, NonFinite, PsError, Staleness, StalenessPolicy};

use super::cluster::{Cluster, Job};
use super::data::{BATCHES, Mlp, TEST, TRAIN, objective, points};
use crate::within_limit;

/// All numbers of a run but its times.
fn numbers(history: &History) -> Vec<String> {
    let of = |record: &EpochRecord| {
        let logs: Vec<_> = record.logs.iter().collect();
        let (epoch, step, rate) = (record.epoch, record.step, record.learning_rate);
        format!("{epoch} {step} {rate} {} {logs:?}", record.examples)
    };
    history.epochs.iter().map(of).collect()
}

fn schedule() -> LearningRateScheduler<'static> {
    LearningRateScheduler::per_epoch(|epoch, rate| if epoch == 2 { rate / 4.0 } else { rate })
}

#[test]
fn one_worker_gives_the_numbers_and_the_bits_of_one_device() {
    within_limit(|| {
        let local = OneDeviceStrategy::new(LogicalDevice::cpu(0)).unwrap();
        let batching = Batching::global(8);
        let train = local.distribute_dataset(points(TRAIN), batching.shuffle(7));
        let test = local.distribute_dataset(points(TEST), batching).unwrap();
        let mut state = local
            .scope(|device| TrainState::new(Mlp::new(device), Adam::new(0.02)))
            .unwrap();
        let fit = Fit::new(&local).epochs(4).callback(schedule());
        let expected = fit.run_with_validation(&mut state, &train.unwrap(), &test, objective);
        let expected = expected.unwrap();

        let job = Job::new(Arc::new(objective));
        let cluster = Cluster::start(&job, 1);
        let coordinator = &cluster.coordinator;
        let fit = Fit::new(coordinator.strategy().unwrap()).epochs(4);
        let found = coordinator
            .fit(&job.training, fit.callback(schedule()))
            .unwrap();
        assert_eq!(numbers(&found), numbers(&expected));
        assert_eq!(
            (found.outcome, found.position),
            (expected.outcome, expected.position)
        );
        let tensors = coordinator.with(&job.state, |state| state.primary().unwrap().to_tensors());
        assert_eq!(
            tensors.unwrap(),
            state.primary().unwrap().to_tensors().unwrap()
        );
    });
}

#[test]
fn several_workers_train_on_each_batch_of_an_epoch_once() {
    within_limit(|| {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let notes = seen.clone();
        let job = Job::new(Arc::new(move |ctx, model, batch| {
            let place = (ctx.is_training(), ctx.epoch(), ctx.batch());
            notes.lock().unwrap().push(place);
            objective(ctx, model, batch)
        }));
        let cluster = Cluster::start(&job, 3);
        let coordinator = &cluster.coordinator;
        let fit = Fit::new(coordinator.strategy().unwrap()).epochs(12);
        let history = coordinator.fit(&job.training, fit).unwrap();
        let mut seen = seen.lock().unwrap().clone();
        seen.sort_unstable();
        let validation = (0..12).flat_map(|epoch| (0..3).map(move |batch| (false, epoch, batch)));
        let training = (0..12).flat_map(|epoch| (0..BATCHES).map(move |b| (true, epoch, b)));
        assert_eq!(seen, validation.chain(training).collect::<Vec<_>>());
        let step = coordinator.with(&job.state, |state| Ok(state.primary().unwrap().step()));
        assert_eq!(step.unwrap(), 12 * BATCHES as u64);
        let losses: Vec<f64> = history.epochs.iter().map(|it| it.logs.loss()).collect();
        assert!(losses[11] < losses[0] * 0.7, "{losses:?}");
        assert!(history.epochs.iter().all(|record| record.examples == 84));
    });
}

#[test]
fn training_ends_after_so_many_updates() {
    within_limit(|| {
        let job = Job::new(Arc::new(objective));
        let cluster = Cluster::start(&job, 3);
        let coordinator = &cluster.coordinator;
        let fit = Fit::new(coordinator.strategy().unwrap())
            .epochs(9)
            .max_steps(14);
        let history = coordinator.fit(&job.training, fit).unwrap();
        assert_eq!(history.outcome, Outcome::MaxSteps);
        let place = Position {
            epoch: 1,
            batches: 3,
        };
        assert_eq!(history.position, place);
        let step = coordinator.with(&job.state, |state| Ok(state.primary().unwrap().step()));
        assert_eq!(step.unwrap(), 14);
    });
}

#[test]
fn a_synchronous_run_makes_an_update_of_every_so_many_gradients() {
    within_limit(|| {
        let job = Job::new(Arc::new(objective));
        let mut options = CoordinatorOptions::default();
        options.run.synchronous = Some(2);
        let cluster = Cluster::with(&job, 3, options);
        let coordinator = &cluster.coordinator;
        let fit = Fit::new(coordinator.strategy().unwrap()).epochs(4);
        let history = coordinator.fit(&job.training, fit.max_steps(16)).unwrap();
        let step = coordinator.with(&job.state, |state| Ok(state.primary().unwrap().step()));
        let step = step.unwrap();
        // Two gradients of a version make an update; what comes later is dropped.
        assert!((8..=16).contains(&step), "{step}");
        let losses: Vec<f64> = history.epochs.iter().map(|it| it.logs.loss()).collect();
        assert!(losses.last().unwrap() < &losses[0], "{losses:?}");
    });
}

#[test]
fn stale_gradients_are_left_out_where_that_was_chosen() {
    within_limit(|| {
        let job = Job::new(Arc::new(objective));
        let mut options = CoordinatorOptions::default();
        let policy = StalenessPolicy::Refuse;
        options.run.staleness = Some(Staleness { bound: 0, policy });
        let cluster = Cluster::with(&job, 2, options);
        let coordinator = &cluster.coordinator;
        let fit = Fit::new(coordinator.strategy().unwrap()).epochs(3);
        let history = coordinator.fit(&job.training, fit).unwrap();
        assert_eq!(history.outcome, Outcome::Completed);
        let step = coordinator.with(&job.state, |state| Ok(state.primary().unwrap().step()));
        assert!(step.unwrap() <= 3 * BATCHES as u64);
    });
}

#[test]
fn early_stopping_brings_the_best_weights_back_to_the_servers() {
    within_limit(|| {
        let job = Job::new(Arc::new(objective));
        let cluster = Cluster::start(&job, 2);
        let coordinator = &cluster.coordinator;
        // A value that gets worse: an early epoch is the best one.
        let stopping = EarlyStopping::new("accuracy")
            .direction(Direction::Min)
            .patience(2)
            .restore_best(true);
        let mut weights = Weights::default();
        let fit = Fit::new(coordinator.strategy().unwrap()).epochs(40);
        let fit = fit.callback(&mut weights).callback(stopping);
        let history = coordinator.fit(&job.training, fit).unwrap();
        let Outcome::EarlyStopped { best_epoch, .. } = history.outcome else {
            panic!("{:?}", history.outcome);
        };
        assert!(best_epoch < history.epochs.len() - 1);
        let found = coordinator.with(&job.state, |state| state.primary().unwrap().to_tensors());
        assert_eq!(of_model(found.unwrap()), weights.after[best_epoch]);
    });
}

fn of_model(mut tensors: BTreeMap<String, TensorData>) -> BTreeMap<String, TensorData> {
    tensors.retain(|name, _| name.starts_with("model/"));
    tensors
}

/// The weights after each epoch.
#[derive(Default)]
struct Weights {
    after: Vec<BTreeMap<String, TensorData>>,
}

impl Callback for Weights {
    fn on_epoch_end(&mut self, _: &EpochRecord, run: &mut Control<'_>) -> Result<()> {
        self.after.push(of_model(run.tensors()?));
        Ok(())
    }
}

#[test]
fn micro_batches_are_refused() {
    within_limit(|| {
        let job = Job::with(Arc::new(objective), |state| state.accumulate(2));
        let cluster = Cluster::start(&job, 1);
        let fit = Fit::new(cluster.coordinator.strategy().unwrap());
        let error = cluster.coordinator.fit(&job.training, fit).unwrap_err();
        assert!(error.to_string().contains("micro-batches"), "{error}");
    });
}

#[test]
fn a_failing_objective_ends_the_run_with_the_place_where_it_failed() {
    within_limit(|| {
        let job = Job::new(Arc::new(|ctx, model, batch| {
            match (ctx.is_training(), ctx.batch()) {
                (true, 5) => Err(Error::step("no luck")),
                _ => objective(ctx, model, batch),
            }
        }));
        let cluster = Cluster::start(&job, 2);
        let coordinator = &cluster.coordinator;
        for _ in 0..2 {
            let fit = Fit::new(coordinator.strategy().unwrap());
            let error = coordinator.fit(&job.training, fit).unwrap_err().to_string();
            assert!(error.contains("step `points`"), "{error}");
            assert!(error.contains("on worker "), "{error}");
            assert!(error.contains("no luck"), "{error}");
        }
    });
}

/// What becomes of a loss that is NaN from batch 4 on.
fn not_a_number(non_finite: NonFinite) -> distribute_ps::Result<History> {
    let job = Job::new(Arc::new(|ctx, model, (x, y)| {
        let y = match (ctx.is_training(), ctx.batch()) {
            (true, 4) => y * f32::NAN,
            _ => y,
        };
        objective(ctx, model, (x, y))
    }));
    let mut options = CoordinatorOptions::default();
    options.run.non_finite = non_finite;
    let cluster = Cluster::with(&job, 2, options);
    let coordinator = &cluster.coordinator;
    let fit = Fit::new(coordinator.strategy().unwrap()).epochs(3);
    let fit = fit.callback(TerminateOnNan::every_batches(1));
    coordinator.fit(&job.training, fit)
}

#[test]
fn nan_is_refused_or_applied_and_never_silent() {
    within_limit(|| {
        let error = not_a_number(NonFinite::Refuse).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("NaN or infinity"), "{text}");
        assert!(text.contains("model/"), "{text}");
        assert!(!matches!(error.root_cause(), PsError::Panicked { .. }));
        let history = not_a_number(NonFinite::Apply).unwrap();
        let ended = matches!(history.outcome, Outcome::NotFinite { .. });
        assert!(ended, "{:?}", history.outcome);
    });
}
