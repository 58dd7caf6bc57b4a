//! Random chains of transformations: each keeps the contract, and gives the same elements whatever
//! the number of threads.

use distribute_pipeline::stream::{Buckets, choose_from};
use distribute_pipeline::{AUTOTUNE, Array, Source, Stream, contract, items, range};
use proptest::prelude::*;

type Chain = Box<dyn Stream<Item = i64>>;

/// A stage by its number, with two small arguments.
fn stage(input: Chain, (stage, one, two): (u8, u64, u64), threads: i64) -> Chain {
    let (one, two) = (one + 1, two + 1);
    match stage {
        0 => Box::new(input.map(move |x| x + one as i64)),
        1 => Box::new(input.filter(move |x| x.rem_euclid(one as i64 + 1) > 0)),
        2 => Box::new(input.shuffle(one * 3, two)),
        3 => Box::new(input.take(5 * one)),
        4 => Box::new(input.skip(one)),
        5 => Box::new(input.shard(one, (two - 1) % one)),
        6 => Box::new(input.repeat(one)),
        7 => Box::new(input.batch(one).drop_remainder(two % 2 == 0).unbatch()),
        8 => Box::new(input.batch(one).rebatch(two).unbatch()),
        9 => Box::new(input.window(one).shift(two).stride(2).unbatch()),
        10 => Box::new(
            input
                .group_by_window(|x| x % 3, move |_| one)
                .flat_map(|(_, group)| items(group).stream()),
        ),
        11 => {
            let inner = |x: i64| range(x..x + x.rem_euclid(4)).stream();
            Box::new(input.interleave(inner).cycle_length(one).block_length(two))
        }
        12 => Box::new(input.unique()),
        13 => Box::new(input.scan(0, |sum: &mut i64, x| {
            *sum = (*sum + x) % 97;
            *sum
        })),
        14 => Box::new(input.cache()),
        15 => Box::new(input.prefetch([one as i64, AUTOTUNE][two as usize % 2])),
        16 => Box::new(input.map(|x| x % 31).num_parallel_calls(threads)),
        17 => Box::new(input.concatenate(range(0..one as i64).stream())),
        18 => Box::new(input.zip(range(0..20).stream()).map(|(x, y)| x * y % 53)),
        19 => Box::new(input.enumerate(one).map(|(at, x)| at as i64 - x)),
        20 => {
            let streams: Vec<Chain> = vec![input, Box::new(range(50..60).stream())];
            let choices = items(vec![0, 1, 0, 0, 1]).repeat(4).stream();
            Box::new(choose_from(streams, choices).stop_on_empty(two % 2 == 0))
        }
        21 => Box::new(input.map_with_rng(one, |x, rng| {
            use rand_chacha::rand_core::Rng;
            x ^ i64::from(rng.next_u32() % 8)
        })),
        22 => Box::new(
            input
                .map(|x| vec![x; x.rem_euclid(4) as usize])
                .pack(4, -1)
                .map(sum_of),
        ),
        _ => {
            let buckets = Buckets::new([2], [one, two]);
            let lists = input.map(|x| vec![x; x.rem_euclid(4) as usize]);
            Box::new(lists.bucket_by_sequence_length(buckets, 0).map(sum))
        }
    }
}

fn sum(array: Array<i64>) -> i64 {
    array.values().iter().sum::<i64>() % 1_000
}

fn sum_of(row: distribute_pipeline::stream::Packed<i64>) -> i64 {
    row.values.iter().sum::<i64>() % 1_000
}

fn chain(stages: &[(u8, u64, u64)], threads: i64) -> Chain {
    let source: Chain = Box::new(range(0..13).shuffle(1).stream());
    let stages = stages.iter();
    // What is large is cut, so that the checks end soon.
    Box::new(
        stages
            .fold(source, |input, one| stage(input, *one, threads))
            .take(60),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn keep_the_contract_with_any_number_of_threads(
        stages in prop::collection::vec((0..24_u8, 0..4_u64, 0..4_u64), 0..5),
    ) {
        contract::check_stream(|| chain(&stages, 1)).unwrap();
        let elements = |threads| -> Vec<i64> {
            let mut chain = chain(&stages, threads);
            chain.elements().map(Result::unwrap).collect()
        };
        prop_assert_eq!(elements(1), elements(4));
    }
}
