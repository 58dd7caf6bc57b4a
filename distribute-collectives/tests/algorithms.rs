//! Every algorithm against a plain loop, over random world sizes, layouts, types and segments.

mod common;

use common::{Random, TestElement, bits, on_ranks, within_limit};
use distribute_collectives::{
    Algorithm, Buffer, Communicator, CommunicatorExt, DType, GroupOptions, Order, ReduceOp,
    chunk_range, reduce,
};
use half::{bf16, f16};
use proptest::prelude::*;

#[derive(Debug, Clone)]
struct Case {
    world_size: usize,
    /// Lengths of the buffers of a call.
    lengths: Vec<usize>,
    segment_elements: usize,
    ranks_per_host: usize,
    op: ReduceOp,
    dtype: DType,
    seed: u64,
}

impl Case {
    fn algorithms(&self) -> [Algorithm; 6] {
        let ranks_per_host = self.ranks_per_host;
        [
            Algorithm::Direct,
            Algorithm::Ring,
            Algorithm::Chain,
            Algorithm::HalvingDoubling,
            Algorithm::DirectExchange,
            Algorithm::Hierarchical { ranks_per_host },
        ]
    }

    fn options(&self, algorithm: Algorithm, order: Order) -> GroupOptions {
        GroupOptions::default()
            .algorithm(algorithm)
            .order(order)
            .segment_bytes(self.segment_elements * self.dtype.size_bytes())
    }

    fn len(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// The vector of every rank. `exact`: every partial result has few bits, so the result does
    /// not depend on the order.
    fn inputs<T: TestElement>(&self, exact: bool) -> Vec<Vec<T>> {
        let mut random = Random(self.seed);
        let mut value = |_| match (exact, self.op) {
            (true, ReduceOp::Prod) => [0.5, 1.0, 2.0, -1.0][(random.next() % 4) as usize],
            (true, _) => (random.next() % 17) as f64 / 8.0 - 1.0,
            (false, ReduceOp::Prod) => 1.0 + random.uniform() / 8.0,
            (false, _) => random.uniform(),
        };
        let integer = matches!(self.dtype, DType::I32 | DType::I64 | DType::U8);
        let scale = if integer { 1000.0 } else { 1.0 };
        let mut vector = |_| {
            (0..self.len())
                .map(&mut value)
                .map(|v| T::from_f64(v * scale))
                .collect()
        };
        (0..self.world_size).map(&mut vector).collect()
    }

    /// All-reduces the inputs and returns every rank's vector.
    fn all_reduce<T: TestElement>(&self, options: GroupOptions, inputs: &[Vec<T>]) -> Vec<Vec<T>> {
        on_ranks(self.world_size, options, |mut endpoint| {
            let mut vector = inputs[endpoint.rank()].clone();
            endpoint
                .all_reduce(self.op, &mut split(&mut vector, &self.lengths))
                .unwrap();
            vector
        })
    }
}

/// A vector as several buffers.
fn split<'a, T: TestElement>(mut vector: &'a mut [T], lengths: &[usize]) -> Vec<Buffer<'a>> {
    let mut buffers = Vec::new();
    for length in lengths {
        let (buffer, rest) = vector.split_at_mut(*length);
        buffers.push(T::buffer(buffer));
        vector = rest;
    }
    buffers
}

/// Element by element, in rank order.
fn naive<T: TestElement>(op: ReduceOp, inputs: &[Vec<T>]) -> Vec<T> {
    let inputs: Vec<&[T]> = inputs.iter().map(Vec::as_slice).collect();
    let mut output = vec![T::from_f64(0.0); inputs[0].len()];
    reduce::reduce_into(op, &inputs, &mut output);
    output
}

fn cases(dtypes: &'static [DType]) -> impl Strategy<Value = Case> {
    let lengths = prop_oneof![
        (0..=1000_usize).prop_map(|length| vec![length]),
        prop::collection::vec(0..=250_usize, 0..=4),
        prop::collection::vec(0..=3_usize, 0..=6),
    ];
    let op = prop::sample::select(&ReduceOp::ALL[..]);
    (
        1..=9_usize,
        lengths,
        3..=200_usize,
        1..=5_usize,
        op,
        prop::sample::select(dtypes),
        any::<u64>(),
    )
        .prop_map(
            |(world_size, lengths, segment_elements, ranks_per_host, op, dtype, seed)| Case {
                world_size,
                lengths,
                segment_elements,
                ranks_per_host,
                op,
                dtype,
                seed,
            },
        )
}

/// Calls a generic function with the Rust type of the case.
macro_rules! typed {
    ($function:ident, $case:expr) => {
        match $case.dtype {
            DType::F32 => $function::<f32>($case),
            DType::F64 => $function::<f64>($case),
            DType::F16 => $function::<f16>($case),
            DType::BF16 => $function::<bf16>($case),
            DType::I32 => $function::<i32>($case),
            DType::I64 => $function::<i64>($case),
            DType::U8 => $function::<u8>($case),
        }
    };
}

fn equals_naive_when_exact<T: TestElement>(case: &Case) {
    let inputs = case.inputs::<T>(true);
    let expected = naive(case.op, &inputs);
    for algorithm in case.algorithms() {
        for order in [Order::Fast, Order::Canonical] {
            for result in case.all_reduce(case.options(algorithm, order), &inputs) {
                assert_eq!(result, expected, "{algorithm} {order} {case:?}");
            }
        }
    }
}

fn within_bound_and_reproducible<T: TestElement>(case: &Case) {
    let inputs = case.inputs::<T>(false);
    let epsilon = match case.dtype {
        DType::F64 => f64::EPSILON,
        DType::F16 => f64::from(f16::EPSILON),
        DType::BF16 => f64::from(bf16::EPSILON),
        _ => f64::from(f32::EPSILON),
    };
    let rounds = case.world_size as f64 + 1.0;
    for algorithm in case.algorithms() {
        let options = case.options(algorithm, Order::Fast);
        let results = case.all_reduce(options.clone(), &inputs);
        for result in &results {
            assert_eq!(
                bits(result),
                bits(&results[0]),
                "ranks differ: {algorithm} {case:?}"
            );
        }
        let again = case.all_reduce(options, &inputs);
        assert_eq!(
            bits(&again[0]),
            bits(&results[0]),
            "rerun differs: {algorithm} {case:?}"
        );
        for (index, result) in results[0].iter().enumerate() {
            let column: Vec<f64> = inputs.iter().map(|input| input[index].to_f64()).collect();
            let (expected, magnitude) = reference(case.op, &column);
            let error = (result.to_f64() - expected).abs();
            assert!(
                error <= rounds * epsilon * magnitude,
                "{algorithm} {case:?}: {result:?} for {expected}"
            );
        }
    }
}

/// The result in `f64` and the size of the largest partial result.
fn reference(op: ReduceOp, column: &[f64]) -> (f64, f64) {
    let absolute: f64 = column.iter().map(|value| value.abs()).sum();
    match op {
        ReduceOp::Sum => (column.iter().sum(), absolute),
        ReduceOp::Mean => (column.iter().sum::<f64>() / column.len() as f64, absolute),
        ReduceOp::Min => (column.iter().copied().fold(f64::INFINITY, f64::min), 0.0),
        ReduceOp::Max => (
            column.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            0.0,
        ),
        ReduceOp::Prod => {
            let magnitude = column.iter().map(|value| value.abs().max(1.0)).product();
            (column.iter().product(), magnitude)
        }
    }
}

fn canonical_is_the_same_bits<T: TestElement>(case: &Case) {
    let inputs = case.inputs::<T>(false);
    let expected = bits(&naive(case.op, &inputs));
    for algorithm in case.algorithms() {
        for result in case.all_reduce(case.options(algorithm, Order::Canonical), &inputs) {
            assert_eq!(bits(&result), expected, "{algorithm} {case:?}");
        }
    }
}

fn other_operations_move_the_right_elements<T: TestElement>(case: &Case) {
    let inputs = case.inputs::<T>(false);
    let reduced = naive(case.op, &inputs);
    let root = case.seed as usize % case.world_size;
    for algorithm in [Algorithm::Direct, Algorithm::Ring] {
        let options = case.options(algorithm, Order::Fast);
        on_ranks(case.world_size, options, |mut endpoint| {
            let (rank, lengths) = (endpoint.rank(), &case.lengths);
            let own = &inputs[rank];

            let mut vector = own.clone();
            endpoint
                .broadcast(root, &mut split(&mut vector, lengths))
                .unwrap();
            assert_eq!(bits(&vector), bits(&inputs[root]));

            let mut vector = own.clone();
            endpoint
                .reduce(case.op, root, &mut split(&mut vector, lengths))
                .unwrap();
            if rank == root {
                assert_eq!(bits(&vector), bits(&reduced), "{algorithm} {case:?}");
            }

            let mut vector = own.clone();
            let share = endpoint
                .reduce_scatter(case.op, T::buffer(&mut vector))
                .unwrap();
            assert_eq!(share, chunk_range(case.len(), case.world_size, rank));
            assert_eq!(bits(&vector[share.clone()]), bits(&reduced[share]));

            let part = |rank: usize| &inputs[rank][..case.len() * rank / case.world_size];
            let gathered = endpoint.all_gather(part(rank)).unwrap();
            assert_eq!(gathered.world_size(), case.world_size);
            for (rank, values) in gathered.iter().enumerate() {
                assert_eq!(bits(values), bits(part(rank)), "{algorithm} {case:?}");
            }
            endpoint.barrier().unwrap();
        });
    }
}

const FLOATS: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::BF16];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_algorithm_equals_a_naive_reduction(case in cases(&DType::ALL)) {
        within_limit(move || typed!(equals_naive_when_exact, &case));
    }

    #[test]
    fn rounding_is_bounded_and_equal_on_all_ranks(case in cases(FLOATS)) {
        within_limit(move || typed!(within_bound_and_reproducible, &case));
    }

    #[test]
    fn canonical_order_is_the_same_bits_for_every_algorithm(case in cases(&DType::ALL)) {
        within_limit(move || typed!(canonical_is_the_same_bits, &case));
    }

    #[test]
    fn the_other_operations_equal_naive_ones(case in cases(&DType::ALL)) {
        within_limit(move || typed!(other_operations_move_the_right_elements, &case));
    }
}

/// The order of a plain sum from rank 0 on, by hand: 1e8 + 1 - 1e8 depends on it.
#[test]
fn canonical_order_starts_at_rank_0() {
    let values = [1e8_f32, 1.0, -1e8];
    for algorithm in [Algorithm::Direct, Algorithm::Ring, Algorithm::Chain] {
        let options = GroupOptions::default()
            .algorithm(algorithm)
            .order(Order::Canonical);
        let results = on_ranks(3, options, |mut endpoint| {
            let mut vector = [values[endpoint.rank()]; 5];
            endpoint
                .all_reduce(ReduceOp::Sum, &mut [(&mut vector[..]).into()])
                .unwrap();
            vector
        });
        assert_eq!(results, [[(1e8_f32 + 1.0) - 1e8; 5]; 3]);
    }
}

#[test]
fn every_kernel_propagates_nan() {
    for op in [ReduceOp::Min, ReduceOp::Max, ReduceOp::Sum] {
        for position in 0..3 {
            let input = |rank: usize| {
                [if rank == position {
                    f32::NAN
                } else {
                    rank as f32
                }; 20]
            };
            let inputs = [input(0), input(1), input(2)];
            let mut output = [0.0_f32; 20];
            reduce::reduce_into(op, &[&inputs[0], &inputs[1], &inputs[2]], &mut output);
            assert!(
                output.iter().all(|value| value.is_nan()),
                "{op} with NaN at {position}"
            );
            let mut slices = inputs;
            let [a, b, c] = &mut slices;
            reduce::reduce_all(op, &mut [a, b, c]);
            assert!(slices.as_flattened().iter().all(|value| value.is_nan()));
        }
    }
}

/// Half types: every bit pattern survives the way to `f32` and back, and rounding is that of the
/// `half` crate.
#[test]
fn half_types_round_to_nearest_even() {
    use distribute_collectives::reduce::Arithmetic;
    let all: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    let mut wide = vec![0.0_f32; all.len()];
    bf16::widen(&all, &mut wide);
    let mut random = Random(7);
    for value in &mut wide {
        let noise = (random.next() & 0xffff) as u32;
        *value = f32::from_bits(value.to_bits() | noise);
    }
    let mut narrow = vec![bf16::ZERO; all.len()];
    bf16::narrow(&wide, &mut narrow);
    for (value, wide) in narrow.iter().zip(&wide) {
        let expected = bf16::from_f32(*wide);
        assert!(
            value.to_bits() == expected.to_bits() || (value.is_nan() && wide.is_nan()),
            "{wide} became {value}, not {expected}"
        );
    }
}

#[test]
fn integer_mean_is_the_truncated_wrapped_sum() {
    let inputs: [&[i32]; 2] = [&[3, -4, i32::MAX], &[4, -3, 1]];
    let mut output = [0; 3];
    reduce::reduce_into(ReduceOp::Mean, &inputs, &mut output);
    assert_eq!(output, [3, -3, i32::MIN / 2]);
}
