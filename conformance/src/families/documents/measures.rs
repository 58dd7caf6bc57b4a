//! Metrics and callbacks.

use burn::tensor::{Device, Int, Tensor};
use distribute_core::metric::{BinaryAccuracy, SparseCategoricalAccuracy};
use distribute_core::{
    Mirrored, PerReplica, Result as CoreResult, Sgd, Strategy, StrategyExt, TrainState,
};
use distribute_data::{Batching, DistributedDataset, FnDataset, StrategyDataExt};
use distribute_fit::callbacks::{EarlyStopping, TensorBoard};
use distribute_fit::{Fit, Mode, Objective, StepContext};
use serde_json::{Value, json};

use super::super::support::expected;
use super::super::support::models::{Linear, Model};
use super::training::linear;
use crate::case::Case;
use crate::compare::equal;
use crate::env::Env;
use crate::json::Fields;
use crate::outcome::{Checked, Failure, passed};
use crate::tensors::number;

/// A metric of some examples, some of them right, updated by all replicas; printed as the
/// document does it, and reset.
pub(super) fn accuracy(case: &Case, env: &Env<'_>) -> Checked {
    let inputs = &case.inputs;
    let strategy = &*env.strategy(case)?;
    let (examples, correct) = (inputs.count("examples")?, inputs.count("correct")?);
    let updates = inputs.count("updates")?;
    let replicas = strategy.num_replicas_in_sync();
    let share = examples / replicas;
    let labels = |replica: usize, device: &Device| {
        let rows = (replica * share..(replica + 1) * share).map(|row| i32::from(row < correct));
        let rows: Vec<i32> = rows.collect();
        Tensor::<1, Int>::from_ints(rows.as_slice(), device)
    };
    let replicas = strategy.replicas().iter();
    let labels: Vec<_> = replicas.map(|of| labels(of.id, &of.device)).collect();
    let labels = PerReplica::new(labels);
    // Every prediction is 1, or class 1 of two.
    let (percent, reset) = match inputs.text("metric")? {
        "BinaryAccuracy" => {
            let metric = strategy.metric(BinaryAccuracy::default());
            for _ in 0..updates {
                strategy.run(labels.clone(), |ctx, labels| {
                    let labels = labels.float();
                    metric.update_state(ctx, &labels, &labels.ones_like())
                })?;
            }
            let percent = metric.result()? * 100.0;
            metric.reset_state()?;
            (percent, metric.result()?)
        }
        "SparseCategoricalAccuracy" => {
            let metric = strategy.metric(SparseCategoricalAccuracy);
            for _ in 0..updates {
                strategy.run(labels.clone(), |ctx, labels| {
                    let second = labels.ones_like().float().unsqueeze_dim::<2>(1);
                    let scores = Tensor::cat(vec![second.zeros_like(), second], 1);
                    metric.update_state(ctx, &labels, &scores)
                })?;
            }
            let percent = metric.result()? * 100.0;
            metric.reset_state()?;
            (percent, metric.result()?)
        }
        other => return Err(Failure::schema(format!("metric `{other}`"))),
    };
    let printed = match inputs.count("decimals")? {
        4 => format!("{percent:.4}"),
        decimals => format!("{percent:5.decimals$}%"),
    };
    let found = json!({"printed": printed, "after_reset": reset});
    passed(equal(expected(case)?, &found))
}

/// Training for callbacks: two examples, and a validation whose losses are given.
type Rows = (Tensor<2>, Tensor<2>);

fn state(strategy: &dyn Strategy) -> Result<Mirrored<TrainState<Linear>>, Failure> {
    Ok(strategy.try_scope(|device| Ok(TrainState::new(linear(0.0, device)?, Sgd::new(0.0))))?)
}

type Data = DistributedDataset<FnDataset<fn(&[usize], &Device) -> CoreResult<Rows>>>;

fn rows(strategy: &dyn Strategy) -> CoreResult<Data> {
    let make: fn(&[usize], &Device) -> CoreResult<Rows> = |rows, device| {
        let ones = Tensor::<2>::ones([rows.len(), 1], device);
        Ok((ones.clone(), ones))
    };
    strategy.distribute_dataset(FnDataset::new(4, make), Batching::global(4))
}

/// `val_loss` is what the document prints for each epoch; the callback decides when to stop.
pub(super) fn early_stopping(case: &Case, env: &Env<'_>) -> Checked {
    let inputs = &case.inputs;
    let strategy = &*env.strategy(case)?;
    let losses: Vec<f64> = inputs
        .list("val_loss")?
        .iter()
        .map(number)
        .collect::<Result<_, _>>()?;
    let mut state = state(strategy)?;
    let data = rows(strategy)?;
    let examples = data.len();
    let objective = |ctx: &StepContext<'_>, model: &Linear, (x, y): Rows| {
        let own = x.dims()[0];
        let mut loss = model.losses((x, y)).sum().mul_scalar(0.0);
        if ctx.mode() != Mode::Train {
            let of_epoch = losses.get(ctx.epoch()).copied().unwrap_or(f64::MAX);
            loss = loss.add_scalar(of_epoch * own as f64 / examples as f64);
        }
        ctx.loss_is_scaled();
        Ok(Objective::new(loss).examples(own))
    };
    let patience = inputs.count("patience")?;
    let history = Fit::new(strategy)
        .epochs(losses.len())
        .callback(EarlyStopping::new("val_loss").patience(patience))
        .run_with_validation(&mut state, &data, &data, objective)?;
    let found: Vec<Value> = history
        .epochs
        .iter()
        .map(|epoch| json!((epoch.logs.get("val_loss").unwrap_or(f64::NAN) * 1e4).round() / 1e4))
        .collect();
    passed(equal(
        expected(case)?,
        &json!({"epochs": history.epochs.len(), "val_loss": found}),
    ))
}

/// The callback writes a log that TensorBoard reads.
pub(super) fn tensor_board(case: &Case, env: &Env<'_>) -> Checked {
    let strategy = &*env.strategy(case)?;
    let directory = tempfile::tempdir()?;
    let objective = |ctx: &StepContext<'_>, model: &Linear, (x, y): Rows| {
        let own = x.dims()[0];
        let loss = ctx.mean_loss(model.losses((x, y)).mean())?;
        Ok(Objective::new(loss).examples(own))
    };
    Fit::new(strategy)
        .epochs(case.inputs.count("epochs")?)
        .callback(TensorBoard::new(directory.path())?)
        .run(&mut state(strategy)?, &rows(strategy)?, objective)?;
    let mut logs = 0;
    let mut folders = vec![directory.path().to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path)
            } else {
                logs += usize::from(path.to_string_lossy().contains("tfevents"))
            }
        }
    }
    passed(equal(expected(case)?, &json!({"writes_a_log": logs > 0})))
}
