//! Tables under a staleness bound and in synchronous mode.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use distribute_core::{Adam, Applied, Sgd, StrategyExt, TrainState};
use distribute_ps::{
    EmbeddingTable, ParameterServerStrategy, Rows, RunId, RunOptions, Staleness, StalenessPolicy,
    UpdateSource,
};

use super::common::{ROWS, WIDTH, dense, read, spec, step, table_values};
use crate::strategy::common::Servers;
use crate::within_limit;

fn bounded(bound: u64, policy: StalenessPolicy) -> RunOptions {
    let mut options = RunOptions::default();
    options.staleness = Some(Staleness { bound, policy });
    options
}

/// Pushes the gradient `scale` of rows that were looked up before.
fn push(strategy: &ParameterServerStrategy, rows: &Rows, scale: f64) -> Applied {
    let applied = std::sync::Mutex::new(Applied::Accumulated);
    let step = strategy.run((), |ctx, ()| {
        let loss = rows.tensor::<2>(ctx)?.sum().mul_scalar(scale);
        let gradients = ctx.row_gradients(&loss)?;
        *applied.lock().unwrap() = ctx.apply_row_gradients(gradients)?;
        Ok(())
    });
    step.unwrap();
    applied.into_inner().unwrap()
}

/// By how much each row has fallen.
fn fallen(strategy: &ParameterServerStrategy, table: &EmbeddingTable) -> Vec<f32> {
    let before = table_values();
    let after = read(strategy, table);
    let rows = (0..ROWS).map(|row| {
        let difference = |at: usize| before[row * WIDTH + at] - after[row * WIDTH + at];
        let of_row: Vec<f32> = (0..WIDTH).map(difference).collect();
        assert!(
            of_row.iter().all(|one| (one - of_row[0]).abs() < 1e-5),
            "{of_row:?}"
        );
        (of_row[0] * 1000.0).round() / 1000.0
    });
    rows.collect()
}

#[test]
fn a_synchronous_round_is_the_mean_of_all_workers_whichever_rows_they_have() {
    within_limit(|| {
        let servers = Servers::start(2);
        let mut options = RunOptions::default();
        options.synchronous = Some(3);
        let (_, chief, workers) = servers.run(3, 4, options);
        let table = chief.table("words", &spec(Sgd::new(1.0))).unwrap();
        let find = |worker: &ParameterServerStrategy| worker.table("words", &spec(Sgd::new(1.0)));
        let tables: Vec<_> = workers.iter().map(|worker| find(worker).unwrap()).collect();
        // The first shard, the last one, none.
        let batches: [&[i64]; 3] = [&[0, 0, 1], &[1, 10], &[]];
        for round in 1..=3 {
            let rows = tables.iter().zip(batches);
            let rows: Vec<Rows> = rows
                .map(|(table, ids)| table.lookup(ids).unwrap())
                .collect();
            for (worker, rows) in workers.iter().zip(&rows) {
                let before = fallen(&chief, &table);
                assert_eq!(before[0], 2.0 * (round - 1) as f32, "the round is not over");
                assert_eq!(push(worker, rows, 3.0), Applied::Updated);
            }
            let found = fallen(&chief, &table);
            let round = round as f32;
            assert_eq!(
                [found[0], found[1], found[10]],
                [2.0 * round, 2.0 * round, round]
            );
            assert!(found[2..10].iter().all(|row| *row == 0.0), "{found:?}");
            // The slowest of four comes too late.
            assert_eq!(push(&workers[0], &rows[0], 100.0), Applied::Dropped);
            assert_eq!(fallen(&chief, &table), found);
        }
        let counts = chief.variables().snapshot().unwrap().updates["table/words"].clone();
        assert_eq!(counts.0, [3; 4]);
    });
}

#[test]
fn gradients_of_rows_that_are_too_old_are_dropped() {
    within_limit(|| {
        let servers = Servers::start(1);
        let (_, chief, workers) = servers.run(2, 2, bounded(1, StalenessPolicy::Refuse));
        let table = chief.table("words", &spec(Sgd::new(1.0))).unwrap();
        let find = |worker: &ParameterServerStrategy| worker.table("words", &spec(Sgd::new(1.0)));
        let tables: Vec<_> = workers.iter().map(|worker| find(worker).unwrap()).collect();
        let late = tables[0].lookup([3]).unwrap();
        // Of other rows, of both shards: it is the table that is newer.
        assert_eq!(
            push(&workers[1], &tables[1].lookup([0]).unwrap(), 1.0),
            Applied::Updated
        );
        assert_eq!(push(&workers[0], &late, 1.0), Applied::Updated);
        assert_eq!(push(&workers[0], &late, 1.0), Applied::Dropped);
        let found = fallen(&chief, &table);
        assert_eq!([found[0], found[3]], [1.0, 1.0]);
        assert_eq!(
            push(&workers[0], &tables[0].lookup([3]).unwrap(), 1.0),
            Applied::Updated
        );
        assert_eq!(fallen(&chief, &table)[3], 2.0);
    });
}

#[test]
fn a_model_whose_rows_are_too_old_keeps_its_weights_too() {
    within_limit(|| {
        let servers = Servers::start(1);
        let (_, chief, workers) = servers.run(1, 1, bounded(0, StalenessPolicy::Refuse));
        let table = chief.table("words", &spec(Adam::new(0.1))).unwrap();
        let build = |device: &burn::tensor::Device| TrainState::new(dense(device), Adam::new(0.1));
        let mut state = chief.scope(build).unwrap();
        let worker = &workers[0];
        let own = worker.table("words", &spec(Adam::new(0.1))).unwrap();
        let mut copy = worker.scope(build).unwrap();
        assert_eq!(step(worker, &mut copy, &own, 0).unwrap(), Applied::Updated);
        let before = (
            state.primary().unwrap().to_tensors().unwrap(),
            read(&chief, &table),
        );
        let rows = own.lookup([[1, 2, 3]]).unwrap();
        // Another worker is faster; this one pulls the model again, and not the rows.
        assert_eq!(
            step(&chief, &mut state, &table, 1).unwrap(),
            Applied::Updated
        );
        let after = (
            state.primary().unwrap().to_tensors().unwrap(),
            read(&chief, &table),
        );
        assert_ne!(after.0, before.0);
        let applied = std::sync::Mutex::new(Applied::Updated);
        let late = worker.run(&mut copy, |ctx, state| {
            let loss = super::common::loss(&state.model, rows.tensor(ctx)?, 0);
            let gradients = ctx.gradient(&loss, &state.model)?;
            *applied.lock().unwrap() = state.apply_gradients(ctx, gradients)?;
            Ok(())
        });
        late.unwrap();
        assert_eq!(applied.into_inner().unwrap(), Applied::Dropped);
        assert_eq!(
            (
                state.primary().unwrap().to_tensors().unwrap(),
                read(&chief, &table)
            ),
            after
        );
    });
}

fn closure(run: RunId, number: u64) -> UpdateSource {
    UpdateSource::new(run, number, Default::default(), Default::default())
}

#[test]
fn lookups_wait_for_slower_workers() {
    within_limit(|| {
        let servers = Servers::start(2);
        let (run, chief, workers) = servers.run(2, 2, bounded(0, StalenessPolicy::Wait));
        let table = chief.table("words", &spec(Sgd::new(1.0))).unwrap();
        let find = |worker: &ParameterServerStrategy| worker.table("words", &spec(Sgd::new(1.0)));
        let tables: Vec<_> = workers.iter().map(|worker| find(worker).unwrap()).collect();
        let slow = workers[0].within_closure(closure(run, 1));
        let rows = tables[0].lookup([5]).unwrap();
        // It may look up more.
        let more = tables[0].lookup([6]).unwrap();
        let is_through = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let fast = scope.spawn(|| {
                let _closure = workers[1].within_closure(closure(run, 2));
                let rows = tables[1].lookup([5]).unwrap();
                is_through.store(true, Ordering::SeqCst);
                assert_eq!(push(&workers[1], &rows, 1.0), Applied::Updated);
            });
            // A lookup that does not wait is through in a millisecond.
            std::thread::sleep(Duration::from_millis(300));
            assert!(!is_through.load(Ordering::SeqCst));
            let step = workers[0].run((), |ctx, ()| {
                let loss = rows.tensor::<2>(ctx)?.sum() + more.tensor::<2>(ctx)?.sum();
                let gradients = ctx.row_gradients(&loss)?;
                assert_eq!(gradients.row_gradients().len(), 1, "once for each table");
                ctx.apply_row_gradients(gradients).map(drop)
            });
            step.unwrap();
            fast.join().unwrap();
        });
        drop(slow);
        let found = fallen(&chief, &table);
        assert_eq!([found[5], found[6]], [2.0, 1.0]);
    });
}

#[test]
fn gradients_with_nan_are_refused_and_the_model_keeps_its_weights() {
    within_limit(|| {
        let servers = Servers::start(2);
        let strategy = servers.in_shards(2);
        let table = strategy.table("words", &spec(Sgd::new(1.0))).unwrap();
        let mut state = strategy
            .scope(|device| TrainState::new(dense(device), Sgd::new(0.5)))
            .unwrap();
        let before = state.primary().unwrap().to_tensors().unwrap();
        let rows = table.lookup([[1, 2], [2, 9]]).unwrap();
        let step = strategy.run(&mut state, |ctx, state| {
            let loss = super::common::loss(&state.model, rows.tensor(ctx)?, 0);
            let mut gradients = ctx.gradient(&loss, &state.model)?;
            for rows in gradients.row_gradients_mut() {
                let last = rows.as_mut_slice::<f32>().unwrap().last_mut();
                *last.unwrap() = f32::NAN;
            }
            assert!(gradients.global_norm()?.is_nan(), "rows count");
            state.apply_gradients(ctx, gradients).map(drop)
        });
        let error = step.unwrap_err().to_string();
        assert!(
            error.contains("`table/words`") && error.contains("NaN"),
            "{error}"
        );
        assert_eq!(state.primary().unwrap().to_tensors().unwrap(), before);
    });
}

#[test]
fn rows_travel_as_bf16_where_that_is_chosen() {
    within_limit(|| {
        let servers = Servers::start(2);
        let mut options = distribute_ps::ClientOptions::default();
        options.bf16 = true;
        let (addresses, run) = (servers.addresses(), RunOptions::default());
        let shards = super::common::fixed(3);
        let strategy = ParameterServerStrategy::connect(&addresses, options, run, shards).unwrap();
        let table = strategy.table("words", &spec(Sgd::new(1.0))).unwrap();
        let rows = table.lookup([10, 0, 4]).unwrap().to_data().unwrap();
        let values = table_values();
        for (row, id) in super::common::floats(&rows).chunks(WIDTH).zip([10, 0, 4]) {
            for (found, value) in row.iter().zip(&values[id * WIDTH..]) {
                assert!(
                    (found - value).abs() <= value.abs() / 256.0,
                    "{found} {value}"
                );
                assert_eq!(found.to_bits() & 0xffff, 0);
            }
        }
    });
}
