//! Properties of every algorithm over one carrier: random world sizes, layouts, types, segments.

use distribute_collectives::{
    Algorithm, Buffer, CommunicatorExt, DType, GroupOptions, Order, ReduceOp, chunk_range, reduce,
};
use half::{bf16, f16};
use proptest::prelude::*;

use crate::common::{Carrier, Random, TestElement, bits, on_ranks_over};

/// The tests of every algorithm over a carrier, with this many random cases each.
macro_rules! hold_over {
    ($carrier:expr, $cases:literal cases) => {
        proptest::proptest! {
            #![proptest_config(proptest::prelude::ProptestConfig::with_cases($cases))]

            #[test]
            fn every_algorithm_equals_a_naive_reduction(
                case in crate::properties::cases($carrier, &distribute_collectives::DType::ALL),
            ) {
                crate::common::within_limit(move || crate::properties::check_exact(&case));
            }

            #[test]
            fn rounding_is_bounded_and_equal_on_all_ranks(
                case in crate::properties::cases($carrier, crate::properties::FLOATS),
            ) {
                crate::common::within_limit(move || crate::properties::check_rounding(&case));
            }

            #[test]
            fn canonical_order_is_the_same_bits_for_every_algorithm(
                case in crate::properties::cases($carrier, &distribute_collectives::DType::ALL),
            ) {
                crate::common::within_limit(move || crate::properties::check_canonical(&case));
            }

            #[test]
            fn the_other_operations_equal_naive_ones(
                case in crate::properties::cases($carrier, &distribute_collectives::DType::ALL),
            ) {
                crate::common::within_limit(move || {
                    crate::properties::check_other_operations(&case);
                });
            }
        }
    };
}
pub(crate) use hold_over;

#[derive(Debug, Clone)]
pub struct Case {
    carrier: Carrier,
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
    fn algorithms(&self) -> [Algorithm; 5] {
        let ranks_per_host = self.ranks_per_host;
        [
            self.carrier.first_choice(),
            Algorithm::Ring,
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
        on_ranks_over(self.carrier, self.world_size, options, |mut endpoint| {
            let mut vector = inputs[endpoint.rank()].clone();
            endpoint
                .all_reduce(self.op, &mut split(&mut vector, &self.lengths))
                .unwrap();
            vector
        })
    }
}

/// A vector as several buffers.
pub fn split<'a, T: TestElement>(mut vector: &'a mut [T], lengths: &[usize]) -> Vec<Buffer<'a>> {
    let mut buffers = Vec::new();
    for length in lengths {
        let (buffer, rest) = vector.split_at_mut(*length);
        buffers.push(T::buffer(buffer));
        vector = rest;
    }
    buffers
}

/// The canonical order by its definition: the terms below the largest power of two that is less
/// than their number, then the others, each as such a tree. `divisor` is what a mean divides by.
pub fn tree<T: TestElement>(op: ReduceOp, terms: &[Vec<T>], divisor: usize) -> Vec<T> {
    let mut left = 1;
    while 2 * left < terms.len() {
        left *= 2;
    }
    if terms.len() == 1 {
        return terms[0].clone();
    }
    let inner = match op {
        ReduceOp::Mean => ReduceOp::Sum,
        other => other,
    };
    let mut result = tree(inner, &terms[..left], 1);
    let right = tree(inner, &terms[left..], 1);
    reduce::accumulate_last(op, divisor, &mut result, &right);
    result
}

/// Element by element, in canonical order.
fn naive<T: TestElement>(op: ReduceOp, inputs: &[Vec<T>]) -> Vec<T> {
    tree(op, inputs, inputs.len())
}

/// Random cases with these element types.
pub fn cases(carrier: Carrier, dtypes: &'static [DType]) -> impl Strategy<Value = Case> {
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
            move |(world_size, lengths, segment_elements, ranks_per_host, op, dtype, seed)| Case {
                carrier,
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
    for algorithm in [case.carrier.first_choice(), Algorithm::Ring] {
        let options = case.options(algorithm, Order::Fast);
        on_ranks_over(case.carrier, case.world_size, options, |mut endpoint| {
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

/// All algorithms equal a plain loop where no rounding happens.
pub fn check_exact(case: &Case) {
    typed!(equals_naive_when_exact, case);
}

/// Rounding is bounded, the same on all ranks and in every rerun.
pub fn check_rounding(case: &Case) {
    typed!(within_bound_and_reproducible, case);
}

/// Canonical order gives the bits of its definition.
pub fn check_canonical(case: &Case) {
    typed!(canonical_is_the_same_bits, case);
}

/// Halving and doubling along the tree gives its bits in every order.
pub fn check_halving_doubling<T: TestElement>(world_size: usize, seed: u64) {
    let case = Case {
        carrier: Carrier::Threads,
        world_size,
        lengths: vec![0, 3, seed as usize % 150],
        segment_elements: 3 + seed as usize % 40,
        ranks_per_host: 1,
        op: ReduceOp::ALL[seed as usize % ReduceOp::ALL.len()],
        dtype: T::DTYPE,
        seed,
    };
    let inputs = case.inputs::<T>(false);
    let expected = bits(&naive(case.op, &inputs));
    let options = case.options(Algorithm::HalvingDoubling, Order::Fast);
    for result in case.all_reduce(options, &inputs) {
        assert_eq!(bits(&result), expected, "{case:?}");
    }
}

/// The other operations equal plain loops.
pub fn check_other_operations(case: &Case) {
    typed!(other_operations_move_the_right_elements, case);
}

/// Types with fractions.
pub const FLOATS: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::BF16];
