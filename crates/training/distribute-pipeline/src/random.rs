//! Random numbers that follow from (seed, epoch, index) alone.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

/// The generator that `map_with_rng` hands to a function, with the methods of `rand`.
pub type ElementRng = ChaCha8Rng;

/// The generator of one element: ChaCha8 whose key is (seed, epoch, index), so that an element's
/// random numbers depend on no other element, and on no thread.
///
/// ```
/// use distribute_pipeline::element_rng;
/// assert_eq!(element_rng(1, 2, 3), element_rng(1, 2, 3));
/// assert_ne!(element_rng(1, 2, 3), element_rng(1, 2, 4));
/// ```
pub fn element_rng(seed: u64, epoch: u64, index: u64) -> ElementRng {
    const DOMAIN: u64 = u64::from_le_bytes(*b"map_rng1");
    let mut key = [0; 32];
    let words = [seed, epoch, index, DOMAIN];
    for (bytes, word) in key.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    ElementRng::from_seed(key)
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood, 2014, with Stafford's constants): every bit
/// of the number changes half of the result's.
pub(crate) fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// A random word by seed, epoch and a counter.
pub(crate) fn word(seed: u64, epoch: u64, counter: u64) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut word = mixed(seed.wrapping_add(GOLDEN));
    word = mixed((word ^ epoch).wrapping_add(GOLDEN));
    mixed((word ^ counter).wrapping_add(GOLDEN))
}

/// A random number below `bound`, which is not 0, by seed, epoch and a counter. The bias is
/// `bound / 2^64`.
pub(crate) fn below(bound: u64, seed: u64, epoch: u64, counter: u64) -> u64 {
    let product = u128::from(word(seed, epoch, counter)) * u128::from(bound);
    u64::try_from(product >> 64).unwrap_or(0)
}

/// The epoch of the input in pass `pass` of a repetition's own epoch `epoch`, so that no two
/// passes are shuffled alike. `times` is `None` without end.
pub(crate) fn inner_epoch(epoch: u64, times: Option<u64>, pass: u64) -> u64 {
    match times {
        Some(times) => epoch.wrapping_mul(times).wrapping_add(pass),
        None => (epoch << 32).wrapping_add(pass),
    }
}
