use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn a_window_becomes_as_long_as_it_is_to_be(
        batch_us in 1_u64..100_000_000,
        every_us in 1_u64..100_000_000,
    ) {
        let batch = Duration::from_micros(batch_us);
        let every = Duration::from_micros(every_us);
        let mut batches = FIRST_BATCHES;
        for _window in 0..3 {
            let longest = batch * u32::try_from(batches).unwrap();
            batches = next_window(batches, longest, every);
            prop_assert!((1..=BATCHES_MAX).contains(&batches));
        }
        let length = batch.as_secs_f64() * batches as f64;
        let is_right = (length - every.as_secs_f64()).abs() <= 0.51 * batch.as_secs_f64();
        prop_assert!(is_right || [1, BATCHES_MAX].contains(&batches), "{batches}");
    }

    #[test]
    fn nothing_but_one_batch_is_as_long_as_a_window_is_to_be(longest in 0_u64..u64::MAX) {
        let next = next_window(8, Duration::from_micros(longest), EVERY);
        prop_assert!((1..=BATCHES_MAX).contains(&next));
    }
}

#[test]
fn exchanges_are_no_part_of_what_they_happen_in() {
    let mut clock = Clock::new();
    clock.begin(7);
    // More than can have passed by any clock.
    clock.lap(Lap::Step, Duration::from_secs(1000));
    let exchanged = Duration::from_secs(1000);
    clock.pause(exchanged);
    clock.lap(Lap::Data, exchanged);
    clock.lap(Lap::Other, exchanged);
    assert_eq!(clock.batch_done(2), None);
    let window = clock.batch_done(2).unwrap();
    assert_eq!((window.first_step, window.batches), (7, 2));
    assert_eq!(window.compute, Duration::ZERO);
    let whole = window.data + window.other + window.exchange;
    assert!(window.exchange > Duration::ZERO && whole < Duration::from_secs(1000));
}
