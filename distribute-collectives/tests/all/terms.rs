//! Terms that lie in ranks in any way: the bits depend on their number alone.

use std::ops::Range;

use distribute_collectives::{
    Algorithm, Buffer, CollectiveError, DType, GroupOptions, InProcessCommunicator, Order,
    ReduceOp, Terms, WireType, in_process,
};
use half::{bf16, f16};
use proptest::prelude::*;

use crate::common::{Carrier, Random, TestElement, bits, on_ranks, on_threads, within_limit};
use crate::properties::{split, tree};

#[derive(Debug, Clone)]
struct Case {
    /// Terms of each rank.
    counts: Vec<usize>,
    lengths: Vec<usize>,
    op: ReduceOp,
    dtype: DType,
    wire: Option<WireType>,
    algorithm: Algorithm,
    seed: u64,
}

impl Case {
    fn options(&self) -> GroupOptions {
        GroupOptions::default()
            .algorithm(self.algorithm)
            .order(Order::Canonical)
            .segment_bytes(64)
            .wire(self.wire)
    }

    fn terms<T: TestElement>(&self) -> Vec<Vec<T>> {
        let mut random = Random(self.seed);
        let scale = match self.dtype {
            DType::I32 | DType::I64 | DType::U8 => 1000.0,
            _ => 1.0,
        };
        let len = self.lengths.iter().sum();
        let mut vector = |_| {
            let values = (0..len).map(|_| T::from_f64(scale * random.uniform()));
            values.collect()
        };
        (0..self.counts.iter().sum()).map(&mut vector).collect()
    }

    /// The definition. A mean is the sum, divided.
    fn expected<T: TestElement>(&self, terms: &[Vec<T>]) -> Vec<T> {
        let mut result = match (self.wire, T::DTYPE) {
            (Some(wire), DType::F32) if terms.len() > 1 => match wire {
                WireType::Bf16 => self.rounded::<T, bf16>(terms),
                WireType::F16 => self.rounded::<T, f16>(terms),
            },
            _ => tree(self.inner(), terms, 1),
        };
        if self.op == ReduceOp::Mean {
            let buffer = &mut T::buffer(&mut result);
            distribute_collectives::reduce::divide(buffer, terms.len());
        }
        result
    }

    fn rounded<T: TestElement, W: TestElement>(&self, terms: &[Vec<T>]) -> Vec<T> {
        let round = |value: &T| W::from_f64(value.to_f64());
        let rounded = terms.iter().map(|term| term.iter().map(round).collect());
        let result = tree(self.inner(), &rounded.collect::<Vec<Vec<W>>>(), 1);
        result
            .into_iter()
            .map(|value| T::from_f64(value.to_f64()))
            .collect()
    }

    fn inner(&self) -> ReduceOp {
        match self.op {
            ReduceOp::Mean => ReduceOp::Sum,
            other => other,
        }
    }

    fn ranges(&self) -> Vec<Range<usize>> {
        let mut end = 0;
        let ranges = self.counts.iter().map(|count| {
            end += count;
            end - count..end
        });
        ranges.collect()
    }
}

/// What the threads of one rank make of their terms: each has the result of its part.
fn parts_of<T: TestElement>(case: &Case, terms: &[Vec<T>], parts: &[usize]) -> Vec<Vec<T>> {
    let results = on_ranks(
        terms.len(),
        case.options(),
        |mut endpoint: InProcessCommunicator| {
            let mut vector = terms[distribute_collectives::Communicator::rank(&endpoint)].clone();
            let own = &mut split(&mut vector, &case.lengths);
            endpoint.all_reduce_parts(case.inner(), parts, own).unwrap();
            vector
        },
    );
    let mut first = 0;
    let of_parts = parts.iter().map(|part| {
        let of_part = &results[first..first + part];
        for result in of_part {
            assert_eq!(bits(result), bits(&of_part[0]), "{case:?}");
        }
        first += part;
        of_part[0].clone()
    });
    of_parts.collect()
}

fn holds_over<T: TestElement>(case: &Case, carrier: Carrier) {
    let all = case.terms::<T>();
    let expected = bits(&case.expected(&all));
    let terms = Terms::new(case.counts.iter().copied()).unwrap();
    let terms = terms.wire(case.wire);
    let handed_in: Vec<Vec<Vec<T>>> = case
        .ranges()
        .into_iter()
        .enumerate()
        .map(|(rank, range)| parts_of(case, &all[range], &terms.subtrees(rank)))
        .collect();
    let group = carrier.group(case.counts.len(), case.options());
    let results = on_threads(group, |mut endpoint| {
        let mut own = handed_in[endpoint.rank()].clone();
        let buffers = own.iter_mut().flat_map(|part| split(part, &case.lengths));
        let buffers = &mut buffers.collect::<Vec<Buffer<'_>>>();
        terms
            .all_reduce(endpoint.as_mut(), case.op, buffers)
            .unwrap();
        own.swap_remove(0)
    });
    for result in results {
        assert_eq!(bits(&result), expected, "{case:?}");
    }
}

fn holds(case: &Case, carrier: Carrier) {
    match case.dtype {
        DType::F32 => holds_over::<f32>(case, carrier),
        DType::F64 => holds_over::<f64>(case, carrier),
        DType::F16 => holds_over::<f16>(case, carrier),
        DType::BF16 => holds_over::<bf16>(case, carrier),
        DType::I32 => holds_over::<i32>(case, carrier),
        DType::I64 => holds_over::<i64>(case, carrier),
        DType::U8 => holds_over::<u8>(case, carrier),
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let lengths = prop_oneof![
        (0..=300_usize).prop_map(|length| vec![length]),
        prop::collection::vec(0..=40_usize, 0..=4),
        prop::collection::vec(0..=2_usize, 0..=4),
    ];
    let algorithms = [Algorithm::Auto, Algorithm::Ring, Algorithm::DirectExchange];
    (
        prop::collection::vec(1..=6_usize, 1..=5),
        lengths,
        prop::sample::select(&ReduceOp::ALL[..]),
        prop::sample::select(&DType::ALL[..]),
        prop::option::of(prop::sample::select(&WireType::ALL[..])),
        prop::sample::select(algorithms.to_vec()),
        any::<u64>(),
    )
        .prop_map(|(counts, lengths, op, dtype, wire, algorithm, seed)| Case {
            counts,
            lengths,
            op,
            dtype,
            wire,
            algorithm,
            seed,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn only_the_number_of_terms_counts(case in cases()) {
        within_limit(move || holds(&case, Carrier::Threads));
    }
}

#[cfg(feature = "shm")]
proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    #[test]
    fn also_between_processes(case in cases()) {
        for carrier in [Carrier::SharedMemory, Carrier::Grpc] {
            let case = case.clone();
            within_limit(move || holds(&case, carrier));
        }
    }
}

/// One of these values lies so near the middle of two `bf16` that its lowest bits decide.
#[test]
fn terms_are_rounded_by_all_of_their_bits() {
    let case = Case {
        counts: vec![3, 6],
        lengths: vec![164],
        op: ReduceOp::Prod,
        dtype: DType::F32,
        wire: Some(WireType::Bf16),
        algorithm: Algorithm::Auto,
        seed: 369_920_779_911_072_739,
    };
    within_limit(move || holds(&case, Carrier::Threads));
}

/// The same eight terms in every way that the workers of a job may hold them.
#[test]
fn eight_terms_give_the_same_bits_wherever_they_lie() {
    let all = [
        &[8][..],
        &[4, 4],
        &[2; 4],
        &[1; 8],
        &[3, 3, 2],
        &[5, 2, 1],
        &[1, 7],
    ];
    for wire in [None, Some(WireType::Bf16), Some(WireType::F16)] {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            for counts in all {
                let case = Case {
                    counts: counts.to_vec(),
                    lengths: vec![5, 70],
                    op: ReduceOp::Sum,
                    dtype,
                    wire,
                    algorithm: Algorithm::Auto,
                    seed: 8,
                };
                within_limit(move || holds(&case, Carrier::Threads));
            }
        }
    }
}

#[test]
fn parts_that_are_not_those_of_all_ranks_are_refused() {
    let mut group = in_process(1, GroupOptions::default()).unwrap();
    for parts in [&[][..], &[2], &[1, 0], &[0, 1]] {
        let error = group[0]
            .all_reduce_parts(ReduceOp::Sum, parts, &mut [])
            .unwrap_err();
        assert!(
            matches!(error, CollectiveError::InvalidArgument { rank: 0, .. }),
            "{error}"
        );
    }
    let terms = Terms::new([3]).unwrap();
    let (mut a, mut b) = ([1.0_f32; 2], [1.0_f32; 3]);
    let own = &mut [(&mut a[..]).into(), (&mut b[..]).into()];
    terms.all_reduce(&mut group[0], ReduceOp::Sum, own).unwrap();
    let refused = Terms::new([1, 2]).unwrap();
    let error = refused
        .all_reduce(&mut group[0], ReduceOp::Sum, own)
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("terms of 2 ranks in a group of 1"),
        "{error}"
    );
}

/// Ranks that differ in their parts are told so, and nothing is added.
#[test]
fn parts_are_compared() {
    within_limit(|| {
        for algorithm in [Algorithm::Direct, Algorithm::Ring] {
            let options = GroupOptions::default().algorithm(algorithm);
            let errors = on_ranks(3, options, |mut endpoint| {
                let rank = distribute_collectives::Communicator::rank(&endpoint);
                let parts = if rank == 2 { [2, 1] } else { [1, 2] };
                let mut ones = [1.0_f32; 4];
                let own = &mut [(&mut ones[..]).into()];
                endpoint
                    .all_reduce_parts(ReduceOp::Sum, &parts, own)
                    .unwrap_err()
            });
            for error in errors {
                let named = error.to_string().contains("parts");
                assert!(
                    named && matches!(error, CollectiveError::Mismatch { .. }),
                    "{error}"
                );
            }
        }
    });
}
