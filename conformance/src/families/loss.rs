//! `loss.json`: how losses are scaled.

use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::metric::{Mean, Sum};
use distribute_core::{PerReplica, ReduceOp, ReplicaContext, Strategy, StrategyExt};
use distribute_data::loss::{
    BinaryCrossentropy, CategoricalCrossentropy, LossValue, MeanSquaredError, Reduction,
    SampleWeight, SparseCategoricalCrossentropy, logits_of_sigmoid, logits_of_softmax,
};
use distribute_data::{
    AverageLoss, binary_crossentropy, categorical_crossentropy, mean_squared_error,
    scale_regularization_loss, sparse_categorical_crossentropy,
};
use serde_json::{Value, json};

use super::support::compiled::is_uneven;
use super::support::{DynamicTensor, expected, with_tensor};
use crate::case::Case;
use crate::env::Env;
use crate::error_kind::same_error;
use crate::json::Fields;
use crate::outcome::{Checked, Failure, Outcome, Rule, passed};
use crate::tensors::{as_scalar, float, int, number, rank, reshaped};

/// The tensors of the replica with an id, on its device.
type Inputs<'a> = &'a dyn Fn(usize, &Device) -> Result<Vec<DynamicTensor>, Failure>;

/// A step that computes a loss of what the file gives its replica.
type Step<'a> = &'a (
        dyn Fn(&ReplicaContext, &[DynamicTensor]) -> distribute_core::Result<DynamicTensor> + Sync
    );

pub(super) fn check(case: &Case, env: &Env<'_>) -> Checked {
    match case.op() {
        "compute_average_loss" => average_loss(case, env),
        "scale_regularization_loss" => regularization_loss(case, env),
        "loss_class" => loss_class(case, env),
        "loss_shape" => loss_shape(case, env),
        "multidim_labels" => multidim_labels(case, env),
        "metric_mean_of_scaled_loss" => scaled_metric(case, env),
        "metric_mean_of_per_example_loss" => unscaled_metric(case, env),
        other => Err(Failure::schema(format!("unknown operation `{other}`"))),
    }
}

fn weight(given: &DynamicTensor) -> Result<SampleWeight, Failure> {
    if let Some(number) = given.number() {
        return Ok(number.into());
    }
    Ok(with_tensor!(given, weights => SampleWeight::from(weights)))
}

/// A weight as the file has it: a tensor without axes is a number.
fn given_weight(value: &Value, device: &Device) -> Result<DynamicTensor, Failure> {
    let is_tensor = rank(value) > 0;
    let value = value
        .get("data")
        .filter(|_| !is_tensor)
        .map_or(value, |data| &data[0]);
    if value.is_number() || is_tensor {
        DynamicTensor::new(value, device)
    } else {
        // NaN and the infinities are texts.
        DynamicTensor::new(&json!(number(value)?), device)
    }
}

/// Compares what the replicas returned, and its SUM and MEAN where the file has them.
fn same_replicas(
    case: &Case,
    env: &Env<'_>,
    strategy: &dyn Strategy,
    found: PerReplica<TensorData>,
) -> Result<(), Failure> {
    let expected = expected(case)?;
    let tolerance = env.tolerance();
    let found = PerReplica::new(found.into_values().into_iter().map(as_scalar).collect());
    tolerance.same_list(expected.field("per_replica")?, found.values())?;
    for (key, op) in [
        ("reduce_sum", ReduceOp::Sum),
        ("reduce_mean", ReduceOp::Mean),
    ] {
        if let Some(expected) = expected.get(key) {
            let reduced = strategy.reduce(op, found.clone())?;
            tolerance
                .same(expected, &reduced)
                .map_err(|failure| failure.at(key))?;
        }
    }
    Ok(())
}

/// Runs a loss on every replica and compares it, or its error. `inputs` are a replica's tensors.
/// Everything else that the step depends on is in `config`, which identifies a compiled step.
fn check_replicas(
    case: &Case,
    env: &Env<'_>,
    inputs: Inputs<'_>,
    config: &str,
    step: Step<'_>,
) -> Checked {
    let strategy = &*env.strategy(case)?;
    match run_on(strategy, inputs, config, step) {
        Err(error) if is_uneven(&error) => Ok(Outcome::NotApplicable(Rule::UnevenShapes)),
        Err(error) => same_error(case, &error),
        Ok(found) => passed(same_replicas(case, env, strategy, found)),
    }
}

/// Runs a step on what the file gives each replica.
fn run_on(
    strategy: &dyn Strategy,
    inputs: Inputs<'_>,
    config: &str,
    step: Step<'_>,
) -> distribute_core::Result<PerReplica<TensorData>> {
    let replicas = strategy.replicas().iter();
    let given = replicas.map(|replica| Ok((inputs(replica.id, &replica.device)?, config.into())));
    let given: Vec<(Vec<DynamicTensor>, String)> = given.collect::<Result<_, Failure>>()?;
    let found = strategy.run(PerReplica::new(given), |ctx, (given, _)| step(ctx, &given))?;
    Ok(found.map(DynamicTensor::into_data))
}

/// The entry of a replica in a list of the inputs.
fn of_replica(list: &Value, replica: usize) -> Result<&Value, Failure> {
    let missing = || Failure::schema(format!("no entry for replica {replica}"));
    list.get(replica).ok_or_else(missing)
}

/// The reduced loss; the inputs are losses, followed by optional weights.
fn average(
    ctx: &ReplicaContext,
    given: &[DynamicTensor],
    global_batch_size: Option<usize>,
) -> distribute_core::Result<DynamicTensor> {
    let weights = given.get(1).map(weight).transpose()?;
    let loss = with_tensor!(given[0], losses => {
        AverageLoss::new().weights(weights).global_batch_size(global_batch_size).of(ctx, losses)
    });
    Ok(DynamicTensor::from(loss?))
}

fn average_loss(case: &Case, env: &Env<'_>) -> Checked {
    let inputs = &case.inputs;
    let losses = &inputs["per_example_loss"];
    let given = |replica: usize, device: &Device| {
        let mut given = vec![DynamicTensor::new(of_replica(losses, replica)?, device)?];
        let weights = inputs["sample_weight"].get(replica);
        if let Some(weights) = weights.filter(|weights| !weights.is_null()) {
            given.push(given_weight(weights, device)?);
        }
        Ok(given)
    };
    let size = &inputs["global_batch_size"];
    let is_count = size.is_null() || size.is_u64();
    if !is_count
        || inputs
            .list("per_example_loss")?
            .iter()
            .any(|loss| rank(loss) == 0)
    {
        return Ok(Outcome::NotApplicable(Rule::CompileError));
    }
    let size = size.as_u64().and_then(|size| usize::try_from(size).ok());
    if inputs["context"] == "cross_replica" {
        let Some(size) = size else {
            return Ok(Outcome::NotApplicable(Rule::CompileError));
        };
        let strategy = env.strategy(case)?;
        let device = &strategy.replicas()[0].device;
        let given = given(0, device)?;
        let found = strategy.within(|| -> Result<_, Failure> {
            let weights = given.get(1).map(weight).transpose()?;
            let found = with_tensor!(given[0], losses => {
                AverageLoss::new().weights(weights).without_context(losses, size)
            });
            Ok(as_scalar(found?.into_data()))
        })??;
        let expected = expected(case)?;
        return passed(env.tolerance().same(expected, &found));
    }
    let config = format!("average loss over {size:?}");
    check_replicas(case, env, &given, &config, &|ctx, given| {
        average(ctx, given, size)
    })
}

fn regularization_loss(case: &Case, env: &Env<'_>) -> Checked {
    if case.inputs["context"] == "cross_replica" {
        return Ok(Outcome::NotApplicable(Rule::CompileError));
    }
    let loss = &case.inputs["regularization_loss"];
    let given = |replica: usize, device: &Device| {
        // One tensor for all replicas, or a list with one each; a bare number is a Python float.
        let bare = json!({"dtype": "float64", "shape": [], "data": [loss]});
        let loss = if loss.is_number() {
            &bare
        } else {
            loss.get(replica).unwrap_or(loss)
        };
        Ok(vec![DynamicTensor::new(loss, device)?])
    };
    check_replicas(case, env, &given, "regularization loss", &|ctx, given| {
        let found = with_tensor!(given[0], loss => scale_regularization_loss(ctx, loss));
        Ok(DynamicTensor::from(found?))
    })
}

fn given_of<const D: usize>(value: LossValue<Tensor<D>>) -> DynamicTensor {
    match value {
        LossValue::PerExample(losses) => DynamicTensor::from(losses),
        LossValue::Reduced(loss) => DynamicTensor::from(loss),
    }
}

/// Labels and predictions of a replica.
fn labelled(
    inputs: &Value,
    replica: usize,
    device: &Device,
) -> Result<Vec<DynamicTensor>, Failure> {
    let given = |name: &str| DynamicTensor::new(of_replica(&inputs[name], replica)?, device);
    Ok(vec![given("y_true")?, given("y_pred")?])
}

/// A Keras loss object called with labels and predictions.
fn call(
    inputs: &Value,
    reduction: Reduction,
    given: &[DynamicTensor],
) -> distribute_core::Result<DynamicTensor> {
    let (labels, predictions) = (&given[0], &given[1]);
    let from_logits = inputs["args"]["from_logits"].as_bool().unwrap_or(false);
    macro_rules! dense {
        ($loss:ident, $logits:expr; $($rank:literal),*) => {
            match predictions.rank() {
                $($rank => {
                    let predictions = $logits(predictions.float::<$rank>()?);
                    let labels = labels.float::<$rank>()?;
                    Ok(given_of($loss::new(reduction).call(predictions, labels)?))
                })*
                rank => Err(Failure::schema(format!("predictions of rank {rank}")).into()),
            }
        };
    }
    macro_rules! sparse {
        ($($rank:literal $labels:literal),*) => {
            match predictions.rank() {
                $($rank => {
                    let predictions = predictions.float::<$rank>()?;
                    let logits = softmax_logits(predictions, from_logits);
                    let labels = labels.int::<$labels>()?;
                    let loss = SparseCategoricalCrossentropy::new(reduction);
                    Ok(given_of(loss.call(logits, labels)?))
                })*
                rank => Err(Failure::schema(format!("predictions of rank {rank}")).into()),
            }
        };
    }
    match inputs.text("loss")? {
        "MeanSquaredError" => dense!(MeanSquaredError, |x| x; 2, 3, 4),
        "BinaryCrossentropy" => {
            dense!(BinaryCrossentropy, |x| sigmoid_logits(x, from_logits); 2, 3, 4)
        }
        "CategoricalCrossentropy" => {
            dense!(CategoricalCrossentropy, |x| softmax_logits(x, from_logits); 2, 3, 4)
        }
        "SparseCategoricalCrossentropy" => sparse!(2 1, 3 2, 4 3),
        other => Err(Failure::schema(format!("unknown loss `{other}`")).into()),
    }
}

fn softmax_logits<const D: usize>(values: Tensor<D>, are_logits: bool) -> Tensor<D> {
    if are_logits {
        values
    } else {
        logits_of_softmax(values)
    }
}

fn sigmoid_logits<const D: usize>(values: Tensor<D>, are_logits: bool) -> Tensor<D> {
    if are_logits {
        values
    } else {
        logits_of_sigmoid(values)
    }
}

fn loss_class(case: &Case, env: &Env<'_>) -> Checked {
    let inputs = &case.inputs;
    let name = inputs.text("reduction")?;
    let reduction = match inputs.text("library")? {
        "keras2" => name.parse(),
        _ => Reduction::from_keras3(name),
    };
    let reduction = match reduction {
        Ok(reduction) => reduction,
        Err(error) => return same_error(case, &error),
    };
    if inputs["context"] != "cross_replica" {
        let given = |replica: usize, device: &Device| labelled(inputs, replica, device);
        let config = format!("{} {} {reduction:?}", inputs["loss"], inputs["args"]);
        return check_replicas(case, env, &given, &config, &|_, given| {
            call(inputs, reduction, given)
        });
    }
    let strategy = env.strategy(case)?;
    let device = strategy.replicas()[0].device.clone();
    match (
        strategy.within(|| call(inputs, reduction, &labelled(inputs, 0, &device)?))?,
        case.value(),
    ) {
        (Ok(found), Some(expected)) => {
            let found = as_scalar(found.into_data());
            passed(env.tolerance().same(expected, &found))
        }
        (Ok(found), None) => Err(Failure::got(format!("{found:?}"))),
        (Err(error), _) => same_error(case, &error),
    }
}

/// A loss function without reduction, for any shape.
fn loss_shape(case: &Case, env: &Env<'_>) -> Checked {
    let inputs = &case.inputs;
    let strategy = env.strategy(case)?;
    let device = &strategy.replicas()[0].device;
    let (labels, predictions) = (&inputs["y_true"], &inputs["y_pred"]);
    let from_logits = inputs["from_logits"].as_bool().unwrap_or(false);
    macro_rules! of_rank {
        ($($rank:literal $less:literal),*) => {
            match (inputs.text("loss")?, rank(predictions)) {
                $(
                    ("sparse_categorical_crossentropy", $rank) => {
                        let x = float::<$rank>(predictions, device)?;
                        let y = int::<$less>(labels, device)?;
                        let logits = softmax_logits(x, from_logits);
                        sparse_categorical_crossentropy(logits, y).into_data()
                    }
                    ("categorical_crossentropy", $rank) => {
                        let x = float::<$rank>(predictions, device)?;
                        let y = float::<$rank>(labels, device)?;
                        categorical_crossentropy(softmax_logits(x, from_logits), y).into_data()
                    }
                    ("mean_squared_error", $rank) => {
                        let x = float::<$rank>(predictions, device)?;
                        mean_squared_error(x, float::<$rank>(labels, device)?).into_data()
                    }
                    ("binary_crossentropy", $rank) => {
                        let x = float::<$rank>(predictions, device)?;
                        let y = float::<$rank>(labels, device)?;
                        binary_crossentropy(sigmoid_logits(x, from_logits), y).into_data()
                    }
                )*
                (loss, rank) => {
                    return Err(Failure::schema(format!("loss `{loss}` of rank {rank}")));
                }
            }
        };
    }
    let found = of_rank!(2 1, 3 2, 4 3, 5 4);
    let expected = expected(case)?;
    let per_example = expected.get("per_example_loss").unwrap_or(expected);
    env.tolerance().same(per_example, &found)?;
    let (Some(divided), Some(average)) = (expected.get("divided"), expected.get("average_loss"))
    else {
        return Ok(Outcome::Passed);
    };
    same_divided(env, &*strategy, &found, divided, average)
}

/// Losses per label, divided by the number of labels of an example, and their average.
fn same_divided(
    env: &Env<'_>,
    strategy: &dyn Strategy,
    losses: &TensorData,
    divided: &Value,
    average: &Value,
) -> Checked {
    let shape = losses.shape().to_vec();
    let rows = shape[0];
    let labels = shape[1..].iter().product::<usize>();
    let replicas = strategy.replicas().iter();
    let flat = reshaped(losses, &[rows, labels]);
    let flat = replicas.map(|replica| Tensor::<2>::from_data(flat.clone(), &replica.device));
    let flat = PerReplica::new(flat.collect());
    let found = strategy.run(flat, |ctx, flat| {
        let flat = flat.div_scalar(labels as f64);
        let loss = distribute_data::average_loss(ctx, flat.clone())?;
        Ok((flat, loss))
    })?;
    for (flat, loss) in found.into_values() {
        let flat = reshaped(&flat.into_data(), &shape);
        env.tolerance().same(divided, &flat)?;
        env.tolerance()
            .same(average, &as_scalar(loss.into_data()))?;
    }
    Ok(Outcome::Passed)
}

fn multidim_labels(case: &Case, env: &Env<'_>) -> Checked {
    let inputs = &case.inputs;
    let divide = inputs.flag("divide_by_label_elements")?;
    let given = |replica: usize, device: &Device| labelled(inputs, replica, device);
    let config = format!("labels divided: {divide}");
    check_replicas(case, env, &given, &config, &|ctx, given| {
        let (labels, logits) = (&given[0], &given[1]);
        macro_rules! of_rank {
            ($($rank:literal $labels:literal),*) => {
                match logits.rank() {
                    $($rank => {
                        let labels = labels.int::<$labels>()?;
                        let elements: usize = labels.dims()[1..].iter().product();
                        let logits = logits.float::<$rank>()?;
                        let losses = sparse_categorical_crossentropy(logits, labels);
                        let divisor = if divide { elements as f64 } else { 1.0 };
                        distribute_data::average_loss(ctx, losses.div_scalar(divisor))
                    })*
                    rank => Err(Failure::schema(format!("predictions of rank {rank}")).into()),
                }
            };
        }
        let loss = of_rank!(2 1, 3 2, 4 3, 5 4);
        Ok(DynamicTensor::from(loss?))
    })
}

/// A Mean metric over the scaled losses is smaller than their SUM by the number of replicas.
fn scaled_metric(case: &Case, env: &Env<'_>) -> Checked {
    let strategy = &*env.strategy(case)?;
    let (mean, total) = (Mean::new(strategy), Sum::new(strategy));
    let losses = &case.inputs["per_example_loss"];
    let given = |replica: usize, device: &Device| {
        Ok(vec![DynamicTensor::new(
            of_replica(losses, replica)?,
            device,
        )?])
    };
    let found = run_on(strategy, &given, "scaled metric", &|ctx, given| {
        let loss = average(ctx, given, None)?;
        mean.update_state(ctx, loss.float::<1>()?)?;
        total.update_state(ctx, loss.float::<1>()?)?;
        Ok(loss)
    })?;
    same_replicas(case, env, strategy, found)?;
    let expected = expected(case)?;
    let tolerance = env.tolerance();
    tolerance.same_number(expected.field("metric_total")?, total.result()?)?;
    passed(tolerance.same_number(&expected["metric_result"]["data"][0], mean.result()?))
}

fn unscaled_metric(case: &Case, env: &Env<'_>) -> Checked {
    let strategy = &*env.strategy(case)?;
    let mean = Mean::new(strategy);
    let losses = &case.inputs["per_example_loss"];
    let given = |replica: usize, device: &Device| {
        Ok(vec![DynamicTensor::new(
            of_replica(losses, replica)?,
            device,
        )?])
    };
    let updated = run_on(strategy, &given, "unscaled metric", &|ctx, given| {
        with_tensor!(given[0], losses => mean.update_state(ctx, losses))?;
        Ok(given[0].clone())
    });
    match updated {
        Err(error) if is_uneven(&error) => {
            return Ok(Outcome::NotApplicable(Rule::UnevenShapes));
        }
        updated => drop(updated?),
    }
    let expected = expected(case)?;
    let expected = &expected.field("metric_result")?["data"][0];
    passed(env.tolerance().same_number(expected, mean.result()?))
}
