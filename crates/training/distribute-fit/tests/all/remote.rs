//! Training states that live in a store: their checkpoints, and what the loop tells the store.

use std::sync::Arc;

use burn::nn::Linear;
use burn::tensor::{Device, Tensor};
use distribute_core::{
    Adam, BatchSource, Batches, PerReplica, Result, Sgd, StrategyExt, TrainState,
};
use distribute_fit::callbacks::LearningRateScheduler;
use distribute_fit::{Fit, Objective, StepContext, restore, snapshot};

#[path = "../../../../../distribute-core/tests/all/remote/store.rs"]
mod store;

use store::{Remotely, Store, layer, one_device, step};

#[test]
fn checkpoints_go_from_and_to_other_strategies() {
    let build = |device: &Device| TrainState::new(layer(device, 0.25), Adam::new(0.01));
    let (local, remote) = (one_device(), Remotely::new(&Arc::default()));
    let mut here = local.scope(build).unwrap();
    let mut there = remote.scope(build).unwrap();
    for number in 0..3 {
        step(&local, &mut here, number).unwrap();
    }
    let checkpoint = snapshot(here.primary().unwrap()).unwrap();
    restore(&mut there, &checkpoint).unwrap();
    assert_eq!(there.primary().unwrap().step(), 3);
    step(&local, &mut here, 3).unwrap();
    step(&remote, &mut there, 3).unwrap();
    let (mine, theirs) = (
        snapshot(here.primary().unwrap()),
        snapshot(there.primary().unwrap()),
    );
    let (mine, theirs) = (mine.unwrap(), theirs.unwrap());
    assert_eq!(mine.metadata.step, theirs.metadata.step);
    assert_eq!(mine.tensors, theirs.tensors);
}

/// Four batches of one example.
struct Ones;

impl BatchSource for Ones {
    type Batch = Tensor<2>;

    fn batches_per_epoch(&self) -> Option<usize> {
        Some(4)
    }

    fn global_batch_size(&self) -> Option<usize> {
        Some(1)
    }

    fn epoch(&self, _: usize, skip_batches: usize) -> Result<Batches<'_, Tensor<2>>> {
        let one = |_| {
            Ok(PerReplica::new(vec![Tensor::ones(
                [1, 3],
                &Device::default(),
            )]))
        };
        Ok(Box::new((skip_batches..4).map(one)))
    }
}

#[test]
fn fit_tells_the_store_a_learning_rate_when_it_changes_and_not_before_every_step() {
    let store = Arc::new(Store::default());
    let strategy = Remotely::new(&store);
    let mut state = strategy
        .scope(|device| TrainState::new(layer(device, 0.5), Sgd::new(0.1)))
        .unwrap();
    let objective = |_: &StepContext<'_>, model: &Linear, x: Tensor<2>| {
        Ok(Objective::new(model.forward(x).square().sum()).examples(1))
    };
    let schedule = |epoch, rate: f64| if epoch == 1 { rate / 2.0 } else { rate };
    let fit = Fit::new(&strategy).epochs(3);
    let fit = fit.callback(LearningRateScheduler::per_epoch(schedule));
    fit.run(&mut state, &Ones, objective).unwrap();
    let state = store.states.lock().unwrap()[""].clone();
    let inside = state.inside();
    assert_eq!((inside.step, inside.learning_rate), (12, Some(0.05)));
    assert_eq!(inside.told, 1);
}
