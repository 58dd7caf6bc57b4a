//! Tables in checkpoints, and into another number of servers and shards.

use burn::nn::Linear;
use distribute_core::checkpoint::{Checkpoint, CheckpointManager, Metadata, load_latest};
use distribute_core::{Adam, Device, Mirrored, Replicate, Sgd, StrategyExt, TrainState};
use distribute_fit::{restore, snapshot};
use distribute_ps::{PsError, Snapshot};

use super::common::{dense, floats, ids, loss, read, spec, step};
use crate::strategy::common::Servers;
use crate::within_limit;

fn adam(device: &Device) -> TrainState<Linear> {
    TrainState::new(dense(device), Adam::new(0.02))
}

#[test]
fn a_state_is_saved_with_the_tables_and_goes_on_with_other_servers() {
    within_limit(|| {
        let servers = Servers::start(2);
        let strategy = servers.in_shards(3);
        let table = strategy.table("words", &spec(Adam::new(0.05))).unwrap();
        let mut state = strategy.scope(adam).unwrap();
        for batch in 0..4 {
            step(&strategy, &mut state, &table, batch).unwrap();
        }
        let checkpoint = snapshot(state.primary().unwrap()).unwrap();
        let names: Vec<&str> = checkpoint.tensors.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "model/bias",
                "model/weight",
                "optimizer/momentum/bias",
                "optimizer/momentum/table/words",
                "optimizer/momentum/weight",
                "optimizer/velocity/bias",
                "optimizer/velocity/table/words",
                "optimizer/velocity/weight",
                "table/words",
                "updates/table/words",
            ]
        );
        assert_eq!(
            floats(&checkpoint.tensors["table/words"]),
            read(&strategy, &table)
        );
        let directory = tempfile::tempdir().unwrap();
        CheckpointManager::open(directory.path())
            .unwrap()
            .save(&checkpoint)
            .unwrap();
        for batch in 4..7 {
            step(&strategy, &mut state, &table, batch).unwrap();
        }
        let expected = snapshot(state.primary().unwrap()).unwrap();
        let (_, checkpoint) = load_latest(directory.path()).unwrap().found.unwrap();
        for (servers, shards) in [(1, 1), (3, 5)] {
            let servers = Servers::start(servers);
            let strategy = servers.in_shards(shards);
            let table = strategy.table("words", &spec(Adam::new(0.05))).unwrap();
            let mut state = strategy.scope(adam).unwrap();
            // What it has gone on to is forgotten.
            step(&strategy, &mut state, &table, 9).unwrap();
            restore(&mut state, &checkpoint).unwrap();
            for batch in 4..7 {
                step(&strategy, &mut state, &table, batch).unwrap();
            }
            let found = snapshot(state.primary().unwrap()).unwrap();
            assert_eq!(found.tensors, expected.tensors);
        }
    });
}

#[derive(Replicate)]
struct Two {
    first: TrainState<Linear>,
    second: TrainState<Linear>,
}

#[test]
fn of_a_struct_of_states_the_first_one_is_saved_with_the_tables() {
    within_limit(|| {
        let servers = Servers::start(2);
        let strategy = servers.in_shards(2);
        let table = strategy.table("words", &spec(Adam::new(0.05))).unwrap();
        let build = |device: &Device| Two {
            first: adam(device),
            second: adam(device),
        };
        let mut state = strategy.scope(build).unwrap();
        let step = |state: &mut Mirrored<Two>, batch: usize| {
            let rows = table.lookup(ids(batch)).unwrap();
            let ran = strategy.run(state, |ctx, state| {
                let loss = loss(&state.first.model, rows.tensor(ctx)?, batch);
                let gradients = ctx.gradient(&loss, &state.first.model)?;
                state.first.apply_gradients(ctx, gradients).map(drop)
            });
            ran.unwrap();
        };
        step(&mut state, 0);
        let saved = snapshot(state.primary().unwrap()).unwrap();
        let of_tables = |name: &&String| name.contains("table/words");
        let names: Vec<_> = saved.tensors.keys().filter(of_tables).collect();
        assert_eq!(
            names,
            [
                "first/optimizer/momentum/table/words",
                "first/optimizer/velocity/table/words",
                "first/table/words",
                "first/updates/table/words",
            ]
        );
        step(&mut state, 1);
        let expected = read(&strategy, &table);
        restore(&mut state, &saved).unwrap();
        assert_eq!(
            floats(&saved.tensors["first/table/words"]),
            read(&strategy, &table)
        );
        step(&mut state, 1);
        assert_eq!(read(&strategy, &table), expected);
    });
}

#[test]
fn a_checkpoint_without_the_table_is_refused() {
    within_limit(|| {
        let servers = Servers::start(1);
        let strategy = servers.in_shards(1);
        let mut state = strategy.scope(adam).unwrap();
        let checkpoint = snapshot(state.primary().unwrap()).unwrap();
        strategy.table("words", &spec(Adam::new(0.05))).unwrap();
        let error = restore(&mut state, &checkpoint).unwrap_err().to_string();
        assert!(error.contains("`table/words`"), "{error}");
    });
}

#[test]
fn snapshots_of_all_variables_are_checkpoints_too() {
    within_limit(|| {
        let servers = Servers::start(2);
        let strategy = servers.in_shards(2);
        let table = strategy.table("words", &spec(Adam::new(0.05))).unwrap();
        let mut state = strategy.scope(adam).unwrap();
        for batch in 0..3 {
            step(&strategy, &mut state, &table, batch).unwrap();
        }
        let taken = strategy.variables().snapshot().unwrap();
        let mut checkpoint = Checkpoint::new(Metadata::new(taken.step()));
        checkpoint.tensors = taken.to_tensors();
        step(&strategy, &mut state, &table, 3).unwrap();
        let expected = snapshot(state.primary().unwrap()).unwrap();

        let servers = Servers::start(3);
        let strategy = servers.in_shards(4);
        let table = strategy.table("words", &spec(Adam::new(0.05))).unwrap();
        let mut state = strategy.scope(adam).unwrap();
        let snapshot_again = Snapshot::from_tensors(&checkpoint.tensors, 3);
        strategy.variables().restore(&snapshot_again).unwrap();
        step(&strategy, &mut state, &table, 3).unwrap();
        assert_eq!(
            snapshot(state.primary().unwrap()).unwrap().tensors,
            expected.tensors
        );

        // Slots of another optimizer.
        let servers = Servers::start(1);
        let strategy = servers.in_shards(1);
        strategy.table("words", &spec(Sgd::new(0.05))).unwrap();
        let _state = strategy.scope(adam).unwrap();
        let error = strategy.variables().restore(&snapshot_again).unwrap_err();
        assert!(matches!(error, PsError::InvalidArgument { .. }), "{error}");
        assert!(error.to_string().contains("momentum"), "{error}");
    });
}

#[test]
fn slots_of_another_optimizer_are_refused_by_both_names() {
    within_limit(|| {
        let servers = Servers::start(2);
        let strategy = servers.in_shards(2);
        let table = strategy.table("words", &spec(Adam::new(0.05))).unwrap();
        let mut state = strategy.scope(adam).unwrap();
        for batch in 0..3 {
            step(&strategy, &mut state, &table, batch).unwrap();
        }
        let with_adam = snapshot(state.primary().unwrap()).unwrap();
        let mut without = with_adam.clone();
        let is_adams = |name: &str| name.ends_with("velocity/table/words");
        without.tensors.retain(|name, _| !is_adams(name));
        let mut weights = with_adam.clone();
        let is_slot = |name: &str| name.starts_with("optimizer/");
        weights.tensors.retain(|name, _| !is_slot(name));
        type Spec = fn() -> distribute_ps::TableSpec;
        let sgd: Spec = || spec(Sgd::new(0.05));
        let momentum: Spec = || spec(Sgd::new(0.05).momentum(0.9));
        let adams: Spec = || spec(Adam::new(0.05));
        let cases = [
            (&with_adam, sgd, Some(["adam", "sgd"])),
            // Both have a slot of this name.
            (&with_adam, momentum, Some(["adam", "sgd"])),
            (&without, adams, Some(["sgd", "adam"])),
            (&weights, momentum, None),
            (&with_adam, adams, None),
        ];
        for (checkpoint, spec, refused) in cases {
            let servers = Servers::start(2);
            let strategy = servers.in_shards(3);
            let table = strategy.table("words", &spec()).unwrap();
            let mut state = strategy.scope(adam).unwrap();
            step(&strategy, &mut state, &table, 7).unwrap();
            let before = snapshot(state.primary().unwrap()).unwrap().tensors;
            let restored = restore(&mut state, checkpoint);
            let found = snapshot(state.primary().unwrap()).unwrap().tensors;
            let Some([saved, own]) = refused else {
                restored.unwrap();
                assert_eq!(found["table/words"], checkpoint.tensors["table/words"]);
                let slots = |tensors: &std::collections::BTreeMap<String, _>| {
                    tensors.keys().filter(|name| is_slot(name)).count()
                };
                assert_eq!(slots(&found), slots(&checkpoint.tensors));
                continue;
            };
            let error = restored.unwrap_err().to_string();
            assert!(error.contains("`table/words`"), "{error}");
            assert!(error.contains(&format!("is of {saved}")), "{error}");
            assert!(error.contains(&format!("into {own} ")), "{error}");
            assert_eq!(found, before, "nothing is changed");
        }
    });
}
