//! Bounded staleness by waiting.
//!
//! The server counts pushes. A closure that has pulled weights and not pushed its gradient yet is
//! *under way*; it was pulled at some count and may be overtaken by at most `bound` pushes. Let
//! the closures under way be ordered by their counts: if they push in this order, number `i` is
//! overtaken by those before it, so the bound can be kept for all of them exactly if
//! `now + i - pulled <= bound` for every `i`. A pull or a push that would make this false waits.
//! The oldest closure never waits to push, so waiting ends as long as it pushes, or is abandoned.
//!
//! A push is let in before its gradient is read, so that one which waits holds no memory. From then
//! on it is *due*: it comes in any order with the others that are due, and the bound has to hold
//! for all of these orders. With `d` pushes due, one that is due itself is overtaken by `d - 1` at
//! most, and number `i` of the others by `d + i`.

use std::collections::BTreeMap;

/// Pushes so far, and the closures under way.
#[derive(Debug, Default)]
pub(super) struct StalenessClock {
    now: u64,
    /// The count at the pull, by closure.
    under_way: BTreeMap<u64, u64>,
    /// The pushes that were let in and are not applied yet, by closure.
    due: BTreeMap<u64, u64>,
}

impl StalenessClock {
    /// How many pushes are due.
    fn all_due(&self) -> u64 {
        self.due.values().sum()
    }

    /// Whether the bound is kept for all under way, in whatever order the due ones push.
    fn is_feasible(&self, bound: u64) -> bool {
        let due = self.all_due();
        // Nothing was pulled later than now.
        let lag = |pulled: u64| self.now - pulled;
        let mut others = Vec::new();
        for (closure, pulled) in &self.under_way {
            match self.due.get(closure) {
                None => others.push(*pulled),
                Some(own) if lag(*pulled) + due - own > bound => return false,
                Some(_) => {}
            }
        }
        others.sort_unstable();
        let kept = |(index, pulled): (usize, &u64)| lag(*pulled) + due + index as u64 <= bound;
        others.iter().enumerate().all(kept)
    }

    /// Lets a closure pull, if that keeps the bound. One that is under way may pull more, such as
    /// rows of a table and then a model; what it pulled first is what it may be overtaken on.
    pub(super) fn pull(&mut self, closure: u64, bound: u64) -> bool {
        if self.under_way.contains_key(&closure) {
            return true;
        }
        let waiting = |closure: &&u64| !self.due.contains_key(closure);
        let others = self.under_way.keys().filter(waiting).count() as u64;
        let may = others + self.all_due() <= bound;
        if may {
            self.under_way.insert(closure, self.now);
        }
        may
    }

    /// Lets a push in, if that keeps the bound: it is due from then on.
    pub(super) fn let_push(&mut self, closure: u64, bound: u64) -> bool {
        *self.due.entry(closure).or_default() += 1;
        let may = self.is_feasible(bound);
        if !may {
            self.call_off(closure);
        }
        may
    }

    /// A push that was due has been made.
    pub(super) fn pushed(&mut self, closure: u64) {
        self.call_off(closure);
        self.under_way.remove(&closure);
        self.now += 1;
    }

    /// A push that was due will not be made.
    pub(super) fn call_off(&mut self, closure: u64) {
        if let Some(count) = self.due.get_mut(&closure) {
            *count -= 1;
            if *count == 0 {
                self.due.remove(&closure);
            }
        }
    }

    /// The closure will not push, or pulls again.
    pub(super) fn forget(&mut self, closure: u64) {
        self.under_way.remove(&closure);
    }

    /// All closures below are finished.
    pub(super) fn forget_below(&mut self, closure: u64) {
        self.under_way = self.under_way.split_off(&closure);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl StalenessClock {
        /// A push that is read and applied as soon as it is let in.
        fn push(&mut self, closure: u64, bound: u64) -> bool {
            let may = self.let_push(closure, bound);
            if may {
                self.pushed(closure);
            }
            may
        }
    }

    #[test]
    fn bound_zero_is_one_at_a_time() {
        let mut clock = StalenessClock::default();
        assert!(clock.pull(1, 0));
        assert!(!clock.pull(2, 0));
        // The same closure on another worker.
        assert!(clock.pull(1, 0));
        assert!(clock.push(1, 0));
        assert!(clock.pull(2, 0));
        assert!(clock.pull(2, 0));
        clock.forget(2);
        assert!(clock.pull(3, 0));
    }

    /// A bound that is never reached has no effect: no call waits, and nothing overflows.
    #[test]
    fn the_largest_bound_lets_everybody_on() {
        let mut clock = StalenessClock::default();
        for closure in 0..100 {
            assert!(clock.pull(closure, u64::MAX));
        }
        for closure in (0..100).rev() {
            assert!(clock.push(closure, u64::MAX));
            assert!(clock.pull(100 + closure, u64::MAX));
        }
    }

    #[test]
    fn what_a_closure_pulled_first_counts() {
        let mut clock = StalenessClock::default();
        assert!(clock.pull(1, 1));
        assert!(clock.pull(2, 1));
        assert!(clock.push(2, 1));
        // It pulls more, and is overtaken once already all the same.
        assert!(clock.pull(1, 1));
        assert!(clock.pull(3, 1));
        assert!(!clock.push(3, 1));
        assert!(clock.push(1, 1));
        assert!(clock.push(3, 1));
    }

    /// Whatever the order in which closures try, and in which pushes that were let in are read and
    /// applied or break off, no worker is overtaken more often than allowed, and some worker always
    /// gets on: the oldest, and all that are due.
    #[test]
    fn the_bound_is_kept_and_some_worker_gets_on() {
        use rand::{RngExt, SeedableRng};
        /// A worker: it has nothing, has pulled at a count, or has a push that is due.
        #[derive(Clone, Copy)]
        enum At {
            Idle,
            Pulled(u64, u64),
            Due(u64, u64),
        }
        for seed in 0..400 {
            let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
            let bound = random.random_range(0..5);
            let workers = random.random_range(1..8);
            let mut clock = StalenessClock::default();
            let mut all = vec![At::Idle; workers];
            let (mut next, mut stuck) = (0, 0);
            while next < 300 {
                let worker = random.random_range(0..workers);
                let now = clock.now;
                let moved = match all[worker] {
                    At::Idle if clock.pull(next, bound) => Some(At::Pulled(next, clock.now)),
                    At::Idle => None,
                    At::Pulled(closure, at) => {
                        let may = clock.let_push(closure, bound);
                        may.then_some(At::Due(closure, at))
                    }
                    // Broken off: the closure runs again and pushes later.
                    At::Due(closure, at) if random.random_range(0..8) == 0 => {
                        clock.call_off(closure);
                        Some(At::Pulled(closure, at))
                    }
                    At::Due(closure, at) => {
                        assert!(now - at <= bound, "seed {seed}: {now} - {at}");
                        clock.pushed(closure);
                        Some(At::Idle)
                    }
                };
                if let Some(moved) = moved {
                    next += u64::from(matches!(moved, At::Pulled(id, _) if id == next));
                    all[worker] = moved;
                    stuck = 0;
                }
                stuck += 1;
                assert!(stuck < 2_000, "seed {seed}: no worker gets on");
            }
        }
    }
}
