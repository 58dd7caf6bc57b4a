//! Threefry-2x32 with 20 rounds: a random function of a key and a counter.
//!
//! It is built from plain integer operations and not from `rng` or `rng_bit_generator`, whose
//! numbers differ between platforms: the same key gives the same numbers on every plugin. The
//! rounds are a loop: written out, each use costs XLA's CPU compiler half a second.

use super::builder::{Builder, Value, ensure, error};
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
        let x0 = self.binary(Binary::Add, c0, &keys[0])?;
        let x1 = self.binary(Binary::Add, c1, &keys[1])?;
        let mut state = vec![x0, x1, keys[1].clone(), keys[2].clone(), keys[0].clone()];
        for rotation in ROTATIONS.concat() {
            state.push(self.scalar(ElementType::U32, i64::from(rotation)));
        }
        let state: Vec<&Value> = state.iter().collect();
        let results = self.repeat(5, &state, |b, group, state| b.four_rounds(group, state))?;
        let [x0, x1, ..] = &results[..] else {
            return Err(error("threefry2x32", "has no result".into(), &operands));
        };
        Ok([x0.clone(), x1.clone()])
    }

    /// Four rounds and the addition of keys. The state is the two words, the keys in the order of
    /// their use, and the rotations of these rounds and of the next.
    fn four_rounds(&mut self, group: &Value, state: &[Value]) -> Result<Vec<Value>> {
        let (words, rest) = state.split_at(2);
        let (keys, rotations) = rest.split_at(3);
        let (now, next) = rotations.split_at(4);
        let [mut x0, mut x1] = [words[0].clone(), words[1].clone()];
        for rotation in now {
            x0 = self.binary(Binary::Add, &x0, &x1)?;
            x1 = self.rotate_left(&x1, rotation)?;
            x1 = self.binary(Binary::Xor, &x0, &x1)?;
        }
        x0 = self.binary(Binary::Add, &x0, &keys[0])?;
        x1 = self.binary(Binary::Add, &x1, &keys[1])?;
        let one = self.scalar(ElementType::U32, 1i64);
        let number = self.binary(Binary::Add, group, &one)?;
        let number = self.broadcast_in_dim(&number, x1.dims(), &[])?;
        x1 = self.binary(Binary::Add, &x1, &number)?;
        let keys = [&keys[1], &keys[2], &keys[0]].map(Value::clone);
        let words = [x0, x1];
        let lists = [&words[..], &keys[..], next, now];
        Ok(lists.concat())
    }

    fn rotate_left(&mut self, x: &Value, by: &Value) -> Result<Value> {
        let bits = self.scalar(ElementType::U32, 32i64);
        let rest = self.binary(Binary::Subtract, &bits, by)?;
        let left = self.broadcast_in_dim(by, x.dims(), &[])?;
        let right = self.broadcast_in_dim(&rest, x.dims(), &[])?;
        let high = self.binary(Binary::ShiftLeft, x, &left)?;
        let low = self.binary(Binary::ShiftRightLogical, x, &right)?;
        self.binary(Binary::Or, &high, &low)
    }
}
