//! burn's loop ends with the bits of `Fit` where the arithmetic is the same: the number of replicas
//! and the sizes of their batches are powers of two, so that the order of the divisions does not
//! matter.

use burn::optim::{AdamConfig, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData};
use burn_train::{ExecutionStrategy, Learner, TrainingStrategy};
use distribute_core::{BurnOptimizer, Nest, Result, Strategy, StrategyExt, TrainState};
use distribute_data::{Batching, FnDataset, StrategyDataExt};
use distribute_fit::{Fit, Objective, StepContext};
use distribute_learner::{LearnerStrategy, TrainingExt};
use rstest::rstest;

use crate::common::{Batch, Net, Optimizer, Row, Spy, loader, mirrored, rows, training_in};
use crate::group::{THREADS, workers};

const EPOCHS: usize = 2;
const ROWS: usize = 24;
const RATE: f64 = 0.02;

/// A batch as a step takes it.
#[derive(Nest, Clone, Debug)]
struct Part {
    x: Tensor<2>,
    y: Tensor<2>,
}

/// The weights after `Fit` with global batches of this size.
fn fitted(strategy: &impl Strategy, batch: usize, optimizer: Optimizer) -> Result<Vec<f32>> {
    let all = rows(ROWS);
    let data = FnDataset::new(ROWS, move |indices: &[usize], device: &Device| {
        let chosen: Vec<&Row> = indices.iter().map(|&index| &all[index]).collect();
        let x: Vec<f32> = chosen.iter().flat_map(|row| row.x).collect();
        let y: Vec<f32> = chosen.iter().map(|row| row.y).collect();
        let (x, y) = (
            TensorData::new(x, [indices.len(), 3]),
            TensorData::new(y, [indices.len(), 1]),
        );
        Ok(Part {
            x: Tensor::from_data(x, device),
            y: Tensor::from_data(y, device),
        })
    });
    let data = strategy.distribute_dataset(data, Batching::global(batch))?;
    let optimizer = match optimizer {
        Optimizer::Sgd => BurnOptimizer::new(SgdConfig::new(), RATE),
        Optimizer::Adam => BurnOptimizer::new(AdamConfig::new(), RATE),
    };
    let mut state = strategy.scope(|_| TrainState::new(Net::new(Spy::new(|_| ())), optimizer))?;
    let objective = |ctx: &StepContext<'_>, model: &Net, Part { x, y }: Part| {
        let examples = x.dims()[0];
        let loss = model.loss(&Batch { first: 0, x, y });
        Ok(Objective::new(ctx.mean_loss(loss)?).examples(examples))
    };
    Fit::new(strategy)
        .epochs(EPOCHS)
        .run(&mut state, &data, objective)?;
    Ok(state.primary()?.model.weights())
}

/// The weights after burn's loop, with batches of this size for each replica.
fn learned(strategy: impl Strategy + 'static, batch: usize, optimizer: Optimizer) -> Vec<f32> {
    let folder = tempfile::tempdir().unwrap();
    let default = TrainingStrategy::Default(ExecutionStrategy::single(Device::flex()));
    let training = training_in(folder.path(), loader(ROWS, batch), default).num_epochs(EPOCHS);
    let training = training.distributed(LearnerStrategy::new(strategy));
    let model = Net::new(Spy::new(|_| ()));
    let result = training.launch(Learner::new(model, optimizer.build(), RATE));
    assert!(result.error.is_none(), "{:?}", result.error);
    result.model.weights()
}

#[rstest]
fn burns_loop_has_the_bits_of_fit(
    #[values(1, 2, 4)] replicas: usize,
    #[values(Optimizer::Sgd, Optimizer::Adam)] optimizer: Optimizer,
) {
    let wanted = fitted(&mirrored(replicas), 2 * replicas, optimizer).unwrap();
    assert_eq!(learned(mirrored(replicas), 2, optimizer), wanted);
    if replicas == 1 {
        return;
    }
    let each: &[usize] = if replicas == 2 { &[1, 1] } else { &[1, 3] };
    let fits = workers(THREADS, each, move |strategy| {
        fitted(&strategy, 2 * replicas, optimizer)
    });
    let found = workers(THREADS, each, move |strategy| {
        Ok(learned(strategy, 2, optimizer))
    });
    for weights in fits.into_iter().chain(found) {
        assert_eq!(weights, wanted);
    }
}
