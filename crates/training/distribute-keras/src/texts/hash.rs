//! The hashes by which TensorFlow puts texts into buckets.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;

/// The bucket of a text: by FarmHash (`tf.strings.to_hash_bucket_fast`), or with a key by SipHash
/// (`tf.strings.to_hash_bucket_strong`).
pub(crate) fn bucket(text: &[u8], buckets: u64, key: Option<[u64; 2]>) -> u64 {
    let hash = match key {
        None => farm_hash(text),
        Some([first, second]) => {
            let mut hasher = SipHasher24::new_with_keys(first, second);
            hasher.write(text);
            hasher.finish()
        }
    };
    hash % buckets.max(1)
}

const K0: u64 = 0xc3a5_c85c_97cb_3127;
const K1: u64 = 0xb492_b66f_be98_f273;
const K2: u64 = 0x9ae1_6a3b_2f90_404f;

/// Eight bytes from `at` on, the lowest first; 0 for what is not there.
fn word(text: &[u8], at: usize) -> u64 {
    let bytes = text.get(at..).and_then(|rest| rest.first_chunk::<8>());
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn half(text: &[u8], at: usize) -> u64 {
    let bytes = text.get(at..).and_then(|rest| rest.first_chunk::<4>());
    bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes).into())
}

fn mixed(value: u64) -> u64 {
    value ^ (value >> 47)
}

fn joined(one: u64, other: u64, factor: u64) -> u64 {
    let a = mixed((one ^ other).wrapping_mul(factor));
    mixed((other ^ a).wrapping_mul(factor)).wrapping_mul(factor)
}

/// `Fingerprint64` of FarmHash (Geoff Pike, 2014), which does not change between its versions.
fn farm_hash(text: &[u8]) -> u64 {
    match text.len() {
        0..=16 => up_to_16(text),
        17..=32 => up_to_32(text),
        33..=64 => up_to_64(text),
        _ => longer(text),
    }
}

fn up_to_16(text: &[u8]) -> u64 {
    let length = text.len();
    let factor = K2.wrapping_add(length as u64 * 2);
    match *text {
        [] => K2,
        [first, ..] if length < 4 => {
            let (middle, last) = (text[length / 2], text[length - 1]);
            let y = u64::from(first) + (u64::from(middle) << 8);
            let z = length as u64 + (u64::from(last) << 2);
            mixed(y.wrapping_mul(K2) ^ z.wrapping_mul(K0)).wrapping_mul(K2)
        }
        _ if length < 8 => {
            let first = (length as u64).wrapping_add(half(text, 0) << 3);
            joined(first, half(text, length - 4), factor)
        }
        _ => {
            let a = word(text, 0).wrapping_add(K2);
            let b = word(text, length - 8);
            let c = b.rotate_right(37).wrapping_mul(factor).wrapping_add(a);
            let d = a.rotate_right(25).wrapping_add(b).wrapping_mul(factor);
            joined(c, d, factor)
        }
    }
}

fn up_to_32(text: &[u8]) -> u64 {
    let length = text.len();
    let factor = K2.wrapping_add(length as u64 * 2);
    let a = word(text, 0).wrapping_mul(K1);
    let b = word(text, 8);
    let c = word(text, length - 8).wrapping_mul(factor);
    let d = word(text, length - 16).wrapping_mul(K2);
    let (first, second) = quarters([a, b, c, d]);
    joined(first, second, factor)
}

/// What two of the numbers, and all, are mixed to.
fn quarters([a, b, c, d]: [u64; 4]) -> (u64, u64) {
    let first = a.wrapping_add(b).rotate_right(43);
    let first = first.wrapping_add(c.rotate_right(30)).wrapping_add(d);
    let second = b.wrapping_add(K2).rotate_right(18);
    (first, a.wrapping_add(second).wrapping_add(c))
}

fn up_to_64(text: &[u8]) -> u64 {
    let length = text.len();
    let factor = K2.wrapping_add(length as u64 * 2);
    let a = word(text, 0).wrapping_mul(K2);
    let b = word(text, 8);
    let c = word(text, length - 8).wrapping_mul(factor);
    let d = word(text, length - 16).wrapping_mul(K2);
    let (y, second) = quarters([a, b, c, d]);
    let z = joined(y, second, factor);
    let e = word(text, 16).wrapping_mul(factor);
    let f = word(text, 24);
    let g = y.wrapping_add(word(text, length - 32)).wrapping_mul(factor);
    let h = z.wrapping_add(word(text, length - 24)).wrapping_mul(factor);
    let first = e.wrapping_add(f).rotate_right(43);
    let first = first.wrapping_add(g.rotate_right(30)).wrapping_add(h);
    let second = e.wrapping_add(f.wrapping_add(a).rotate_right(18));
    joined(first, second.wrapping_add(g), factor)
}

/// What a hash of many blocks of 64 bytes keeps between them.
struct State {
    x: u64,
    y: u64,
    z: u64,
    v: (u64, u64),
    w: (u64, u64),
}

/// Two numbers of 32 bytes.
fn weak(text: &[u8], at: usize, a: u64, b: u64) -> (u64, u64) {
    let [w, x, y, z] = [0, 8, 16, 24].map(|more| word(text, at + more));
    let a = a.wrapping_add(w);
    let b = b.wrapping_add(a).wrapping_add(z).rotate_right(21);
    let sum = a.wrapping_add(x).wrapping_add(y);
    let b = b.wrapping_add(sum.rotate_right(44));
    (sum.wrapping_add(z), b.wrapping_add(a))
}

impl State {
    /// Reads a block; `factor` is another one for the last block, which counts `more` times.
    fn block(&mut self, text: &[u8], at: usize, factor: u64, more: u64) {
        let at_word = |more| word(text, at + more);
        let Self { x, y, z, v, w } = self;
        *x = x
            .wrapping_add(*y)
            .wrapping_add(v.0)
            .wrapping_add(at_word(8));
        *x = x.rotate_right(37).wrapping_mul(factor);
        *y = y.wrapping_add(v.1).wrapping_add(at_word(48));
        *y = y.rotate_right(42).wrapping_mul(factor);
        *x ^= w.1.wrapping_mul(more);
        *y = y
            .wrapping_add(v.0.wrapping_mul(more))
            .wrapping_add(at_word(40));
        *z = z.wrapping_add(w.0).rotate_right(33).wrapping_mul(factor);
        *v = weak(text, at, v.1.wrapping_mul(factor), x.wrapping_add(w.0));
        let second = y.wrapping_add(at_word(16));
        *w = weak(text, at + 32, z.wrapping_add(w.1), second);
        std::mem::swap(z, x);
    }
}

fn longer(text: &[u8]) -> u64 {
    let seed: u64 = 81;
    let y = seed.wrapping_mul(K1).wrapping_add(113);
    let mut state = State {
        x: seed.wrapping_mul(K2).wrapping_add(word(text, 0)),
        y,
        z: mixed(y.wrapping_mul(K2).wrapping_add(113)).wrapping_mul(K2),
        v: (0, 0),
        w: (0, 0),
    };
    let before_last = (text.len() - 1) / 64;
    for block in 0..before_last {
        state.block(text, block * 64, K1, 1);
    }
    let rest = (text.len() - 1) % 64;
    let factor = K1.wrapping_add((state.z & 0xff) << 1);
    state.w.0 = state.w.0.wrapping_add(rest as u64);
    state.v.0 = state.v.0.wrapping_add(state.w.0);
    state.w.0 = state.w.0.wrapping_add(state.v.0);
    state.block(text, text.len() - 64, factor, 9);
    let State { x, y, z, v, w } = state;
    let first = joined(v.0, w.0, factor).wrapping_add(mixed(y).wrapping_mul(K0));
    let second = joined(v.1, w.1, factor).wrapping_add(x);
    joined(first.wrapping_add(z), second, factor)
}

#[cfg(test)]
mod tests {
    use super::bucket;

    /// What `tf.strings.to_hash_bucket_fast` and `to_hash_bucket_strong` give for the first letters
    /// of a text.
    #[test]
    fn texts_have_the_buckets_of_tensorflow() {
        let text: String = (0..200u8).map(|i| char::from(b'a' + i % 23)).collect();
        for (length, fast, strong) in EXPECTED {
            let bytes = &text.as_bytes()[..length];
            assert_eq!(bucket(bytes, 1 << 40, None), fast, "{length}");
            assert_eq!(bucket(bytes, 1 << 40, Some([133, 137])), strong, "{length}");
        }
    }

    const EXPECTED: [(usize, u64, u64); 15] = [
        (0, 254_201_053_263, 469_384_780_500),
        (1, 436_859_794_915, 1_018_081_263_306),
        (3, 689_156_125_545, 603_813_935_273),
        (4, 954_726_318_337, 320_932_792_775),
        (7, 185_166_689_109, 609_757_988_735),
        (8, 178_522_695_945, 282_903_351_556),
        (16, 745_026_211_517, 69_192_259_908),
        (17, 855_461_303_208, 696_213_775_150),
        (32, 797_488_646_562, 902_491_176_746),
        (33, 82_971_112_690, 603_759_374_052),
        (64, 543_018_534_667, 547_123_245_087),
        (65, 840_247_296_355, 440_931_091_552),
        (128, 920_359_259_510, 1_074_290_306_674),
        (129, 912_800_606_968, 41_087_652_937),
        (200, 1_044_489_489_245, 950_941_550_373),
    ];
}
