//! `checkpoint.json`: values and runs that move between strategies through files.

use std::num::NonZeroUsize;

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Shape, Tensor, TensorData};
use distribute_core::checkpoint::{
    Checkpoint, CheckpointError, CheckpointManager, Metadata, load, load_latest,
};
use distribute_core::{
    DistributedVariable, Error, Mirrored, Sgd, Strategy, StrategyExt, TrainState,
    VariableAggregation, VariableOptions, VariableSynchronization,
};
use distribute_data::{AverageLoss, Batching, FnDataset, StrategyDataExt, Weighted};
use distribute_fit::callbacks::ModelCheckpoint;
use distribute_fit::{Callback, Control, Fit, Objective, StepContext, restore, snapshot};
use serde_json::{Value, json};

use super::support::compiled::{global_batch, on_devices};
use super::support::{expected, take_rows};
use crate::case::{Case, StrategySpec};
use crate::compare::equal;
use crate::env::Env;
use crate::expression::evaluate;
use crate::json::{Fields, counts_in};
use crate::outcome::{Checked, Failure, Outcome, passed};
use crate::tensors::{scalar, tensor};

pub(super) fn check(case: &Case, env: &Env<'_>) -> Checked {
    match case.op() {
        "write then restore" => write_then_restore(case, env),
        op if op.starts_with("train ") => train_and_resume(case, env),
        op if op.starts_with("CheckpointManager") => manager(case, env),
        op if op.starts_with("restore of a path") => match load("no_such_checkpoint") {
            Err(error) => same_error(case, &error),
            Ok(_) => Err(Failure::got("a checkpoint")),
        },
        "restore(None)" => restore_nothing(case, env),
        op if op.starts_with("restore [") => restore_other_shape(case),
        op if op.starts_with("assert_consumed") => missing_tensor(case),
        op if op.starts_with("fit ") => interrupted_fit(case, env),
        other => Err(Failure::schema(format!("unknown operation `{other}`"))),
    }
}

/// TensorFlow's classes for the library's errors.
fn same_error(case: &Case, error: &CheckpointError) -> Checked {
    let class = match error {
        CheckpointError::Missing { .. } => "NotFoundError",
        // A tensor that the file lacks, or one of another shape.
        CheckpointError::WrongModel { missing, .. } if *missing > 0 => "AssertionError",
        CheckpointError::WrongModel { .. } => "ValueError",
        _ => "another error",
    };
    if case.error_class() == Some(class) {
        return Ok(Outcome::Passed);
    }
    Err(Failure::got(format!("an error: {error}")))
}

const NAMES: [&str; 4] = ["w", "total", "mean", "first"];

/// The case's variables: `w`, and three on-read ones that are described in words.
fn variables(
    inputs: &Value,
    strategy: &dyn Strategy,
    w: TensorData,
) -> Result<Vec<DistributedVariable>, Failure> {
    let mut made = vec![strategy.variable(w, VariableOptions::default())?];
    for name in &NAMES[1..] {
        let text = inputs.text(name)?;
        let (kind, _) = text.split_once(',').unwrap_or((text, ""));
        let aggregation = match kind.trim_start_matches("ON_READ").trim() {
            "SUM" => VariableAggregation::Sum,
            "MEAN" => VariableAggregation::Mean,
            "ONLY_FIRST_REPLICA" => VariableAggregation::OnlyFirstReplica,
            other => return Err(Failure::schema(format!("variable {other}"))),
        };
        let options = VariableOptions::default()
            .synchronization(VariableSynchronization::OnRead)
            .aggregation(aggregation);
        made.push(strategy.variable(scalar(0.0), options)?);
    }
    Ok(made)
}

/// What replica `id` adds to a variable: `..., replica i adds FORMULA`.
fn added(inputs: &Value, name: &str, id: usize) -> Result<TensorData, Failure> {
    let text = inputs.text(name)?;
    let formula = text.split_once("adds ").map(|(_, formula)| formula);
    let names = |name: &str| (name == "i").then_some(id as f64);
    let value = formula.and_then(|formula| evaluate(formula, &names));
    Ok(scalar(value.ok_or_else(|| Failure::schema(text))? as f32))
}

/// Saves through a directory and loads what was saved.
fn through_a_file(checkpoint: &Checkpoint) -> Result<Checkpoint, Failure> {
    let directory = tempfile::tempdir()?;
    CheckpointManager::open(directory.path())?.save(checkpoint)?;
    let newest = load_latest(directory.path())?;
    let (_, loaded) = newest.found.ok_or_else(|| Failure::got("no checkpoint"))?;
    Ok(loaded)
}

fn write_then_restore(case: &Case, env: &Env<'_>) -> Checked {
    let inputs = &case.inputs;
    let tolerance = env.tolerance();
    let expected = expected(case)?;
    let strategy = &*env.strategy(case)?;
    let w = tensor(inputs.field("w")?)?;
    let zeros = TensorData::full_dtype(w.shape().clone(), 0.0, w.dtype());
    let variables_before = variables(inputs, strategy, w)?;
    strategy.run((), |ctx, ()| {
        for (name, variable) in NAMES.iter().zip(&variables_before).skip(1) {
            variable.assign_add(ctx, added(inputs, name, ctx.replica_id())?)?;
        }
        Ok(())
    })?;
    let mut checkpoint = Checkpoint::new(Metadata::new(1));
    for (name, variable) in NAMES.iter().zip(&variables_before) {
        checkpoint
            .tensors
            .insert((*name).to_string(), variable.read(strategy)?);
    }
    let loaded = through_a_file(&checkpoint)?;
    let other = &*env.strategy_of(spec(inputs)?)?;
    let variables_after = variables(inputs, other, zeros)?;
    for (name, variable) in NAMES.iter().zip(&variables_after) {
        let stored = &loaded.tensors[*name];
        let wanted = expected.field("stored")?.field(name)?;
        tolerance
            .same(wanted, stored)
            .map_err(|failure| failure.at(format!("stored {name}")))?;
        variable.assign(other, stored.clone())?;
        let wanted = expected.field("restored")?.field(name)?;
        let place = |failure: Failure| failure.at(format!("restored {name}"));
        tolerance
            .same_list(wanted.field("locals")?, &variable.local_values()?)
            .map_err(place)?;
        tolerance
            .same(wanted.field("read")?, &variable.read(other)?)
            .map_err(place)?;
    }
    Ok(Outcome::Passed)
}

fn spec(inputs: &Value) -> Result<StrategySpec, Failure> {
    StrategySpec::parse(inputs.field("restore_strategy")?).map_err(Failure::schema)
}

/// `y = x @ w` with the mean squared error.
#[derive(Module, Debug)]
struct Kernel {
    w: Param<Tensor<2>>,
}

type State = Mirrored<TrainState<Kernel>>;

/// A tensor of rows and columns.
fn matrix(inputs: &Value, name: &str) -> Result<TensorData, Failure> {
    let data = tensor(inputs.field(name)?)?;
    match data.rank() {
        2 => Ok(data),
        rank => Err(Failure::schema(format!(
            "`{name}` of rank {rank}, not of rank 2"
        ))),
    }
}

impl Kernel {
    fn new(w: &TensorData, device: &Device) -> Self {
        let w = Tensor::<2>::from_data(w.clone(), device).require_grad();
        Self {
            w: Param::from_tensor(w),
        }
    }

    fn losses(&self, (x, y): (Tensor<2>, Tensor<2>)) -> Tensor<1> {
        distribute_data::mean_squared_error(x.matmul(self.w.val()), y)
    }
}

fn new_state(strategy: &dyn Strategy, w: &TensorData, optimizer: Sgd) -> Result<State, Failure> {
    Ok(strategy.scope(|device| TrainState::new(Kernel::new(w, device), optimizer))?)
}

fn weights(state: &State) -> Result<TensorData, Failure> {
    let tensors = state.primary()?.to_tensors()?;
    tensors
        .get("model/w")
        .cloned()
        .ok_or_else(|| Failure::got("no weights"))
}

fn tensors(x: TensorData, y: TensorData, device: &Device) -> (Tensor<2>, Tensor<2>) {
    (Tensor::from_data(x, device), Tensor::from_data(y, device))
}

/// Trains on the whole data set once per step.
fn train(
    strategy: &dyn Strategy,
    state: &mut State,
    (x, y): &(TensorData, TensorData),
    steps: usize,
) -> Result<(), Failure> {
    let rows = x.shape()[0];
    for _ in 0..steps {
        let batch = global_batch(strategy, x, y, &(0..rows).collect::<Vec<_>>())?;
        let batch = on_devices(strategy, batch, tensors);
        strategy.run((&mut *state, batch), |ctx, (state, (batch, weights))| {
            let losses = state.model.losses(batch);
            let loss = AverageLoss::new()
                .weights(weights)
                .global_batch_size(rows)
                .of(ctx, losses)?;
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(())
        })?;
    }
    Ok(())
}

/// `train A, save, restore, train B`: momentum and weights move to another strategy.
fn train_and_resume(case: &Case, env: &Env<'_>) -> Checked {
    let inputs = &case.inputs;
    let [before, after] = counts_in(case.op())[..] else {
        return Err(Failure::schema(case.op()));
    };
    let tolerance = env.tolerance();
    let expected = expected(case)?;
    let w = matrix(inputs, "w")?;
    let data = (matrix(inputs, "x")?, matrix(inputs, "y")?);
    let optimizer = Sgd::new(inputs.float("learning_rate")?).momentum(inputs.float("momentum")?);
    let same = |key: String, state: &State| {
        let wanted = expected.field(&key)?;
        tolerance
            .same(wanted, &weights(state)?)
            .map_err(|failure| failure.at(key))
    };
    let strategy = &*env.strategy(case)?;
    let mut state = new_state(strategy, &w, optimizer.clone())?;
    train(strategy, &mut state, &data, before)?;
    same(format!("after_{before}"), &state)?;
    let loaded = through_a_file(&snapshot(state.primary()?)?)?;
    let other = &*env.strategy_of(spec(inputs)?)?;
    let mut resumed = new_state(
        other,
        &TensorData::full_dtype(w.shape().clone(), 0.0, w.dtype()),
        optimizer,
    )?;
    restore(&mut resumed, &loaded)?;
    same("restored".to_string(), &resumed)?;
    train(other, &mut resumed, &data, after)?;
    let all = before + after;
    same(format!("after_{all}"), &resumed)?;
    train(strategy, &mut state, &data, after)?;
    same(format!("uninterrupted_{all}"), &state)?;
    Ok(Outcome::Passed)
}

/// `CheckpointManager N saves`: the value `i` is saved as number `i + 1`.
fn manager(case: &Case, env: &Env<'_>) -> Checked {
    let saves = counts_in(case.op()).first().copied();
    let saves = saves.ok_or_else(|| Failure::schema(case.op()))?;
    let keep = NonZeroUsize::new(case.inputs.count("max_to_keep")?);
    let directory = tempfile::tempdir()?;
    let manager = CheckpointManager::open(directory.path())?.with_max_to_keep(keep);
    let mut kept = Vec::new();
    for (number, value) in (1_u64..).zip(0..saves) {
        let mut checkpoint = Checkpoint::new(Metadata::new(number));
        let value = TensorData::new(vec![value as f64], Shape::new([])).convert_dtype(DType::F32);
        checkpoint.tensors.insert("value".to_string(), value);
        manager.save(&checkpoint)?;
        let entries = manager.list()?;
        let names = entries.iter().map(|entry| format!("ckpt-{}", entry.step));
        kept.push(names.collect::<Vec<_>>());
    }
    let expected = expected(case)?;
    equal(expected.field("kept_after_each_save")?, &json!(kept))?;
    let newest = manager.load_latest()?;
    let (entry, checkpoint) = newest.found.ok_or_else(|| Failure::got("no checkpoint"))?;
    let name = json!(format!("ckpt-{}", entry.step));
    equal(expected.field("latest")?, &name)?;
    equal(expected.field("restored_from")?, &name)?;
    let found = checkpoint.tensors["value"]
        .iter::<f64>()
        .next()
        .unwrap_or(f64::NAN);
    passed(
        env.tolerance()
            .same_number(expected.field("restored_value")?, found),
    )
}

/// An empty directory has nothing to restore, and nothing is changed.
fn restore_nothing(case: &Case, env: &Env<'_>) -> Checked {
    let expected = expected(case)?;
    let strategy = &*env.strategy(case)?;
    let variable = strategy.variable(tensor(expected)?, VariableOptions::default())?;
    let directory = tempfile::tempdir()?;
    if let Some((_, checkpoint)) = load_latest(directory.path())?.found {
        let stored = checkpoint.tensors.values().next();
        variable.assign(
            strategy,
            stored.cloned().unwrap_or_else(|| scalar(f32::NAN)),
        )?;
    }
    passed(env.tolerance().same(expected, &variable.read(strategy)?))
}

/// `restore [M] into [N]`.
fn restore_other_shape(case: &Case) -> Checked {
    let [stored, wanted] = counts_in(case.op())[..] else {
        return Err(Failure::schema(case.op()));
    };
    let zeros = |size: usize| TensorData::new(vec![0.0_f32; size], [size]);
    let mut checkpoint = Checkpoint::new(Metadata::new(1));
    checkpoint.tensors.insert("v".to_string(), zeros(stored));
    let mut targets = [("v".to_string(), zeros(wanted))].into();
    match through_a_file(&checkpoint)?.restore_into("", &mut targets) {
        Err(error) => same_error(case, &error),
        Ok(()) => Err(Failure::got("the shapes were not compared")),
    }
}

/// A program that has a variable which the file lacks.
fn missing_tensor(case: &Case) -> Checked {
    let mut checkpoint = Checkpoint::new(Metadata::new(1));
    checkpoint.tensors.insert("v".to_string(), scalar(1.0));
    let targets = ["v", "absent"].map(|name| (name.to_string(), scalar(2.0)));
    match through_a_file(&checkpoint)?.restore_into("", &mut targets.into()) {
        Err(error) => same_error(case, &error),
        Ok(()) => Err(Failure::got("the missing tensor went unnoticed")),
    }
}

/// Notes the epochs that begin, and fails at one of them.
struct Interrupter<'a> {
    begun: &'a mut Vec<usize>,
    fail_at: Option<usize>,
}

impl Callback for Interrupter<'_> {
    fn on_epoch_begin(&mut self, run: &mut Control<'_>) -> distribute_core::Result<()> {
        let epoch = run.progress().position.epoch;
        self.begun.push(epoch);
        if self.fail_at == Some(epoch) {
            return Err(Error::step("interrupted"));
        }
        Ok(())
    }
}

/// A batch, and how much each row counts.
type Weighed = ((Tensor<2>, Tensor<2>), Tensor<1>);

fn objective(
    step: &StepContext<'_>,
    model: &Kernel,
    (batch, weights): Weighed,
) -> distribute_core::Result<Objective> {
    let (losses, examples) = (model.losses(batch), weights.clone().sum());
    let loss = AverageLoss::new().weights(weights).of(step, losses)?;
    Ok(Objective::new(loss).examples(examples))
}

/// `fit N epochs, interrupted at the begin of epoch E, run again`, with a checkpoint after every
/// epoch. TensorFlow's BackupAndRestore removes its files at the end; checkpoints here stay.
fn interrupted_fit(case: &Case, env: &Env<'_>) -> Checked {
    let inputs = &case.inputs;
    let [epochs, fail_at] = counts_in(case.op())[..] else {
        return Err(Failure::schema(case.op()));
    };
    let tolerance = env.tolerance();
    let expected = expected(case)?;
    let strategy = &*env.strategy(case)?;
    let (x, y) = (matrix(inputs, "x")?, matrix(inputs, "y")?);
    let (rows, width) = (x.shape()[0], x.shape()[1]);
    let initial = match inputs.text("initial_kernel")? {
        "ones" => TensorData::new(vec![1.0_f32; width], [width, 1]),
        "zeros" => TensorData::new(vec![0.0_f32; width], [width, 1]),
        other => return Err(Failure::schema(format!("initial_kernel {other}"))),
    };
    let make = move |indices: &[usize], device: &Device| {
        let rows = (take_rows(&x, indices)?, take_rows(&y, indices)?);
        Ok(tensors(rows.0, rows.1, device))
    };
    let batching = Batching::global(inputs.count("batch_size")?);
    let batching = batching.pad_remainder(strategy.tracer().is_some());
    let data = Weighted::new(FnDataset::new(rows, make));
    let data = strategy.distribute_dataset(data, batching)?;
    let learning_rate = inputs.float("learning_rate")?;
    let directory = tempfile::tempdir()?;
    let mut begun = Vec::new();
    let mut run = |checkpoint, saves: bool, fail_at| -> Result<(State, Option<Error>), Failure> {
        let mut state = new_state(strategy, &initial, Sgd::new(learning_rate))?;
        let mut fit = Fit::new(strategy).epochs(epochs).resume_from(checkpoint);
        let mut unseen = Vec::new();
        let begun = if saves { &mut begun } else { &mut unseen };
        if saves {
            fit = fit.callback(ModelCheckpoint::new(directory.path())?);
        }
        let fit = fit.callback(Interrupter { begun, fail_at });
        let outcome = fit.run(&mut state, &data, objective);
        Ok((state, outcome.err()))
    };
    let same = |key: &str, state: &State| {
        let wanted = expected.field(key)?;
        tolerance
            .same(wanted, &weights(state)?)
            .map_err(|failure| failure.at(key))
    };
    let (state, error) = run(None, true, Some(fail_at))?;
    let error = error.ok_or_else(|| Failure::got("the run went on"))?;
    equal(
        expected.field("error")?,
        &json!(error.root_cause().to_string()),
    )?;
    same("weights_at_failure", &state)?;
    let saved = load_latest(directory.path())?.found;
    let (_, checkpoint) = saved.ok_or_else(|| Failure::got("no checkpoint"))?;
    let (state, error) = run(Some(checkpoint), true, None)?;
    error.map_or(Ok(()), |error| Err(Failure::from(error)))?;
    same("weights_after_resume", &state)?;
    let (state, error) = run(None, false, None)?;
    error.map_or(Ok(()), |error| Err(Failure::from(error)))?;
    same("weights_uninterrupted", &state)?;
    passed(equal(expected.field("epochs_begun")?, &json!(begun)))
}
