//! The numbers of training: as with a dense table, and by Adam's formula for the touched rows.

use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::{Int, Tensor, TensorData};
use distribute_core::{
    Adam, Applied, Mirrored, OneDeviceStrategy, Replicated, Sgd, StrategyExt, TrainState,
};

use super::common::{
    Dense, ROWS, WIDTH, dense, floats, ids, loss, read, spec, step, table_values, whole_table,
};
use crate::strategy::common::Servers;
use crate::within_limit;

/// The same model with the table as a parameter.
#[derive(Module, Debug)]
struct Whole {
    table: Param<Tensor<2>>,
    output: Linear,
}

type WholeState = Mirrored<TrainState<Whole>>;
type Change = fn(TrainState<Linear>) -> TrainState<Linear>;
type ChangeWhole = fn(TrainState<Whole>) -> TrainState<Whole>;

fn one_device() -> OneDeviceStrategy {
    OneDeviceStrategy::new("cpu:0".parse().expect("a device")).expect("a strategy")
}

fn step_whole(strategy: &OneDeviceStrategy, state: &mut WholeState, batch: usize) {
    let step = strategy.run((state, Replicated(batch)), |ctx, (state, batch)| {
        let ids = ids(batch);
        let shape: [usize; 2] = [ids.shape()[0], ids.shape()[1]];
        let flat = Tensor::<2, Int>::from_data(ids, ctx.device()).reshape([-1]);
        let rows = state.model.table.val().select(0, flat);
        let rows = rows.reshape([shape[0], shape[1], WIDTH]);
        let loss = loss(&state.model.output, rows, batch);
        let gradients = ctx.gradient(&loss, &state.model)?;
        state.apply_gradients(ctx, gradients).map(drop)
    });
    step.unwrap();
}

/// The largest difference between the weights of the two.
fn difference(
    strategy: &OneDeviceStrategy,
    whole: &mut WholeState,
    dense: &Dense,
    table: &[f32],
) -> f32 {
    let expected = strategy.run(whole, |_, state| state.to_tensors());
    let expected = expected.unwrap().into_values().remove(0);
    let dense = dense.primary().unwrap().to_tensors().unwrap();
    let pairs = [
        ("model/table", table.to_vec()),
        ("model/output.weight", floats(&dense["model/weight"])),
        ("model/output.bias", floats(&dense["model/bias"])),
    ];
    let of_one = |(name, found): (&str, Vec<f32>)| {
        let expected = floats(&expected[name]);
        assert_eq!(found.len(), expected.len());
        let pairs = found.into_iter().zip(expected);
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    };
    pairs.into_iter().map(of_one).fold(0.0, f32::max)
}

#[test]
fn sgd_gives_the_bits_of_a_dense_table_for_any_number_of_shards() {
    within_limit(|| {
        for shards in [1, 2, 3, 7] {
            let servers = Servers::start(2);
            let (local, remote) = (one_device(), servers.in_shards(shards));
            let table = remote.table("words", &spec(Sgd::new(0.3))).unwrap();
            let mut state = remote
                .scope(|device| TrainState::new(dense(device), Sgd::new(0.3)))
                .unwrap();
            let build = |device: &burn::tensor::Device| Whole {
                table: whole_table(device),
                output: dense(device),
            };
            let mut whole = local
                .scope(|device| TrainState::new(build(device), Sgd::new(0.3)))
                .unwrap();
            for batch in 0..8 {
                if batch == 5 {
                    // That of all optimizers on the servers.
                    state.set_learning_rate(0.1);
                    whole.set_learning_rate(0.1);
                }
                let done = step(&remote, &mut state, &table, batch).unwrap();
                assert_eq!(done, Applied::Updated);
                step_whole(&local, &mut whole, batch);
            }
            let found = read(&remote, &table);
            assert_ne!(found, table_values());
            assert_eq!(difference(&local, &mut whole, &state, &found), 0.0);
            assert_eq!(state.primary().unwrap().step(), 8);
        }
    });
}

#[test]
fn clipping_and_micro_batches_are_those_of_a_dense_table() {
    within_limit(|| {
        let cases: [(Change, ChangeWhole, f32); 3] = [
            (
                |state| state.accumulate(3),
                |state| state.accumulate(3),
                0.0,
            ),
            // The norm is added up in another order.
            (
                |state| state.clip_by_global_norm(0.01),
                |state| state.clip_by_global_norm(0.01),
                1e-6,
            ),
            (
                |state| state.clip_by_global_norm(0.02).accumulate(2),
                |state| state.clip_by_global_norm(0.02).accumulate(2),
                1e-6,
            ),
        ];
        for (change, change_whole, tolerance) in cases {
            let servers = Servers::start(2);
            let (local, remote) = (one_device(), servers.in_shards(3));
            let table = remote.table("words", &spec(Sgd::new(0.5))).unwrap();
            let mut state = remote
                .scope(|device| change(TrainState::new(dense(device), Sgd::new(0.5))))
                .unwrap();
            let mut whole = local
                .scope(|device| {
                    let model = Whole {
                        table: whole_table(device),
                        output: dense(device),
                    };
                    change_whole(TrainState::new(model, Sgd::new(0.5)))
                })
                .unwrap();
            for batch in 0..6 {
                step(&remote, &mut state, &table, batch).unwrap();
                step_whole(&local, &mut whole, batch);
            }
            let found = read(&remote, &table);
            assert_ne!(found, table_values());
            let difference = difference(&local, &mut whole, &state, &found);
            assert!(difference <= tolerance, "{difference}");
        }
    });
}

/// What the documentation of `table` says of Adam.
struct LazyAdam {
    value: Vec<f32>,
    m: Vec<f32>,
    v: Vec<f32>,
    updates: i32,
}

impl LazyAdam {
    fn new() -> Self {
        Self {
            value: table_values(),
            m: vec![0.0; ROWS * WIDTH],
            v: vec![0.0; ROWS * WIDTH],
            updates: 0,
        }
    }

    /// The gradient of the sum of all looked up elements times `scale`: how often each was there.
    fn update(&mut self, ids: &[i64], scale: f64) {
        let (rate, beta_1, beta_2) = (0.01_f64, 0.9_f64, 0.999_f64);
        self.updates += 1;
        let t = self.updates;
        let rate = rate * (1.0 - beta_2.powi(t)).sqrt() / (1.0 - beta_1.powi(t));
        for row in 0..ROWS {
            let count = ids.iter().filter(|id| **id == row as i64).count();
            if count == 0 {
                continue;
            }
            let gradient = count as f64 * scale;
            for at in row * WIDTH..(row + 1) * WIDTH {
                let (m, v) = (f64::from(self.m[at]), f64::from(self.v[at]));
                let m = m + (gradient - m) * (1.0 - beta_1);
                let v = v + (gradient * gradient - v) * (1.0 - beta_2);
                self.value[at] -= (rate * m / (v.sqrt() + 1e-7)) as f32;
                (self.m[at], self.v[at]) = (m as f32, v as f32);
            }
        }
    }
}

#[test]
fn adam_is_lazy_by_the_documented_formula_whatever_the_shards() {
    within_limit(|| {
        // Row 10 and the last shards have a gradient late, or never.
        let batches: [(&[i64], f64); 6] = [
            (&[0, 1, 1, 0, 0], 0.5),
            (&[1, 4], -2.0),
            (&[], 1.0),
            (&[0, 8], 0.25),
            (&[10, 10, 10], 1.5),
            (&[4, 1, 10], 0.75),
        ];
        let mut all = Vec::new();
        for shards in [1, 2, 5] {
            let servers = Servers::start(3);
            let strategy = servers.in_shards(shards);
            let table = strategy.table("words", &spec(Adam::new(0.01))).unwrap();
            let mut expected = LazyAdam::new();
            for (ids, scale) in batches {
                let rows = table.lookup(ids).unwrap();
                let step = strategy.run((), |ctx, ()| {
                    let loss = rows.tensor::<2>(ctx)?.sum().mul_scalar(scale);
                    let gradients = ctx.row_gradients(&loss)?;
                    ctx.apply_row_gradients(gradients).map(drop)
                });
                step.unwrap();
                expected.update(ids, scale);
            }
            let snapshot = strategy.variables().snapshot().unwrap();
            let slot = |name: &str| {
                let key = ("table/words".to_string(), name.to_string());
                floats(&snapshot.slots[&key])
            };
            let found = [read(&strategy, &table), slot("momentum"), slot("velocity")];
            let expected = [&expected.value, &expected.m, &expected.v];
            for (found, expected) in found.iter().zip(expected) {
                for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
                    assert!((found - expected).abs() < 1e-6, "{at}: {found} {expected}");
                }
            }
            all.push(found);
        }
        assert!(
            all.iter().all(|one| *one == all[0]),
            "shards make no difference"
        );
    });
}

#[test]
fn untouched_rows_keep_values_and_slots() {
    within_limit(|| {
        let servers = Servers::start(2);
        let strategy = servers.in_shards(2);
        let adam = distribute_core::AdamW::new(0.1);
        let table = strategy.table("words", &spec(adam)).unwrap();
        let train = |ids: &[i64]| {
            let rows = table.lookup(ids).unwrap();
            let step = strategy.run((), |ctx, ()| {
                let loss = rows.tensor::<2>(ctx)?.powf_scalar(2.0).sum();
                let gradients = ctx.row_gradients(&loss)?;
                ctx.apply_row_gradients(gradients).map(drop)
            });
            step.unwrap();
        };
        let everything: Vec<i64> = (0..ROWS as i64).collect();
        train(&everything);
        let tensors = || strategy.variables().snapshot().unwrap().to_tensors();
        let before = tensors();
        train(&[2, 9, 2]);
        let after = tensors();
        for name in [
            "table/words",
            "optimizer/momentum/table/words",
            "optimizer/velocity/table/words",
        ] {
            let bits = |tensors: &std::collections::BTreeMap<String, TensorData>| {
                let values = floats(&tensors[name]).into_iter().map(f32::to_bits);
                values.collect::<Vec<u32>>()
            };
            let (before, after) = (bits(&before), bits(&after));
            for row in 0..ROWS {
                let range = row * WIDTH..(row + 1) * WIDTH;
                let is_same = before[range.clone()] == after[range];
                assert_eq!(is_same, ![2, 9].contains(&row), "{name}, row {row}");
            }
        }
    });
}
