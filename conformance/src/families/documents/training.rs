//! The documents' training: the model with one weight, one update, and the losses of a loop.

use burn::tensor::{Device, Tensor};
use distribute_core::{
    Error, Mirrored, PerReplica, ReduceOp, Result as CoreResult, Sgd, Strategy, StrategyExt,
    TrainState,
};
use distribute_data::{
    AverageLoss, Batching, DistributedDataset, FnDataset, StrategyDataExt, Weighted, average_loss,
    scale_regularization_loss,
};
use distribute_fit::{Fit, Objective, StepContext, evaluate};
use serde_json::{Value, json};

use super::super::support::expected;
use super::super::support::models::{Linear, Model};
use crate::case::Case;
use crate::compare::equal;
use crate::env::Env;
use crate::json::Fields;
use crate::outcome::{Checked, Failure, Outcome, passed};
use crate::tensors::number;

/// `Dense(1, input_shape=(1,))` with this kernel and no bias yet.
pub(super) fn linear(weight: f32, device: &Device) -> CoreResult<Linear> {
    let weights = json!({
        "w": {"dtype": "float32", "shape": [1, 1], "data": [weight]},
        "b": {"dtype": "float32", "shape": [1], "data": [0.0]},
    });
    Ok(Linear::with_weights(&weights, device)?)
}

/// A batch of a compiled step may be filled up; the weights say with what.
type Weighed = (Rows, Tensor<1>);
type State = Mirrored<TrainState<Linear>>;

type Rows = (Tensor<2>, Tensor<2>);
type Ones = Weighted<FnDataset<fn(&[usize], &Device) -> CoreResult<Rows>>>;

/// `Dataset.from_tensors(([1.], [1.])).repeat(examples).batch(batch_size)`.
fn ones(
    strategy: &dyn Strategy,
    examples: usize,
    batch_size: usize,
) -> CoreResult<DistributedDataset<Ones>> {
    let make: fn(&[usize], &Device) -> CoreResult<Rows> = |rows, device| {
        let ones = Tensor::<2>::ones([rows.len(), 1], device);
        Ok((ones.clone(), ones))
    };
    let batching = Batching::global(batch_size).pad_remainder(strategy.tracer().is_some());
    strategy.distribute_dataset(Weighted::new(FnDataset::new(examples, make)), batching)
}

fn objective(
    ctx: &StepContext<'_>,
    model: &Linear,
    (batch, weights): Weighed,
) -> CoreResult<Objective> {
    let (losses, examples) = (model.losses(batch), weights.clone().sum());
    let loss = AverageLoss::new().weights(weights).of(ctx, losses)?;
    Ok(Objective::new(loss).examples(examples))
}

/// `model.fit(dataset, epochs=2)` and `model.evaluate(dataset)`, or a loop of one's own.
pub(super) fn one_weight(case: &Case, env: &Env<'_>) -> Checked {
    let inputs = &case.inputs;
    let strategy = &*env.strategy(case)?;
    let weight = inputs.float("initial_weight")? as f32;
    let learning_rate = inputs.float("learning_rate")?;
    let (epochs, size) = (inputs.count("epochs")?, inputs.count("batch_size")?);
    let data = ones(strategy, inputs.count("examples")?, size)?;
    let mut state: State = strategy.try_scope(|device| {
        Ok(TrainState::new(
            linear(weight, device)?,
            Sgd::new(learning_rate),
        ))
    })?;
    let mut steps = Vec::new();
    match inputs.text("api")? {
        "fit" => {
            let fit = Fit::new(strategy).epochs(epochs);
            let history = fit.run(&mut state, &data, objective)?;
            steps.extend(history.epochs.iter().map(|epoch| epoch.step));
        }
        "custom loop" => {
            let mut step = 0_u64;
            for epoch in 0..epochs {
                for batch in data.epoch(epoch) {
                    strategy.run((&mut state, batch?, size), |ctx, (state, batch, size)| {
                        let (batch, weights) = batch;
                        let losses = state.model.losses(batch);
                        let loss = AverageLoss::new()
                            .weights(weights)
                            .global_batch_size(size)
                            .of(ctx, losses)?;
                        let gradients = ctx.gradient(&loss, &state.model)?;
                        state.apply_gradients(ctx, gradients).map(drop)
                    })?;
                    step += 1;
                }
                steps.push(step);
            }
        }
        other => return Err(Failure::schema(format!("api `{other}`"))),
    }
    let expected = expected(case)?;
    equal(expected.field("steps_at_end_of_epoch")?, &json!(steps))?;
    let loss = evaluate(strategy, &state, &data, objective)?.logs.loss();
    passed(
        env.tolerance()
            .same_number(expected.field("evaluate")?, loss),
    )
}

/// One list of numbers per replica as tensors on their devices.
fn per_replica(strategy: &dyn Strategy, lists: &[Value]) -> Result<PerReplica<Tensor<1>>, Failure> {
    if lists.len() != strategy.replicas().len() {
        return Err(Failure::schema("not one list for each replica"));
    }
    let replicas = strategy.replicas().iter().zip(lists);
    let tensors = replicas.map(|(replica, list)| {
        let list = list
            .as_array()
            .ok_or_else(|| Failure::schema("not a list"))?;
        let list: Vec<f64> = list.iter().map(number).collect::<Result<_, _>>()?;
        Ok(Tensor::<1>::from_floats(list.as_slice(), &replica.device))
    });
    Ok(PerReplica::new(tensors.collect::<Result<_, Failure>>()?))
}

/// A step of the loss `w * x` (its gradient is the mean of all `x`), and a penalty `l2 * w^2`:
/// every copy is updated alike, and as one device would do it with the global batch.
pub(super) fn one_update(case: &Case, env: &Env<'_>) -> Checked {
    let inputs = &case.inputs;
    let strategy = &*env.strategy(case)?;
    let (l2, learning_rate) = (inputs.float("l2")?, inputs.float("learning_rate")?);
    let weight = inputs.float("weight")? as f32;
    let x = per_replica(strategy, inputs.list("x")?)?;
    let mut state: State = strategy.try_scope(|device| {
        Ok(TrainState::new(
            linear(weight, device)?,
            Sgd::new(learning_rate),
        ))
    })?;
    strategy.run((&mut state, x, l2), |ctx, (state, x, l2)| {
        let losses = state.model.products(x);
        let mut loss = average_loss(ctx, losses)?;
        if l2 != 0.0 {
            let penalty = state.model.squares().mul_scalar(l2);
            loss = loss + scale_regularization_loss(ctx, penalty)?;
        }
        let gradients = ctx.gradient(&loss, &state.model)?;
        state.apply_gradients(ctx, gradients).map(drop)
    })?;
    let expected = expected(case)?;
    let copies = state.values()?;
    let mut count = 0;
    for copy in copies {
        let tensors = copy.to_tensors()?;
        let found = tensors
            .get("model/w")
            .and_then(|weight| weight.iter::<f64>().next());
        let found = found.ok_or_else(|| Error::invalid("no weight"))?;
        env.tolerance()
            .same_number(expected.field("weight")?, found)?;
        count += 1;
    }
    // Where variables are not mirrored, how replicas see the one in host memory is not said.
    match expected.get("copies") {
        Some(copies) => passed(equal(copies, &json!(count))),
        None => Ok(Outcome::Passed),
    }
}

/// `total_loss += distributed_train_step(x); num_batches += 1; train_loss = total_loss /
/// num_batches`, of given losses per example; `take` ends it early, as an iterator does.
pub(super) fn training_loop(case: &Case, env: &Env<'_>) -> Checked {
    let inputs = &case.inputs;
    let strategy = &*env.strategy(case)?;
    let batches = inputs.list("losses")?;
    let take = inputs["take"]
        .as_u64()
        .map_or(Ok(batches.len()), usize::try_from);
    let take = take.map_err(Failure::schema)?;
    let mut per_batch = Vec::new();
    for batch in batches.iter().take(take) {
        let lists = batch
            .as_array()
            .ok_or_else(|| Failure::schema("not a list"))?;
        let losses = strategy.run(per_replica(strategy, lists)?, |ctx, losses| {
            average_loss(ctx, losses)
        })?;
        let sum = strategy.reduce(ReduceOp::Sum, losses)?;
        per_batch.push(f64::from(sum.into_scalar::<f32>()));
    }
    let train_loss = per_batch.iter().sum::<f64>() / per_batch.len() as f64;
    let expected = expected(case)?;
    equal(expected.field("num_batches")?, &json!(per_batch.len()))?;
    for (wanted, found) in expected.list("of_batches")?.iter().zip(&per_batch) {
        env.tolerance().same_number(wanted, *found)?;
    }
    passed(
        env.tolerance()
            .same_number(expected.field("train_loss")?, train_loss),
    )
}

/// `tf.reduce_mean` in place of `compute_average_loss`: each replica divides by its own examples.
pub(super) fn reduce_mean(case: &Case, env: &Env<'_>) -> Checked {
    let strategy = &*env.strategy(case)?;
    let losses = per_replica(strategy, case.inputs.list("losses")?)?;
    let means = strategy.run(losses, |_, losses| Ok(losses.mean()))?;
    let expected = expected(case)?;
    let found = means
        .clone()
        .map(|mean| f64::from(mean.into_scalar::<f32>()));
    for (wanted, found) in expected.list("per_replica")?.iter().zip(found.values()) {
        env.tolerance().same_number(wanted, *found)?;
    }
    let sum = strategy.reduce(ReduceOp::Sum, means)?.into_scalar::<f32>();
    passed(
        env.tolerance()
            .same_number(expected.field("reduce_sum")?, f64::from(sum)),
    )
}
