//! `f32` buffers that travel as half types: the same bits on all ranks, within the stated bound.

use std::sync::atomic::{AtomicUsize, Ordering};

use distribute_collectives::{
    Algorithm, Buffer, CollectiveError, Communicator, CommunicatorExt, GroupOptions, Order,
    ReduceOp, Result, Transport, TransportCommunicator, WireType, chunk_range, in_process,
    in_process_transports,
};
use half::{bf16, f16};
use proptest::prelude::*;

use crate::common::{BeforeSend, Random, TestElement, bits, on_ranks, on_threads, within_limit};
use crate::properties;

#[derive(Debug, Clone)]
struct Case {
    world_size: usize,
    lengths: Vec<usize>,
    segment_elements: usize,
    ranks_per_host: usize,
    op: ReduceOp,
    wire: WireType,
    seed: u64,
}

/// How often a result is rounded at most.
#[derive(Debug, Clone, Copy)]
struct Roundings {
    /// On the way of one rank's element.
    path: usize,
    /// All of them, whose relative errors add up in a product.
    all: usize,
}

impl Roundings {
    /// Where every rank's elements are rounded, and every product of two.
    fn of_tree(ranks: usize) -> Self {
        Self {
            path: depth(ranks) + 1,
            all: 2 * ranks - 1,
        }
    }
}

impl Case {
    /// Every algorithm that sends something, with the roundings that its documentation states.
    fn algorithms(&self) -> Vec<(Algorithm, Roundings)> {
        let (size, ranks_per_host) = (self.world_size, self.ranks_per_host);
        let hosts = size.div_ceil(ranks_per_host);
        let of_path = |path| Roundings {
            path,
            all: size + 1,
        };
        let tree = Roundings::of_tree(size);
        // It may be any of them.
        let auto = Roundings {
            path: size.max(2),
            all: tree.all.max(size + 1),
        };
        vec![
            (Algorithm::Ring, of_path(size)),
            (Algorithm::HalvingDoubling, tree),
            (
                Algorithm::Hierarchical { ranks_per_host },
                of_path(hosts + 1),
            ),
            (Algorithm::DirectExchange, tree),
            (Algorithm::Auto, auto),
        ]
    }

    fn options(&self, algorithm: Algorithm, order: Order) -> GroupOptions {
        GroupOptions::default()
            .algorithm(algorithm)
            .order(order)
            .wire(self.wire)
            .segment_bytes(self.segment_elements * WireType::SIZE_BYTES)
    }

    fn inputs(&self) -> Vec<Vec<f32>> {
        let mut random = Random(self.seed);
        let len: usize = self.lengths.iter().sum();
        let mut value = |_| match self.op {
            ReduceOp::Prod => (1.0 + random.uniform() / 8.0) as f32,
            // Some far below the smallest normal f16.
            _ if random.next().is_multiple_of(8) => (random.uniform() * 1e-6) as f32,
            _ => (random.uniform() * 100.0) as f32,
        };
        let mut vector = |_| (0..len).map(&mut value).collect();
        (0..self.world_size).map(&mut vector).collect()
    }

    fn all_reduce(&self, algorithm: Algorithm, order: Order, inputs: &[Vec<f32>]) -> Vec<Vec<f32>> {
        on_ranks(
            self.world_size,
            self.options(algorithm, order),
            |mut endpoint| {
                let mut vector = inputs[endpoint.rank()].clone();
                endpoint
                    .all_reduce(self.op, &mut split(&mut vector, &self.lengths))
                    .unwrap();
                vector
            },
        )
    }

    fn round(&self, value: f32) -> f32 {
        match self.wire {
            WireType::Bf16 => bf16::from_f32(value).to_f32(),
            WireType::F16 => f16::from_f32(value).to_f32(),
        }
    }

    /// What canonical order promises: elements and every node of the tree are rounded once.
    fn canonical(&self, inputs: &[Vec<f32>]) -> Vec<f32> {
        if self.world_size == 1 {
            return inputs[0].clone();
        }
        match self.wire {
            WireType::Bf16 => self.tree(inputs, bf16::from_f32, bf16::to_f32),
            WireType::F16 => self.tree(inputs, f16::from_f32, f16::to_f32),
        }
    }

    fn tree<T: TestElement>(
        &self,
        inputs: &[Vec<f32>],
        round: fn(f32) -> T,
        widen: fn(T) -> f32,
    ) -> Vec<f32> {
        let rounded = inputs
            .iter()
            .map(|it| it.iter().copied().map(round).collect());
        let rounded: Vec<Vec<T>> = rounded.collect();
        let result = properties::tree(self.op, &rounded, inputs.len());
        result.into_iter().map(widen).collect()
    }

    /// The exact result of one element, and how far `roundings` may lead away from it.
    fn bound(&self, roundings: Roundings, column: &[f64]) -> (f64, f64) {
        let (unit, tiny): (f64, f64) = match self.wire {
            WireType::Bf16 => (2.0_f64.powi(-8), 0.0),
            WireType::F16 => (2.0_f64.powi(-11), 2.0_f64.powi(-25)),
        };
        let ranks = column.len() as f64;
        let sum: f64 = column.iter().sum();
        let absolute: f64 = column.iter().map(|value| value.abs()).sum();
        let grown = |count: usize| (1.0 + unit).powi(count as i32) - 1.0 + ranks * 1.2e-7;
        // A partial result is rounded at most once per rank and once at the end.
        let below = tiny * (ranks + 1.0);
        match self.op {
            ReduceOp::Sum => (sum, grown(roundings.path) * absolute + below),
            ReduceOp::Mean => (
                sum / ranks,
                grown(roundings.path) * absolute / ranks + below,
            ),
            ReduceOp::Prod => {
                let magnitude: f64 = column.iter().map(|value| value.abs().max(1.0)).product();
                let exact = column.iter().product();
                (exact, grown(roundings.all) * magnitude + below)
            }
            ReduceOp::Min | ReduceOp::Max => {
                let pick = if self.op == ReduceOp::Min {
                    f64::min
                } else {
                    f64::max
                };
                let exact = column.iter().copied().reduce(pick).unwrap();
                (exact, unit * exact.abs() + tiny)
            }
        }
    }
}

impl Case {
    fn check_bound(
        &self,
        algorithm: Algorithm,
        roundings: Roundings,
        inputs: &[Vec<f32>],
        results: &[f32],
    ) {
        for (index, result) in results.iter().enumerate() {
            let column: Vec<f64> = inputs.iter().map(|input| input[index].into()).collect();
            let (exact, bound) = self.bound(roundings, &column);
            let error = (f64::from(*result) - exact).abs();
            assert!(
                error <= bound,
                "{algorithm} {self:?}: {result} for {exact}, bound {bound}"
            );
            if self.world_size > 1 {
                assert_eq!(self.round(*result).to_bits(), result.to_bits());
            }
        }
    }
}

/// Levels of the tree over this many ranks.
fn depth(ranks: usize) -> usize {
    ranks.next_power_of_two().ilog2() as usize
}

fn split<'a>(mut vector: &'a mut [f32], lengths: &[usize]) -> Vec<Buffer<'a>> {
    let mut buffers = Vec::new();
    for length in lengths {
        let (buffer, rest) = vector.split_at_mut(*length);
        buffers.push(buffer.into());
        vector = rest;
    }
    buffers
}

fn cases() -> impl Strategy<Value = Case> {
    let lengths = prop_oneof![
        (0..=2000_usize).prop_map(|length| vec![length]),
        prop::collection::vec(0..=250_usize, 1..=4),
    ];
    (
        1..=9_usize,
        lengths,
        3..=700_usize,
        1..=5_usize,
        prop::sample::select(&ReduceOp::ALL[..]),
        prop::sample::select(&WireType::ALL[..]),
        any::<u64>(),
    )
        .prop_map(
            |(world_size, lengths, segment_elements, ranks_per_host, op, wire, seed)| Case {
                world_size,
                lengths,
                segment_elements,
                ranks_per_host,
                op,
                wire,
                seed,
            },
        )
}

fn equal_on_all_ranks_and_within_the_bound(case: &Case) {
    let inputs = case.inputs();
    for (algorithm, roundings) in case.algorithms() {
        let results = case.all_reduce(algorithm, Order::Fast, &inputs);
        for result in &results {
            assert_eq!(
                bits(result),
                bits(&results[0]),
                "ranks differ: {algorithm} {case:?}"
            );
        }
        let again = case.all_reduce(algorithm, Order::Fast, &inputs);
        assert_eq!(
            bits(&again[0]),
            bits(&results[0]),
            "rerun differs: {algorithm} {case:?}"
        );
        case.check_bound(algorithm, roundings, &inputs, &results[0]);
    }
}

fn canonical_is_the_same_bits_everywhere(case: &Case) {
    let inputs = case.inputs();
    let expected = case.canonical(&inputs);
    for (algorithm, _) in case.algorithms() {
        let results = case.all_reduce(algorithm, Order::Canonical, &inputs);
        for result in &results {
            assert_eq!(bits(result), bits(&expected), "{algorithm} {case:?}");
        }
        case.check_bound(
            algorithm,
            Roundings::of_tree(case.world_size),
            &inputs,
            &results[0],
        );
    }
    let root = case.seed as usize % case.world_size;
    let options = case.options(Algorithm::Ring, Order::Canonical);
    on_ranks(case.world_size, options, |mut endpoint| {
        let rank = endpoint.rank();
        let mut vector = inputs[rank].clone();
        endpoint
            .reduce(case.op, root, &mut split(&mut vector, &case.lengths))
            .unwrap();
        if rank == root {
            assert_eq!(bits(&vector), bits(&expected), "reduce {case:?}");
        }
        let mut vector = inputs[rank].clone();
        let own = endpoint
            .reduce_scatter(case.op, (&mut vector).into())
            .unwrap();
        assert_eq!(own, chunk_range(vector.len(), case.world_size, rank));
        assert_eq!(bits(&vector[own.clone()]), bits(&expected[own]), "{case:?}");
    });
}

fn reduce_is_within_the_bound(case: &Case) {
    let inputs = case.inputs();
    let root = case.seed as usize % case.world_size;
    let options = case.options(Algorithm::Auto, Order::Fast);
    let results = on_ranks(case.world_size, options, |mut endpoint| {
        let mut vector = inputs[endpoint.rank()].clone();
        endpoint
            .reduce(case.op, root, &mut split(&mut vector, &case.lengths))
            .unwrap();
        vector
    });
    for (index, result) in results[root].iter().enumerate() {
        let column: Vec<f64> = inputs.iter().map(|input| input[index].into()).collect();
        let (exact, bound) = case.bound(Roundings::of_tree(case.world_size), &column);
        assert!(
            (f64::from(*result) - exact).abs() <= bound,
            "{case:?}: {result} for {exact}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn every_algorithm_is_within_its_bound(case in cases()) {
        within_limit(move || equal_on_all_ranks_and_within_the_bound(&case));
    }

    #[test]
    fn canonical_order_is_the_same_bits(case in cases()) {
        within_limit(move || canonical_is_the_same_bits_everywhere(&case));
    }

    #[test]
    fn reduce_keeps_the_bound_of_the_tree(case in cases()) {
        within_limit(move || reduce_is_within_the_bound(&case));
    }
}

/// Bytes that all ranks send in one call.
fn bytes_sent(
    options: &GroupOptions,
    call: impl Fn(&mut dyn Communicator) -> Result<()> + Sync,
) -> usize {
    let sent = AtomicUsize::new(0);
    on_threads(in_process_transports(3, options), |inner| {
        let count = |bytes| {
            sent.fetch_add(bytes, Ordering::Relaxed);
        };
        let transport = BeforeSend { inner, call: count };
        let mut endpoint = TransportCommunicator::new(transport, options.clone()).unwrap();
        call(&mut endpoint).unwrap();
    });
    sent.load(Ordering::Relaxed)
}

type Call = fn(&mut dyn Communicator) -> Result<()>;

/// Half the bytes for reductions of `f32`, and the same for everything else.
#[test]
fn only_reductions_of_f32_are_compressed() {
    let compressed: [Call; 3] = [
        |c| c.all_reduce(ReduceOp::Sum, &mut [(&mut vec![1.0_f32; 999]).into()]),
        |c| {
            c.reduce_scatter(ReduceOp::Sum, (&mut vec![1.0_f32; 999]).into())
                .map(drop)
        },
        |c| c.reduce(ReduceOp::Sum, 1, &mut [(&mut vec![1.0_f32; 999]).into()]),
    ];
    let as_they_are: [Call; 6] = [
        |c| c.all_reduce(ReduceOp::Sum, &mut [(&mut vec![1.0_f64; 999]).into()]),
        |c| c.all_reduce(ReduceOp::Sum, &mut [(&mut vec![1_i32; 999]).into()]),
        |c| c.all_reduce(ReduceOp::Sum, &mut [(&mut vec![f16::ONE; 999]).into()]),
        |c| c.broadcast(0, &mut [(&mut vec![1.0_f32; 999]).into()]),
        |c| c.all_gather(&[1.0_f32; 99]).map(drop),
        |c| match c.rank() {
            0 => c.send(1, (&mut vec![1.0_f32; 999]).into()),
            1 => c.recv(0, (&mut vec![1.0_f32; 999]).into()),
            _ => Ok(()),
        },
    ];
    for algorithm in [Algorithm::Ring, Algorithm::DirectExchange] {
        let plain = GroupOptions::default().algorithm(algorithm);
        let wire = plain.clone().wire(WireType::Bf16);
        for call in compressed {
            assert_eq!(
                2 * bytes_sent(&wire, call),
                bytes_sent(&plain, call),
                "{algorithm}"
            );
        }
        for call in as_they_are {
            assert_eq!(
                bytes_sent(&wire, call),
                bytes_sent(&plain, call),
                "{algorithm}"
            );
        }
    }
}

#[test]
fn data_that_only_moves_keeps_its_bits() {
    within_limit(|| {
        let options = GroupOptions::default().wire(WireType::Bf16);
        let value = 1.000_123_4_f32;
        on_ranks(2, options, |mut endpoint| {
            let mut vector = [value; 3];
            endpoint
                .broadcast(0, &mut [(&mut vector[..]).into()])
                .unwrap();
            assert_eq!(vector, [value; 3]);
            assert_eq!(endpoint.all_gather(&vector).unwrap().values(), [value; 6]);
            let mut sum = [1.0 + f64::EPSILON];
            endpoint
                .all_reduce(ReduceOp::Max, &mut [(&mut sum[..]).into()])
                .unwrap();
            assert_eq!(sum, [1.0 + f64::EPSILON]);
        });
    });
}

#[test]
fn ranks_that_differ_in_the_wire_type_are_told_so() {
    within_limit(|| {
        let plain = GroupOptions::default().algorithm(Algorithm::Ring);
        let transports = in_process_transports(3, &plain);
        let threads: Vec<_> = transports
            .into_iter()
            .map(|transport| {
                let wire = (transport.rank() == 1).then_some(WireType::F16);
                let options = plain.clone().wire(wire);
                let mut endpoint = TransportCommunicator::new(transport, options).unwrap();
                std::thread::spawn(move || {
                    // Does not concern it.
                    endpoint
                        .broadcast(0, &mut [(&mut [1.0_f32; 4][..]).into()])
                        .unwrap();
                    endpoint.all_reduce(ReduceOp::Sum, &mut [(&mut [1.0_f32; 4][..]).into()])
                })
            })
            .collect();
        for thread in threads {
            let error = thread.join().unwrap().unwrap_err();
            let expected = "wire type is none on one and f16 on the other";
            assert!(
                matches!(&error, CollectiveError::Mismatch { rank_a: 0, rank_b: 1, what, .. }
                    if what == expected),
                "{error:?}"
            );
        }
    });
}

#[test]
fn an_algorithm_that_sends_nothing_refuses_a_wire_type() {
    let direct = GroupOptions::default()
        .algorithm(Algorithm::Direct)
        .wire(WireType::Bf16);
    let error = in_process(2, direct).err().unwrap();
    assert!(matches!(error, CollectiveError::InvalidOption { .. }));
    assert!(error.to_string().contains("wire type bf16"), "{error}");

    let auto = in_process(2, GroupOptions::default().wire(WireType::F16)).unwrap();
    let text = auto[0].describe().to_string();
    assert!(
        text.contains("through f16") && !text.contains("direct all-reduce"),
        "{text}"
    );
}

/// Values that f16 cannot hold, and NaN: the same on all ranks.
#[test]
fn overflow_and_nan_are_the_same_everywhere() {
    within_limit(|| {
        for algorithm in [Algorithm::Ring, Algorithm::DirectExchange] {
            let options = GroupOptions::default()
                .algorithm(algorithm)
                .wire(WireType::F16);
            let results = on_ranks(3, options, |mut endpoint| {
                let mut vector = [1e6_f32, f32::NAN, -1e30, f32::NEG_INFINITY, 1.0];
                endpoint
                    .all_reduce(ReduceOp::Sum, &mut [(&mut vector[..]).into()])
                    .unwrap();
                vector
            });
            for result in &results {
                assert_eq!(bits(result), bits(&results[0]), "{algorithm}");
                assert!(result[1].is_nan());
                let infinity = f32::INFINITY;
                assert_eq!(
                    (result[0], result[2], result[4]),
                    (infinity, -infinity, 3.0)
                );
            }
        }
    });
}
