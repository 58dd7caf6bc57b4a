use proptest::prelude::*;

use super::*;

/// The seconds that a transfer takes.
const TRANSFER: f64 = 0.02;

/// A window of a synchronous job in which the ranks compute, and wait for data, for these seconds.
fn window(own: &[(f64, f64)]) -> Vec<StepTimes> {
    let longest = own.iter().map(|(c, d)| c + d).fold(0.0, f64::max);
    let times = own.iter().map(|&(compute, data)| StepTimes {
        compute,
        data,
        exchange: longest - compute - data + TRANSFER,
        other: 0.001,
    });
    times.collect()
}

/// Random numbers (Steele et al., SplitMix).
struct Random(u64);

impl Random {
    /// From 0 to 1.
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// By the method of Box and Muller.
    fn lognormal(&mut self, sigma: f64) -> f64 {
        let (u, v) = (self.uniform(), self.uniform());
        let normal = (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos();
        (sigma * normal).exp()
    }
}

/// The changes in windows of ten steps, each with the number of its window.
fn changes(ranks: usize, windows: impl IntoIterator<Item = Vec<StepTimes>>) -> Vec<(u64, Change)> {
    let mut watched = Stragglers::new(ranks);
    let mut all = Vec::new();
    for (number, times) in (0..).zip(windows) {
        let found = watched.window(10 * number, &times);
        all.extend(found.into_iter().map(|change| (number, change)));
    }
    all
}

#[test]
fn noise_as_of_real_machines_gives_no_alarm_in_10_000_windows() {
    for ranks in [2, 3, 4, 8, 64] {
        let mut random = Random(ranks as u64);
        let noise = (0..10_000).map(|_| {
            let own = (0..ranks).map(|_| (0.1 * random.lognormal(0.05), 1e-4));
            window(&own.collect::<Vec<_>>())
        });
        assert_eq!(changes(ranks, noise), [], "{ranks} ranks");
    }
}

proptest! {
    #[test]
    fn a_rank_that_is_slow_for_long_enough_is_named_once_and_recovers(
        ranks in 3_usize..20,
        slow in 0_usize..20,
        factor in 1.4_f64..10.0,
        length in 0_u64..12,
        begin in 4_u64..20,
        seed: u64,
    ) {
        let slow = slow % ranks;
        let mut random = Random(seed);
        let windows = (0..begin + length + 8).map(|number| {
            let is_slow = (begin..begin + length).contains(&number);
            let own = (0..ranks).map(|rank| {
                let factor = if is_slow && rank == slow { factor } else { 1.0 };
                // Far below the distance of the factors from the limits.
                (0.1 * factor * random.lognormal(0.01), 0.0)
            });
            window(&own.collect::<Vec<_>>())
        });
        let found = changes(ranks, windows);
        let long = u64::from(WINDOWS);
        if length < long {
            prop_assert_eq!(found, []);
            return Ok(());
        }
        let [(at, Change::Slow(first)), (later, Change::Recovered(last))] = found[..] else {
            panic!("{found:?}");
        };
        prop_assert_eq!((at, later), (begin + long - 1, begin + length + long - 1));
        prop_assert_eq!((first.rank, first.cause), (slow, Cause::Compute));
        prop_assert_eq!((first.since_step, first.until_step), (10 * begin, None));
        prop_assert_eq!(last.until_step, Some(10 * (begin + length)));
        for ratio in [first.ratio(), first.past_ratio, last.ratio()] {
            let ratio = ratio.unwrap();
            prop_assert!((ratio / factor - 1.0).abs() < 0.06, "{ratio} for {factor}");
        }
    }

    #[test]
    fn ranks_that_are_all_equally_slow_are_not_named(
        ranks in 2_usize..20,
        factor in 1.0_f64..10.0,
        seed: u64,
    ) {
        let mut random = Random(seed);
        let windows = (0..40).map(|number| {
            let factor = if number < 20 { 1.0 } else { factor };
            let own = (0..ranks).map(|_| (0.1 * factor * random.lognormal(0.03), 0.0));
            window(&own.collect::<Vec<_>>())
        });
        prop_assert_eq!(changes(ranks, windows), []);
    }

    #[test]
    fn a_rank_that_alternates_is_not_named_again_and_again(
        ranks in 2_usize..20,
        factor in 1.4_f64..10.0,
        period in 1_u64..3,
    ) {
        let windows = (0..200).map(|number| {
            let is_slow = (number / period) % 2 == 0;
            let own = (0..ranks).map(|rank| match (is_slow, rank) {
                (true, 0) => (0.1 * factor, 0.0),
                _ => (0.1, 0.0),
            });
            window(&own.collect::<Vec<_>>())
        });
        prop_assert_eq!(changes(ranks, windows), []);
    }

    #[test]
    fn up_to_half_of_the_ranks_can_be_slow(ranks in 4_usize..20, slow in 1_usize..10) {
        let slow = slow.min(ranks / 2);
        let windows = (0..3).map(|_| {
            let own = (0..ranks).map(|rank| (if rank < slow { 0.18 } else { 0.1 }, 0.01));
            window(&own.collect::<Vec<_>>())
        });
        let found = changes(ranks, windows);
        let named: Vec<usize> = found
            .iter()
            .map(|(_, change)| match change {
                Change::Slow(slow) => slow.rank,
                Change::Recovered(_) => usize::MAX,
            })
            .collect();
        prop_assert_eq!(named, (0..slow).collect::<Vec<_>>());
    }

    #[test]
    fn any_numbers_are_taken(
        numbers in prop::collection::vec(prop::collection::vec(any::<f64>(), 12), 1..20),
    ) {
        let mut watched = Stragglers::new(3);
        for (step, numbers) in (0..).zip(&numbers) {
            let times: Vec<StepTimes> = numbers
                .chunks(4)
                .map(|it| StepTimes {
                    compute: it[0],
                    data: it[1],
                    exchange: it[2],
                    other: it[3],
                })
                .collect();
            watched.window(step, &times);
            for standing in watched.standings() {
                prop_assert!(standing.ratio >= 0.0 && !standing.ratio.is_nan());
            }
            for slow in watched.slow() {
                prop_assert!(!slow.on("b").to_string().is_empty());
            }
        }
    }

    #[test]
    fn shares_are_parts_of_a_step(
        own in prop::collection::vec((0.0_f64..1.0, 0.0_f64..1.0), 1..9),
    ) {
        for shares in shares(&window(&own)) {
            let Shares { compute, data, exchange, waiting, other } = shares;
            let parts = [compute, data, exchange, waiting, other];
            prop_assert!(parts.iter().all(|part| (0.0..=1.0).contains(part)), "{shares:?}");
            prop_assert!((parts.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{shares:?}");
        }
    }
}

/// What is said of the ranks after windows like this.
fn said(own: &[(f64, f64)]) -> Vec<String> {
    let windows = (0..3).map(|_| window(own));
    let found = changes(own.len(), windows).into_iter();
    let texts = found.map(|(_, change)| match change {
        Change::Slow(slow) | Change::Recovered(slow) => slow.on("b").to_string(),
    });
    texts.collect()
}

#[test]
fn a_slow_rank_of_several_is_compared_with_the_median() {
    let mut own = [(0.1, 0.002); 8];
    own[5].0 = 0.18;
    assert_eq!(
        said(&own),
        ["rank 5 on host b computes 1.8 x as long as the median since step 0"]
    );
}

#[test]
fn of_two_ranks_the_slower_one_is_compared_with_the_other() {
    assert_eq!(
        said(&[(0.1, 0.0), (0.25, 0.0)]),
        ["rank 1 on host b computes 2.5 x as long as rank 0 since step 0"]
    );
    assert_eq!(
        said(&[(0.25, 0.0), (0.1, 0.0)]),
        ["rank 0 on host b computes 2.5 x as long as rank 1 since step 0"]
    );
}

#[test]
fn two_of_eight_can_be_slow_for_different_reasons() {
    let mut own = [(0.1, 0.002); 8];
    own[2].0 = 0.2;
    own[6].1 = 0.09;
    assert_eq!(
        said(&own),
        [
            "rank 2 on host b computes 2.0 x as long as the median since step 0",
            "rank 6 on host b waits for data 90.0 ms a step, the median 2.00 ms, since step 0",
        ]
    );
}

/// What is slow does not matter where it takes hardly any of the step.
#[test]
fn a_rank_that_holds_up_no_other_is_not_named() {
    let mut own = [(0.001, 0.0); 4];
    own[1].0 = 0.0018;
    let mut windows = vec![window(&own); 20];
    for times in windows.iter_mut().flatten() {
        times.exchange += 0.1;
    }
    assert_eq!(changes(4, windows), []);
}

#[test]
fn a_callback_of_the_chief_does_not_make_it_slow() {
    let mut windows = vec![window(&[(0.1, 0.0); 4]); 20];
    for times in &mut windows {
        times[0].other += 1.0;
        times[1..]
            .iter_mut()
            .for_each(|times| times.exchange += 1.0);
    }
    assert_eq!(changes(4, windows), []);
}

#[test]
fn the_report_has_what_has_passed_and_what_is() {
    let mut watched = Stragglers::new(2);
    for number in 0..20_u64 {
        let own = match number {
            3..8 => [(0.3, 0.0), (0.1, 0.0)],
            13.. => [(0.1, 0.0), (0.1, 0.4)],
            _ => [(0.1, 0.0); 2],
        };
        watched.window(number, &window(&own));
    }
    let lines = watched
        .slow()
        .into_iter()
        .map(|slow| slow.on("").to_string());
    assert_eq!(
        lines.collect::<Vec<_>>(),
        [
            "rank 0 computed 3.0 x as long as rank 1 from step 3 to step 8",
            "rank 1 waits for data 400 ms a step, rank 0 0.00 us, since step 13",
        ]
    );
    let shares = watched.shares().unwrap();
    assert!(shares[0].waiting > shares[1].waiting && shares[1].data > shares[0].data);
}
