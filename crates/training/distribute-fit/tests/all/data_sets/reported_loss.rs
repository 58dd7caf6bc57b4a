//! What `fit` and `evaluate` report is the mean over the examples, whatever the loss was divided
//! by; and a loss that is not one per example is refused.

use burn::nn::{Linear, LinearConfig};
use burn::tensor::TensorData;
use distribute_core::{
    CentralStorageStrategy, DefaultStrategy, Device, Error, MirroredStrategy, PerReplica, Result,
    Sgd, Strategy, StrategyExt, Tensor, TrainState,
};
use distribute_data::loss::{MeanSquaredError, Reduction};
use distribute_data::{
    AverageLoss, Batching, Dataset, FnDataset, StrategyDataExt, Weighted, average_loss,
    mean_squared_error, scale_regularization_loss,
};
use distribute_fit::{Fit, Objective, StepContext, evaluate};
use rstest::rstest;

use super::workers::workers;

type Batch = (Tensor<2>, Tensor<1>);

/// How a loss is divided.
#[derive(Debug, Clone, Copy, PartialEq)]
enum By {
    /// By the size of the batch at hand (TensorFlow's default).
    Default,
    GlobalBatch,
    /// By a number that has nothing to do with the batch.
    Seven,
    SevenWithoutContext,
    MeanOverReplicas,
    Weights,
    PerPixel,
    Hand,
}

/// Example i is i, and so is its loss.
fn numbers(count: usize) -> impl Dataset<Batch = Batch> {
    Weighted::new(FnDataset::new(count, |indices, device| {
        let x: Vec<f32> = indices.iter().map(|i| (*i as f32).sqrt()).collect();
        let x = TensorData::new(x, [indices.len(), 1]);
        Ok(Tensor::from_data(x, device))
    }))
}

fn objective(by: By, ctx: &StepContext<'_>, model: &Linear, batch: Batch) -> Result<Objective> {
    let (x, weights) = batch;
    let rows = x.dims()[0];
    let predicted = model.forward(x);
    let targets = predicted.zeros_like();
    let losses = mean_squared_error(predicted.clone(), targets.clone());
    let weighted = weights.clone();
    let loss = match by {
        By::Default | By::Weights => AverageLoss::new()
            .weights(weighted)
            .own_batch()
            .of(ctx, losses)?,
        By::GlobalBatch => AverageLoss::new().weights(weighted).of(ctx, losses)?,
        By::Seven => AverageLoss::new()
            .weights(weighted)
            .global_batch_size(7)
            .of(ctx, losses)?,
        By::SevenWithoutContext => AverageLoss::new()
            .weights(weighted)
            .without_context(losses, 7)?,
        By::MeanOverReplicas => {
            let loss = MeanSquaredError::new(Reduction::MeanOverReplicas);
            loss.call(predicted, targets)?.reduced()?
        }
        By::PerPixel => {
            let halves = losses.mul_scalar(0.5).reshape([rows, 1]).repeat_dim(1, 2);
            let weights = weights.clone().reshape([rows, 1]);
            AverageLoss::new()
                .weights(weights)
                .own_batch()
                .of(ctx, halves)?
        }
        By::Hand => losses.sum().div_scalar((2 * rows.max(1)) as f64),
    };
    let examples = weights.sum();
    let objective = Objective::new(loss).examples(examples);
    Ok(match by {
        By::Hand => objective.averaged_over(2 * rows.max(1)),
        By::Weights => {
            let term = Tensor::<1>::from_floats([3.0], ctx.device());
            objective.regularization(scale_regularization_loss(ctx, term)?)
        }
        _ => objective,
    })
}

/// The loss of an epoch and of an evaluation, with weights that do not change.
fn reported<S: Strategy>(strategy: &S, count: usize, batching: Batching, by: By) -> [f64; 2] {
    let data = strategy
        .distribute_dataset(numbers(count), batching)
        .unwrap();
    let mut state = strategy
        .scope(|device: &Device| {
            let mut model = LinearConfig::new(1, 1).with_bias(false).init(device);
            model.weight = burn::module::Param::from_tensor(Tensor::ones([1, 1], device));
            TrainState::new(model, Sgd::new(0.0))
        })
        .unwrap();
    let objective = |ctx: &StepContext<'_>, model: &Linear, batch| objective(by, ctx, model, batch);
    let fit = Fit::new(strategy).epochs(1);
    let history = fit.run(&mut state, &data, objective).unwrap();
    let found = evaluate(strategy, &state, &data, objective).unwrap();
    [history.last_logs().loss(), found.logs.loss()]
}

#[rstest]
#[case::one_in_the_last_batch(65, 64)]
#[case::one_in_all(1, 64)]
#[case::an_odd_last_batch(21, 6)]
#[case::full_batches(24, 6)]
fn the_reported_loss_is_the_mean_over_the_examples(
    #[case] count: usize,
    #[case] batch: usize,
    #[values(
        By::Default,
        By::GlobalBatch,
        By::Seven,
        By::SevenWithoutContext,
        By::MeanOverReplicas,
        By::Weights,
        By::PerPixel,
        By::Hand
    )]
    by: By,
) {
    let plus = if by == By::Weights { 3.0 } else { 0.0 };
    let expected = (count - 1) as f64 / 2.0 + plus;
    let close = |found: [f64; 2], what: &str| {
        for found in found {
            let far = (found - expected).abs() > 1e-5 * expected.max(1.0);
            assert!(!far, "{what}: {found}, expected {expected}");
        }
    };
    let batching = Batching::global(batch);
    close(
        reported(&DefaultStrategy::new(), count, batching, by),
        "default",
    );
    for replicas in [2, 3] {
        let strategy = MirroredStrategy::builder().replicas(replicas);
        let strategy = strategy.build().unwrap();
        close(reported(&strategy, count, batching, by), "mirrored");
        if !matches!(by, By::MeanOverReplicas | By::Hand) {
            let batching = batching.pad_remainder(true);
            close(reported(&strategy, count, batching, by), "padded");
        }
    }
    let strategy = CentralStorageStrategy::with_replicas(2).unwrap();
    close(reported(&strategy, count, batching, by), "central storage");
}

#[rstest]
#[case::one_in_the_last_batch(65, 64, &[1, 1])]
#[case::one_in_all(1, 64, &[1, 1])]
#[case::an_odd_last_batch(21, 6, &[2, 1])]
#[case::full_batches(24, 6, &[1, 2])]
fn workers_report_the_mean_over_the_examples_of_all(
    #[case] count: usize,
    #[case] batch: usize,
    #[case] replicas: &'static [usize],
    #[values(
        By::Default,
        By::GlobalBatch,
        By::Seven,
        By::MeanOverReplicas,
        By::Weights,
        By::Hand
    )]
    by: By,
) {
    let plus = if by == By::Weights { 3.0 } else { 0.0 };
    let expected = (count - 1) as f64 / 2.0 + plus;
    for pad in [false, true] {
        if pad && matches!(by, By::MeanOverReplicas | By::Hand) {
            continue;
        }
        let found = workers(replicas, move |strategy| {
            let batching = Batching::global(batch).allow_empty(true);
            reported(&strategy, count, batching.pad_remainder(pad), by)
        });
        for found in found.into_iter().flatten() {
            let far = (found - expected).abs() > 1e-5 * expected.max(1.0);
            assert!(!far, "padded: {pad}: {found}, expected {expected}");
        }
    }
}

/// What an epoch reports of a loss object with this reduction, for squared errors 0, 1, 2, ...
fn reported_by_object<S: Strategy>(
    strategy: &S,
    count: usize,
    batch: usize,
    reduction: Reduction,
) -> Result<f64> {
    let data = strategy.distribute_dataset(numbers(count), Batching::global(batch))?;
    let build = |device: &Device| {
        let mut model = LinearConfig::new(1, 1).with_bias(false).init(device);
        model.weight = burn::module::Param::from_tensor(Tensor::ones([1, 1], device));
        TrainState::new(model, Sgd::new(0.0))
    };
    let mut state = strategy.scope(build)?;
    let objective = |_: &StepContext<'_>, model: &Linear, (x, _): Batch| {
        let examples = x.dims()[0];
        let predicted = model.forward(x);
        let targets = predicted.zeros_like();
        let loss = MeanSquaredError::new(reduction).call(predicted, targets)?;
        Ok(Objective::new(loss.reduced()?).examples(examples))
    };
    let history = Fit::new(strategy)
        .epochs(1)
        .run(&mut state, &data, objective)?;
    Ok(history.last_logs().loss())
}

#[test]
fn what_fit_reports_of_a_loss_object_is_what_its_reduction_says() {
    let alone = DefaultStrategy::new();
    let mirrored = MirroredStrategy::builder().replicas(2).build().unwrap();
    // Batches of 6, 6 and 3; the mean of 0 to 14 is 7.
    let of = |reduction| {
        [
            reported_by_object(&alone, 15, 6, reduction),
            reported_by_object(&mirrored, 15, 6, reduction),
        ]
    };
    let close = |found: &Result<f64>, expected: f64| {
        let found = *found.as_ref().unwrap();
        assert!(
            (found - expected).abs() < 1e-4,
            "{found}, expected {expected}"
        );
    };
    for reduction in [Reduction::SumOverBatchSize, Reduction::Auto] {
        let [one, two] = of(reduction);
        close(&one, 7.0);
        let refused = two.unwrap_err().to_string();
        assert!(refused.contains("average_loss"), "{refused}");
    }
    for found in of(Reduction::MeanOverReplicas) {
        close(&found, 7.0);
    }
    // The sum of a full batch, on average over the examples.
    for found in of(Reduction::Sum) {
        close(&found, 7.0 * 6.0);
    }
    for found in of(Reduction::None) {
        let refused = found.unwrap_err().to_string();
        assert!(refused.contains("average_loss"), "{refused}");
    }
}

#[test]
fn losses_that_were_divided_by_different_numbers_are_refused() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let data = strategy
        .distribute_dataset(numbers(8), Batching::global(4))
        .unwrap();
    let state = strategy
        .scope(|device| TrainState::new(LinearConfig::new(1, 1).init(device), Sgd::new(0.0)))
        .unwrap();
    let mixed = |ctx: &StepContext<'_>, model: &Linear, (x, weights): Batch| {
        let predicted = model.forward(x);
        let losses = mean_squared_error(predicted.clone(), predicted.zeros_like());
        let loss = AverageLoss::new().own_batch().of(ctx, losses.clone())?
            + AverageLoss::new().global_batch_size(4).of(ctx, losses)?;
        Ok(Objective::new(loss).examples(weights.sum()))
    };
    let error = evaluate(&strategy, &state, &data, mixed).unwrap_err();
    assert!(error.to_string().contains("averaged_over"), "{error}");
}

/// What `average` makes of the losses of a batch, on replicas with this many rows each.
fn averaged(
    rows: &[usize],
    average: impl Fn(&distribute_core::ReplicaContext, Tensor<1>) -> Result<Tensor<1>> + Sync,
) -> Result<Vec<f32>> {
    let strategy = MirroredStrategy::builder().replicas(rows.len()).build()?;
    let parts = strategy.replicas().iter().zip(rows);
    let parts = parts.map(|(replica, rows)| Tensor::<2>::ones([*rows, 3], &replica.device));
    let losses = strategy.run(PerReplica::new(parts.collect()), |ctx, x| {
        average(ctx, x.mean_dim(1).squeeze_dim(1).mul_scalar(3.0))
    })?;
    Ok(losses
        .into_values()
        .into_iter()
        .map(Tensor::into_scalar::<f32>)
        .collect())
}

#[test]
fn a_loss_that_is_reduced_already_is_refused() {
    for (rows, size) in [
        ([4, 4], None),
        ([4, 4], Some(8)),
        ([4, 1], None),
        ([4, 0], Some(8)),
    ] {
        let found = averaged(&rows, |ctx, losses| {
            AverageLoss::new()
                .global_batch_size(size)
                .of(ctx, losses.mean())
        });
        let error = found.unwrap_err().to_string();
        assert!(
            error.contains("1 elements") && error.contains("4 examples"),
            "{error}"
        );
    }
    let refused = |outcome: Result<Vec<f32>>| {
        let error = outcome.unwrap_err();
        let Error::Replica { source, .. } = &error else {
            panic!("{error:?}");
        };
        assert!(
            matches!(**source, Error::InvalidArgument { .. }),
            "{source:?}"
        );
    };
    refused(averaged(&[4, 4], |_, losses| {
        AverageLoss::new().without_context(losses.sum(), 8)
    }));
    refused(averaged(&[4, 4], |ctx, losses| {
        let weights = losses.ones_like();
        AverageLoss::new()
            .weights(weights)
            .own_batch()
            .of(ctx, losses.mean())
    }));
    refused(averaged(&[4, 4], |ctx, losses| {
        average_loss(ctx, losses.repeat_dim(0, 2))
    }));
}

/// An argument with one element, such as a factor of the loss, is not taken for a batch of one
/// example.
#[test]
fn a_reduced_loss_is_refused_also_beside_a_tensor_of_one_element() {
    let strategy = DefaultStrategy::new();
    let device = Device::flex();
    let batch = PerReplica::new(vec![Tensor::<1>::ones([4], &device)]);
    let factor = PerReplica::new(vec![Tensor::<1>::ones([1], &device)]);
    let args = (batch, factor);
    let error = strategy.run(args.clone(), |ctx, (losses, factor)| {
        average_loss(ctx, losses.mean() * factor)
    });
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("1 elements") && text.contains("has 4 examples"),
        "{text}"
    );
    let taken = strategy.run(args, |ctx, (losses, factor)| {
        average_loss(ctx, losses * factor)
    });
    let value = taken.unwrap().into_values().remove(0);
    assert_eq!(value.into_scalar::<f32>(), 1.0);
}

/// Losses of four examples with three tokens each, in one row.
#[test]
fn losses_of_tokens_in_one_row_are_told_which_shape_they_need() {
    for object in [false, true] {
        let error = averaged(&[4, 4], |ctx, losses| {
            let flat = losses.repeat_dim(0, 3);
            if object {
                let predicted = flat.reshape([12, 1]);
                let targets = predicted.zeros_like();
                let loss = MeanSquaredError::new(Reduction::MeanOverReplicas);
                return loss.call(predicted, targets)?.reduced();
            }
            average_loss(ctx, flat)
        });
        let text = error.unwrap_err().to_string();
        assert!(text.contains("12 elements"), "{text}");
        assert!(text.contains("4 examples"), "{text}");
        assert!(text.contains("`reshape([4, 3])`"), "{text}");
    }
    let shaped = averaged(&[4, 4], |ctx, losses| {
        let tokens = losses.reshape([4, 1]).repeat_dim(1, 3);
        average_loss(ctx, tokens)
    });
    assert_eq!(shaped.unwrap(), [4.5, 4.5]);
}

#[test]
fn a_loss_of_each_example_is_taken_also_of_one_and_of_none() {
    let average =
        |ctx: &distribute_core::ReplicaContext, losses: Tensor<1>| average_loss(ctx, losses);
    assert_eq!(averaged(&[4, 4], average).unwrap(), [1.5, 1.5]);
    assert_eq!(averaged(&[1, 1], average).unwrap(), [1.5, 1.5]);
    assert_eq!(averaged(&[1, 0], average).unwrap(), [1.5, 0.0]);
    // A reduced loss is accepted for a batch of one example, and where the step has no batch.
    let one = averaged(&[1], |ctx, losses| average_loss(ctx, losses.mean()));
    assert_eq!(one.unwrap(), [3.0]);
    let strategy = DefaultStrategy::new();
    let losses = strategy.run((), |ctx, ()| {
        AverageLoss::new()
            .global_batch_size(10)
            .of(ctx, Tensor::<1>::ones([5], ctx.device()))
    });
    assert_eq!(
        losses.unwrap().into_values().remove(0).into_scalar::<f32>(),
        0.5
    );
}

/// The average loss on every replica, where each example has a loss of 1.
fn averages<A>(strategy: &MirroredStrategy, args: A) -> Result<Vec<f32>>
where
    A: distribute_core::StepArgs,
    for<'x> distribute_core::Item<'x, A>: Rows,
{
    let losses = strategy.run(args, |ctx, batch| {
        average_loss(ctx, Tensor::<1>::ones([batch.rows()], ctx.device()))
    })?;
    let losses = losses.into_values().into_iter();
    Ok(losses.map(Tensor::into_scalar::<f32>).collect())
}

trait Rows {
    fn rows(&self) -> usize;
}

impl Rows for Batch {
    fn rows(&self) -> usize {
        self.0.dims()[0]
    }
}

impl Rows for &Batch {
    fn rows(&self) -> usize {
        self.0.dims()[0]
    }
}

impl Rows for (Batch, Batch) {
    fn rows(&self) -> usize {
        self.0.rows()
    }
}

#[test]
fn a_batch_knows_what_its_losses_are_divided_by() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let data = |size| {
        let data = strategy.distribute_dataset(numbers(10), Batching::global(size));
        let batches: Result<Vec<_>> = data.unwrap().epoch(0).collect();
        batches.unwrap()
    };
    let batches = data(8);
    let sizes = batches.iter().map(PerReplica::global_batch_size);
    assert_eq!(sizes.collect::<Vec<_>>(), [Some(8), Some(8)]);
    for (batch, expected) in batches.iter().zip([[0.5, 0.5], [0.125, 0.125]]) {
        assert_eq!(averages(&strategy, batch).unwrap(), expected);
        assert_eq!(averages(&strategy, batch.clone()).unwrap(), expected);
        let (x, weights) = batch.clone().unzip();
        assert_eq!(x.global_batch_size(), Some(8));
        let again = weights.map(|weights| {
            (
                Tensor::<2>::ones([weights.dims()[0], 1], &weights.device()),
                weights,
            )
        });
        assert_eq!(averages(&strategy, again).unwrap(), expected);
    }
    // Without a size, TensorFlow's default: the replica's examples times the replicas.
    let unknown = PerReplica::new(batches[1].values().to_vec());
    assert_eq!(averages(&strategy, unknown).unwrap(), [0.5, 0.5]);
    // It is not clear which of two batches the losses belong to.
    let [eight, ten] = [8, 10].map(|size| data(size).remove(0));
    let error = averages(&strategy, (eight.clone(), ten)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("(8 and 10)"), "{text}");
    assert!(text.contains("global_batch_size(n)"), "{text}");
    assert_eq!(
        averages(&strategy, (eight.clone(), eight)).unwrap(),
        [0.5, 0.5]
    );
}
