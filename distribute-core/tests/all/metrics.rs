//! Metrics: Keras' arithmetic, collected per replica and put together when read.

use burn::tensor::{Device, Int, Tensor, TensorData};
use distribute_core::metric::{
    BinaryAccuracy, CategoricalAccuracy, Mean, SparseCategoricalAccuracy, Sum,
};
use distribute_core::{
    CentralStorageStrategy, DefaultStrategy, Error, MirroredStrategy, PerReplica, ReduceOp,
    Strategy, StrategyExt,
};
use proptest::prelude::*;

use crate::mirrored;

/// TensorFlow's example of tracking a loss: per-example losses [2, 3] and [4, 5] on two replicas,
/// scaled by the global batch of 4, are 1.25 and 2.25; their SUM is the loss, their mean is not.
#[test]
fn losses_2_3_and_4_5_on_two_replicas_sum_to_3_5_and_a_mean_metric_says_1_75() {
    let strategy = mirrored(2);
    let mean = Mean::new(&strategy);
    let per_example = Mean::new(&strategy);
    let losses = PerReplica::new(vec![[2.0_f32, 3.0], [4.0, 5.0]]);
    let scaled = strategy.run(losses, |ctx, losses| {
        let losses = Tensor::<1>::from_data(TensorData::from(losses), ctx.device());
        let loss = losses.clone().sum().div_scalar(4.0);
        mean.update_state(ctx, loss.clone())?;
        per_example.update_state(ctx, losses)?;
        Ok(loss.into_scalar::<f32>())
    });
    let scaled = scaled.unwrap();
    assert_eq!(scaled.values(), [1.25, 2.25]);
    assert_eq!(strategy.reduce(ReduceOp::Sum, scaled).unwrap(), 3.5);
    assert_eq!(mean.result().unwrap(), 1.75);
    assert_eq!(per_example.result().unwrap(), 3.5);
}

#[test]
fn a_metric_that_saw_nothing_is_zero_and_empty_batches_count_nothing() {
    let strategy = mirrored(2);
    let (mean, accuracy) = (
        Mean::new(&strategy),
        strategy.metric(SparseCategoricalAccuracy),
    );
    assert_eq!(mean.result().unwrap(), 0.0);
    strategy
        .run((), |ctx, ()| {
            let rows = 2 * (1 - ctx.replica_id()); // replica 1's batch is empty
            let losses = TensorData::new(vec![3.0_f32; rows], [rows]);
            mean.update_state(ctx, losses)?;
            let labels = ints(vec![1; rows], ctx.device());
            let scores = TensorData::new([0.0_f32, 1.0].repeat(rows), [rows, 2]);
            let scores = Tensor::<2>::from_data(scores, ctx.device());
            accuracy.update_state(ctx, &labels, &scores)
        })
        .unwrap();
    assert_eq!(mean.result().unwrap(), 3.0);
    assert_eq!(accuracy.result().unwrap(), 1.0);
}

fn ints(values: Vec<i64>, device: &Device) -> Tensor<1, Int> {
    let count = values.len();
    Tensor::from_data(TensorData::new(values, [count]), device)
}

fn rows<const R: usize, const C: usize>(values: [[f32; C]; R], device: &Device) -> Tensor<2> {
    Tensor::from_data(TensorData::from(values), device)
}

/// The numbers of the examples in Keras' documentation.
#[test]
fn the_accuracies_give_the_numbers_of_keras_documentation() {
    let strategy = DefaultStrategy::new();
    let sparse = strategy.metric(SparseCategoricalAccuracy);
    let weighted = strategy.metric(SparseCategoricalAccuracy);
    let categorical = strategy.metric(CategoricalAccuracy);
    let categorical_weighted = strategy.metric(CategoricalAccuracy);
    let binary = strategy.metric(BinaryAccuracy::default());
    let binary_weighted = strategy.metric(BinaryAccuracy::default());
    let sums = Sum::new(&strategy);
    let weighted_mean = Mean::new(&strategy);
    strategy
        .run((), |ctx, ()| {
            let device = ctx.device();
            let labels = ints(vec![2, 1], device);
            let scores = rows([[0.1, 0.6, 0.3], [0.05, 0.95, 0.0]], device);
            let weights = [0.7_f32, 0.3];
            sparse.update_state(ctx, &labels, &scores)?;
            weighted.update_state_weighted(ctx, &labels, &scores, TensorData::from(weights))?;
            // A column of labels is squeezed.
            let column = labels.clone().reshape([2, 1]);
            sparse.update_state(ctx, &column, &scores)?;

            let one_hot = rows([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]], device);
            let scores = rows([[0.1, 0.9, 0.8], [0.05, 0.95, 0.0]], device);
            categorical.update_state(ctx, &one_hot, &scores)?;
            let weights = TensorData::from(weights);
            categorical_weighted.update_state_weighted(ctx, &one_hot, &scores, weights)?;

            let labels = rows([[1.0], [1.0], [0.0], [0.0]], device);
            let scores = rows([[0.98], [1.0], [0.0], [0.6]], device);
            binary.update_state(ctx, &labels, &scores)?;
            let weights = TensorData::from([1.0_f32, 0.0, 0.0, 1.0]);
            binary_weighted.update_state_weighted(ctx, &labels, &scores, weights)?;

            let values = TensorData::from([1.0_f32, 3.0, 5.0, 7.0]);
            sums.update_state(ctx, values.clone())?;
            let weights = TensorData::from([1.0_f32, 1.0, 0.0, 0.0]);
            weighted_mean.update_state_weighted(ctx, values, weights)
        })
        .unwrap();
    let close = |what: &str, found: distribute_core::Result<f64>, expected: f64| {
        let found = found.unwrap();
        assert!(
            (found - expected).abs() < 1e-6,
            "{what}: {found} not {expected}"
        );
    };
    close("sparse", sparse.result(), 0.5);
    close("weighted", weighted.result(), 0.3);
    close("categorical", categorical.result(), 0.5);
    close("weighted one-hot", categorical_weighted.result(), 0.3);
    close("binary", binary.result(), 0.75);
    close("weighted binary", binary_weighted.result(), 0.5);
    close("sum", sums.result(), 16.0);
    close("weighted mean", weighted_mean.result(), 2.0);
    sums.reset_state().unwrap();
    close("sum that was reset", sums.result(), 0.0);
}

#[test]
fn weights_and_labels_of_the_wrong_shape_are_refused() {
    let strategy = DefaultStrategy::new();
    let mean = Mean::new(&strategy);
    let accuracy = strategy.metric(SparseCategoricalAccuracy);
    let weights = strategy.run((), |ctx, ()| {
        let values = TensorData::from([1.0_f32, 2.0]);
        mean.update_state_weighted(ctx, values, TensorData::from([1.0_f32, 1.0, 1.0]))
    });
    assert!(matches!(
        weights.unwrap_err().root_cause(),
        Error::Shape { .. }
    ));
    let labels = strategy.run((), |ctx, ()| {
        let labels = ints(vec![1], ctx.device());
        let scores = rows([[0.0, 1.0], [1.0, 0.0]], ctx.device());
        accuracy.update_state(ctx, &labels, &scores)
    });
    assert!(matches!(
        labels.unwrap_err().root_cause(),
        Error::Shape { .. }
    ));
    assert_eq!(
        mean.result().unwrap(),
        0.0,
        "a refused update counts nothing"
    );
}

#[test]
fn metrics_belong_to_their_strategy_and_to_cross_replica_context() {
    let (strategy, other) = (mirrored(2), mirrored(2));
    let mean = Mean::new(&strategy);
    let mixed = other.run((), |ctx, ()| mean.update_state(ctx, 1.0_f32));
    assert!(matches!(
        mixed.unwrap_err().root_cause(),
        Error::MixedStrategies { .. }
    ));
    let inside = strategy.run((), |_, ()| mean.result());
    assert!(matches!(
        inside.unwrap_err().root_cause(),
        Error::InsideStep { .. }
    ));
    let inside = strategy.run((), |_, ()| mean.reset_state());
    assert!(matches!(
        inside.unwrap_err().root_cause(),
        Error::InsideStep { .. }
    ));
    mean.update_all(PerReplica::new(vec![1.0_f32, 2.0]))
        .unwrap();
    assert_eq!(mean.result().unwrap(), 1.5);
    assert!(mean.update_all(PerReplica::new(vec![1.0_f32])).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The result does not depend on how examples are spread over replicas and steps.
    #[test]
    fn a_mean_is_that_of_all_values_under_every_strategy(
        values in prop::collection::vec(-100_i32..100, 1..40),
        replicas in 1_usize..5,
        central: bool,
    ) {
        let strategy: Box<dyn Strategy> = if central {
            Box::new(CentralStorageStrategy::with_replicas(replicas).unwrap())
        } else {
            Box::new(mirrored(replicas))
        };
        let strategy = &*strategy;
        let mean = Mean::new(strategy);
        for batch in values.chunks(replicas * 3) {
            let share = strategy.values_from(|id| {
                let from = (id * 3).min(batch.len());
                batch[from..(from + 3).min(batch.len())].to_vec()
            });
            strategy
                .run(share, |ctx, share| {
                    let count = share.len();
                    mean.update_state(ctx, TensorData::new(share, [count]))
                })
                .unwrap();
        }
        let expected = values.iter().sum::<i32>() as f64 / values.len() as f64;
        prop_assert!((mean.result().unwrap() - expected).abs() < 1e-9);
    }
}

/// Keras: `metric.update_state(labels, scores)` without a step around it.
#[test]
fn metrics_take_values_outside_of_a_step() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let device = Device::flex();
    let accuracy = strategy.metric(SparseCategoricalAccuracy);
    let labels = Tensor::<1, Int>::from_ints([0, 1, 1], &device);
    let scores = Tensor::<2>::from_floats([[2.0, 1.0], [0.0, 3.0], [5.0, 4.0]], &device);
    accuracy.update_state(&strategy, &labels, &scores).unwrap();
    assert!((accuracy.result().unwrap() - 2.0 / 3.0).abs() < 1e-12);
    let mean = Mean::new(&strategy);
    strategy
        .run((), |ctx, ()| {
            mean.update_state(ctx, ctx.replica_id() as f32)
        })
        .unwrap();
    mean.update_state_weighted(&strategy, 5.5_f32, 2.0_f32)
        .unwrap();
    assert_eq!(mean.result().unwrap(), 3.0);
    mean.reset_state().unwrap();
    assert_eq!(mean.result().unwrap(), 0.0);
    let inside = strategy.run((), |_, ()| mean.update_state(&strategy, 1.0_f32));
    let error = inside.unwrap_err();
    assert!(
        matches!(
            error.root_cause(),
            Error::InsideStep {
                what: "update_state",
                ..
            }
        ),
        "{error:?}"
    );
    let other = DefaultStrategy::new();
    let error = mean.update_state(&other, 1.0_f32).unwrap_err();
    assert!(matches!(error, Error::MixedStrategies { .. }), "{error:?}");
}

/// Values of any shape count one by one, with weights of their leading dimensions; of equal scores
/// the first wins, and a NaN is never the largest.
#[test]
fn a_metric_counts_every_value_of_an_example() {
    let strategy = DefaultStrategy::new();
    let device = Device::flex();
    let [plain, per_example, per_value] =
        [(); 3].map(|()| strategy.metric(SparseCategoricalAccuracy));
    let scores = Tensor::<3>::from_floats(
        [
            [[2.0, 2.0, 1.0], [0.0, f32::NAN, 3.0], [f32::NAN, 0.0, 1.0]],
            [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [5.0, 1.0, 0.0]],
        ],
        &device,
    );
    let labels = Tensor::<2, Int>::from_ints([[0, 2, 0], [1, 0, 0]], &device);
    // Right are [[1, 1, 0], [1, 0, 1]].
    plain.update_state(&strategy, &labels, &scores).unwrap();
    assert!((plain.result().unwrap() - 4.0 / 6.0).abs() < 1e-12);
    let weights = TensorData::from([3.0_f32, 0.0]);
    per_example
        .update_state_weighted(&strategy, &labels, &scores, weights)
        .unwrap();
    assert!((per_example.result().unwrap() - 2.0 / 3.0).abs() < 1e-12);
    let weights = TensorData::from([[1.0_f32, 0.0, 1.0], [0.0, 1.0, 1.0]]);
    per_value
        .update_state_weighted(&strategy, &labels, &scores, weights)
        .unwrap();
    assert_eq!(per_value.result().unwrap(), 0.5);
}

/// A metric of one's own is a function, under every strategy.
#[test]
fn a_function_is_a_metric() {
    let strategy = mirrored(2);
    let error = strategy.metric(|predicted: &Tensor<2>, wanted: &Tensor<2>| {
        let error = (predicted.clone() - wanted.clone()).abs();
        error.mean_dim(1).squeeze_dim::<1>(1)
    });
    let update = |weight: Option<f32>| {
        strategy.run((), |ctx, ()| {
            let own = ctx.replica_id() as f32;
            let predicted = rows([[own, own + 2.0], [3.0, 3.0]], ctx.device());
            let wanted = predicted.zeros_like();
            match weight {
                None => error.update_state(ctx, &wanted, &predicted),
                Some(weight) => error.update_state_weighted(ctx, &wanted, &predicted, weight),
            }
        })
    };
    update(None).unwrap();
    assert_eq!(error.result().unwrap(), (1.0 + 3.0 + 2.0 + 3.0) / 4.0);
    update(Some(0.0)).unwrap();
    assert_eq!(error.result().unwrap(), 2.25);
    error.reset_state().unwrap();
    assert_eq!(error.result().unwrap(), 0.0);
}

/// Integers and booleans are labels too.
#[test]
fn labels_of_every_kind_are_compared() {
    let strategy = DefaultStrategy::new();
    let device = Device::flex();
    let (binary, one_hot) = (
        strategy.metric(BinaryAccuracy::default().threshold(0.0)),
        strategy.metric(CategoricalAccuracy),
    );
    let scores = rows([[-1.0, 2.0], [3.0, -4.0]], &device);
    let labels = Tensor::<2, Int>::from_ints([[0, 1], [0, 1]], &device);
    let yes = labels.clone().equal_elem(1);
    binary.update_state(&strategy, &labels, &scores).unwrap();
    binary.update_state(&strategy, &yes, &scores).unwrap();
    binary
        .update_state(&strategy, &yes.clone().float(), &scores)
        .unwrap();
    assert_eq!(binary.result().unwrap(), 0.5);
    one_hot.update_state(&strategy, &labels, &scores).unwrap();
    one_hot.update_state(&strategy, &yes, &scores).unwrap();
    assert_eq!(one_hot.result().unwrap(), 0.5);
}
