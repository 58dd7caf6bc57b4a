//! Threefry-2x32 with 20 rounds: a random function of a key and a counter.
//!
//! It is built from plain integer operations and not from `rng` or `rng_bit_generator`, whose
//! numbers differ between platforms: the same key gives the same numbers on every plugin.

use super::builder::{Builder, Value, ensure};
use super::elementwise::Binary;
use super::error::Result;
use super::types::ElementType;

/// Rotations of the rounds, as in Salmon et al., "Parallel random numbers: as easy as 1, 2, 3".
const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
/// The constant that keeps an all-zero key from being a fixed point.
const PARITY: u32 = 0x1BD1_1BDA;

impl Builder {
    /// Two random words per counter. `key` and `counter` are pairs of `ui32` tensors; the key's
    /// are scalars, the counter's have any dimensions.
    ///
    /// # Errors
    /// An operand is no `ui32`, or the dimensions differ.
    pub fn threefry2x32(&mut self, key: [&Value; 2], counter: [&Value; 2]) -> Result<[Value; 2]> {
        let [c0, c1] = counter;
        let operands = [key[0], key[1], c0, c1];
        let valid = operands.iter().all(|v| v.element() == ElementType::U32)
            && key.iter().all(|k| k.rank() == 0)
            && c0.dims() == c1.dims();
        ensure(valid, "threefry2x32", &operands, || {
            "needs two scalars and two counters of ui32".into()
        })?;
        let parity = self.scalar(ElementType::U32, i64::from(PARITY));
        let mixed = self.binary(Binary::Xor, key[0], key[1])?;
        let mixed = self.binary(Binary::Xor, &mixed, &parity)?;
        let dims = c0.dims();
        let mut keys = Vec::with_capacity(3);
        for word in [key[0], key[1], &mixed] {
            keys.push(self.broadcast_in_dim(word, dims, &[])?);
        }
        let mut x0 = self.binary(Binary::Add, c0, &keys[0])?;
        let mut x1 = self.binary(Binary::Add, c1, &keys[1])?;
        for group in 0..5 {
            for rotation in ROTATIONS[group % 2] {
                x0 = self.binary(Binary::Add, &x0, &x1)?;
                x1 = self.rotate_left(&x1, rotation)?;
                x1 = self.binary(Binary::Xor, &x0, &x1)?;
            }
            x0 = self.binary(Binary::Add, &x0, &keys[(group + 1) % 3])?;
            x1 = self.binary(Binary::Add, &x1, &keys[(group + 2) % 3])?;
            let step = self.splat(dims, ElementType::U32, group as i64 + 1);
            x1 = self.binary(Binary::Add, &x1, &step)?;
        }
        Ok([x0, x1])
    }

    fn rotate_left(&mut self, x: &Value, by: u32) -> Result<Value> {
        let left = self.splat(x.dims(), ElementType::U32, i64::from(by));
        let right = self.splat(x.dims(), ElementType::U32, i64::from(32 - by));
        let high = self.binary(Binary::ShiftLeft, x, &left)?;
        let low = self.binary(Binary::ShiftRightLogical, x, &right)?;
        self.binary(Binary::Or, &high, &low)
    }
}
