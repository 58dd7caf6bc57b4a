//! How `f32` elements travel as half types.
//!
//! Everything here works in blocks that stay in the first-level cache, with the conversions of
//! [`reduce`](crate::reduce), which the compiler (or the `half` crate) turns into vector
//! instructions. Bytes on the wire need not be aligned.
//!
//! Rounding a value that has been rounded before changes nothing, so elements may be rounded again
//! on every hop of a copy.

use half::{bf16, f16};

use crate::options::WireType;
use crate::reduce::Arithmetic;

/// Bytes of one element on the wire.
const BYTES: usize = WireType::SIZE_BYTES;

/// Elements that are converted at a time.
const BLOCK: usize = 512;

/// Runs `$body` with the type alias `$T` bound to the Rust type of a [`WireType`].
macro_rules! with_wire {
    ($wire:expr, $T:ident => $body:expr) => {
        match $wire {
            WireType::Bf16 => {
                type $T = bf16;
                $body
            }
            WireType::F16 => {
                type $T = f16;
                $body
            }
        }
    };
}

/// Writes elements as they travel. `to` has [`BYTES`] per element.
pub(crate) fn compress(wire: WireType, from: &[f32], to: &mut [u8]) {
    with_wire!(wire, T => {
        let mut halves = [T::ZERO; BLOCK];
        for (from, to) in from.chunks(BLOCK).zip(to.chunks_mut(BLOCK * BYTES)) {
            let halves = &mut halves[..from.len()];
            T::narrow(from, halves);
            to.copy_from_slice(bytemuck::cast_slice(halves));
        }
    });
}

/// Calls `f` with blocks of the elements that travelled as `bytes`, and the index of the first
/// element of each block.
pub(crate) fn expand(wire: WireType, bytes: &[u8], mut f: impl FnMut(usize, &[f32])) {
    with_wire!(wire, T => {
        let (mut halves, mut wide) = ([T::ZERO; BLOCK], [0.0; BLOCK]);
        for (block, bytes) in bytes.chunks(BLOCK * BYTES).enumerate() {
            let count = bytes.len() / BYTES;
            bytemuck::cast_slice_mut(&mut halves[..count]).copy_from_slice(bytes);
            T::widen(&halves[..count], &mut wide[..count]);
            f(block * BLOCK, &wide[..count]);
        }
    });
}

/// Rounds elements to what the other ranks receive.
pub(crate) fn round(wire: WireType, values: &mut [f32]) {
    with_wire!(wire, T => {
        let mut halves = [T::ZERO; BLOCK];
        for values in values.chunks_mut(BLOCK) {
            let halves = &mut halves[..values.len()];
            T::narrow(values, halves);
            T::widen(halves, values);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Vec<f32> {
        let mut values = vec![
            0.0,
            -0.0,
            1.0,
            65_504.0,
            1e30,
            f32::INFINITY,
            f32::NAN,
            1e-40,
        ];
        values.extend((0..1500_u32).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761))));
        values
    }

    #[test]
    fn the_wire_carries_what_rounding_gives() {
        for wire in [WireType::Bf16, WireType::F16] {
            let values = values();
            let mut rounded = values.clone();
            round(wire, &mut rounded);
            let mut frame = vec![0; values.len() * BYTES + 1];
            // An odd address.
            compress(wire, &values, &mut frame[1..]);
            let mut received = vec![0.0_f32; values.len()];
            expand(wire, &frame[1..], |start, block| {
                received[start..start + block.len()].copy_from_slice(block);
            });
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&received), bits(&rounded), "{wire}");
            let once = bits(&rounded);
            round(wire, &mut rounded);
            assert_eq!(
                bits(&rounded),
                once,
                "{wire}: a second rounding changes nothing"
            );
            assert!(received[6].is_nan());
            let overflow = if wire == WireType::F16 {
                f32::INFINITY
            } else {
                1e30
            };
            assert!((received[4] - overflow).abs() < 1e28 || received[4] == overflow);
        }
    }
}
