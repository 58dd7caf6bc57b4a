//! What differs between replicas: all-reduces, the number of the replica, random numbers.

use distribute_core::burn_internals::backend;
use std::collections::BTreeMap;

use burn::tensor::{CapturedGraph, DType, Distribution, Shape, TensorData, TensorId};
use distribute_core::burn_internals::backend::distributed::ReduceOperation;
use distribute_core::burn_internals::backend::{BoolStore, FloatDType, IntDType, TensorMetadata};
use distribute_core::burn_internals::ir::{
    AllReduceOpIr, CustomOpIr, DistributedOperationIr, FloatOperationIr, GraphIr, OperationIr,
    TensorIr, UnaryOpIr,
};
use distribute_tpu_xla::lower::{
    ALL_REDUCE_MAX, ALL_REDUCE_MEAN, ALL_REDUCE_MIN, ALL_REDUCE_PROD, ALL_REDUCE_SUM, GraphInput,
    LowerOptions, REPLICA_ID, Target, lower,
};

use crate::lower::harness::Prim::{Float, Int};
use crate::lower::harness::{
    Data, Prim, Step, capture, client, execute, floats, ints, lower_with, typed, with_key,
};

fn tensor(id: u64, shape: &[usize], dtype: DType) -> TensorIr {
    TensorIr::uninit(TensorId::new(id), Shape::from(shape.to_vec()), dtype)
}

fn custom(id: &'static str, inputs: &[TensorIr], outputs: &[TensorIr]) -> OperationIr {
    OperationIr::Custom(CustomOpIr::new(id, inputs, outputs))
}

/// Runs operations on several replicas, each with its own inputs.
fn run(
    operations: Vec<OperationIr>,
    outputs: &[u64],
    inputs: &[Vec<TensorData>],
) -> Vec<Vec<TensorData>> {
    let Some(client) = client() else {
        return vec![];
    };
    let graph = CapturedGraph {
        graph: GraphIr::new(operations),
        values: BTreeMap::new(),
    };
    let declared: Vec<GraphInput> = graph
        .graph
        .inputs
        .iter()
        .copied()
        .map(GraphInput::new)
        .collect();
    let outputs: Vec<TensorId> = outputs.iter().copied().map(TensorId::new).collect();
    let [lowered, for_tpu] = [Target::Any, Target::Tpu].map(|target| {
        let options = LowerOptions {
            num_replicas: inputs.len(),
            target,
            ..LowerOptions::default()
        };
        lower(&graph, &declared, &outputs, &options).unwrap()
    });
    let results = execute(client, &lowered, inputs);
    // The TPU's form gives the same bits.
    let bytes = |results: &[Vec<TensorData>]| -> Vec<Vec<u8>> {
        let all = results.iter().flatten();
        all.map(|data| data.as_bytes().to_vec()).collect()
    };
    assert_eq!(bytes(&execute(client, &for_tpu, inputs)), bytes(&results));
    results
}

/// Joined for all compilers but the TPU's, which joins them itself.
#[test]
fn a_bucket_is_one_operation_for_each_type_or_one_for_each_tensor() {
    let input = [
        tensor(1, &[3], DType::F32),
        tensor(2, &[2, 2], DType::F32),
        tensor(3, &[2], DType::I32),
    ];
    let output = [
        tensor(4, &[3], DType::F32),
        tensor(5, &[2, 2], DType::F32),
        tensor(6, &[2], DType::I32),
    ];
    let graph = CapturedGraph {
        graph: GraphIr::new(vec![custom(ALL_REDUCE_SUM, &input, &output)]),
        values: BTreeMap::new(),
    };
    let inputs: Vec<GraphInput> = (1..4)
        .map(|id| GraphInput::new(TensorId::new(id)))
        .collect();
    let outputs: Vec<TensorId> = (4..7).map(TensorId::new).collect();
    for (target, expected) in [(Target::Any, 2), (Target::Tpu, 3)] {
        let options = LowerOptions {
            num_replicas: 2,
            target,
            ..LowerOptions::default()
        };
        let lowered = lower(&graph, &inputs, &outputs, &options).unwrap();
        assert_eq!(lowered.all_reduces, expected);
        let found = lowered.program.text.matches("stablehlo.all_reduce").count();
        assert_eq!(found, expected, "{}", lowered.program.text);
    }
}

#[test]
fn buckets_are_reduced_over_all_replicas() {
    for replicas in [1, 2, 8] {
        let mut data = Data::new(81);
        // A bucket of two element types and three shapes.
        let input = [
            tensor(1, &[3], DType::F32),
            tensor(2, &[2, 2], DType::F32),
            tensor(3, &[2], DType::I32),
        ];
        let output = |first: u64| {
            [
                tensor(first, &[3], DType::F32),
                tensor(first + 1, &[2, 2], DType::F32),
                tensor(first + 2, &[2], DType::I32),
            ]
        };
        let operations = vec![
            custom(ALL_REDUCE_SUM, &input, &output(10)),
            custom(ALL_REDUCE_MEAN, &input, &output(20)),
            custom(ALL_REDUCE_MAX, &input, &output(30)),
            custom(ALL_REDUCE_MIN, &input, &output(40)),
            custom(ALL_REDUCE_PROD, &input, &output(50)),
        ];
        let inputs: Vec<Vec<TensorData>> = (0..replicas)
            .map(|_| {
                vec![
                    data.normal(&[3], DType::F32),
                    data.normal(&[2, 2], DType::F32),
                    data.ints(&[2], DType::I32, -9, 10),
                ]
            })
            .collect();
        let ids = [10, 11, 12, 20, 21, 22, 30, 31, 32, 40, 41, 42, 50, 51, 52];
        for outputs in run(operations, &ids, &inputs) {
            check_reduced(&inputs, &outputs);
        }
    }
}

fn check_reduced(inputs: &[Vec<TensorData>], outputs: &[TensorData]) {
    let replicas = inputs.len() as f64;
    for tensor in 0..3 {
        let all: Vec<Vec<f64>> = inputs.iter().map(|input| floats(&input[tensor])).collect();
        for element in 0..all[0].len() {
            let column: Vec<f64> = all.iter().map(|replica| replica[element]).collect();
            let sum: f64 = column.iter().sum();
            let mean = if tensor == 2 {
                (sum / replicas).trunc()
            } else {
                sum / replicas
            };
            let max = column.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let min = column.iter().copied().fold(f64::INFINITY, f64::min);
            let product: f64 = column.iter().product();
            for (kind, expected) in [sum, mean, max, min, product].into_iter().enumerate() {
                let actual = floats(&outputs[kind * 3 + tensor])[element];
                assert!(
                    (actual - expected).abs() < 1e-5 * expected.abs().max(1.0),
                    "{kind}: {actual} {expected}"
                );
            }
        }
    }
}

#[test]
fn burns_own_all_reduce_is_over_all_replicas() {
    let reduce = |op, id| {
        OperationIr::Distributed(DistributedOperationIr::AllReduce(AllReduceOpIr {
            tensor: tensor(1, &[2], DType::F32),
            out: tensor(id, &[2], DType::F32),
            op,
            device_ids: vec![],
        }))
    };
    let operations = vec![
        reduce(ReduceOperation::Sum, 2),
        reduce(ReduceOperation::Mean, 3),
        OperationIr::Distributed(DistributedOperationIr::SyncCollective),
    ];
    let inputs: Vec<Vec<TensorData>> = (0..4)
        .map(|r| vec![typed(vec![f64::from(r), 1.0], &[2], DType::F32)])
        .collect();
    for output in run(operations, &[2, 3], &inputs) {
        assert_eq!(floats(&output[0]), [6.0, 4.0]);
        assert_eq!(floats(&output[1]), [1.5, 1.0]);
    }
}

/// burn records them as comparisons, but they are operations of its graph.
#[test]
fn nan_and_infinity_are_found() {
    let op = |id| UnaryOpIr {
        input: tensor(1, &[5], DType::F32),
        out: tensor(id, &[5], DType::Bool(BoolStore::Native)),
    };
    let operations = vec![
        OperationIr::Float(DType::F32, FloatOperationIr::IsNan(op(2))),
        OperationIr::Float(DType::F32, FloatOperationIr::IsInf(op(3))),
    ];
    let values = vec![f64::NAN, f64::INFINITY, -1.0, f64::NEG_INFINITY, 0.0];
    let inputs = vec![vec![typed(values, &[5], DType::F32)]];
    for output in run(operations, &[2, 3], &inputs) {
        assert_eq!(floats(&output[0]), [1.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(floats(&output[1]), [0.0, 1.0, 0.0, 1.0, 0.0]);
    }
}

#[test]
fn each_replica_knows_its_number() {
    let outputs = [tensor(2, &[1], DType::I64)];
    let operations = vec![custom(REPLICA_ID, &[], &outputs)];
    for (replica, output) in run(operations, &[2], &vec![vec![]; 8]).iter().enumerate() {
        assert_eq!(
            output[0].iter::<i64>().collect::<Vec<_>>(),
            [replica as i64]
        );
        assert_eq!(output[0].shape().to_vec(), [1]);
    }
}

struct Draw {
    shape: Vec<usize>,
    distribution: Distribution,
    dtype: DType,
}

impl Step for Draw {
    fn run<B: backend::Backend>(&self, x: &[Prim<B>]) -> Vec<Prim<B>> {
        let device = x[0].f().device();
        let shape = Shape::from(self.shape.clone());
        let draw = || {
            if self.dtype.is_float() {
                Float(B::float_random(
                    shape.clone(),
                    self.distribution,
                    &device,
                    FloatDType::from(self.dtype),
                ))
            } else {
                Int(B::int_random(
                    shape.clone(),
                    self.distribution,
                    &device,
                    IntDType::from(self.dtype),
                ))
            }
        };
        vec![draw(), draw()]
    }
}

/// Two draws on each of two replicas with this key.
fn draw(step: &Draw, key: i64) -> Option<Vec<Vec<TensorData>>> {
    let client = client()?;
    let input = typed(vec![0.0], &[1], DType::F32);
    let captured = capture(std::slice::from_ref(&input), step);
    let options = LowerOptions {
        num_replicas: 2,
        ..with_key()
    };
    let lowered = lower_with(&captured, &options);
    assert_eq!(lowered.random_key_input, Some(1));
    let inputs = vec![input, ints(vec![key, 7], &[2], DType::U32)];
    Some(execute(client, &lowered, &[inputs.clone(), inputs]))
}

fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64;
    (mean, variance.sqrt())
}

/// A distribution with its mean, its deviation and the bounds of its numbers.
type Law = (Distribution, DType, [f64; 2], std::ops::Range<f64>);

fn laws() -> Vec<Law> {
    use Distribution::{Bernoulli, Default, Normal, Uniform};
    let unit = [0.5, 1.0 / 12f64.sqrt()];
    let wide = [1.0, 8.0 / 12f64.sqrt()];
    vec![
        (Default, DType::F32, unit, 0.0..1.0),
        (Default, DType::BF16, unit, 0.0..1.0),
        (Uniform(-3.0, 5.0), DType::F64, wide, -3.0..5.0),
        (Uniform(-3.0, 5.0), DType::F16, wide, -3.0..5.0),
        (Bernoulli(0.3), DType::F32, [0.3, 0.21f64.sqrt()], 0.0..1.5),
        (Normal(2.0, 3.0), DType::F32, [2.0, 3.0], -20.0..24.0),
        (Normal(0.0, 1.0), DType::F64, [0.0, 1.0], -8.0..8.0),
        (
            Uniform(-4.0, 7.0),
            DType::I32,
            [1.0, 10f64.sqrt()],
            -4.0..7.0,
        ),
        (
            Uniform(0.0, 10.0),
            DType::I64,
            [4.5, 8.25f64.sqrt()],
            0.0..10.0,
        ),
    ]
}

#[test]
fn random_numbers_follow_their_distributions() {
    for (distribution, dtype, [mean, deviation], bounds) in laws() {
        let step = Draw {
            shape: vec![101, 99],
            distribution,
            dtype,
        };
        let Some(replicas) = draw(&step, 5) else {
            return;
        };
        for output in replicas.iter().flatten() {
            assert_eq!(output.dtype(), dtype);
            let values = floats(output);
            let name = format!("{distribution:?} {dtype:?}");
            assert!(values.iter().all(|v| bounds.contains(v)), "{name}");
            let (m, d) = mean_and_deviation(&values);
            // Six standard errors of the mean.
            let error = 6.0 * deviation / (values.len() as f64).sqrt();
            assert!((m - mean).abs() < error, "{name}: mean {m}");
            assert!((d / deviation - 1.0).abs() < 0.05, "{name}: deviation {d}");
        }
    }
}

#[test]
fn random_numbers_depend_on_key_replica_and_operation_alone() {
    let step = Draw {
        shape: vec![16],
        distribution: Distribution::Default,
        dtype: DType::F32,
    };
    let Some(first) = draw(&step, 1) else { return };
    let again = draw(&step, 1).unwrap();
    let other = draw(&step, 2).unwrap();
    let all = |draws: &[Vec<TensorData>]| -> Vec<Vec<f64>> {
        draws.iter().flatten().map(floats).collect()
    };
    assert_eq!(all(&first), all(&again));
    let mut different = [all(&first), all(&other)].concat();
    different.sort_by(|a, b| a.partial_cmp(b).unwrap());
    different.dedup();
    assert_eq!(different.len(), 8, "two keys, two replicas, two operations");
}

/// Threefry-2x32 with 20 rounds, written out.
fn threefry(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    let keys = [key[0], key[1], key[0] ^ key[1] ^ 0x1BD1_1BDA];
    let [mut x, mut y] = [
        counter[0].wrapping_add(keys[0]),
        counter[1].wrapping_add(keys[1]),
    ];
    for group in 0..5 {
        let rotations = [[13, 15, 26, 6], [17, 29, 16, 24]][group % 2];
        for rotation in rotations {
            x = x.wrapping_add(y);
            y = y.rotate_left(rotation) ^ x;
        }
        x = x.wrapping_add(keys[(group + 1) % 3]);
        y = y.wrapping_add(keys[(group + 2) % 3]);
        y = y.wrapping_add(group as u32 + 1);
    }
    [x, y]
}

/// The numbers of a step are the same for ever: runs that are resumed depend on it.
#[test]
fn random_words_are_threefrys() {
    // Known answers of Random123.
    assert_eq!(threefry([0; 2], [0; 2]), [0x6b20_0159, 0x99ba_4efe]);
    let pi = [[0x1319_8a2e, 0x0370_7344], [0x243f_6a88, 0x85a3_08d3]];
    assert_eq!(threefry(pi[0], pi[1]), [0xc492_3a9c, 0x483d_f7a0]);
    let step = Draw {
        shape: vec![3, 2],
        distribution: Distribution::Default,
        dtype: DType::I64,
    };
    let Some(replicas) = draw(&step, 5) else {
        return;
    };
    let captured = capture(&[typed(vec![0.0], &[1], DType::F32)], &step);
    let operations = captured.graph.graph.operations.iter().zip(0..);
    let positions: Vec<u32> = operations
        .filter(|(op, _)| op.outputs().any(|out| captured.outputs.contains(&out.id)))
        .map(|(_, position)| position)
        .collect();
    for (replica, outputs) in (0..).zip(replicas) {
        for (position, output) in positions.iter().copied().zip(&outputs) {
            let key = threefry([5, 7], [position, replica]);
            let expected = (0..6).map(|i| {
                let [low, high] = threefry(key, [i, 0]).map(u64::from);
                (low | high << 32) as i64
            });
            assert!(output.iter::<i64>().eq(expected), "{replica} {position}");
        }
    }
}

#[test]
fn random_without_a_key_is_an_error_that_says_so() {
    let step = Draw {
        shape: vec![4],
        distribution: Distribution::Default,
        dtype: DType::F32,
    };
    let captured = capture(&[typed(vec![0.0], &[1], DType::F32)], &step);
    let inputs: Vec<GraphInput> = captured
        .inputs
        .iter()
        .copied()
        .map(GraphInput::new)
        .collect();
    let error = lower(
        &captured.graph,
        &inputs,
        &captured.outputs,
        &LowerOptions::default(),
    );
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("Float.Random") && text.contains("random_key"),
        "{text}"
    );
}
