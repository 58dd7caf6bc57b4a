//! `normalization.json`: burn's normalization layers and `SyncBatchNorm` under strategies.

mod layer;
mod reference;

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::module::{Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Tensor, TensorData};
use distribute_core::{
    Gradients, Mirrored, PerReplica, ReplicaContext, Replicated, Sgd, Strategy, StrategyExt,
    TrainState,
};
use serde_json::Value;

use super::support::expected;
use crate::case::{Case, StrategySpec};
use crate::compare::Tolerance;
use crate::env::Env;
use crate::json::Fields;
use crate::outcome::{Checked, Deviation, Failure, Outcome, Rule};
use crate::tensors::tensor;
use layer::{Layer, View};
use reference::Reference;

pub(super) fn check(case: &Case, env: &Env<'_>) -> Checked {
    match case.op() {
        "batch_norm_attributes" => return Ok(Outcome::NotApplicable(Rule::Internals)),
        "batch_norm"
        | "batch_norm_checkpoint"
        | "batch_norm_cross_replica"
        | "layer_norm"
        | "group_norm" => {}
        other => return Err(Failure::schema(format!("unknown operation `{other}`"))),
    }
    let strategy = env.strategy(case)?;
    if case.error_class().is_some() {
        // burn's own layer refuses the number of groups with a panic.
        return Ok(Outcome::NotApplicable(Rule::BurnLayer));
    }
    if steps(case)?.iter().any(|step| step.get("mask").is_some()) {
        return Ok(Outcome::NotApplicable(Rule::Mask));
    }
    match case.op() {
        "batch_norm_checkpoint" => checkpoint(case, env, strategy),
        "batch_norm_cross_replica" => outside(case, env, strategy),
        _ => train(case, env, strategy),
    }
}

fn steps(case: &Case) -> Result<&Vec<Value>, Failure> {
    case.inputs.list("steps")
}

/// Numbers by what they are; a name with a number behind it is of that replica.
#[derive(Debug, Default)]
struct Values(BTreeMap<String, TensorData>);

impl Values {
    fn add(&mut self, name: impl Into<String>, value: TensorData) {
        self.0.insert(name.into(), value);
    }

    /// A moving statistic of each replica, and what is read outside of steps: their mean.
    fn add_statistic(&mut self, name: &str, own: Vec<TensorData>) {
        self.add(name, mean(&own));
        for (replica, value) in own.into_iter().enumerate() {
            self.add(format!("{name} {replica}"), value);
        }
    }

    /// What the file has of a step.
    fn of_step(wanted: &Value, view: View) -> Result<Self, Failure> {
        let mut values = Self::default();
        for (replica, y) in wanted.list("y")?.iter().enumerate() {
            values.add(format!("y {replica}"), view.read(y)?);
        }
        let gradients = wanted.field("gradients")?;
        for (replica, x) in gradients.list("x")?.iter().enumerate() {
            values.add(format!("gradient of x {replica}"), view.read(x)?);
        }
        for name in ["gamma", "beta"] {
            let own = [
                (format!("gradient of {name}"), &gradients[name]),
                (name.to_string(), &wanted[name]),
            ];
            for (name, all) in own {
                for (replica, value) in all.as_array().into_iter().flatten().enumerate() {
                    values.add(format!("{name} {replica}"), flat(tensor(value)?));
                }
            }
        }
        values.read_statistics(wanted)?;
        Ok(values)
    }

    fn read_statistics(&mut self, wanted: &Value) -> Result<(), Failure> {
        for name in ["moving_mean", "moving_variance"] {
            let Some(statistic) = wanted.get(name) else {
                continue;
            };
            for (replica, value) in statistic.list("locals")?.iter().enumerate() {
                self.add(format!("{name} {replica}"), tensor(value)?);
            }
            self.add(name, tensor(statistic.field("read_cross_replica")?)?);
        }
        Ok(())
    }

    /// Puts the mean of the replicas' statistics where Keras 3 reads the first replica's; whether
    /// that makes a difference.
    fn average_statistics(&mut self) -> bool {
        let mut differs = false;
        for name in ["moving_mean", "moving_variance"] {
            let own = (0..).map_while(|replica| self.0.get(&format!("{name} {replica}")));
            let own: Vec<TensorData> = own.cloned().collect();
            if own.iter().any(|value| *value != own[0]) {
                differs = true;
                self.add(name, mean(&own));
            }
        }
        differs
    }

    fn compare(&self, wanted: &Self, tolerance: Tolerance) -> Result<(), Failure> {
        let names = |values: &Self| values.0.keys().cloned().collect::<Vec<_>>().join(", ");
        if names(self) != names(wanted) {
            return Err(Failure::new(names(wanted), names(self)));
        }
        for (name, wanted) in &wanted.0 {
            let same = tolerance.same_data(wanted, &self.0[name]);
            same.map_err(|failure| failure.at(format!("{name}: ")))?;
        }
        Ok(())
    }
}

fn flat(data: TensorData) -> TensorData {
    let count = data.num_elements();
    crate::tensors::reshaped(&data, &[count])
}

/// The mean of vectors.
fn mean(all: &[TensorData]) -> TensorData {
    let columns = all.iter().map(|one| one.iter::<f64>().collect::<Vec<_>>());
    let columns: Vec<Vec<f64>> = columns.collect();
    let count = columns.iter().map(Vec::len).min().unwrap_or(0);
    let sum = |i: usize| columns.iter().map(|column| column[i]).sum::<f64>();
    let means: Vec<f64> = (0..count).map(|i| sum(i) / all.len() as f64).collect();
    reference::vector(&means)
}

/// A replica's inputs, with the weights of its examples where it was filled up, and upstream
/// gradients.
type Inputs = ((Tensor<3>, Option<Tensor<1>>), Tensor<3>);

/// A replica's outputs, and the gradients of its own loss: of its inputs, and of the parameters.
type Own = ((TensorData, TensorData), Gradients);

/// A layer in training.
struct Run {
    strategy: Arc<dyn Strategy>,
    state: Mirrored<TrainState<Layer>>,
    view: View,
    features: usize,
    is_frozen: bool,
}

impl Run {
    fn new(inputs: &Value, features: usize, strategy: Arc<dyn Strategy>) -> Result<Self, Failure> {
        let optimizer = Sgd::new(inputs["learning_rate"].as_f64().unwrap_or(0.0));
        let state = strategy.try_scope(|device| {
            Ok(TrainState::new(
                Layer::of(inputs, features, device)?,
                optimizer,
            ))
        })?;
        Ok(Self {
            strategy,
            state,
            view: View::of(inputs)?,
            features,
            is_frozen: inputs.get("layer_trainable") == Some(&Value::Bool(false)),
        })
    }

    /// What the replicas get in a step: inputs with a gradient, and upstream gradients. For a
    /// compiled step, whose parts have one size, uneven ones are filled up with zeros and have
    /// weights.
    fn parts(&self, step: &Value) -> Result<PerReplica<Inputs>, Failure> {
        let read = |name: &str| -> Result<Vec<TensorData>, Failure> {
            let parts = step.list(name)?.iter();
            parts.map(|part| self.view.read(part)).collect()
        };
        let (inputs, upstream) = (read("x")?, read("upstream")?);
        if inputs.len() != upstream.len() {
            return Err(Failure::schema(
                "`x` and `upstream` are of unlike numbers of replicas",
            ));
        }
        for (x, upstream) in inputs.iter().zip(&upstream) {
            let is_same = x.shape() == upstream.shape() && x.shape()[1] == self.features;
            if !is_same {
                let what = format!(
                    "`x` of {:?}, `upstream` of {:?}",
                    x.shape(),
                    upstream.shape()
                );
                return Err(Failure::schema(format!(
                    "{what}, {} features",
                    self.features
                )));
            }
        }
        let rows = |data: &TensorData| data.shape()[0];
        let most = inputs.iter().map(rows).max().unwrap_or(0);
        let is_even = inputs.iter().all(|x| rows(x) == most);
        // burn's own layer takes no weights.
        let is_local = matches!(self.state.host_metadata().model, Layer::Local(_));
        let fills_up = self.strategy.tracer().is_some() && !is_even && !is_local;
        let parts = inputs.iter().zip(&upstream).zip(self.strategy.replicas());
        let parts = parts.map(|((x, upstream), replica)| {
            let size = if fills_up { most } else { rows(x) };
            let place = |data| Tensor::from_data(filled(data, size), &replica.device);
            let weights = filled(&TensorData::ones::<f32, _>([rows(x)]), size);
            let weights = fills_up.then(|| Tensor::from_data(weights, &replica.device));
            ((place(x).require_grad(), weights), place(upstream))
        });
        Ok(PerReplica::new(parts.collect()))
    }

    /// Runs a step in which each replica tells of its own gradients.
    fn run(&mut self, parts: PerReplica<Inputs>, trains: bool) -> Result<Vec<Own>, Failure> {
        let found = self.strategy.run(
            (&mut self.state, parts, trains),
            |ctx, (state, (x, upstream), trains)| {
                let y = state.model.forward(x.clone(), trains)?;
                let mut tape = (y.clone() * upstream).sum().backward();
                let of_x = x.0.grad_remove(&mut tape);
                let of_x = of_x.unwrap_or_else(|| x.0.without_autodiff().zeros_like());
                let params = GradientsParams::from_grads(tape, &state.model);
                let gradients = Gradients::from_params(params, &state.model)?;
                let own = gradients.clone();
                ctx.loss_is_scaled();
                if !gradients.is_empty() {
                    state.apply_gradients(ctx, gradients)?;
                }
                Ok(((y, of_x), own))
            },
        )?;
        let all = found.into_values().into_iter();
        let all = all.map(|((y, of_x), own)| ((y.into_data(), of_x.into_data()), own));
        Ok(all.collect())
    }

    /// The same in compiled steps, which have `ctx.gradient` and no other: one with respect to the
    /// inputs, which changes no parameter, and one with respect to the parameters.
    fn run_compiled(
        &mut self,
        parts: PerReplica<Inputs>,
        trains: bool,
    ) -> Result<Vec<Own>, Failure> {
        let of_inputs = |ctx: &ReplicaContext, layer: &Layer, part: &Inputs, trains| {
            let (x, upstream) = part.clone();
            let inputs = vec![Param::initialized(ParamId::new(), x.0.clone())];
            let y = layer.forward(x, trains)?;
            ctx.gradient(&(y * upstream).sum(), &inputs)
        };
        // In training the statistics move once, in inference a replica has its own.
        let of_inputs = if trains {
            self.strategy.run(
                (&self.state, &parts, trains),
                |ctx, (state, part, trains)| of_inputs(ctx, &state.model, part, trains),
            )
        } else {
            self.strategy.run(
                (&mut self.state, &parts, trains),
                |ctx, (state, part, trains)| of_inputs(ctx, &state.model, part, trains),
            )
        }?;
        let of_parameters = self.strategy.run(
            (&mut self.state, parts, trains),
            |ctx, (state, (x, upstream), trains)| {
                let y = state.model.forward(x, trains)?;
                ctx.loss_is_scaled();
                let gradients = ctx.gradient(&(y.clone() * upstream).sum(), &state.model)?;
                let own = gradients.clone();
                if !gradients.is_empty() {
                    state.apply_gradients(ctx, gradients)?;
                }
                Ok((y, own))
            },
        )?;
        let all = of_inputs
            .into_values()
            .into_iter()
            .zip(of_parameters.into_values());
        let all = all.map(|(of_x, (y, own))| {
            let y = y.into_data();
            let zeros = || TensorData::zeros::<f32, _>(y.shape().clone());
            let of_x = of_x.get(0)?.cloned().unwrap_or_else(zeros);
            Ok(((y, of_x), own))
        });
        Ok(all.collect::<distribute_core::Result<_>>()?)
    }

    fn step(&mut self, step: &Value) -> Result<Values, Failure> {
        let trains = step["training"].as_bool().unwrap_or(true) && !self.is_frozen;
        let parts = self.parts(step)?;
        let outputs = match self.strategy.tracer() {
            None => self.run(parts, trains)?,
            Some(_) => self.run_compiled(parts, trains)?,
        };
        let mut values = Values::default();
        let names = self.state.host_metadata().parameter_names().to_vec();
        for (replica, (((y, of_x), own), x)) in outputs.into_iter().zip(step.list("x")?).enumerate()
        {
            // Without what has filled it up.
            let rows = self.view.read(x)?.shape()[0];
            values.add(format!("y {replica}"), filled(&y, rows));
            values.add(format!("gradient of x {replica}"), filled(&of_x, rows));
            for (index, name) in names.iter().enumerate() {
                if let Some(gradient) = own.get(index)? {
                    let name = format!("gradient of {} {replica}", last(name));
                    values.add(name, flat(gradient.clone()));
                }
            }
        }
        self.add_state(&mut values)?;
        Ok(values)
    }

    /// The parameters and statistics of each replica, and the statistics that are read.
    fn add_state(&mut self, values: &mut Values) -> Result<(), Failure> {
        let statistics = ["moving_mean", "moving_variance"];
        let own = self
            .strategy
            .run(&mut self.state, |_, state| Ok(state.model.statistics()))?;
        for (replica, own) in own.into_values().into_iter().enumerate() {
            for (name, value) in statistics.iter().zip(own) {
                values.add(format!("{name} {replica}"), value.into_data());
            }
        }
        for (replica, copy) in self.state.values()?.iter().enumerate() {
            let tensors = copy.to_tensors()?;
            for name in copy.parameter_names() {
                let value = flat(tensors[&format!("model/{name}")].clone());
                values.add(format!("{} {replica}", last(name)), value);
            }
        }
        for (name, value) in statistics
            .iter()
            .zip(self.state.primary()?.model.statistics())
        {
            values.add(*name, value.into_data());
        }
        Ok(())
    }
}

/// The data with `rows` rows: the first ones, or zeros behind the rows that there are.
fn filled(data: &TensorData, rows: usize) -> TensorData {
    let mut shape = data.shape().to_vec();
    let row: usize = shape[1..].iter().product();
    shape[0] = rows;
    let mut values: Vec<f32> = data.iter::<f32>().collect();
    values.resize(rows * row, 0.0);
    TensorData::new(values, shape)
}

/// The last part of a path.
fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// The extent of the features' axis.
fn features(case: &Case) -> Result<usize, Failure> {
    let first = steps(case)?.first().and_then(|step| step["x"].get(0));
    let first = first.ok_or_else(|| Failure::schema("no steps"))?;
    Ok(View::of(&case.inputs)?.read(first)?.shape()[1])
}

/// The numbers of values per feature of the replicas, in each step that trains.
fn counts(case: &Case) -> Result<Vec<Vec<usize>>, Failure> {
    let view = View::of(&case.inputs)?;
    let steps = steps(case)?.iter();
    let steps = steps.filter(|step| step.get("training") == Some(&Value::Bool(true)));
    let of_step = |step: &Value| -> Result<Vec<usize>, Failure> {
        let count = |x| view.read(x).map(|x| x.shape()[0] * x.shape()[2]);
        step.list("x")?.iter().map(count).collect()
    };
    steps.map(of_step).collect()
}

/// Where this library does something else with a case of this kind.
fn deviation(case: &Case) -> Result<Option<Deviation>, Failure> {
    let counts = counts(case)?;
    let synchronized = case.inputs.get("synchronized") == Some(&Value::Bool(true));
    let is_fused = case.inputs.text("library")? == "keras2"
        && !synchronized
        && steps(case)?[0]["x"][0]["shape"]
            .as_array()
            .is_some_and(|shape| shape.len() == 4);
    Ok(match () {
        () if counts.iter().flatten().any(|count| *count == 0) => Some(Deviation::EmptyPart),
        () if is_fused => Some(Deviation::PopulationVariance),
        () => None,
    })
}

fn train(case: &Case, env: &Env<'_>, strategy: Arc<dyn Strategy>) -> Checked {
    let mut run = Run::new(&case.inputs, features(case)?, strategy)?;
    let deviation = deviation(case)?;
    if let Some(deviation) = deviation {
        let mut reference = Reference::of(&case.inputs, case.strategy.replicas)?;
        for (index, step) in steps(case)?.iter().enumerate() {
            let (found, wanted) = (run.step(step)?, reference.step(step, run.view)?);
            let same = found.compare(&wanted, env.tolerance());
            same.map_err(|failure| failure.at(format!("step {index}: ")))?;
        }
        return Ok(Outcome::Deviation(deviation));
    }
    let wanted = expected(case)?.list("steps")?;
    if wanted.len() != steps(case)?.len() {
        return Err(Failure::schema("not as many steps as are expected"));
    }
    let mut is_averaged = false;
    for (index, (step, wanted)) in steps(case)?.iter().zip(wanted).enumerate() {
        let mut wanted = Values::of_step(wanted, run.view)?;
        if case.inputs.text("library")? == "keras3" {
            is_averaged |= wanted.average_statistics();
        }
        let same = run.step(step)?.compare(&wanted, env.tolerance());
        same.map_err(|failure| failure.at(format!("step {index}: ")))?;
    }
    Ok(outcome(is_averaged))
}

fn outcome(is_averaged: bool) -> Outcome {
    if is_averaged {
        Outcome::Deviation(Deviation::MeanStatistics)
    } else {
        Outcome::Passed
    }
}

/// A call outside of a step changes what all replicas have.
fn outside(case: &Case, env: &Env<'_>, strategy: Arc<dyn Strategy>) -> Checked {
    if case.inputs.flag("synchronized")? {
        return Ok(Outcome::NotApplicable(Rule::CompileError));
    }
    let mut run = Run::new(&case.inputs, features(case)?, strategy)?;
    let ((x, _), _) = run.parts(&steps(case)?[0])?.into_values().swap_remove(0);
    let y = run
        .state
        .update(|state| state.model.forward_alone(x, true))?;
    let mut all = Values::default();
    run.add_state(&mut all)?;
    let mut found = Values::default();
    found.add("y", y.into_data());
    let statistics = all
        .0
        .into_iter()
        .filter(|(name, _)| name.starts_with("moving"));
    found.0.extend(statistics);
    let mut wanted = Values::default();
    wanted.add("y", run.view.read(expected(case)?.field("y")?)?);
    wanted.read_statistics(expected(case)?)?;
    found.compare(&wanted, env.tolerance())?;
    Ok(Outcome::Passed)
}

/// What is saved, and what another strategy makes of it.
fn checkpoint(case: &Case, env: &Env<'_>, strategy: Arc<dyn Strategy>) -> Checked {
    let mut run = Run::new(&case.inputs, features(case)?, strategy)?;
    let mut reference = Reference::of(&case.inputs, case.strategy.replicas)?;
    for step in steps(case)? {
        run.step(step)?;
        reference.step(step, run.view)?;
    }
    let wanted = expected(case)?;
    let (mut before, mut found) = (Values::default(), Values::default());
    before.read_statistics(wanted.field("before")?)?;
    let is_averaged = case.inputs.text("library")? == "keras3" && before.average_statistics();
    run.add_state(&mut found)?;
    found.0.retain(|name, _| name.starts_with("moving"));
    found.compare(&before, env.tolerance())?;

    let saved = run.state.primary()?.to_tensors()?;
    let names = [
        ("gamma", "gamma"),
        ("beta", "beta"),
        ("mean", "moving_mean"),
        ("var", "moving_variance"),
    ];
    for (own, name) in names {
        let value = saved.iter().find(|(path, _)| path.contains(own));
        let value = value.ok_or_else(|| Failure::got("nothing").at(name))?.1;
        match before.0.get(name) {
            Some(read) => env.tolerance().same_data(read, value)?,
            None => env.tolerance().same(&wanted["stored"][name], value)?,
        }
    }
    let spec =
        StrategySpec::parse(case.inputs.field("restore_strategy")?).map_err(Failure::schema)?;
    let mut restored = Run::new(&case.inputs, features(case)?, env.strategy_of(spec)?)?;
    restored
        .state
        .update(|state| state.load_tensors(&saved, 1))?;
    restored.same_statistics(&before, env.tolerance())?;
    let data = run.view.read(case.inputs.field("inference_x")?)?;
    let of_mean = is_averaged
        .then(|| reference.inference(&data))
        .transpose()?;
    for (replica, y) in restored.inference(data)?.into_iter().enumerate() {
        let wanted = match &of_mean {
            Some(wanted) => wanted.clone(),
            None => run.view.read(&wanted["inference_y"][replica])?,
        };
        env.tolerance().same_data(&wanted, &y)?;
    }
    Ok(outcome(is_averaged))
}

impl Run {
    /// The statistics of every replica are those that were saved.
    fn same_statistics(&mut self, saved: &Values, tolerance: Tolerance) -> Result<(), Failure> {
        let mut found = Values::default();
        self.add_state(&mut found)?;
        for name in ["moving_mean", "moving_variance"] {
            for replica in 0..self.strategy.num_replicas_in_sync() {
                tolerance.same_data(&saved.0[name], &found.0[&format!("{name} {replica}")])?;
            }
        }
        Ok(())
    }

    /// What every replica computes of an input with the moving statistics.
    fn inference(&self, x: TensorData) -> Result<Vec<TensorData>, Failure> {
        let x = Tensor::<3>::from_data(x, &self.strategy.replicas()[0].device);
        let outputs = self
            .strategy
            .run((&self.state, Replicated(x)), |_, (state, x)| {
                state.model.forward((x, None), false)
            })?;
        let outputs = outputs.into_values().into_iter();
        Ok(outputs.map(Tensor::into_data).collect())
    }
}
