//! Constants as StableHLO writes them: exact, and readable while they are small.

use std::cmp::Ordering;
use std::fmt::Write;

use burn::tensor::{bf16, f16};

use super::types::{ElementType, TensorType};

/// More elements than this are written as one string of hexadecimal digits.
const LISTED_ELEMENTS: usize = 16;
/// Floats of more characters than this are written with an exponent.
const READABLE_DIGITS: usize = 12;

/// One number, from which a constant of any element type can be made.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Scalar {
    /// A float; narrower types round to nearest, ties to even, once.
    Float(f64),
    /// A signed integer; narrower types keep the low bits.
    Int(i64),
    /// An unsigned integer; narrower types keep the low bits.
    UInt(u64),
    /// A truth value.
    Bool(bool),
}

impl From<f64> for Scalar {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl From<i64> for Scalar {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<bool> for Scalar {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl Scalar {
    fn as_f64(self) -> f64 {
        match self {
            Self::Float(v) => v,
            Self::Int(v) => v as f64,
            Self::UInt(v) => v as f64,
            Self::Bool(v) => f64::from(u8::from(v)),
        }
    }

    /// The low 64 bits as an integer; floats are truncated and saturate.
    fn as_bits(self, element: ElementType) -> u64 {
        match self {
            Self::Float(v) if element.is_unsigned() => v as u64,
            Self::Float(v) => (v as i64) as u64,
            Self::Int(v) => v as u64,
            Self::UInt(v) => v,
            Self::Bool(v) => u64::from(v),
        }
    }

    /// The nearest `f32`, but of the two around a number that is between them the one whose last
    /// bit is set: rounding it to a narrower type gives what rounding the number itself gives.
    fn to_odd(self) -> f32 {
        let (near, order) = match self {
            Self::Float(v) => (v as f32, f64::from(v as f32).abs().partial_cmp(&v.abs())),
            Self::Int(v) => (
                v as f32,
                Some((v as f32 as i128).abs().cmp(&i128::from(v).abs())),
            ),
            Self::UInt(v) => (v as f32, Some((v as f32 as i128).cmp(&i128::from(v)))),
            Self::Bool(v) => (f32::from(u8::from(v)), Some(Ordering::Equal)),
        };
        match order {
            Some(Ordering::Less) => f32::from_bits(near.to_bits() | 1),
            Some(Ordering::Greater) => f32::from_bits((near.to_bits() - 1) | 1),
            Some(Ordering::Equal) | None => near,
        }
    }

    /// The element's bytes, little endian.
    pub(super) fn bytes(self, element: ElementType) -> Vec<u8> {
        match element {
            ElementType::F64 => self.as_f64().to_le_bytes().to_vec(),
            ElementType::F32 => (self.as_f64() as f32).to_le_bytes().to_vec(),
            ElementType::F16 => f16::from_f32(self.to_odd()).to_le_bytes().to_vec(),
            ElementType::BF16 => bf16::from_f32(self.to_odd()).to_le_bytes().to_vec(),
            ElementType::I1 => vec![u8::from(self.as_f64() != 0.0)],
            _ => self.as_bits(element).to_le_bytes()[..element.size_in_bytes()].to_vec(),
        }
    }
}

/// The `dense<...>` attribute of a tensor with these little-endian bytes. `bytes` must hold either
/// the whole tensor or one element for a splat.
pub(super) fn dense(ty: &TensorType, bytes: &[u8]) -> String {
    let size = ty.element().size_in_bytes();
    if ty.num_elements() == 0 {
        return format!("dense<> : {ty}");
    }
    let splat = bytes.chunks_exact(size).all(|e| e == &bytes[..size]);
    let mut text = String::from("dense<");
    if splat {
        text.push_str(&element(ty.element(), &bytes[..size]));
    } else if ty.num_elements() <= LISTED_ELEMENTS {
        list(&mut text, ty.dims(), ty.element(), bytes);
    } else {
        text.push_str("\"0x");
        for byte in bytes {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02X}");
        }
        text.push('"');
    }
    let _ = write!(text, "> : {ty}");
    text
}

fn list(text: &mut String, dims: &[usize], ty: ElementType, bytes: &[u8]) {
    let Some((first, rest)) = dims.split_first() else {
        text.push_str(&element(ty, bytes));
        return;
    };
    text.push('[');
    for (i, part) in bytes.chunks_exact(bytes.len() / first).enumerate() {
        if i > 0 {
            text.push_str(", ");
        }
        list(text, rest, ty, part);
    }
    text.push(']');
}

fn element(ty: ElementType, bytes: &[u8]) -> String {
    let mut wide = [0u8; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(wide);
    match ty {
        ElementType::I1 => (bits != 0).to_string(),
        ElementType::U8 | ElementType::U16 | ElementType::U32 | ElementType::U64 => {
            bits.to_string()
        }
        ElementType::I8 => (bits as i8).to_string(),
        ElementType::I16 => (bits as i16).to_string(),
        ElementType::I32 => (bits as i32).to_string(),
        ElementType::I64 => (bits as i64).to_string(),
        ElementType::F64 => decimal(f64::from_bits(bits), |v| v.to_bits() == bits)
            .unwrap_or_else(|| format!("0x{bits:016X}")),
        ElementType::F32 => {
            let exact = |v: f64| u64::from((v as f32).to_bits()) == bits;
            // The shortest decimal of the f32, if reading it as a double gives the same f32.
            let short = f32::from_bits(bits as u32).to_string();
            let value = short.parse().unwrap_or(f64::NAN);
            decimal(value, exact).unwrap_or_else(|| format!("0x{bits:08X}"))
        }
        ElementType::F16 | ElementType::BF16 => format!("0x{bits:04X}"),
    }
}

/// MLIR reads a float literal only with a point in it. NaN and infinity have no decimal form.
fn decimal(value: f64, exact: impl Fn(f64) -> bool) -> Option<String> {
    if !value.is_finite() || !exact(value) {
        return None;
    }
    let plain = format!("{value:?}");
    if plain.len() <= READABLE_DIGITS && plain.contains('.') && !plain.contains('e') {
        return Some(plain);
    }
    let text = format!("{value:e}");
    let (mantissa, exponent) = text.split_once('e')?;
    let point = if mantissa.contains('.') { "" } else { ".0" };
    Some(match exponent {
        "0" => format!("{mantissa}{point}"),
        _ => format!("{mantissa}{point}e{exponent}"),
    })
}
