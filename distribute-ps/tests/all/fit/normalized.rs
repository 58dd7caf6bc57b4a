//! A network with batch normalizations, trained by `ClusterCoordinator::fit`. The rule is that of
//! docs/parameter-servers.md, TensorFlow's `assign_sub` of variables on servers: every step adds
//! what its batch has moved its worker's copy of the statistics by.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::activation::sigmoid;
use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::{
    Adam, LocalBatchNorm, LogicalDevice, OneDeviceStrategy, Result, StrategyExt, SyncBatchNorm,
    SyncBatchNormConfig, TrainState,
};
use distribute_data::{Batching, StrategyDataExt};
use distribute_fit::{Fit, History, Objective, StepContext};
use distribute_ps::CoordinatorOptions;

use super::cluster::{Cluster, Job, Objectively};
use super::data::{BATCHES, Batch, TEST, TRAIN, filled, points};
use crate::within_limit;

const EPOCHS: usize = 4;
const MOMENTUM: f64 = 0.75;

/// All three kinds of batch normalization.
#[derive(Module, Debug)]
struct Net {
    inputs: SyncBatchNorm,
    hidden: Linear,
    local: LocalBatchNorm,
    burns: BatchNorm,
    output: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        let without_bias = |inputs, outputs| LinearConfig::new(inputs, outputs).with_bias(false);
        let inputs = SyncBatchNormConfig::new(2).with_momentum(MOMENTUM);
        Self {
            inputs: inputs.init(device).unwrap(),
            hidden: filled(&without_bias(2, 8), 1.0, device),
            local: BatchNormConfig::new(8).init(device).into(),
            burns: BatchNormConfig::new(8).init(device),
            output: filled(&without_bias(8, 1), 2.0, device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Result<Tensor<2>> {
        let x = self.hidden.forward(self.inputs.forward(x));
        let x = self.burns.forward(self.local.forward(x)?.tanh());
        Ok(sigmoid(self.output.forward(x)))
    }

    fn statistics(&self) -> Statistics {
        let read = |state: &burn::module::RunningState<Tensor<1>>| {
            state.value_sync().into_data().iter::<f32>().collect()
        };
        BTreeMap::from([
            ("inputs.moving_mean", read(&self.inputs.moving_mean)),
            ("inputs.moving_variance", read(&self.inputs.moving_variance)),
            ("local.running_mean", read(&self.local.running_mean)),
            ("local.running_var", read(&self.local.running_var)),
            ("burns.running_mean", read(&self.burns.running_mean)),
            ("burns.running_var", read(&self.burns.running_var)),
        ])
    }
}

type Statistics = BTreeMap<&'static str, Vec<f32>>;

fn build(device: &Device) -> TrainState<Net> {
    TrainState::new(Net::new(device), Adam::new(0.02))
}

fn objective(ctx: &StepContext<'_>, model: &Net, (x, y): Batch) -> Result<Objective> {
    let examples = x.dims()[0];
    let global_batch = ctx.global_batch_size()?.unwrap_or(1) as f64;
    let loss = (model.forward(x)? - y).square().sum() / global_batch;
    Ok(Objective::new(loss).examples(examples))
}

/// Trains, and gives the history and the tensors on the servers.
fn trained(
    objective: Arc<Objectively<Net>>,
    workers: usize,
) -> (History, BTreeMap<String, TensorData>) {
    let job = Job::of(objective, build);
    let cluster = Cluster::of(&job.registry, workers, CoordinatorOptions::default());
    let coordinator = &cluster.coordinator;
    let fit = Fit::new(coordinator.strategy().unwrap()).epochs(EPOCHS);
    let history = coordinator.fit(&job.training, fit).unwrap();
    let tensors = coordinator.with(&job.state, |state| state.primary().unwrap().to_tensors());
    (history, tensors.unwrap())
}

fn assert_close(name: &str, found: &[f32], wanted: &[f32], bound: f32) {
    assert_eq!(found.len(), wanted.len(), "{name}");
    for (found, wanted) in found.iter().zip(wanted) {
        let bound = bound * wanted.abs().max(1.0);
        assert!((found - wanted).abs() < bound, "{name}: {found} {wanted}");
    }
}

fn floats(data: &TensorData) -> Vec<f32> {
    data.iter::<f32>().collect()
}

/// Losses, weights and statistics; validation normalizes with the statistics.
#[test]
fn one_worker_gives_what_one_device_gives() {
    within_limit(|| {
        let local = OneDeviceStrategy::new(LogicalDevice::cpu(0)).unwrap();
        let batching = Batching::global(8);
        let train = local.distribute_dataset(points(TRAIN), batching.shuffle(7));
        let test = local.distribute_dataset(points(TEST), batching).unwrap();
        let mut state = local.scope(build).unwrap();
        let fit = Fit::new(&local).epochs(EPOCHS);
        let wanted = fit.run_with_validation(&mut state, &train.unwrap(), &test, objective);
        let wanted = wanted.unwrap();
        let (found, tensors) = trained(Arc::new(objective), 1);
        for (found, wanted) in found.epochs.iter().zip(&wanted.epochs) {
            let numbers = |logs: &distribute_fit::Logs| {
                let all = logs.iter().map(|(name, value)| (name.to_string(), value));
                all.collect::<BTreeMap<_, _>>()
            };
            let (found, wanted) = (numbers(&found.logs), numbers(&wanted.logs));
            assert!(wanted.contains_key("val_loss"), "{wanted:?}");
            assert!(found.keys().eq(wanted.keys()));
            for (name, value) in &found {
                assert_close(name, &[*value as f32], &[wanted[name] as f32], 1e-4);
            }
        }
        let expected = state.primary().unwrap().to_tensors().unwrap();
        assert!(tensors.keys().eq(expected.keys()));
        for (name, data) in &tensors {
            assert_close(name, &floats(data), &floats(&expected[name]), 1e-4);
        }
    });
}

/// What steps have seen: the statistics that they began with and those that they left.
type Seen = Arc<Mutex<Vec<(Statistics, Statistics)>>>;

#[test]
fn every_batch_of_several_workers_moves_the_servers_statistics_once() {
    within_limit(|| {
        let seen = Seen::default();
        let notes = Arc::clone(&seen);
        let seeing: Arc<Objectively<Net>> = Arc::new(move |ctx, model, (x, y)| {
            let before = model.statistics();
            let batch_mean = floats(&x.clone().mean_dim(0).into_data());
            let result = objective(ctx, model, (x, y))?;
            let after = model.statistics();
            if ctx.is_training() {
                // By Keras' rule, from what the worker had pulled.
                let name = "inputs.moving_mean";
                let pulled = before[name].iter().zip(batch_mean);
                let keep = MOMENTUM as f32;
                let moved = pulled.map(|(old, batch)| old * keep + batch * (1.0 - keep));
                assert_close(name, &after[name], &moved.collect::<Vec<_>>(), 1e-5);
                notes.lock().unwrap().push((before, after));
            } else {
                assert_eq!(before, after, "evaluation moves nothing");
            }
            Ok(result)
        });
        let (history, tensors) = trained(seeing, 3);
        let losses: Vec<f64> = history.epochs.iter().map(|it| it.logs.loss()).collect();
        assert!(losses[EPOCHS - 1] < losses[0] * 0.9, "{losses:?}");
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), EPOCHS * BATCHES);
        for (name, start) in Net::new(&Device::flex().autodiff()).statistics() {
            let mut wanted = start.clone();
            for (before, after) in seen.iter() {
                let moved = before[name].iter().zip(&after[name]);
                let sums = wanted.iter_mut().zip(moved);
                sums.for_each(|(sum, (before, after))| *sum += after - before);
            }
            assert_ne!(wanted, start, "{name}");
            let found = floats(&tensors[&format!("model/{name}")]);
            assert_close(name, &found, &wanted, 1e-4);
        }
    });
}
