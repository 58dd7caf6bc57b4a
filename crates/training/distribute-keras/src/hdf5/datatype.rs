//! The types of values: numbers and texts.

use half::{bf16, f16};

use super::Result;
use super::cursor::{Cursor, text};
use super::file::File;

/// A type of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Datatype {
    /// The bytes of one value.
    pub(super) size: usize,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Integer {
        signed: bool,
        big: bool,
    },
    Float {
        bfloat16: bool,
        big: bool,
    },
    /// Two bytes without a type, as which h5py writes `bfloat16`.
    Opaque,
    Text,
    /// In the global heap.
    LongText,
}

impl Datatype {
    /// Reads a type, which may have others inside.
    pub(super) fn read(body: &[u8]) -> Result<Self> {
        let mut body = Cursor::new(body);
        let class = body.u8()? & 15;
        let flags = body.u8()?;
        body.skip(2)?;
        let size = body.size(4)?;
        let big = flags & 1 != 0;
        let kind = match class {
            0 if size <= 8 => Kind::Integer {
                signed: flags & 8 != 0,
                big,
            },
            1 if matches!(size, 2 | 4 | 8) && flags & 0x40 == 0 => {
                body.skip(5)?;
                let exponent = body.u8()?;
                let wanted = [5, 8, 11][size.ilog2() as usize - 1];
                let bfloat16 = size == 2 && exponent == 8;
                if exponent != wanted && !bfloat16 {
                    return Err(format!("numbers with an exponent of {exponent} bits"));
                }
                Kind::Float { bfloat16, big }
            }
            3 => Kind::Text,
            5 => Kind::Opaque,
            8 => {
                let base = Self::read(body.rest())?;
                if base.size != size || !matches!(base.kind, Kind::Integer { .. }) {
                    return Err("an enumeration of no numbers".to_string());
                }
                base.kind
            }
            9 if flags & 15 == 1 && size == 16 => Kind::LongText,
            other => return Err(format!("values of the type {other} of HDF5")),
        };
        if size == 0 && kind != Kind::Text {
            return Err("values of no bytes".to_string());
        }
        Ok(Self { size, kind })
    }

    /// The numbers in some bytes; `bfloat16` says what two bytes without a type are.
    pub(super) fn numbers(self, bytes: &[u8], bfloat16: bool) -> Result<Vec<f32>> {
        let values = bytes.chunks_exact(self.size.max(1));
        Ok(match self.kind {
            Kind::Integer { signed, big } => values
                .map(|value| {
                    let bits = bits(value, big);
                    // The sign is the highest bit.
                    let shift = 64 - 8 * self.size as u32;
                    if signed {
                        ((bits << shift) as i64 >> shift) as f32
                    } else {
                        bits as f32
                    }
                })
                .collect(),
            Kind::Float { bfloat16, big } => {
                let number = float(self.size, bfloat16);
                values.map(|value| number(bits(value, big))).collect()
            }
            Kind::Opaque if bfloat16 && self.size == 2 => {
                let number = float(2, true);
                values.map(|value| number(bits(value, false))).collect()
            }
            Kind::Opaque | Kind::Text | Kind::LongText => {
                return Err("it holds no numbers".to_string());
            }
        })
    }

    /// The texts in some bytes.
    pub(super) fn texts(self, file: &File<'_>, bytes: &[u8]) -> Result<Vec<String>> {
        let values = bytes.chunks_exact(self.size.max(1));
        match self.kind {
            Kind::Text => Ok(values.map(text).collect()),
            Kind::LongText => values
                .map(|value| {
                    let mut value = Cursor::new(value);
                    let (length, address) = (value.size(4)?, value.u64()?);
                    if length == 0 {
                        return Ok(String::new());
                    }
                    let found = file.global(address, value.u32()?)?;
                    let found = found.get(..length).ok_or("a text ends too early")?;
                    file.pay(length)?;
                    Ok(String::from_utf8_lossy(found).into_owned())
                })
                .collect(),
            _ => Err("it holds no text".to_string()),
        }
    }
}

fn bits(value: &[u8], big: bool) -> u64 {
    let add = |number, byte: &u8| number << 8 | u64::from(*byte);
    if big {
        value.iter().fold(0, add)
    } else {
        value.iter().rev().fold(0, add)
    }
}

/// The number of some bits.
fn float(size: usize, bfloat16: bool) -> fn(u64) -> f32 {
    match (size, bfloat16) {
        (2, true) => |bits| bf16::from_bits(bits as u16).to_f32(),
        (2, false) => |bits| f16::from_bits(bits as u16).to_f32(),
        (4, _) => |bits| f32::from_bits(bits as u32),
        _ => |bits| f64::from_bits(bits) as f32,
    }
}
