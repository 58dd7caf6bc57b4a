//! Every algorithm between threads against a plain loop, over random world sizes, layouts, types
//! and segments.

use distribute_collectives::{
    Communicator, CommunicatorExt, GroupOptions, Order, ReduceOp, reduce,
};
use half::{bf16, f16};

use crate::common::{ALGORITHMS, Carrier, Random, TestElement, bits, on_ranks, within_limit};
use crate::properties;

properties::hold_over!(Carrier::Threads, 200 cases);

/// The order by hand: a sum from rank 0 on would be 1.
#[test]
fn canonical_order_is_a_tree() {
    let values = [1e8_f32, 1.0, -1e8, 1.0];
    for algorithm in ALGORITHMS {
        let options = GroupOptions::default()
            .algorithm(algorithm)
            .order(Order::Canonical);
        let results = on_ranks(4, options, |mut endpoint| {
            let mut vector = [values[endpoint.rank()]; 5];
            endpoint
                .all_reduce(ReduceOp::Sum, &mut [(&mut vector[..]).into()])
                .unwrap();
            vector
        });
        assert_eq!(results, [[(1e8_f32 + 1.0) + (-1e8 + 1.0); 5]; 4]);
        assert_eq!(results[0][0], 0.0);
    }
}

#[test]
fn halving_and_doubling_follows_the_tree_for_any_number_of_ranks() {
    within_limit(|| {
        let mut random = Random(45);
        for ranks in 1..=64 {
            properties::check_halving_doubling::<f32>(ranks, random.next());
            properties::check_halving_doubling::<f64>(ranks, random.next());
            properties::check_halving_doubling::<f16>(ranks, random.next());
            properties::check_halving_doubling::<bf16>(ranks, random.next());
            properties::check_halving_doubling::<i32>(ranks, random.next());
            properties::check_halving_doubling::<i64>(ranks, random.next());
            properties::check_halving_doubling::<u8>(ranks, random.next());
        }
    });
}

/// Every kernel has the order, for any number of ranks.
#[test]
fn every_kernel_has_the_bits_of_the_definition() {
    fn check<T: TestElement>() {
        let mut random = Random(3);
        for ranks in 1..=17 {
            let mut vector = |_| {
                (0..1100)
                    .map(|_| T::from_f64(random.uniform() * 50.0))
                    .collect()
            };
            let inputs: Vec<Vec<T>> = (0..ranks).map(&mut vector).collect();
            for op in ReduceOp::ALL {
                let expected = bits(&properties::tree(op, &inputs, ranks));
                let slices: Vec<&[T]> = inputs.iter().map(Vec::as_slice).collect();
                let mut output = inputs[0].clone();
                reduce::reduce_into(op, &slices, &mut output);
                assert_eq!(bits(&output), expected, "{op} of {ranks} ranks");
                let mut all = inputs.clone();
                let mut slices: Vec<&mut [T]> = all.iter_mut().map(Vec::as_mut_slice).collect();
                reduce::reduce_all(op, &mut slices);
                for result in all {
                    assert_eq!(bits(&result), expected, "{op} of {ranks} ranks");
                }
            }
        }
    }
    check::<f32>();
    check::<f64>();
    check::<f16>();
    check::<bf16>();
    check::<i32>();
}

/// Zeros of both signs, infinities and NaNs, which the ranks have in different orders.
fn special<T: TestElement>(rank: usize) -> Vec<T> {
    let values = [
        0.0,
        -0.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        -f64::NAN,
        1.5,
    ];
    let mut state = rank;
    let mut next = || {
        // Each pair of values meets in each order, whatever two ranks are looked at.
        state = (state * 5 + 3 * rank + 1) % (7 * 11);
        T::from_f64(values[state % 7])
    };
    (0..231).map(|_| next()).collect()
}

#[test]
fn special_values_are_the_same_bits_on_all_ranks() {
    fn check<T: TestElement>() {
        for (ranks, op) in (2..=5).flat_map(|ranks| ReduceOp::ALL.map(|op| (ranks, op))) {
            let inputs: Vec<Vec<T>> = (0..ranks).map(special).collect();
            let slices: Vec<&[T]> = inputs.iter().map(Vec::as_slice).collect();
            let mut expected = inputs[0].clone();
            reduce::reduce_into(op, &slices, &mut expected);
            for algorithm in ALGORITHMS {
                let options = GroupOptions::default()
                    .algorithm(algorithm)
                    .order(Order::Canonical)
                    .segment_bytes(64);
                let results = on_ranks(ranks, options, |mut endpoint| {
                    let mut vector = inputs[endpoint.rank()].clone();
                    let buffers = &mut [T::buffer(&mut vector)];
                    endpoint.all_reduce(op, buffers).unwrap();
                    vector
                });
                for result in results {
                    let (found, expected) = (bits(&result), bits(&expected));
                    assert_eq!(found, expected, "{op} of {ranks} ranks, {algorithm}");
                }
            }
        }
    }
    check::<f32>();
    check::<f64>();
    check::<f16>();
    check::<bf16>();
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

/// The largest number asks for one segment.
#[test]
fn segments_may_be_as_large_as_a_number() {
    for (algorithm, order) in ALGORITHMS
        .into_iter()
        .flat_map(|algorithm| [(algorithm, Order::Fast), (algorithm, Order::Canonical)])
    {
        for (world_size, segment_bytes) in [(3, usize::MAX), (4, usize::MAX), (4, usize::MAX / 2)] {
            let options = GroupOptions::default()
                .algorithm(algorithm)
                .order(order)
                .segment_bytes(segment_bytes);
            let results = on_ranks(world_size, options, |mut endpoint| {
                let rank = endpoint.rank();
                let mut vector: Vec<u8> = (0..50).map(|index| index + rank as u8).collect();
                let buffers = &mut [(&mut vector[..]).into()];
                endpoint.all_reduce(ReduceOp::Sum, buffers).unwrap();
                endpoint
                    .broadcast(1, &mut [(&mut vector[..]).into()])
                    .unwrap();
                let gathered = endpoint.all_gather(&vector[..rank]).unwrap();
                assert_eq!(gathered.rank(2), &vector[..2]);
                match rank {
                    0 => endpoint.send(1, (&mut vector[..]).into()).unwrap(),
                    1 => endpoint.recv(0, (&mut vector[..]).into()).unwrap(),
                    _ => {}
                }
                vector
            });
            let ranks = (world_size * (world_size - 1) / 2) as u8;
            let sum = |index: u8| index * world_size as u8 + ranks;
            let expected: Vec<u8> = (0..50).map(sum).collect();
            for result in results {
                assert_eq!(result, expected, "{algorithm} {order} {world_size}");
            }
        }
    }
}
