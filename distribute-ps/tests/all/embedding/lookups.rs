//! What a lookup gives, what it refuses, and how much travels.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use distribute_core::{OneDeviceStrategy, Sgd, StrategyExt, TensorData, TrainState};
use distribute_ps::{
    ClientOptions, ParameterServerStrategy, PsError, RunOptions, TableInitializer, TableSpec,
};

use super::common::{ROWS, WIDTH, dense, fixed, floats, read, spec, table_values};
use crate::strategy::common::Servers;
use crate::within_limit;

/// The rows of these ids.
fn expected(ids: &[usize]) -> Vec<f32> {
    let values = table_values();
    let rows = ids.iter().map(|id| &values[id * WIDTH..(id + 1) * WIDTH]);
    rows.flatten().copied().collect()
}

#[test]
fn ids_of_any_shape_give_their_rows_in_that_shape() {
    within_limit(|| {
        let servers = Servers::start(2);
        for shards in [1, 4] {
            let strategy = servers.in_shards(shards);
            let table = strategy.table("words", &spec(Sgd::new(1.0))).unwrap();
            assert_eq!((table.rows(), table.width()), (ROWS, WIDTH));
            let wanted = [10, 0, 3, 3, 0, 7];
            let flat = wanted.map(|id: usize| id as i32);
            for shape in [vec![6], vec![2, 3], vec![1, 6, 1], vec![3, 1, 2]] {
                let rows = table
                    .lookup(TensorData::new(flat.to_vec(), shape.clone()))
                    .unwrap();
                let mut whole = shape;
                whole.push(WIDTH);
                assert_eq!(rows.shape(), whole);
                assert_eq!(rows.distinct_ids(), [0, 3, 7, 10]);
                let data = rows.to_data().unwrap();
                assert_eq!(data.shape()[..], whole[..]);
                assert_eq!(floats(&data), expected(&wanted));
                let step = strategy.run((), |ctx, ()| match whole.len() {
                    2 => Ok(rows.tensor::<2>(ctx)?.into_data()),
                    3 => Ok(rows.tensor::<3>(ctx)?.into_data()),
                    _ => Ok(rows.tensor::<4>(ctx)?.into_data()),
                });
                assert_eq!(step.unwrap().values()[0], data);
            }
            let one = table
                .lookup(TensorData::new(vec![5_i64], [0_usize; 0]))
                .unwrap();
            assert_eq!(one.shape(), [WIDTH]);
            let step = strategy.run((), |ctx, ()| Ok(one.tensor::<1>(ctx)?.into_data()));
            assert_eq!(floats(&step.unwrap().values()[0]), expected(&[5]));
        }
    });
}

#[test]
fn no_ids_give_no_rows_and_train_nothing() {
    within_limit(|| {
        let servers = Servers::start(2);
        let strategy = servers.in_shards(2);
        let table = strategy.table("words", &spec(Sgd::new(1.0))).unwrap();
        let mut state = strategy
            .scope(|device| TrainState::new(dense(device), Sgd::new(0.5)))
            .unwrap();
        for shape in [vec![0], vec![0, 4], vec![4, 0]] {
            let rows = table
                .lookup(TensorData::new(Vec::<i64>::new(), shape.clone()))
                .unwrap();
            let mut whole = shape;
            whole.push(WIDTH);
            assert_eq!(rows.shape(), whole);
            assert_eq!(rows.to_data().unwrap().shape()[..], whole[..]);
            let step = strategy.run(&mut state, |ctx, state| {
                // A batch without a word: only the bias has a gradient.
                let sum = match whole.len() {
                    2 => rows.tensor::<2>(ctx)?.sum(),
                    _ => rows.tensor::<3>(ctx)?.sum(),
                };
                let bias = state.model.bias.as_ref().expect("a bias").val();
                let gradients = ctx.gradient(&(bias.sum() + sum), &state.model)?;
                state.apply_gradients(ctx, gradients).map(drop)
            });
            step.unwrap();
        }
        assert_eq!(read(&strategy, &table), table_values());
        assert_eq!(state.primary().unwrap().step(), 3);
    });
}

#[test]
fn ids_that_are_not_there_and_wrong_dimensions_are_named() {
    within_limit(|| {
        let servers = Servers::start(1);
        let strategy = servers.in_shards(2);
        let table = strategy.table("words", &spec(Sgd::new(1.0))).unwrap();
        for wrong in [ROWS as i64, -1, i64::MAX] {
            let error = table.lookup([0, wrong]).unwrap_err();
            let PsError::UnknownId { table, id, rows } = &error else {
                panic!("{error}");
            };
            assert_eq!(
                (table.as_str(), *id, *rows),
                ("words", i128::from(wrong), ROWS as u64)
            );
        }
        let error = table.lookup([0.5_f32]).unwrap_err();
        assert!(matches!(error, PsError::DType { .. }), "{error}");
        let rows = table.lookup([[1, 2]]).unwrap();
        let step = strategy.run((), |ctx, ()| rows.tensor::<2>(ctx).map(drop));
        let error = step.unwrap_err().to_string();
        assert!(
            error.contains("tensor::<3>") && error.contains("[1, 2, 3]"),
            "{error}"
        );
    });
}

#[test]
fn tables_that_cannot_be_are_refused_before_anything_is_made() {
    within_limit(|| {
        let servers = Servers::start(1);
        let strategy = servers.in_shards(1);
        let few = TableInitializer::rows(|_| Ok(vec![1.0; 5]));
        let specs = [
            TableSpec::new(0, 3, Sgd::new(1.0)),
            TableSpec::new(3, 0, Sgd::new(1.0)),
            TableSpec::new(usize::MAX, 2, Sgd::new(1.0)),
            spec(Sgd::new(1.0)).initializer(TableInitializer::Normal {
                deviation: -1.0,
                seed: 0,
            }),
        ];
        for spec in specs {
            let error = strategy.table("words", &spec).unwrap_err();
            assert!(matches!(error, PsError::InvalidArgument { .. }), "{error}");
            assert!(error.to_string().contains("`words`"), "{error}");
        }
        assert!(strategy.variables().variables().unwrap().is_empty());
        let error = strategy
            .table("few", &spec(Sgd::new(1.0)).initializer(few))
            .unwrap_err();
        assert!(error.to_string().contains("gave 5 numbers"), "{error}");
        strategy.table("words", &spec(Sgd::new(1.0))).unwrap();
        let error = strategy.table("words", &spec(Sgd::new(1.0))).unwrap_err();
        assert!(matches!(error, PsError::VariableExists { .. }), "{error}");
    });
}

#[test]
fn a_worker_with_another_width_is_refused() {
    within_limit(|| {
        let servers = Servers::start(1);
        let (_, chief, workers) = servers.run(1, 2, RunOptions::default());
        let of_worker = || workers[0].table("words", &spec(Sgd::new(1.0)));
        let error = of_worker().unwrap_err();
        assert!(matches!(error, PsError::UnknownVariable { .. }), "{error}");
        chief.table("words", &spec(Sgd::new(1.0))).unwrap();
        of_worker().unwrap();
        let wider = TableSpec::new(ROWS, WIDTH + 1, Sgd::new(1.0));
        let error = workers[0].table("words", &wider).unwrap_err();
        let PsError::Shape {
            name,
            expected,
            found,
            ..
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!(name, "table/words");
        assert_eq!((expected[1], found[1]), (WIDTH, WIDTH + 1));
    });
}

#[test]
fn states_elsewhere_do_not_take_the_gradients_of_rows() {
    within_limit(|| {
        let servers = Servers::start(1);
        let strategy = servers.in_shards(1);
        let table = strategy.table("words", &spec(Sgd::new(1.0))).unwrap();
        let rows = table.lookup([[1, 2], [3, 4]]).unwrap();
        let local = OneDeviceStrategy::new("cpu:0".parse().unwrap()).unwrap();
        let mut state = local
            .scope(|device| TrainState::new(dense(device), Sgd::new(0.5)))
            .unwrap();
        let before = state.primary().unwrap().to_tensors().unwrap();
        let step = local.run(&mut state, |ctx, state| {
            let loss = super::common::loss(&state.model, rows.tensor(ctx)?, 0);
            let gradients = ctx.gradient(&loss, &state.model)?;
            assert_eq!(gradients.row_gradients().len(), 1);
            state.apply_gradients(ctx, gradients).map(drop)
        });
        let error = step.unwrap_err().to_string();
        assert!(error.contains("`table/words`"), "{error}");
        assert_eq!(state.primary().unwrap().to_tensors().unwrap(), before);
        // For evaluation they are as good as any tensor.
        let sum = local.run((), |ctx, ()| {
            Ok(rows.tensor::<3>(ctx)?.sum().into_scalar::<f32>())
        });
        let sum = sum.unwrap().into_values();
        assert!(sum[0].is_finite());
        // A step that evaluates has no gradients, of rows neither.
        let none = TensorData::new(Vec::<i64>::new(), [0, 2]);
        let none = table.lookup(none).unwrap();
        let evaluated = local.run(&state, |ctx, _| {
            let found = rows.tensor::<3>(ctx)?;
            assert!(!found.is_autodiff());
            assert_eq!(none.tensor::<3>(ctx)?.dims()[0], 0);
            let loss = found.sum();
            let refused = ctx.row_gradients(&loss).unwrap_err().to_string();
            assert!(refused.contains("has no autodiff"), "{refused}");
            Ok(loss.into_scalar::<f32>())
        });
        assert_eq!(evaluated.unwrap().into_values(), sum);
        let step = local.run((), |ctx, ()| {
            let gradients = ctx.row_gradients(&rows.tensor::<3>(ctx)?.sum())?;
            ctx.apply_row_gradients(gradients).map(drop)
        });
        let error = step.unwrap_err().to_string();
        assert!(error.contains("no parameter servers"), "{error}");
        assert_eq!(read(&strategy, &table), table_values());
    });
}

#[test]
fn a_table_is_cut_and_placed_as_any_variable_and_made_shard_by_shard() {
    within_limit(|| {
        let servers = Servers::start(3);
        let strategy = servers.in_shards(4);
        let before = TensorData::new(vec![0.0_f32], [0_usize; 0]);
        let options = distribute_core::VariableOptions::default();
        let _scalar = strategy.variable(before, options).unwrap();
        let (asked, ranges) = std::sync::mpsc::channel();
        let values = move |rows: std::ops::Range<usize>| {
            asked.send(rows.clone()).unwrap();
            Ok(rows.flat_map(|row| [row as f32; 2]).collect())
        };
        let spec = TableSpec::new(11, 2, Sgd::new(1.0));
        let spec = spec.initializer(TableInitializer::rows(values));
        let table = strategy.table("words", &spec).unwrap();
        let shards = table.variable().placement().shards.iter();
        let shards: Vec<_> = shards
            .map(|one| (one.server, one.offset, one.rows))
            .collect();
        // The scalar is on server 0.
        assert_eq!(shards, [(1, 0, 3), (2, 3, 3), (0, 6, 3), (1, 9, 2)]);
        drop(spec);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [0..3, 3..6, 6..9, 9..11]);
        let rows = table.lookup([9, 2, 3]).unwrap().to_data().unwrap();
        assert_eq!(floats(&rows), [9.0, 9.0, 2.0, 2.0, 3.0, 3.0]);
    });
}

/// Passes bytes on to a server and counts them.
fn counting(to: &str, count: &Arc<AtomicU64>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (to, count) = (to.to_string(), count.clone());
    // They end with the connections, when the client is dropped, or with the test.
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = TcpStream::connect(&to).unwrap();
            let ways = [
                (client.try_clone().unwrap(), server.try_clone().unwrap()),
                (server, client),
            ];
            for (mut from, mut into) in ways {
                let count = count.clone();
                std::thread::spawn(move || {
                    let mut buffer = vec![0; 1 << 16];
                    while let Ok(read @ 1..) = from.read(&mut buffer) {
                        count.fetch_add(read as u64, Ordering::Relaxed);
                        if into.write_all(&buffer[..read]).is_err() {
                            return;
                        }
                    }
                });
            }
        }
    });
    address
}

#[test]
fn only_the_rows_that_are_touched_travel() {
    within_limit(|| {
        let servers = Servers::start(2);
        let count = Arc::new(AtomicU64::new(0));
        let addresses = servers.addresses();
        let addresses: Vec<String> = addresses.iter().map(|to| counting(to, &count)).collect();
        let (client, run) = (ClientOptions::default(), RunOptions::default());
        let strategy = ParameterServerStrategy::connect(&addresses, client, run, fixed(4)).unwrap();
        let (rows, width) = (50_000, 16);
        let spec = TableSpec::new(rows, width, distribute_core::Adam::new(0.1));
        let table = strategy.table("words", &spec).unwrap();
        let made = count.load(Ordering::Relaxed);
        assert!(made >= (rows * width * 4) as u64, "{made}");
        let steps = 10_u64;
        let mut touched = 0;
        for step in 0..steps as i64 {
            // 200 ids, 100 of them distinct.
            let ids: Vec<i64> = (0..200)
                .map(|i| (i % 100 * 457 + step * 31) % 50_000)
                .collect();
            let rows = table.lookup(ids.as_slice()).unwrap();
            assert_eq!(rows.distinct_ids().len(), 100);
            touched += rows.distinct_ids().len() as u64;
            let step = strategy.run((), |ctx, ()| {
                let loss = rows.tensor::<2>(ctx)?.powf_scalar(2.0).sum();
                let gradients = ctx.row_gradients(&loss)?;
                ctx.apply_row_gradients(gradients).map(drop)
            });
            step.unwrap();
        }
        let travelled = count.load(Ordering::Relaxed) - made;
        // Row and id, there and back; and 4 KiB of headers for each step.
        let bound = 2 * touched * (width as u64 * 4 + 8) + steps * 4096;
        println!("{travelled} bytes for {touched} rows in {steps} steps");
        assert!(travelled <= bound, "{travelled} of at most {bound}");
        assert!(travelled >= 2 * touched * width as u64 * 4, "{travelled}");
    });
}
