//! Reductions on bytes, in rank order, rounded at every step as NCCL does.

use half::{bf16, f16};

/// `ncclDataType_t`: bytes of an element.
pub fn size_bytes(dtype: i32) -> Option<usize> {
    [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1]
        .get(usize::try_from(dtype).ok()?)
        .copied()
}

const SUM: i32 = 0;
const PROD: i32 = 1;
const MAX: i32 = 2;
const MIN: i32 = 3;
const AVG: i32 = 4;

macro_rules! integers {
    ($op:expr, $inputs:expr, $type:ty) => {
        fold::<{ size_of::<$type>() }>($inputs, |values| {
            let values = values.map(<$type>::from_ne_bytes);
            let count = $inputs.len() as $type;
            let sum = |a: $type, b: $type| a.wrapping_add(b);
            let result = match $op {
                SUM => values.reduce(sum),
                PROD => values.reduce(|a, b| a.wrapping_mul(b)),
                MAX => values.max(),
                MIN => values.min(),
                _ => values.reduce(sum).map(|sum| sum / count),
            };
            result.unwrap_or_default().to_ne_bytes()
        })
    };
}

macro_rules! floats {
    ($op:expr, $inputs:expr, $type:ty, $widen:expr, $narrow:expr) => {
        fold::<{ size_of::<$type>() }>($inputs, |values| {
            // Like NCCL, which multiplies by 1/n before it adds.
            let scale = 1.0 / $inputs.len() as f64;
            let values = values.map(|bytes| {
                let value: f64 = $widen(<$type>::from_ne_bytes(bytes));
                match $op {
                    AVG => $widen($narrow(value * scale)),
                    _ => value,
                }
            });
            let result = values.reduce(|a, b| {
                let result = match $op {
                    PROD => a * b,
                    MAX => a.max(b),
                    MIN => a.min(b),
                    _ => a + b,
                };
                $widen($narrow(result))
            });
            $narrow(result.unwrap_or_default()).to_ne_bytes()
        })
    };
}

/// Combines the inputs of all ranks; `None` for a type or an operation that does not exist.
pub fn reduce(op: i32, dtype: i32, inputs: &[Vec<u8>]) -> Option<Vec<u8>> {
    if !(SUM..=AVG).contains(&op) {
        return None;
    }
    Some(match dtype {
        0 => integers!(op, inputs, i8),
        1 => integers!(op, inputs, u8),
        2 => integers!(op, inputs, i32),
        3 => integers!(op, inputs, u32),
        4 => integers!(op, inputs, i64),
        5 => integers!(op, inputs, u64),
        // Not by their own `from_f64`: it drops bits that decide where a value rounds to.
        6 => floats!(op, inputs, f16, f16::to_f64, |value: f64| f16::from_f32(
            value as f32
        )),
        7 => floats!(op, inputs, f32, f64::from, |value: f64| value as f32),
        8 => floats!(op, inputs, f64, |value: f64| value, |value: f64| value),
        9 => floats!(op, inputs, bf16, bf16::to_f64, |value: f64| bf16::from_f32(
            value as f32
        )),
        _ => return None,
    })
}

/// Combines the elements with one index, for every index.
fn fold<const N: usize>(
    inputs: &[Vec<u8>],
    combine: impl Fn(&mut dyn Iterator<Item = [u8; N]>) -> [u8; N],
) -> Vec<u8> {
    let len = inputs.first().map_or(0, Vec::len);
    let mut output = Vec::with_capacity(len);
    for start in (0..len).step_by(N) {
        let mut values = inputs.iter().map(|input| {
            let mut bytes = [0; N];
            bytes.copy_from_slice(&input[start..start + N]);
            bytes
        });
        output.extend(combine(&mut values));
    }
    output
}
