//! Ready objectives give the losses, metrics and weights of objectives that are written by hand.

use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Bool, Int, TensorData};
use distribute_core::metric::SparseCategoricalAccuracy;
use distribute_core::prelude::*;
use distribute_data::loss::Reduction;
use distribute_data::prelude::*;
use distribute_fit::prelude::*;

type Batch = (Tensor<4>, Tensor<1, Int>);

fn forward(model: &Linear, images: Tensor<4>) -> Tensor<2> {
    model.forward(images.flatten::<2>(1, 3))
}

fn by_hand(ctx: &StepContext<'_>, model: &Linear, (images, labels): Batch) -> Result<Objective> {
    let examples = images.dims()[0];
    let logits = forward(model, images);
    let predicted = logits.clone().argmax(1).squeeze_dim::<1>(1);
    let right = predicted.equal(labels.clone()).int().sum();
    let loss = average_loss(ctx, sparse_categorical_crossentropy(logits, labels))?;
    let objective = Objective::new(loss).examples(examples);
    Ok(objective.metric("accuracy", right, examples))
}

fn digits(
    strategy: &MirroredStrategy,
) -> (
    Mirrored<TrainState<Linear>>,
    DistributedDataset<ImageDataset>,
) {
    let train = Digits::open().unwrap().train().unwrap();
    let batching = Batching::global(100).shuffle(3);
    let train = strategy.distribute_dataset(train, batching).unwrap();
    let build = |device: &Device| {
        let mut model: Linear = LinearConfig::new(64, 10).init(device);
        let zeros = Tensor::zeros([64, 10], device);
        model.weight = burn::module::Param::from_tensor(zeros);
        model.bias = None;
        TrainState::new(model, Adam::new(1e-2))
    };
    (strategy.scope(build).unwrap(), train)
}

#[test]
fn a_ready_objective_trains_and_reports_as_one_that_is_written_by_hand() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let (mut ours, train) = digits(&strategy);
    let (mut theirs, _) = digits(&strategy);
    let ready = Supervised::new(forward, SparseCategoricalCrossentropy::default())
        .accuracy()
        .objective();
    let fit = || Fit::new(&strategy).epochs(2);
    let expected = fit()
        .run_with_validation(&mut theirs, &train, &train, by_hand)
        .unwrap();
    let found = fit()
        .run_with_validation(&mut ours, &train, &train, &ready)
        .unwrap();
    for (found, expected) in found.epochs.iter().zip(&expected.epochs) {
        assert_eq!(found.logs, expected.logs);
        assert!(found.logs.get("accuracy").is_some_and(|share| share > 0.5));
    }
    let weights = |state: &Mirrored<TrainState<Linear>>| {
        state.primary().unwrap().model.weight.val().to_data()
    };
    assert_eq!(weights(&ours), weights(&theirs));
    let evaluated = evaluate(&strategy, &ours, &train, ready).unwrap();
    assert_eq!(evaluated.examples, 1438);
}

/// Rows that fill a batch up count nowhere.
#[test]
fn weighted_batches_report_what_short_ones_do() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let (state, train) = digits(&strategy);
    let ready = Supervised::new(forward, SparseCategoricalCrossentropy::default()).accuracy();
    let expected = evaluate(&strategy, &state, &train, ready.objective()).unwrap();
    let padded = Weighted::new(Digits::open().unwrap().train().unwrap());
    let batching = Batching::global(100).pad_remainder(true);
    let padded = strategy.distribute_dataset(padded, batching).unwrap();
    let found = evaluate(&strategy, &state, &padded, ready.objective()).unwrap();
    assert_eq!(found.examples, expected.examples);
    for name in ["loss", "accuracy"] {
        let [found, expected] = [&found, &expected].map(|all| all.logs.get(name).unwrap());
        assert!(
            (found - expected).abs() < 1e-5,
            "{name}: {found} {expected}"
        );
    }
    let summed = SparseCategoricalCrossentropy::new(Reduction::Sum);
    let summed = Supervised::new(forward, summed).objective();
    let error = evaluate(&strategy, &state, &padded, summed).unwrap_err();
    assert!(error.to_string().contains("Reduction::None"), "{error}");
}

/// The logs of an objective, for a model that returns its inputs: these predictions.
fn logs<const D: usize, Y, O>(
    (predicted, labels): (Tensor<D>, Y),
    objective: O,
) -> distribute_fit::Logs
where
    Y: Nest + Clone + Send + Sync + 'static,
    O: Fn(&StepContext<'_>, &Linear, (Tensor<D>, Y)) -> Result<Objective> + Sync,
{
    let strategy = DefaultStrategy::new();
    let batch = move |_: &[usize], _: &Device| Ok((predicted.clone(), labels.clone()));
    let data = FnDataset::new(2, batch);
    let data = strategy
        .distribute_dataset(data, Batching::global(2))
        .unwrap();
    let build = |device: &Device| -> TrainState<Linear> {
        TrainState::new(LinearConfig::new(1, 1).init(device), Sgd::new(0.0))
    };
    let state = strategy.scope(build).unwrap();
    evaluate(&strategy, &state, &data, objective).unwrap().logs
}

fn same<const D: usize>(_: &Linear, inputs: Tensor<D>) -> Tensor<D> {
    inputs
}

fn close(found: Option<f64>, expected: f64) {
    let found = found.unwrap();
    assert!(
        (found - expected).abs() < 1e-6,
        "{found}, expected {expected}"
    );
}

#[test]
fn every_loss_has_the_accuracy_that_keras_picks_for_it() {
    let device = Device::flex();
    let scores = Tensor::<2>::from_floats([[2.0, -1.0], [0.5, 1.0]], &device);
    let one_hot = Tensor::<2, Int>::from_ints([[1, 0], [1, 0]], &device);
    let categorical = Supervised::new(same, CategoricalCrossentropy::default());
    let found = logs(
        (scores.clone(), one_hot.clone()),
        categorical.accuracy().objective(),
    );
    close(found.get("accuracy"), 0.5);
    let binary = Supervised::new(same, BinaryCrossentropy::default());
    let found = logs(
        (scores.clone(), one_hot.clone()),
        binary.accuracy().objective(),
    );
    close(found.get("accuracy"), 0.75);
    let yes =
        Tensor::<2, Bool>::from_data(TensorData::from([[true, false], [true, true]]), &device);
    let found = logs((scores.clone(), yes), binary.accuracy().objective());
    close(found.get("accuracy"), 1.0);
    // A class for every pixel: the mean over all of them.
    let pixels = Tensor::<3>::from_floats(
        [[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]],
        &device,
    );
    let classes = Tensor::<2, Int>::from_ints([[0, 0], [1, 1]], &device);
    let sparse = Supervised::new(same, SparseCategoricalCrossentropy::default());
    let found = logs((pixels, classes), sparse.accuracy().objective());
    close(found.get("accuracy"), 0.75);
}

#[test]
fn a_metric_of_ones_own_is_a_mean_over_the_examples() {
    let device = Device::flex();
    let predicted = Tensor::<2>::from_floats([[1.0], [5.0]], &device);
    let wanted = Tensor::<2>::from_floats([[2.0], [2.0]], &device);
    let error = |predicted: &Tensor<2>, wanted: &Tensor<2>| {
        let error = (predicted.clone() - wanted.clone()).abs();
        error.squeeze_dim::<1>(1)
    };
    let objective = Supervised::new(same, MeanSquaredError::default())
        .metric("error", error)
        .objective();
    let found = logs((predicted, wanted), objective);
    close(found.get("error"), 2.0);
    close(Some(found.loss()), 5.0);
}

/// One metric, in a ready objective, in one that is written by hand and in a step of one's own.
#[test]
fn a_metric_gives_the_same_number_wherever_it_is_used() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let (mut state, train) = digits(&strategy);
    let ready = Supervised::new(forward, SparseCategoricalCrossentropy::default())
        .accuracy()
        .metric("the same", SparseCategoricalAccuracy)
        .objective();
    let fit = Fit::new(&strategy).epochs(1);
    fit.run(&mut state, &train, &ready).unwrap();
    let evaluated = evaluate(&strategy, &state, &train, ready).unwrap().logs;
    let found = evaluated.get("accuracy");
    assert!(found.is_some_and(|share| share > 0.5), "{found:?}");
    assert_eq!(evaluated.get("the same"), found);

    let measured = |ctx: &StepContext<'_>, model: &Linear, (images, labels): Batch| {
        let (examples, logits) = (images.dims()[0], forward(model, images));
        let losses = sparse_categorical_crossentropy(logits.clone(), labels.clone());
        let objective = Objective::new(average_loss(ctx, losses)?).examples(examples);
        let metric = &SparseCategoricalAccuracy;
        objective.measure("accuracy", metric, &logits, &labels, None)
    };
    let by_hand = evaluate(&strategy, &state, &train, measured).unwrap().logs;
    assert_eq!(by_hand.get("accuracy"), found);

    let accuracy = strategy.metric(SparseCategoricalAccuracy);
    for batch in train.epoch(0) {
        let step =
            |ctx: &ReplicaContext, state: &mut TrainState<Linear>, (images, labels): Batch| {
                accuracy.update_state(ctx, &labels, &forward(&state.model, images))
            };
        let run = strategy.run((&mut state, batch.unwrap()), |ctx, (state, batch)| {
            step(ctx, state, batch)
        });
        run.unwrap();
    }
    assert_eq!(accuracy.result().ok(), found);
}

type Pixels = (Tensor<3>, Tensor<2, Int>);

/// Values of any shape: the mean of every example counts, with its weight.
#[test]
fn a_metric_of_several_values_an_example_is_their_mean() {
    let device = Device::flex();
    let scores = Tensor::<3>::from_floats(
        [[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]],
        &device,
    );
    let labels = Tensor::<2, Int>::from_ints([[0, 0], [0, 0]], &device);
    let weights = Tensor::<1>::from_floats([3.0, 1.0], &device);
    let weighted = |ctx: &StepContext<'_>, _: &Linear, (scores, labels): Pixels| {
        let losses = sparse_categorical_crossentropy(scores.clone(), labels.clone());
        let objective = Objective::new(average_loss(ctx, losses)?).examples(2);
        let metric = &SparseCategoricalAccuracy;
        objective.measure("right", metric, &scores, &labels, Some(&weights))
    };
    let found = logs((scores, labels), weighted);
    close(found.get("right"), (0.5 * 3.0 + 1.0) / 4.0);
}
