//! Objectives with burn's losses, which are means: they need not say how they are divided.

use std::sync::atomic::{AtomicUsize, Ordering};

use burn::nn::loss::{MseLoss, Reduction};
use burn::tensor::{Device, Tensor};
use distribute_core::{BatchSource, Batches, MirroredStrategy, PerReplica, Result, Strategy};
use distribute_fit::{Fit, Objective, StepContext, evaluate};

use crate::common::{Batch, Mlp, Points, new_state};

fn burns(model: &Mlp, (x, y): Batch) -> Tensor<1> {
    MseLoss::new().forward(model.forward(x), y, Reduction::Mean)
}

fn mean(ctx: &StepContext<'_>, model: &Mlp, batch: Batch) -> Result<Objective> {
    Ok(Objective::new(ctx.mean_loss(burns(model, batch))?))
}

#[test]
fn a_mean_is_reported_alike_by_any_number_of_replicas_and_counts_its_batch() {
    let losses = [1, 2, 4].map(|replicas| {
        let strategy = MirroredStrategy::builder().replicas(replicas);
        let strategy = strategy.build().unwrap();
        let data = Points::new(&strategy);
        let mut state = new_state(&strategy);
        let fit = Fit::new(&strategy).epochs(3);
        let history = fit.run(&mut state, &data, mean).unwrap();
        let found = evaluate(&strategy, &state, &data, mean).unwrap();
        (history.last_logs().loss(), found.logs.loss())
    });
    let [(one, evaluated), others @ ..] = losses;
    for (loss, of_evaluation) in others {
        assert!((loss - one).abs() < 1e-6, "{loss} and {one}");
        assert!((of_evaluation - evaluated).abs() < 1e-6);
    }
}

#[test]
fn a_mean_that_is_not_scaled_is_an_error_of_the_first_step() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let data = Points::new(&strategy);
    let mut state = new_state(&strategy);
    let steps = AtomicUsize::new(0);
    let error = Fit::new(&strategy).run(
        &mut state,
        &data,
        |ctx: &StepContext<'_>, model: &Mlp, batch: Batch| {
            if ctx.replica_id() == 0 {
                steps.fetch_add(1, Ordering::Relaxed);
            }
            Ok(Objective::new(burns(model, batch)))
        },
    );
    let error = error.unwrap_err().root_cause().to_string();
    for way in ["average_loss", "ctx.mean_loss", "ctx.loss_is_scaled()"] {
        assert!(error.contains(way), "{error}");
    }
    assert!(steps.into_inner() <= 1);
    assert_eq!(state.primary().unwrap().step(), 0);
    let error = evaluate(
        &strategy,
        &state,
        &data,
        |_: &StepContext<'_>, m: &Mlp, b| Ok(Objective::new(burns(m, b))),
    );
    assert!(error.is_err());
}

#[test]
fn one_replica_may_keep_burns_mean() {
    let strategy = MirroredStrategy::builder().replicas(1).build().unwrap();
    assert_eq!(strategy.num_replicas_in_sync(), 1);
    let data = Points::new(&strategy);
    let mut state = new_state(&strategy);
    let plain = |_: &StepContext<'_>, m: &Mlp, batch: Batch| Ok(Objective::new(burns(m, batch)));
    Fit::new(&strategy).run(&mut state, &data, plain).unwrap();
    assert!(state.primary().unwrap().step() > 0);
}

/// Batches of two tensors with different numbers of rows, so that the examples are not known.
struct Unclear;

impl BatchSource for Unclear {
    type Batch = Batch;

    fn batches_per_epoch(&self) -> Option<usize> {
        Some(9)
    }

    fn global_batch_size(&self) -> Option<usize> {
        Some(4)
    }

    fn epoch(&self, _: usize, skip: usize) -> Result<Batches<'_, Batch>> {
        let device = Device::flex();
        let batch = move |_| {
            let tensors = (Tensor::ones([4, 2], &device), Tensor::ones([2, 1], &device));
            Ok(PerReplica::new(vec![tensors]))
        };
        Ok(Box::new((skip..9).map(batch)))
    }
}

#[test]
fn examples_that_nothing_says_are_an_error_of_the_first_step() {
    let strategy = MirroredStrategy::builder().replicas(1).build().unwrap();
    let mut state = new_state(&strategy);
    let steps = AtomicUsize::new(0);
    let objective = |_: &StepContext<'_>, model: &Mlp, (x, _): Batch| {
        steps.fetch_add(1, Ordering::Relaxed);
        Ok(Objective::new(model.forward(x).mean()))
    };
    let error = Fit::new(&strategy).run(&mut state, &Unclear, objective);
    let error = error.unwrap_err().root_cause().to_string();
    assert!(error.contains("`Objective::examples(n)`"), "{error}");
    assert_eq!(steps.load(Ordering::Relaxed), 1);
    assert_eq!(state.primary().unwrap().step(), 0);
}
