//! `training.json`: losses, gradients and weights of every step of a run.

use std::sync::Arc;

use burn::tensor::{DType, Tensor, TensorData};
use distribute_core::optim::Optimizer;
use distribute_core::{
    Adam, Gradients, PerReplica, ReduceOp, Sgd, Strategy, StrategyExt, TrainState,
};
use distribute_data::split::replica_range;
use distribute_data::{AverageLoss, scale_regularization_loss};
use serde_json::{Value, json};

use super::support::compiled::{global_batch, on_devices, per_row};
use super::support::expected;
use super::support::models::{Cnn, Linear, Mlp, Model};
use crate::case::Case;
use crate::compare::equal;
use crate::env::Env;
use crate::json::{Fields, counts};
use crate::outcome::{Checked, Failure, Outcome};
use crate::tensors::{as_scalar, tensor};

pub(super) fn check(case: &Case, env: &Env<'_>) -> Checked {
    if case.op() != "train" {
        return Err(Failure::schema(format!(
            "unknown operation `{}`",
            case.op()
        )));
    }
    let name = case.inputs.text("model")?;
    let model = env.file.root.field("models")?.field(name)?;
    // A model is known by its weights.
    let weights = model.field("init")?;
    match ["k1", "w1", "w"]
        .iter()
        .find(|name| weights.get(**name).is_some())
    {
        Some(&"k1") => train::<Cnn>(case, env, model),
        Some(&"w1") => train::<Mlp>(case, env, model),
        Some(&"w") => train::<Linear>(case, env, model),
        _ => Err(Failure::schema(format!("unknown model `{name}`"))),
    }
}

/// The optimizer with these hyper-parameters; Adam is the one that has betas.
pub(super) fn optimizer(parameters: &Value) -> Result<Arc<dyn Optimizer>, Failure> {
    let learning_rate = parameters.float("learning_rate")?;
    if parameters.get("beta_1").is_some() {
        let adam = Adam::new(learning_rate);
        let adam = adam.betas(parameters.float("beta_1")?, parameters.float("beta_2")?);
        return Ok(Arc::new(adam.epsilon(parameters.float("epsilon")?)));
    }
    let momentum = parameters["momentum"].as_f64().unwrap_or(0.0);
    let nesterov = parameters["nesterov"].as_bool().unwrap_or(false);
    Ok(Arc::new(
        Sgd::new(learning_rate)
            .momentum(momentum)
            .nesterov(nesterov),
    ))
}

/// A batch of one replica: features and labels, and weights of the rows.
type Batch<M> = (
    (<M as Model>::Features, <M as Model>::Labels),
    Option<Tensor<1>>,
);

/// What a step came to on one replica: the loss, and the gradients summed over the replicas.
type StepResult = (Tensor<1>, Gradients);

/// The run that a case describes.
struct Run<'a, M> {
    env: &'a Env<'a>,
    strategy: &'a dyn Strategy,
    state: distribute_core::Mirrored<TrainState<M>>,
    x: TensorData,
    y: TensorData,
    global_batch_size: Option<usize>,
    l2: f64,
}

fn train<M: Model>(case: &Case, env: &Env<'_>, model: &Value) -> Checked {
    let inputs = &case.inputs;
    let strategy = &*env.strategy(case)?;
    let hyper_parameters = env
        .file
        .root
        .field("optimizers")?
        .field(inputs.text("optimizer")?)?;
    let optimizer = optimizer(hyper_parameters)?;
    let state = strategy.try_scope(|device| {
        let model = M::with_weights(&model["init"], device)?;
        Ok(TrainState::with_optimizer(model, optimizer))
    })?;
    let mut run = Run {
        env,
        strategy,
        state,
        x: tensor(model.field("x")?)?,
        y: tensor(model.field("y")?)?,
        global_batch_size: match inputs.text("denominator")? {
            "actual" => None,
            "constant" => Some(inputs.count("global_batch_size")?),
            other => return Err(Failure::schema(format!("denominator `{other}`"))),
        },
        l2: inputs.float("l2")?,
    };
    let expected = expected(case)?;
    let steps = expected.list("steps")?;
    for (step, indices) in inputs.list("global_batch_indices")?.iter().enumerate() {
        let indices = counts(indices).ok_or_else(|| Failure::schema("indices"))?;
        let wanted = steps
            .get(step)
            .ok_or_else(|| Failure::schema("too few steps"))?;
        run.step(&indices, wanted)
            .map_err(|failure| failure.at(format!("step {step} ")))?;
    }
    run.same_weights(expected.field("final")?)
}

impl<M: Model> Run<'_, M> {
    /// Trains on these rows and compares everything the file says about the step.
    fn step(&mut self, indices: &[usize], wanted: &Value) -> Result<(), Failure> {
        let replicas = self.strategy.num_replicas_in_sync();
        let part = |replica| indices[replica_range(indices.len(), replicas, replica)].to_vec();
        let parts: Vec<Vec<usize>> = (0..replicas).map(part).collect();
        equal(wanted.field("example_indices")?, &json!(parts))?;
        let batch = global_batch(self.strategy, &self.x, &self.y, indices)?;
        let batch = on_devices(self.strategy, batch, M::batch);
        let (losses, gradients) = self.run_step(batch)?.unzip();
        let losses = losses.into_values().into_iter();
        let losses = losses.map(|loss| loss.into_data().convert_dtype(DType::F32));
        let losses = PerReplica::new(losses.collect());
        let tolerance = self.env.tolerance();
        let per_replica = wanted.list("per_replica_loss")?;
        equal(&per_replica.len().into(), &losses.values().len().into())?;
        for (wanted, loss) in per_replica.iter().zip(losses.values()) {
            let loss = loss.iter::<f64>().next().unwrap_or(f64::NAN);
            tolerance
                .same_number(wanted, loss)
                .map_err(|failure| failure.at("loss"))?;
        }
        let loss = self.strategy.reduce(ReduceOp::Sum, losses)?;
        tolerance.same(wanted.field("loss")?, &as_scalar(loss))?;
        let names = self.state.primary()?.parameter_names().to_vec();
        for gradients in gradients.values() {
            for (index, name) in names.iter().enumerate() {
                let gradient = gradients.get(index)?;
                let gradient = gradient.ok_or_else(|| Failure::got("no gradient"))?;
                tolerance
                    .same(wanted.field("gradients")?.field(name)?, gradient)
                    .map_err(|failure| failure.at(format!("gradient of {name}")))?;
            }
        }
        Ok(())
    }

    /// One step on all replicas.
    fn run_step(
        &mut self,
        batches: PerReplica<Batch<M>>,
    ) -> Result<PerReplica<StepResult>, Failure> {
        // As arguments: what a compiled step only captures keeps its value of the first call.
        let size = self.global_batch_size;
        let (constant, size) = (size.is_some(), size.unwrap_or(0));
        let arguments = (&mut self.state, batches, constant, size, self.l2);
        let found = self
            .strategy
            .run(arguments, |ctx, (state, batch, constant, size, l2)| {
                let (batch, weights) = batch;
                let losses = state.model.losses(batch);
                let weights = if constant {
                    weights
                } else {
                    weights.map(per_row)
                };
                let mut loss = AverageLoss::new()
                    .weights(weights)
                    .global_batch_size(constant.then_some(size))
                    .of(ctx, losses)?;
                if l2 != 0.0 {
                    let penalty = state.model.squares().mul_scalar(l2);
                    loss = loss + scale_regularization_loss(ctx, penalty)?;
                }
                let gradients = ctx.gradient(&loss, &state.model)?;
                let mut summed = gradients.clone();
                summed.all_reduce(ctx, ReduceOp::Sum)?;
                state.apply_gradients(ctx, gradients)?;
                Ok((loss, summed))
            })?;
        Ok(found)
    }

    /// Compares the weights of every replica with those at the end of TensorFlow's run.
    fn same_weights(&self, wanted: &Value) -> Checked {
        for state in self.state.values()? {
            let tensors = state.to_tensors()?;
            for name in state.parameter_names() {
                let found = tensors.get(&format!("model/{name}"));
                let found = found.ok_or_else(|| Failure::got(format!("no weight {name}")))?;
                self.env
                    .tolerance()
                    .same(wanted.field(name)?, found)
                    .map_err(|failure| failure.at(format!("final {name}")))?;
            }
        }
        Ok(Outcome::Passed)
    }
}
