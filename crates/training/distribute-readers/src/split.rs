//! Fixed, seeded splits into training, validation and test examples.

use crate::error::ReadError;
use crate::examples::{Examples, TrainTest};

impl Examples {
    /// Splits the examples at random into `fractions.len()` parts that share the data, for example
    /// `&[0.7, 0.15, 0.15]` into training, validation and test examples.
    ///
    /// The split depends on nothing but the number of examples, `fractions` and `seed`, on every
    /// machine: [`permutation`] orders the examples; part `i` takes those from
    /// `round(n * (f_0 + ... + f_(i-1)))` to `round(n * (f_0 + ... + f_i))` of that order, and
    /// keeps them in the order of the file. Fractions that add up to less than 1 leave examples
    /// out. Classes are not balanced.
    ///
    /// # Errors
    /// [`ReadError::BadSplit`] if a fraction is not positive, if they add up to more than 1, or if
    /// a part would be empty.
    pub fn split(&self, fractions: &[f64], seed: u64) -> Result<Vec<Examples>, ReadError> {
        let examples = self.len();
        let bad = |why| ReadError::BadSplit {
            name: self.name().to_owned(),
            examples,
            why,
        };
        if let Some(fraction) = fractions.iter().find(|f| !(f.is_finite() && **f > 0.0)) {
            return Err(bad(format!("the fraction {fraction} is not positive")));
        }
        let sum: f64 = fractions.iter().sum();
        if sum > 1.0 + 1e-9 {
            return Err(bad(format!(
                "the fractions add up to {sum}; pass at most 1 in all"
            )));
        }
        let order = permutation(examples, seed);
        let (mut start, mut reached) = (0, 0.0);
        let mut parts = Vec::with_capacity(fractions.len());
        for fraction in fractions {
            reached += fraction;
            let end = ((examples as f64 * reached).round() as usize).min(examples);
            let mut rows = order[start..end].to_vec();
            if rows.is_empty() {
                let why = format!("the fraction {fraction} gives none; pass a larger one");
                return Err(bad(why));
            }
            rows.sort_unstable();
            parts.push(self.subset(&rows)?);
            start = end;
        }
        Ok(parts)
    }

    /// [`split`](Self::split) in two: `test_fraction` of the examples are held out.
    ///
    /// # Errors
    /// As [`split`](Self::split).
    pub fn train_test(&self, test_fraction: f64, seed: u64) -> Result<TrainTest, ReadError> {
        let parts = self.split(&[1.0 - test_fraction, test_fraction], seed)?;
        let [train, test] = <[Examples; 2]>::try_from(parts).map_err(|parts| {
            let (name, examples) = (self.name().to_owned(), self.len());
            ReadError::BadSplit {
                name,
                examples,
                why: format!("{} parts", parts.len()),
            }
        })?;
        Ok(TrainTest { train, test })
    }
}

/// A random order of `0..length` that is the same on every machine and in every version: a
/// Fisher-Yates shuffle from the end, its numbers drawn by SplitMix64 (Steele, Lea and Flood,
/// "Fast splittable pseudorandom number generators", 2014) from the state `seed`.
///
/// Position `i` is exchanged with `(draw * (i + 1)) >> 64`, a number in `0..=i`. Its bias, less
/// than `length / 2^64`, is far below what any sample could show.
pub fn permutation(length: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..length).collect();
    let mut state = seed;
    for i in (1..length).rev() {
        let draw = u128::from(split_mix_64(&mut state));
        order.swap(i, ((draw * (i as u128 + 1)) >> 64) as usize);
    }
    order
}

fn split_mix_64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs of the reference implementation (<https://prng.di.unimi.it/splitmix64.c>)
    /// for the state 1234567, as also listed by Rosetta Code.
    #[test]
    fn split_mix_64_is_the_published_generator() {
        let mut state = 1_234_567;
        let drawn: Vec<u64> = (0..5).map(|_| split_mix_64(&mut state)).collect();
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(drawn, published);
    }

    #[test]
    fn a_permutation_holds_every_index_once_and_depends_on_the_seed() {
        for length in [0, 1, 2, 97] {
            let mut order = permutation(length, 3);
            order.sort_unstable();
            assert_eq!(order, (0..length).collect::<Vec<_>>());
        }
        assert_eq!(permutation(50, 1), permutation(50, 1));
        assert_ne!(permutation(50, 1), permutation(50, 2));
    }

    #[test]
    fn every_order_of_three_is_as_likely() {
        let mut counts = std::collections::BTreeMap::new();
        for seed in 0..6_000 {
            *counts.entry(permutation(3, seed)).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 6);
        // Six cells of 1,000: a standard deviation is 29.
        assert!(
            counts.values().all(|n| (850..1_150).contains(n)),
            "{counts:?}"
        );
    }
}
