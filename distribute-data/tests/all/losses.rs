//! The losses' numbers and gradients where the golden files do not reach.

use burn::tensor::{DType, Int};
use distribute_core::{
    DefaultStrategy, Device, Error, MirroredStrategy, PerReplica, ReduceOp, ReplicaContext, Result,
    StrategyExt, Tensor,
};
use distribute_data::loss::{
    BinaryCrossentropy, CategoricalCrossentropy, Reduction, logits_of_sigmoid, logits_of_softmax,
};
use distribute_data::{
    AverageLoss, average_loss, binary_crossentropy, categorical_crossentropy, l2,
    mean_squared_error, scale_regularization_loss, sparse_categorical_crossentropy,
};

fn device() -> Device {
    Device::flex().autodiff()
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor
        .into_data()
        .convert_dtype(DType::F64)
        .iter::<f64>()
        .collect()
}

#[track_caller]
fn close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (a, b) in found.iter().zip(expected) {
        assert!(
            (a - b).abs() <= 1e-6 + 1e-6 * b.abs(),
            "{found:?} {expected:?}"
        );
    }
}

/// What one replica's step computes, without distribution.
fn alone(step: impl Fn(&ReplicaContext) -> Result<Tensor<1>> + Sync) -> Tensor<1> {
    let losses = DefaultStrategy::new().run((), |ctx, ()| step(ctx));
    losses.unwrap().into_values().remove(0)
}

#[test]
fn a_label_that_is_no_class_is_named_with_its_example() {
    let loss = |labels: [[i64; 2]; 3]| {
        alone(|_| {
            let logits = Tensor::<3>::zeros([3, 2, 10], &device());
            let labels = Tensor::<2, Int>::from_data(labels, &device());
            Ok(sparse_categorical_crossentropy(logits, labels).sum())
        })
    };
    assert_eq!(loss([[0, 9], [1, 2], [3, 4]]).dims(), [1]);
    for wrong in [11, 10, -1] {
        let step = |_: &ReplicaContext, ()| {
            let logits = Tensor::<3>::zeros([3, 2, 10], &device());
            let labels = [[0_i64, 9], [1, 2], [3, wrong]];
            let labels = Tensor::<2, Int>::from_data(labels, &device());
            Ok(sparse_categorical_crossentropy(logits, labels).sum())
        };
        let error = MirroredStrategy::builder()
            .replicas(2)
            .build()
            .unwrap()
            .run((), step)
            .unwrap_err();
        let said = format!("label {wrong} of example 2 of the batch is out of range");
        assert!(error.to_string().contains(&said), "{error}");
        assert!(error.to_string().contains("10 classes, 0 to 9"), "{error}");
    }
}

#[test]
fn sparse_and_dense_labels_give_the_same_loss() {
    let logits = || Tensor::<2>::from_floats([[1.0, 2.0, 0.5], [0.0, 0.0, 3.0]], &device());
    let sparse =
        sparse_categorical_crossentropy(logits(), Tensor::<1, Int>::from_ints([0, 2], &device()));
    let one_hot = [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]];
    let dense = categorical_crossentropy(logits(), Tensor::<2>::from_floats(one_hot, &device()));
    let integers = Tensor::<2, Int>::from_ints([[1, 0, 0], [0, 0, 1]], &device());
    let expected = [1.464_368_8, 0.094_922_915];
    close(&values(sparse), &expected);
    close(&values(dense), &expected);
    close(
        &values(categorical_crossentropy(logits(), integers)),
        &expected,
    );
    let probabilities = burn::tensor::activation::softmax(logits(), 1);
    let labels = Tensor::<1, Int>::from_ints([0, 2], &device());
    let again = sparse_categorical_crossentropy(logits_of_softmax(probabilities), labels);
    close(&values(again), &expected);
}

#[test]
fn binary_crossentropy_is_stable_and_has_the_right_gradient() {
    let logits = || Tensor::<2>::from_floats([[0.0, 100.0], [-100.0, -20.0]], &device());
    let labels = || Tensor::<2, Int>::from_ints([[1, 0], [0, 0]], &device());
    let tiny = f64::exp(-20.0) / 2.0;
    let expected = [(f64::ln(2.0) + 100.0) / 2.0, tiny];
    let found = values(binary_crossentropy(logits(), labels()));
    close(&found, &expected);
    assert!(
        (found[1] / tiny - 1.0).abs() < 1e-5,
        "relative accuracy: {found:?}"
    );

    let tracked = logits().require_grad();
    let loss = binary_crossentropy(tracked.clone(), labels()).sum();
    let gradients = tracked.grad(&loss.backward()).unwrap();
    // (sigmoid(x) - z) / 2 of two questions.
    close(&values(gradients), &[-0.25, 0.5, 0.0, 0.0]);

    let bools =
        Tensor::<2, burn::tensor::Bool>::from_data([[true, false], [false, false]], &device());
    close(&values(binary_crossentropy(logits(), bools)), &expected);
    let probabilities = Tensor::<2>::from_floats([[0.25], [0.75]], &device());
    let ones = Tensor::<2>::ones([2, 1], &device());
    let found = binary_crossentropy(logits_of_sigmoid(probabilities), ones);
    close(&values(found), &[-f64::ln(0.25), -f64::ln(0.75)]);
}

#[test]
fn empty_batches_have_a_loss_of_zero_and_gradients_of_zero() {
    let weights = Tensor::<2>::ones([3, 4], &device()).require_grad();
    let logits = Tensor::<2>::zeros([0, 3], &device()).matmul(weights.clone());
    let labels = Tensor::<1, Int>::zeros([0], &device());
    let per_example = sparse_categorical_crossentropy(logits.clone(), labels);
    assert_eq!(per_example.dims(), [0]);
    let loss = alone(|ctx| average_loss(ctx, per_example.clone()));
    close(&values(loss.clone()), &[0.0]);
    let gradients = weights.grad(&loss.backward()).unwrap();
    close(&values(gradients), &[0.0; 12]);
    let none = mean_squared_error(logits.clone(), logits.clone());
    assert_eq!(none.dims(), [0]);
    assert_eq!(
        binary_crossentropy(logits.clone(), logits.clone()).dims(),
        [0]
    );
    assert_eq!(categorical_crossentropy(logits.clone(), logits).dims(), [0]);
}

#[test]
fn a_global_batch_size_of_zero_gives_zero_even_for_infinite_losses() {
    let losses = Tensor::<1>::from_floats([f32::INFINITY, f32::NAN], &device()).require_grad();
    let loss = alone(|ctx| {
        AverageLoss::new()
            .global_batch_size(0)
            .of(ctx, losses.clone())
    });
    close(&values(loss.clone()), &[0.0]);
    let gradients = losses.grad(&loss.backward()).unwrap();
    close(&values(gradients), &[0.0, 0.0]);
}

/// Batch 64 on 4 replicas: each of them divides the loss of its 16 examples by 64.
#[test]
fn sixteen_examples_on_each_of_four_replicas_are_divided_by_64() {
    let strategy = MirroredStrategy::builder().replicas(4).build().unwrap();
    let losses = strategy.run((), |ctx, ()| {
        let per_example = Tensor::<1>::ones([16], ctx.device());
        let given = AverageLoss::new()
            .global_batch_size(64)
            .of(ctx, per_example.clone())?;
        let default = average_loss(ctx, per_example)?;
        Ok((given, default))
    });
    let (given, default) = losses.unwrap().unzip();
    for losses in [given, default] {
        for loss in losses.values() {
            close(&values(loss.clone()), &[16.0 / 64.0]);
        }
        let sum = strategy.reduce(ReduceOp::Sum, losses).unwrap();
        close(&values(sum), &[1.0]);
    }
}

#[test]
fn gradients_do_not_depend_on_the_number_of_replicas() {
    let gradient = |replicas: usize| {
        let strategy = MirroredStrategy::builder()
            .replicas(replicas)
            .build()
            .unwrap();
        let share = 12 / replicas;
        let inputs = (0..replicas).map(|replica| {
            let first = replica * share;
            (first..first + share)
                .map(|i| i as f32 / 8.0)
                .collect::<Vec<_>>()
        });
        let gradients = strategy.run(PerReplica::new(inputs.collect()), |ctx, inputs| {
            let weight = Tensor::<1>::from_floats([0.5], ctx.device()).require_grad();
            let inputs = Tensor::<1>::from_floats(inputs.as_slice(), ctx.device());
            let error = inputs.clone() * weight.clone() - inputs;
            let loss = AverageLoss::new()
                .global_batch_size(12)
                .of(ctx, error.clone() * error)?
                + scale_regularization_loss(ctx, l2(weight.clone(), 0.1))?;
            let missing = || Error::invalid("no gradient");
            weight.grad(&loss.backward()).ok_or_else(missing)
        });
        values(strategy.reduce(ReduceOp::Sum, gradients.unwrap()).unwrap())
    };
    for replicas in [2, 3, 4] {
        close(&gradient(replicas), &gradient(1));
    }
}

#[test]
fn refused_reductions_say_what_to_do() {
    let predictions = || Tensor::<2>::zeros([2, 3], &Device::flex());
    for reduction in [Reduction::Auto, Reduction::SumOverBatchSize] {
        // Allowed without a strategy.
        let loss = CategoricalCrossentropy::new(reduction).call(predictions(), predictions());
        close(&values(loss.unwrap().reduced().unwrap()), &[0.0]);
        let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
        let error = strategy.run((), |_, ()| {
            let loss = BinaryCrossentropy::new(reduction).call(predictions(), predictions())?;
            loss.reduced()
        });
        let error = error.unwrap_err();
        assert!(matches!(error.root_cause(), Error::InvalidArgument { .. }));
        let message = error.to_string();
        for part in [
            reduction.name(),
            "mirrored",
            "Reduction::None",
            "average_loss",
        ] {
            assert!(message.contains(part), "{message}");
        }
    }
    let per_example = BinaryCrossentropy::default()
        .call(predictions(), predictions())
        .unwrap();
    assert!(per_example.clone().reduced().is_err());
    assert_eq!(per_example.per_example().unwrap().dims(), [2]);
    for name in ["auto", "none", "sum", "sum_over_batch_size"] {
        assert_eq!(name.parse::<Reduction>().unwrap().to_string(), name);
    }
}

#[test]
fn a_label_without_its_class_is_an_error_of_the_replica() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let error = strategy.run((), |ctx, ()| {
        // In a row that is not the last one: the next row must not be read instead.
        let logits = Tensor::<2>::zeros([2, 3], ctx.device());
        let label = 3 * ctx.replica_id() as i32;
        let labels = Tensor::<1, Int>::from_ints([label, 0], ctx.device());
        Ok(sparse_categorical_crossentropy(logits, labels))
    });
    let error = error.unwrap_err();
    assert!(
        matches!(error, Error::ReplicaPanicked { replica: 1, .. }),
        "{error:?}"
    );
}
