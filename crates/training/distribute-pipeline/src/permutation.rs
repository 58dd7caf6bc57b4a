//! A permutation that is computed, not stored.

use crate::random::{mixed, word};

const ROUNDS: usize = 8;

/// The least size of the domain, in bits: smaller ones have too few permutations of this kind.
const LEAST_BITS: u32 = 8;

/// A permutation of the numbers below `len`, by a seed and an epoch: the place of any element
/// costs a few multiplications, whatever the length, and nothing is stored.
///
/// It is a Feistel network of 8 rounds over the next larger domain of `2^(2h)` numbers (at least
/// 256), whose round functions are the finalizer of SplitMix64 with keys of seed and epoch. A
/// number that falls outside is permuted again until it is inside ("cycle walking": Black and
/// Rogaway, *Ciphers with Arbitrary Finite Domains*, 2002): from 64 elements on, fewer than 4 times
/// on average. It never changes between versions.
///
/// ```
/// use distribute_pipeline::Permutation;
///
/// let order = Permutation::new(1_000_000_000_000, 42, 0);
/// assert_ne!(order.at(0), order.at(1));
/// assert_eq!(order.at(1_000_000_000_000), None);
/// let mut all: Vec<_> = (0..5).filter_map(|i| Permutation::new(5, 42, 0).at(i)).collect();
/// all.sort();
/// assert_eq!(all, [0, 1, 2, 3, 4]);
/// ```
#[derive(Debug, Clone)]
pub struct Permutation {
    len: u64,
    half: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The permutation of the numbers below `len`; each epoch has another one.
    pub fn new(len: u64, seed: u64, epoch: u64) -> Self {
        let bits = (u64::BITS - len.saturating_sub(1).leading_zeros()).max(LEAST_BITS);
        let mut keys = [0; ROUNDS];
        for (round, key) in (0..).zip(&mut keys) {
            *key = word(seed, epoch, round);
        }
        Self {
            len,
            half: bits.div_ceil(2),
            keys,
        }
    }

    /// The number at `place`; `None` if there is no such place.
    pub fn at(&self, place: u64) -> Option<u64> {
        if place >= self.len {
            return None;
        }
        let mut number = self.once(place);
        while number >= self.len {
            number = self.once(number);
        }
        Some(number)
    }

    /// One pass through the network, over the whole domain.
    fn once(&self, number: u64) -> u64 {
        let mask = (1_u64 << self.half) - 1;
        let (mut left, mut right) = (number >> self.half, number & mask);
        for key in self.keys {
            (left, right) = (
                right,
                left ^ (mixed(right ^ key) >> (u64::BITS - self.half)),
            );
        }
        left << self.half | right
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn all(len: u64, seed: u64, epoch: u64) -> Vec<u64> {
        let permutation = Permutation::new(len, seed, epoch);
        (0..len)
            .map(|place| permutation.at(place).unwrap())
            .collect()
    }

    #[test]
    fn is_a_bijection_of_every_length() {
        let lengths = (0..300).chain([511, 512, 513, 1_000, 1_023, 4_097, 65_536, 65_537]);
        for len in lengths {
            for epoch in 0..3 {
                let mut numbers = all(len, len * 7, epoch);
                numbers.sort_unstable();
                assert!(numbers.iter().copied().eq(0..len), "{len} {epoch}");
            }
        }
    }

    #[test]
    fn long_ones_stay_within_their_length() {
        for len in [u64::from(u32::MAX) + 2, 1 << 62, u64::MAX - 1, u64::MAX] {
            let permutation = Permutation::new(len, 1, 0);
            let numbers: Vec<_> = (0..1_000).map(|i| permutation.at(i).unwrap()).collect();
            let mut sorted = numbers.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), 1_000);
            assert!(sorted.iter().all(|number| *number < len));
            assert!(sorted.iter().filter(|number| **number > len / 2).count() > 400);
        }
    }

    #[test]
    fn every_order_of_four_comes_as_often() {
        let mut seen = BTreeMap::new();
        for seed in 0..24_000 {
            *seen.entry(all(4, seed, seed % 3)).or_insert(0_u32) += 1;
        }
        assert_eq!(seen.len(), 24);
        // 1000 each; the standard deviation is 31.
        assert!(
            seen.values().all(|count| (850..1_150).contains(count)),
            "{seen:?}"
        );
    }

    #[test]
    fn elements_spread_over_all_places() {
        // Where the element 0 of 100 goes, and how far neighbours go apart.
        let mut places = [0_u32; 10];
        let mut neighbours = 0;
        for seed in 0..10_000 {
            let order = Permutation::new(100, seed, 1);
            let (zero, one) = (order.at(0).unwrap(), order.at(1).unwrap());
            places[zero as usize / 10] += 1;
            neighbours += u32::from(zero + 1 == one);
        }
        assert!(
            places.iter().all(|count| (870..1_130).contains(count)),
            "{places:?}"
        );
        assert!((50..160).contains(&neighbours), "{neighbours}");
    }

    #[test]
    fn never_changes() {
        assert_eq!(all(10, 42, 0), [3, 9, 7, 8, 6, 1, 0, 4, 2, 5]);
    }
}
