//! Checkpoints of the documents' loops.

use burn::tensor::{Tensor, TensorData};
use distribute_core::checkpoint::{CheckpointManager, load_latest};
use distribute_core::{Mirrored, Sgd, Strategy, StrategyExt, TrainState};
use distribute_fit::{restore, snapshot};
use serde_json::json;

use super::super::support::expected;
use super::super::support::models::{Linear, Model};
use super::training::linear;
use crate::case::{Case, StrategySpec};
use crate::compare::equal;
use crate::env::Env;
use crate::json::Fields;
use crate::outcome::{Checked, Failure, passed};

type State = Mirrored<TrainState<Linear>>;

fn new_state(strategy: &dyn Strategy, weight: f32) -> Result<State, Failure> {
    Ok(strategy.try_scope(|device| Ok(TrainState::new(linear(weight, device)?, Sgd::new(0.1))))?)
}

fn weights(state: &State) -> Result<TensorData, Failure> {
    let tensors = state.primary()?.to_tensors()?;
    let weight = tensors.get("model/w").cloned();
    weight.ok_or_else(|| Failure::got("no weight"))
}

/// `if epoch % 2 == 0: checkpoint.save(...)`; the newest is restored under another strategy.
pub(super) fn checkpoints(case: &Case, env: &Env<'_>) -> Checked {
    let inputs = &case.inputs;
    let strategy = &*env.strategy(case)?;
    let (epochs, every) = (inputs.count("epochs")?, inputs.count("every")?);
    let directory = tempfile::tempdir()?;
    let manager = CheckpointManager::open(directory.path())?.with_max_to_keep(None);
    let mut state = new_state(strategy, 0.0)?;
    let (mut saved, mut newest) = (Vec::new(), None);
    for epoch in 0..epochs {
        strategy.run(&mut state, |ctx, state| {
            let x = Tensor::<2>::ones([1, 1], ctx.device());
            let loss = state.model.losses((x.clone(), x));
            let loss = distribute_data::average_loss(ctx, loss)?;
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients).map(drop)
        })?;
        if epoch.is_multiple_of(every) {
            manager.save(&snapshot(state.primary()?)?)?;
            saved.push(epoch);
            newest = Some(weights(&state)?);
        }
    }
    let files = manager.list()?.len();
    let spec = StrategySpec::parse(inputs.field("restore_strategy")?).map_err(Failure::schema)?;
    let other = &*env.strategy_of(spec)?;
    let mut restored = new_state(other, 9.0)?;
    let found = load_latest(directory.path())?.found;
    let (_, checkpoint) = found.ok_or_else(|| Failure::got("no checkpoint"))?;
    restore(&mut restored, &checkpoint)?;
    let is_same = Some(weights(&restored)?) == newest;
    let found = json!({"saved_after_epochs": saved, "files": files, "restored": is_same});
    passed(equal(expected(case)?, &found))
}
