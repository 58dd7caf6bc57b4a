//! Tables in the steps of a program with a coordinator.

use std::sync::Arc;
use std::thread::JoinHandle;

use burn::tensor::Tensor;
use distribute_core::{Adam, Sgd, StrategyExt, TensorData, TrainState};
use distribute_ps::{
    ClusterCoordinator, CoordinatorOptions, HostTensor, Program, PsError, Result, RunOptions,
    SharedState, Staleness, StalenessPolicy, StepRegistry, Table, TableSpec, UpdateSource,
    WorkerContext, WorkerOptions, WorkerServer, WorkerStopper,
};

use super::common::{ROWS, WIDTH, dense, fixed, floats, ids, loss, read, spec, step, table_values};
use crate::strategy::common::Servers;
use crate::within_limit;

/// A worker on a thread.
struct Worker(WorkerStopper, Option<JoinHandle<Result<()>>>);

impl Worker {
    fn start(registry: &Arc<StepRegistry>) -> (Self, String) {
        let options = WorkerOptions::default();
        let server = WorkerServer::bind("127.0.0.1:0", registry.clone(), options).unwrap();
        let (address, stopper) = (server.address().to_string(), server.stopper());
        let thread = std::thread::spawn(move || server.serve());
        (Self(stopper, Some(thread)), address)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.stop();
        let _ = self.1.take().unwrap().join();
    }
}

struct Registered {
    state: SharedState<TrainState<burn::nn::Linear>>,
    words: Table,
    pairs: Table,
}

/// Steps of a model with a table, of two tables alone, and a lookup.
fn register(registry: &mut StepRegistry) -> Registered {
    let words = registry.table("words", spec(Sgd::new(0.3))).unwrap();
    let state = |device: &_| TrainState::new(dense(device), Sgd::new(0.3));
    let state = registry.state("model", state).unwrap();
    let pairs = registry
        .table("pairs", TableSpec::new(5, 2, Sgd::new(1.0)))
        .unwrap();
    let all = Registered {
        state,
        words,
        pairs,
    };
    let (state, words) = (all.state.clone(), all.words.clone());
    let train = move |worker: &WorkerContext, (batch,): (usize,)| {
        let rows = worker.lookup(&words, ids(batch))?;
        worker.run(&state, (rows, batch), |ctx, (state, (rows, batch))| {
            let loss = loss(&state.model, rows.tensor(ctx)?, batch);
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(loss.into_scalar::<f32>())
        })
    };
    registry.step("train", train).unwrap();
    let (state, words) = (all.state.clone(), all.words.clone());
    let inside = move |worker: &WorkerContext, (batch,): (usize,)| {
        worker.run(&state, batch, |ctx, (state, batch)| {
            let rows = worker.lookup(&words, ids(batch))?;
            let loss = loss(&state.model, rows.tensor(ctx)?, batch);
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(loss.into_scalar::<f32>())
        })
    };
    registry.step("lookup inside", inside).unwrap();
    let (words, pairs) = (all.words.clone(), all.pairs.clone());
    let tables = move |worker: &WorkerContext, (first, second): (Vec<i64>, Vec<i64>)| {
        let rows = (
            worker.lookup(&words, first.as_slice())?,
            worker.lookup(&pairs, second.as_slice())?,
        );
        worker.run_rows(rows, |ctx, (first, second)| {
            let loss = first.tensor::<2>(ctx)?.sum() + second.tensor::<2>(ctx)?.sum();
            let gradients = ctx.row_gradients(&loss)?;
            ctx.apply_row_gradients(gradients).map(|_| 0.0_f32)
        })
    };
    registry.step("tables", tables).unwrap();
    let words = all.words.clone();
    let look_up = move |worker: &WorkerContext, (ids,): (HostTensor,)| {
        Ok(HostTensor(worker.lookup(&words, ids)?.to_data()?))
    };
    registry.step("look up", look_up).unwrap();
    all
}

/// Calls `body` with a coordinator of two servers and this many workers.
fn with_cluster(workers: usize, body: impl FnOnce(&ClusterCoordinator, Registered)) {
    with_rules(workers, RunOptions::default(), body);
}

/// The same under these rules.
fn with_rules(
    workers: usize,
    rules: RunOptions,
    body: impl FnOnce(&ClusterCoordinator, Registered),
) {
    let servers = Servers::start(2);
    let mut registry = StepRegistry::new();
    let registered = register(&mut registry);
    let registry = Arc::new(registry);
    let workers: Vec<(Worker, String)> = (0..workers).map(|_| Worker::start(&registry)).collect();
    let addresses: Vec<&str> = workers
        .iter()
        .map(|(_, address)| address.as_str())
        .collect();
    let mut options = CoordinatorOptions::default();
    options.partitioner = fixed(2);
    options.run = rules;
    let servers = servers.addresses();
    let coordinator = ClusterCoordinator::connect(&addresses, &servers, registry, options).unwrap();
    body(&coordinator, registered);
}

#[test]
fn one_worker_trains_model_and_table_as_without_a_coordinator() {
    within_limit(|| {
        with_cluster(1, |coordinator, registered| {
            let names = coordinator.variables().unwrap().variables().unwrap();
            let mut names: Vec<&str> = names.iter().map(|variable| variable.name()).collect();
            names.sort_unstable();
            let expected = ["model/bias", "model/weight", "table/pairs", "table/words"];
            assert_eq!(names, expected, "a table takes no state's place");
            let name = |batch| if batch < 3 { "train" } else { "lookup inside" };
            let one = |batch| coordinator.schedule(name(batch), (batch,)).unwrap();
            let losses: Vec<_> = (0..5).map(one).collect();
            coordinator.join().unwrap();
            let losses: Vec<f32> = coordinator.fetch(&losses).unwrap();
            assert!(losses.iter().all(|loss| loss.is_finite()));

            let servers = Servers::start(2);
            let strategy = servers.in_shards(3);
            let table = strategy.table("words", &spec(Sgd::new(0.3))).unwrap();
            let mut state = strategy
                .scope(|device| TrainState::new(dense(device), Sgd::new(0.3)))
                .unwrap();
            for batch in 0..5 {
                step(&strategy, &mut state, &table, batch).unwrap();
            }
            let all: Vec<i64> = (0..ROWS as i64).collect();
            let found = coordinator
                .lookup(&registered.words, all.as_slice())
                .unwrap();
            assert_eq!(floats(&found.to_data().unwrap()), read(&strategy, &table));
            let saved = coordinator.with(&registered.state, |state| {
                state.primary().unwrap().to_tensors()
            });
            let saved = saved.unwrap();
            let expected = state.primary().unwrap().to_tensors().unwrap();
            assert!(saved.contains_key("table/pairs"));
            for (name, value) in expected {
                assert_eq!(saved[&name], value, "{name}");
            }
        });
    });
}

#[test]
fn a_model_of_nothing_but_tables_trains_and_every_closure_counts_once() {
    within_limit(|| {
        with_cluster(3, |coordinator, registered| {
            let pairs = |ids: &[i64]| {
                let rows = coordinator.lookup(&registered.pairs, ids).unwrap();
                floats(&rows.to_data().unwrap())
            };
            let before = pairs(&[0, 1, 2, 3, 4]);
            for _ in 0..40 {
                coordinator
                    .schedule("tables", (vec![1_i64, 1], vec![4_i64, 0]))
                    .unwrap();
            }
            coordinator.join().unwrap();
            let found = pairs(&[0, 1, 2, 3, 4]);
            let fallen: Vec<f32> = before.iter().zip(&found).map(|(a, b)| a - b).collect();
            for (at, fallen) in fallen.iter().enumerate() {
                let expected = if [0, 4].contains(&(at / 2)) {
                    40.0
                } else {
                    0.0
                };
                assert!((fallen - expected).abs() < 1e-3, "{at}: {fallen}");
            }
            let words = coordinator.lookup(&registered.words, [1]).unwrap();
            let words = floats(&words.to_data().unwrap());
            let start = table_values();
            let close =
                |at: usize| (words[at] - (start[WIDTH + at] - 40.0 * 2.0 * 0.3)).abs() < 1e-3;
            assert!((0..WIDTH).all(close), "{words:?}");
        });
    });
}

#[test]
fn several_workers_get_on_under_every_rule() {
    within_limit(|| {
        let staleness = |bound, policy| {
            let mut rules = RunOptions::default();
            rules.staleness = Some(Staleness { bound, policy });
            rules
        };
        let mut synchronous = RunOptions::default();
        synchronous.synchronous = Some(2);
        let all_rules = [
            (staleness(0, StalenessPolicy::Wait), Some(24)),
            (staleness(2, StalenessPolicy::Wait), Some(24)),
            (staleness(1, StalenessPolicy::Refuse), None),
            (synchronous, None),
        ];
        for (rules, updates) in all_rules {
            with_rules(3, rules, |coordinator, registered| {
                // Two kinds of steps, whose lookups are in different orders.
                for number in 0..24_usize {
                    coordinator.schedule("train", (number,)).unwrap();
                    let few = (vec![3_i64, 10], vec![4_i64]);
                    coordinator.schedule("tables", few).unwrap();
                }
                coordinator.join().unwrap();
                let state = &registered.state;
                let saved = coordinator.with(state, |state| state.primary().unwrap().to_tensors());
                let saved = saved.unwrap();
                let count = |name: &str| saved[name].as_slice::<i64>().unwrap()[0];
                let pairs = count("updates/table/pairs");
                let words = count("updates/table/words");
                match updates {
                    Some(all) => assert_eq!((pairs, words), (all, 2 * all)),
                    None => assert!(pairs > 0 && words > 0 && words <= 48, "{pairs} {words}"),
                }
            });
        }
    });
}

#[test]
fn an_unknown_id_arrives_at_the_coordinator_as_what_it_is() {
    within_limit(|| {
        with_cluster(1, |coordinator, _| {
            let ids = HostTensor(TensorData::from([[1_i64, 2], [3, 99]]));
            let value = coordinator.schedule("look up", (ids,)).unwrap();
            let error = value.fetch::<HostTensor>().unwrap_err();
            let PsError::UnknownId { table, id, rows } = error.root_cause() else {
                panic!("{error}");
            };
            assert_eq!((table.as_str(), *id, *rows), ("words", 99, ROWS as u64));
            assert!(coordinator.join().is_err());
            let ids = HostTensor(TensorData::from([[1_i64, 2], [3, 9]]));
            let value = coordinator.schedule("look up", (ids,)).unwrap();
            let found = value.fetch::<HostTensor>().unwrap();
            assert_eq!(found.0.shape()[..], [2, 2, WIDTH]);
        });
    });
}

#[test]
fn a_closure_that_runs_again_changes_model_and_table_once() {
    within_limit(|| {
        let servers = Servers::start(2);
        let (run, chief, workers) = servers.run(2, 3, RunOptions::default());
        let table = chief.table("words", &spec(Adam::new(0.1))).unwrap();
        let build = |device: &burn::tensor::Device| TrainState::new(dense(device), Adam::new(0.1));
        let state = chief.scope(build).unwrap();
        let mut after = Vec::new();
        for (worker, number) in [(0, 1), (1, 1), (1, 2), (0, 2), (0, 1)] {
            let worker = &workers[worker];
            let own = worker.table("words", &spec(Adam::new(0.1))).unwrap();
            let mut copy = worker.scope(build).unwrap();
            let source = UpdateSource::new(run, number, Default::default(), Default::default());
            let _closure = worker.within_closure(source);
            step(worker, &mut copy, &own, number as usize).unwrap();
            after.push(state.primary().unwrap().to_tensors().unwrap());
        }
        assert_eq!(after[0], after[1]);
        assert_ne!(after[1], after[2]);
        assert_eq!(after[2], after[3]);
        assert_eq!(after[2], after[4]);
        assert_eq!(
            after[4]["updates/table/words"],
            TensorData::new(vec![2_i64], [1])
        );
        assert_ne!(read(&chief, &table), table_values());
    });
}

#[test]
fn gradients_that_a_loss_does_not_have_change_nothing() {
    within_limit(|| {
        let servers = Servers::start(1);
        let strategy = servers.in_shards(2);
        let table = strategy.table("words", &spec(Adam::new(0.1))).unwrap();
        let mut state = strategy
            .scope(|device| TrainState::new(dense(device), Adam::new(0.1)))
            .unwrap();
        let rows = table.lookup([[1, 2, 3]]).unwrap();
        let train = strategy.run(&mut state, |ctx, state| {
            let frozen: Tensor<3> = rows.tensor(ctx)?.detach();
            let gradients = ctx.gradient(&loss(&state.model, frozen, 0), &state.model)?;
            assert!(gradients.row_gradients().is_empty());
            state.apply_gradients(ctx, gradients).map(drop)
        });
        train.unwrap();
        assert_eq!(read(&strategy, &table), table_values());
        assert_eq!(state.primary().unwrap().step(), 1);
        // Gradients of a model are for its state.
        let wrong = strategy.run(&mut state, |ctx, state| {
            let loss = loss(&state.model, rows.tensor(ctx)?, 0);
            let gradients = ctx.gradient(&loss, &state.model)?;
            ctx.apply_row_gradients(gradients).map(drop)
        });
        let error = wrong.unwrap_err().to_string();
        assert!(error.contains("2 parameters"), "{error}");
        assert_eq!(read(&strategy, &table), table_values());
    });
}

#[test]
fn what_a_program_registers_wrongly_is_the_error_of_its_run() {
    let mut program = Program::new();
    let _words = program.table("words", TableSpec::new(4, 0, Sgd::new(1.0)));
    let error = program.run(|_| Ok(())).unwrap_err();
    assert!(matches!(error, PsError::InvalidArgument { .. }), "{error}");
    let mut program = Program::new();
    let _words = program.table("words", TableSpec::new(4, 1, Sgd::new(1.0)));
    let _again = program.table("words", TableSpec::new(4, 1, Sgd::new(1.0)));
    let error = program.run(|_| Ok(())).unwrap_err();
    assert!(
        matches!(error, PsError::AlreadyRegistered { .. }),
        "{error}"
    );
}
