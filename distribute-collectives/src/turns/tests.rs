//! What is computed once for all replicas of a device.

use super::*;

#[test]
fn nothing_is_kept_for_a_replica_whose_own_call_has_failed() {
    let turns = Turns::new(vec![0, 0]).unwrap();
    let [one, other] = [0, 1].map(|replica| Turn::new(&turns, replica));
    let kept = || unpoisoned(turns.queues[0].lock()).results.list.len();
    turns.begin_run();
    assert_eq!(one.once((), || Err::<u8, _>("failed")), Err("failed"));
    assert_eq!(other.once((), || Ok::<_, &str>(1)).as_deref(), Ok(&1));
    assert_eq!(kept(), 0);
    assert_eq!(one.once((), || Ok::<_, &str>(2)).as_deref(), Ok(&2));
    assert_eq!(kept(), 1);
    assert_eq!(other.once((), || Ok::<_, &str>(3)).as_deref(), Ok(&2));
    assert_eq!(kept(), 0);
    for turn in [&one, &other] {
        assert_eq!(turn.once((), || Err::<u8, _>("failed")), Err("failed"));
    }
    assert_eq!(other.once((), || Ok::<_, &str>(4)).as_deref(), Ok(&4));
    assert_eq!(one.once((), || Ok::<_, &str>(5)).as_deref(), Ok(&4));
    assert_eq!(kept(), 0);
}
