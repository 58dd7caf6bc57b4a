//! Which state the workers go on with, of those that they hold.

use std::collections::BTreeSet;

use super::record::{Held, Identity};

/// The newest state that all workers hold, leaving out workers that hold none (they are new), and
/// of which nothing is missing that `replicas` replicas have as their own. The same on all workers.
pub(super) fn choose(all: &[Vec<Held>], replicas: usize) -> Option<Identity> {
    let mut holders = all.iter().filter(|held| !held.is_empty());
    let first = holders.next()?.iter().map(|held| held.identity);
    let mut common: BTreeSet<Identity> = first.collect();
    for held in holders {
        common.retain(|identity| holds(held, identity));
    }
    common.retain(|identity| is_complete(all, identity, replicas));
    common.pop_last()
}

fn holds(held: &[Held], identity: &Identity) -> bool {
    held.iter().any(|held| held.identity == *identity)
}

/// Whether what each replica has as its own is held by some worker. Other numbers of replicas go on
/// with the mean of running statistics, but with all gradients of micro-batches.
fn is_complete(all: &[Vec<Held>], identity: &Identity, replicas: usize) -> bool {
    let held = all.iter().flatten();
    let held: Vec<&Held> = held.filter(|held| held.identity == *identity).collect();
    let there: BTreeSet<usize> = held
        .iter()
        .flat_map(|held| &held.replicas)
        .copied()
        .collect();
    let is_waiting = held.iter().any(|held| held.is_waiting);
    let is_needed = is_waiting || (identity.replicas == replicas && !there.is_empty());
    !is_needed || (0..identity.replicas).all(|replica| there.contains(&replica))
}

/// The first worker that holds the state.
pub(super) fn first_holder(all: &[Vec<Held>], identity: &Identity) -> Option<usize> {
    all.iter().position(|held| holds(held, identity))
}

/// Whether a worker does not hold the state.
pub(super) fn is_missing(all: &[Vec<Held>], identity: &Identity) -> bool {
    !all.iter().all(|held| holds(held, identity))
}

/// The replicas whose own tensors a worker gives to the others: it is the first one that
/// holds them.
pub(super) fn given_by(all: &[Vec<Held>], worker: usize, identity: &Identity) -> BTreeSet<usize> {
    let of = |worker: usize| {
        let held = all[worker].iter().find(|held| held.identity == *identity);
        held.map(|held| held.replicas.clone()).unwrap_or_default()
    };
    let before: BTreeSet<usize> = (0..worker).flat_map(of).collect();
    of(worker).difference(&before).copied().collect()
}

/// How far on the worker should be that holds what another one's replicas have as their own: the
/// least distance at which the fewest pairs have the same launcher, and so would be lost together.
pub(super) fn distance(launchers: &[String]) -> usize {
    let count = launchers.len();
    let together = |distance: &usize| {
        let pairs = (0..count).map(|worker| (worker, (worker + distance) % count));
        let same = pairs.filter(|(one, other)| launchers[*one] == launchers[*other]);
        same.count()
    };
    (1..count).min_by_key(together).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn held(step: u64, replicas: impl IntoIterator<Item = usize>) -> Held {
        let identity = Identity {
            step,
            epoch: 0,
            batches: step,
            replicas: 3,
            checksum: step as u32,
        };
        Held {
            identity,
            replicas: replicas.into_iter().collect(),
            is_waiting: false,
        }
    }

    fn chosen(all: &[Vec<Held>]) -> Option<u64> {
        choose(all, 3).map(|identity| identity.step)
    }

    #[test]
    fn no_worker_goes_on_with_a_step_that_one_of_them_has_not_finished() {
        let all = [
            vec![held(7, []), held(8, [])],
            vec![held(6, []), held(7, [])],
        ];
        assert_eq!(chosen(&all), Some(7));
        assert_eq!(chosen(&[vec![held(8, [])], vec![held(7, [])]]), None);
    }

    #[test]
    fn who_holds_nothing_is_new_and_changes_nothing() {
        assert_eq!(chosen(&[vec![], vec![held(7, [])], vec![]]), Some(7));
        assert_eq!(chosen(&[vec![], vec![]]), None);
    }

    #[test]
    fn the_neighbour_of_a_lost_worker_stands_in_for_it() {
        let (first, second) = (held(7, [0, 2]), held(7, [1, 0]));
        assert_eq!(chosen(&[vec![first.clone()], vec![second]]), Some(7));
        assert_eq!(chosen(&[vec![first], vec![]]), None, "replica 1 is lost");
    }

    #[test]
    fn states_of_one_step_that_differ_are_not_one() {
        let mut other = held(7, []);
        other.identity.checksum += 1;
        assert_eq!(chosen(&[vec![held(7, [])], vec![other]]), None);
    }

    #[test]
    fn the_copy_is_on_another_host() {
        let distance = |hosts: &str| {
            let launchers: Vec<String> = hosts.chars().map(String::from).collect();
            distance(&launchers)
        };
        assert_eq!(distance("abcd"), 1);
        assert_eq!(distance("aabbcc"), 2);
        assert_eq!(distance("aaabbb"), 3);
        assert_eq!(distance("aaab"), 1, "not all of them can be");
        assert_eq!(distance("aaaa"), 1);
        assert_eq!(distance("a"), 1);
    }

    proptest! {
        /// Each worker is at most a step ahead of the others, and may have lost what it wrote last.
        #[test]
        fn survivors_repeat_one_step_at_most(
            step in 2_u64..100,
            ahead in prop::collection::vec((any::<bool>(), any::<bool>()), 1..6),
        ) {
            let all: Vec<Vec<Held>> = ahead.iter().map(|(ahead, torn)| {
                let last = step + u64::from(*ahead);
                // The one who is ahead may be writing the step after that one, never two.
                let kept = match (ahead, torn) {
                    (true, false) => vec![step, last],
                    (true, true) | (false, true) => vec![step],
                    (false, false) => vec![step - 1, step],
                };
                kept.into_iter().map(|step| held(step, [])).collect()
            }).collect();
            let ended = chosen(&all);
            let all_ahead = ahead.iter().all(|(ahead, torn)| *ahead && !torn);
            prop_assert_eq!(ended, Some(step + u64::from(all_ahead)));
        }

        #[test]
        fn each_replicas_statistics_are_given_once(
            layout in prop::collection::vec(prop::collection::btree_set(0_usize..8, 0..8), 1..6),
        ) {
            let all: Vec<Vec<Held>> = layout.iter().map(|own| vec![held(5, own.clone())]).collect();
            let identity = all[0][0].identity;
            let mut given = Vec::new();
            for worker in 0..all.len() {
                given.extend(given_by(&all, worker, &identity));
            }
            given.sort_unstable();
            let there: BTreeSet<usize> = layout.into_iter().flatten().collect();
            prop_assert_eq!(given, there.into_iter().collect::<Vec<_>>());
        }
    }
}
