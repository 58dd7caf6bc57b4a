//! `schedules.json`: learning rate schedules, and the callbacks that watch a value.

use std::sync::Arc;

use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::schedule::from_config;
use distribute_core::{
    DefaultStrategy, Mirrored, PerReplica, Result as CoreResult, Sgd, Strategy, StrategyExt,
    TrainState,
};
use distribute_data::{Batching, FnDataset, StrategyDataExt};
use distribute_fit::callbacks::{Direction, EarlyStopping, ReduceLrOnPlateau};
use distribute_fit::{
    Callback, Control, EpochRecord, Fit, Mode, Objective, Outcome as Ended, StepContext,
};
use serde_json::{Value, json};

use super::support::{Variables, expected};
use crate::case::{Case, StrategyKind};
use crate::compare::equal;
use crate::env::Env;
use crate::json::Fields;
use crate::outcome::{Checked, Deviation, Failure, Outcome};
use crate::tensors::{as_scalar, number, reshaped, tensor};

pub(super) fn check(case: &Case, env: &Env<'_>) -> Checked {
    match case.op() {
        "schedule" => schedule(case, env),
        "schedule_in_optimizer" => in_optimizer(case, env),
        "EarlyStopping" | "ReduceLROnPlateau" => watch(case, env),
        other => Err(Failure::schema(format!("unknown operation `{other}`"))),
    }
}

/// The rates of a schedule, and its configuration.
fn schedule(case: &Case, env: &Env<'_>) -> Checked {
    let inputs = &case.inputs;
    let schedule = from_config(inputs.text("class")?, inputs.field("config")?);
    if let (Some("ValueError"), Err(error)) = (case.error_class(), &schedule) {
        // The error must not be about an unknown name or number.
        return if error.to_string().contains("unknown") {
            Err(Failure::got(error))
        } else {
            Ok(Outcome::Passed)
        };
    }
    let (schedule, wanted) = (schedule?, expected(case)?);
    let steps = inputs.list("steps")?.iter().map(|step| {
        let step = step.as_u64();
        step.ok_or_else(|| Failure::schema("a step that is no number"))
    });
    let rates = steps.map(|step| Ok(schedule.rate(step?) as f32));
    let rates = rates.collect::<Result<Vec<_>, Failure>>()?;
    let count = rates.len();
    let rates = TensorData::new(rates, [count]);
    env.tolerance().same(wanted.field("rates")?, &rates)?;
    let (wanted, found) = (wanted.field("config")?, schedule.config());
    equal(&as_floats(wanted), &as_floats(&found)).map_err(|failure| failure.at("config"))?;
    Ok(Outcome::Passed)
}

/// The same with every number as a float: Keras gives back what it was given.
fn as_floats(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(list) => list.iter().map(as_floats).collect(),
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(key, value)| (key.clone(), as_floats(value)));
            Value::Object(fields.collect())
        }
        other => other.clone(),
    }
}

type State = Mirrored<TrainState<Variables>>;

/// A state with the one variable w.
fn state(strategy: &dyn Strategy, learning_rate: f64, w: &Value) -> Result<State, Failure> {
    let variables = json!({"w": w});
    let state = strategy.try_scope(|device| {
        let model = Variables::new(&variables, device)?;
        Ok(TrainState::new(model, Sgd::new(learning_rate)))
    });
    Ok(state?)
}

/// SGD whose rate follows a schedule.
fn in_optimizer(case: &Case, env: &Env<'_>) -> Checked {
    let inputs = &case.inputs;
    let strategy = &*env.strategy(case)?;
    let schedule = from_config(inputs.text("class")?, inputs.field("config")?)?;
    let initial = inputs.field("w")?;
    let mut state = state(strategy, 1.0, initial)?;
    let shape = tensor(initial)?.shape().to_vec();
    let wanted = expected(case)?.list("steps")?;
    for (gradients, wanted) in inputs.list("gradients")?.iter().zip(wanted) {
        let rate = schedule.rate(state.host_metadata().step());
        let scalar = as_scalar(TensorData::from([rate as f32]));
        env.tolerance().same(wanted.field("rate")?, &scalar)?;
        state.set_learning_rate(rate);
        let replicas = gradients
            .as_array()
            .ok_or_else(|| Failure::schema("gradients"))?;
        let given = |gradient: &Value| {
            let gradient = tensor(gradient)?;
            equal(&json!(shape), &json!(gradient.shape().to_vec()))
                .map_err(|failure| failure.at("the shape of a gradient: "))?;
            let count = gradient.num_elements();
            Ok(Tensor::from_data(
                reshaped(&gradient, &[count]),
                &Device::flex(),
            ))
        };
        let given = replicas.iter().map(given).collect::<Result<_, Failure>>()?;
        strategy.run(
            (&mut state, PerReplica::new(given)),
            |ctx, (state, gradient)| {
                let loss = state.model.loss_of(vec![Some(gradient)], ctx.device());
                ctx.loss_is_scaled();
                let gradients = ctx.gradient(&loss, &state.model)?;
                state.apply_gradients(ctx, gradients).map(drop)
            },
        )?;
        equal(wanted.field("iterations")?, &json!(state.primary()?.step()))?;
        for (wanted, state) in wanted.list("w")?.iter().zip(state.values()?) {
            let found = reshaped(&state.to_tensors()?["model/w"], &shape);
            env.tolerance().same(wanted, &found)?;
        }
    }
    Ok(Outcome::Passed)
}

/// The state that a callback reports after an epoch.
type Says<C> = fn(&C, &Control<'_>) -> Value;

/// One of the callbacks, and the states that it has reported.
struct Watcher<C> {
    callback: C,
    says: Says<C>,
    epochs: Vec<Value>,
}

impl<C: Callback> Callback for Watcher<C> {
    fn on_train_begin(&mut self, run: &mut Control<'_>) -> CoreResult<()> {
        self.callback.on_train_begin(run)
    }

    fn on_epoch_end(&mut self, record: &EpochRecord, run: &mut Control<'_>) -> CoreResult<()> {
        self.callback.on_epoch_end(record, run)?;
        self.epochs.push((self.says)(&self.callback, run));
        Ok(())
    }

    fn on_train_end(&mut self, outcome: &Ended, run: &mut Control<'_>) -> CoreResult<()> {
        self.callback.on_train_end(outcome, run)
    }
}

/// The weight after a training with a callback, and the state that the callback reported after each
/// epoch.
type Watched = (f64, Vec<Value>);

/// Trains with the callback of a case, which watches this value.
fn watched(case: &Case, env: &Env<'_>, monitor: &str, metrics: &[f64]) -> Result<Watched, Failure> {
    let config = case.inputs.field("config")?;
    if case.op() == "EarlyStopping" {
        return fit(
            case,
            env,
            metrics,
            early_stopping(monitor, config)?,
            |it, run| {
                let best = it.best();
                json!({
                    "wait": it.epochs_without_improvement(),
                    "best": best.map(|(best, _)| best),
                    "best_epoch": best.map_or(0, |(_, epoch)| epoch),
                    "stop": run.stopping().is_some(),
                })
            },
        );
    }
    fit(case, env, metrics, reduce(monitor, config)?, |it, run| {
        json!({
            "wait": it.wait(),
            "best": it.best(),
            "cooldown": it.cooldown_left(),
            "learning_rate": run.learning_rate(),
        })
    })
}

/// A case of one callback. The weight has the value e when epoch e ends.
fn watch(case: &Case, env: &Env<'_>) -> Checked {
    let inputs = &case.inputs;
    let metrics = inputs.list("metrics")?;
    if metrics.iter().any(Value::is_null) {
        return missing(case, env);
    }
    let metrics: Vec<f64> = metrics.iter().map(number).collect::<Result<_, _>>()?;
    let result = watched(case, env, inputs.text("monitor")?, &metrics);
    if let (Some("ValueError"), Err(error)) = (case.error_class(), &result)
        && error.got.contains("the factor must be")
    {
        return Ok(Outcome::Passed);
    }
    let message = case.error_message().unwrap_or_default();
    if let (true, Err(error)) = (message.contains("automatically determine"), &result)
        && error
            .got
            .contains("whether larger or smaller values of it are better")
    {
        return Ok(Outcome::Passed);
    }
    let (weight, epochs) = result?;
    if metrics.first().is_some_and(|first| first.is_nan()) {
        let known = epochs.get(1).map(|epoch| epoch["best"].clone());
        equal(&json!(metrics.get(1)), &known.unwrap_or_default())?;
        return Ok(Outcome::Deviation(Deviation::NanIsNeverBest));
    }
    compare(case, env, weight, &epochs)
}

fn compare(case: &Case, env: &Env<'_>, weight: f64, epochs: &[Value]) -> Checked {
    let wanted = expected(case)?;
    equal(&json!(wanted.list("epochs")?.len()), &json!(epochs.len()))?;
    for (index, (wanted, found)) in wanted.list("epochs")?.iter().zip(epochs).enumerate() {
        let fields = wanted.as_object().into_iter().flatten();
        for (name, wanted) in fields {
            let at = |failure: Failure| failure.at(format!("epoch {index}: {name}"));
            let wanted = match wanted {
                // The rate: of one replica, or a list that has it for each.
                Value::Object(_) => vec![first_number(wanted)?],
                Value::Array(all) => all
                    .iter()
                    .map(first_number)
                    .collect::<Result<_, _>>()
                    .map_err(at)?,
                wanted => {
                    let same = match (wanted.as_f64(), found[name].as_f64()) {
                        (Some(wanted), Some(found)) => env.tolerance().is_close(found, wanted),
                        _ => *wanted == found[name],
                    };
                    let differ = || Failure::new(wanted, &found[name]);
                    same.then_some(()).ok_or_else(differ).map_err(at)?;
                    continue;
                }
            };
            for wanted in wanted {
                let rate = found[name].as_f64().unwrap_or(f64::NAN);
                let same = env.tolerance().same_number(&json!(wanted), rate);
                same.map_err(at)?;
            }
        }
    }
    if let Some(after) = wanted.get("weight_after") {
        equal(&json!(wanted.count("epochs_run")?), &json!(epochs.len()))?;
        let stopped = epochs.iter().position(|epoch| epoch["stop"] == json!(true));
        equal(&wanted["stopped_epoch"], &json!(stopped.unwrap_or(0)))?;
        env.tolerance().same_number(after, weight)?;
    }
    Ok(Outcome::Passed)
}

fn first_number(value: &Value) -> Result<f64, Failure> {
    first_of(&tensor(value)?)
}

fn direction(config: &Value) -> Direction {
    match config["mode"].as_str() {
        Some("max") => Direction::Max,
        Some("min") => Direction::Min,
        _ => Direction::Auto,
    }
}

fn epochs(config: &Value, key: &str) -> Result<Option<usize>, Failure> {
    config.get(key).map(|_| config.count(key)).transpose()
}

fn early_stopping(monitor: &str, config: &Value) -> Result<EarlyStopping, Failure> {
    let mut callback = EarlyStopping::new(monitor)
        .direction(direction(config))
        .patience(epochs(config, "patience")?.unwrap_or(0))
        .min_delta(config["min_delta"].as_f64().unwrap_or(0.0))
        .start_from_epoch(epochs(config, "start_from_epoch")?.unwrap_or(0))
        .restore_best(config["restore_best_weights"].as_bool().unwrap_or(false));
    if let Some(baseline) = config["baseline"].as_f64() {
        callback = callback.baseline(baseline);
    }
    Ok(callback)
}

fn reduce(monitor: &str, config: &Value) -> Result<ReduceLrOnPlateau, Failure> {
    let mut callback = ReduceLrOnPlateau::new(monitor).direction(direction(config));
    if let Some(patience) = epochs(config, "patience")? {
        callback = callback.patience(patience);
    }
    if let Some(cooldown) = epochs(config, "cooldown")? {
        callback = callback.cooldown(cooldown);
    }
    if let Some(factor) = config["factor"].as_f64() {
        callback = callback.factor(factor);
    }
    if let Some(min_delta) = config["min_delta"].as_f64() {
        callback = callback.min_delta(min_delta);
    }
    if let Some(min_lr) = config["min_lr"].as_f64() {
        callback = callback.min_lr(min_lr);
    }
    Ok(callback)
}

/// Trains with these values of the metric that is watched.
fn fit<C: Callback>(
    case: &Case,
    env: &Env<'_>,
    metrics: &[f64],
    callback: C,
    says: Says<C>,
) -> Result<Watched, Failure> {
    let strategy = strategy(case, env)?;
    let strategy = &*strategy;
    // Cases of callbacks that do not change the rate do not record it.
    let rate = case.inputs["learning_rate"].as_f64().unwrap_or(1.0);
    let mut state = state(strategy, rate, &json!([-1.0]))?;
    let replicas = strategy.num_replicas_in_sync();
    let ones = |indices: &[usize], device: &Device| Ok(Tensor::<1>::ones([indices.len()], device));
    let rows = FnDataset::new(replicas, ones);
    let data = strategy.distribute_dataset(rows, Batching::global(replicas).prefetch(0))?;
    let is_loss = case.inputs.text("monitor")?.ends_with("loss");
    let objective = |ctx: &StepContext<'_>, model: &Variables, rows: Tensor<1>| {
        let own = rows.dims()[0];
        let share = own as f64 / replicas as f64;
        let value = metrics.get(ctx.epoch()).copied().unwrap_or(f64::NAN);
        let gradient = Tensor::full([1], -share, ctx.device());
        let loss = model.loss_of(vec![Some(gradient)], ctx.device());
        ctx.loss_is_scaled();
        let objective = match ctx.mode() {
            Mode::Train => Objective::new(loss),
            _ if is_loss => Objective::new(loss.mul_scalar(0.0).add_scalar(value * share)),
            _ => Objective::new(loss),
        };
        let (sum, count) = (value * own as f64, own);
        Ok(objective.examples(own).metric("score", sum, count))
    };
    let mut watcher = Watcher {
        callback,
        says,
        epochs: Vec::new(),
    };
    Fit::new(strategy)
        .epochs(metrics.len())
        .callback(&mut watcher)
        .run_with_validation(&mut state, &data, &data, objective)?;
    let weight = first_of(&state.primary()?.to_tensors()?["model/w"])?;
    Ok((weight, watcher.epochs))
}

fn first_of(data: &TensorData) -> Result<f64, Failure> {
    let first = data.iter::<f64>().next();
    first.ok_or_else(|| Failure::got("an empty tensor"))
}

fn strategy(case: &Case, env: &Env<'_>) -> Result<Arc<dyn Strategy>, Failure> {
    match case.strategy.kind {
        StrategyKind::None => Ok(Arc::new(DefaultStrategy::new())),
        _ => env.strategy(case),
    }
}

/// A missing metric is an error that names the existing metrics.
fn missing(case: &Case, env: &Env<'_>) -> Checked {
    match watched(case, env, "val_nothing", &[1.0]) {
        Ok(_) => Err(Failure::new("an error", "training went on")),
        // The direction does not follow from its name either, which is refused before training.
        Err(error)
            if error.got.contains("val_loss")
                || error
                    .got
                    .contains("whether larger or smaller values of it are better") =>
        {
            Ok(Outcome::Deviation(Deviation::MissingMetric))
        }
        Err(error) => Err(error),
    }
}
