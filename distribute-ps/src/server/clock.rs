//! Bounded staleness by waiting.
//!
//! The server counts pushes. A closure that has pulled weights and not pushed its gradient yet is
//! *under way*; it was pulled at some count and may be overtaken by at most `bound` pushes. Let
//! the closures under way be ordered by their counts: if they push in this order, number `i` is
//! overtaken by those before it, so the bound can be kept for all of them exactly if
//! `now + i - pulled <= bound` for every `i`. A pull or a push that would make this false waits.
//! The oldest closure never waits to push, so waiting ends as long as it pushes, or is abandoned.

use std::collections::BTreeMap;

/// Pushes so far, and the closures under way.
#[derive(Debug, Default)]
pub(super) struct StalenessClock {
    now: u64,
    /// The count at the pull, by closure.
    under_way: BTreeMap<u64, u64>,
}

impl StalenessClock {
    /// Whether the bound can be kept for those under way but `without`, after so many pushes more.
    fn is_feasible(&self, without: u64, more: u64, bound: u64) -> bool {
        let others = self
            .under_way
            .iter()
            .filter(|(closure, _)| **closure != without);
        let mut pulled: Vec<u64> = others.map(|(_, pulled)| *pulled).collect();
        pulled.sort_unstable();
        let now = self.now + more;
        // Nothing was pulled later than now.
        let kept = |(index, pulled): (usize, &u64)| now - pulled + index as u64 <= bound;
        pulled.iter().enumerate().all(kept)
    }

    /// Lets a closure pull, if that keeps the bound. One that is under way may pull more, such as
    /// rows of a table and then a model; what it pulled first is what it may be overtaken on.
    pub(super) fn pull(&mut self, closure: u64, bound: u64) -> bool {
        if self.under_way.contains_key(&closure) {
            return true;
        }
        let others = self.under_way.len() as u64;
        let may = others <= bound && self.is_feasible(closure, 0, bound);
        if may {
            self.under_way.insert(closure, self.now);
        }
        may
    }

    /// Lets a closure push, if that keeps the bound for the others.
    pub(super) fn push(&mut self, closure: u64, bound: u64) -> bool {
        let may = self.is_feasible(closure, 1, bound);
        if may {
            self.under_way.remove(&closure);
            self.now += 1;
        }
        may
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

    /// A bound that is never reached is no bound: nobody waits, and nothing overflows.
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

    /// Whatever the order in which closures try, nobody is overtaken more often than allowed, and
    /// somebody always gets on.
    #[test]
    fn the_bound_is_kept_and_somebody_gets_on() {
        use rand::{RngExt, SeedableRng};
        for seed in 0..200 {
            let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
            let bound = random.random_range(0..5);
            let workers = random.random_range(1..8);
            let mut clock = StalenessClock::default();
            // The closure of each worker, and the count at its pull.
            let mut pulled: Vec<Option<(u64, u64)>> = vec![None; workers];
            let (mut next, mut stuck) = (0, 0);
            while next < 300 {
                let worker = random.random_range(0..workers);
                let before = clock.now;
                let moved = match pulled[worker] {
                    None => {
                        let may = clock.pull(next, bound);
                        if may {
                            pulled[worker] = Some((next, clock.now));
                            next += 1;
                        }
                        may
                    }
                    Some((closure, at)) => {
                        let may = clock.push(closure, bound);
                        if may {
                            assert!(before - at <= bound, "seed {seed}: {before} - {at}");
                            pulled[worker] = None;
                        }
                        may
                    }
                };
                stuck = if moved { 0 } else { stuck + 1 };
                assert!(stuck < 2_000, "seed {seed}: nobody gets on");
            }
        }
    }
}
